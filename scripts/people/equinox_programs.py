"""equinox: models are pytrees; what is not an array is split off before jit."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from program import integers, normal, program


def training(model, optimizer, loss, *batch):
    """Equinox's usual step: `filter_value_and_grad`, `optax`, `apply_updates`, over the arrays of the model."""
    params, static = eqx.partition(model, eqx.is_array)
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, *batch):
        model = eqx.combine(params, static)
        value, grads = eqx.filter_value_and_grad(loss)(model, *batch)
        updates, state = optimizer.update(grads, state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.filter(eqx.apply_updates(model, updates), eqx.is_array), state, value

    return step, (params, state, *batch)


@program("equinox")
def mlp_mixer_train():
    class Mixer(eqx.Module):
        patch: eqx.nn.Conv2d
        blocks: list
        head: eqx.nn.Linear

        def __init__(self, key):
            keys = jax.random.split(key, 10)
            self.patch = eqx.nn.Conv2d(3, 12, 4, 4, key=keys[0])
            self.blocks = [
                (eqx.nn.LayerNorm((12, 16)), eqx.nn.MLP(16, 16, 24, 1, key=keys[2 * i + 1]), eqx.nn.LayerNorm((16, 12)), eqx.nn.MLP(12, 12, 24, 1, key=keys[2 * i + 2]))
                for i in range(2)
            ]
            self.head = eqx.nn.Linear(12, 5, key=keys[9])

        def __call__(self, x):
            x = self.patch(x).reshape(12, 16)
            for norm1, mix_patches, norm2, mix_channels in self.blocks:
                x = x + jax.vmap(mix_patches)(norm1(x))
                x = x + jax.vmap(mix_channels)(norm2(x.T)).T
            return self.head(x.mean(-1))

    def loss(model, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(x), y).mean()

    return training(Mixer(jax.random.key(0)), optax.adam(1e-3), loss, normal(1, 3, 3, 16, 16), integers(2, 5, 3))


@program("equinox")
def gru_spirals_train():
    """Equinox's first example: a GRU by lax.scan over each sequence, vmapped, sigmoid at the end."""

    class Rnn(eqx.Module):
        cell: eqx.nn.GRUCell
        linear: eqx.nn.Linear

        def __call__(self, sequence):
            last, _ = jax.lax.scan(lambda state, x: (self.cell(x, state), None), jnp.zeros(16), sequence)
            return jax.nn.sigmoid(self.linear(last))[0]

    k1, k2 = jax.random.split(jax.random.key(0))
    model = Rnn(eqx.nn.GRUCell(2, 16, key=k1), eqx.nn.Linear(16, 1, key=k2))

    def loss(model, x, y):
        p = jax.vmap(model)(x)
        return -jnp.mean(y * jnp.log(p) + (1 - y) * jnp.log(1 - p))

    return training(model, optax.adabelief(1e-3), loss, normal(1, 6, 10, 2), integers(2, 2, 6))


@program("equinox")
def neural_cellular_attention():
    """Rotary multi-head attention, RMS norm, dropout keys per example, weights shared over depth by scan."""

    class Block(eqx.Module):
        attention: eqx.nn.MultiheadAttention
        rotary: eqx.nn.RotaryPositionalEmbedding
        norm: eqx.nn.RMSNorm
        mlp: eqx.nn.MLP
        dropout: eqx.nn.Dropout

        def __call__(self, x, key):
            y = jax.vmap(self.norm)(x)
            turn = lambda q, k, v: (jax.vmap(self.rotary, 1, 1)(q), jax.vmap(self.rotary, 1, 1)(k), v)
            y = self.attention(y, y, y, mask=jnp.tril(jnp.ones((len(x), len(x)), bool)), process_heads=turn)
            return x + self.dropout(y + jax.vmap(self.mlp)(y), key=key)

    k1, k2 = jax.random.split(jax.random.key(0))
    model = Block(eqx.nn.MultiheadAttention(2, 16, key=k1), eqx.nn.RotaryPositionalEmbedding(8), eqx.nn.RMSNorm(16), eqx.nn.MLP(16, 16, 32, 1, key=k2), eqx.nn.Dropout(0.1))

    def loss(model, x, key):
        def run(x, key):
            return jax.lax.scan(lambda x, k: (model(x, k), None), x, jax.random.split(key, 3))[0]

        return jnp.mean(jax.vmap(run)(x, jax.random.split(key, len(x))) ** 2)

    return training(model, optax.lamb(1e-3), loss, normal(1, 2, 9, 16), jax.random.key(3))


@program("equinox")
def batch_norm_state_inference():
    """Inference with eqx.nn.State: batch norm with kept statistics, adaptive pooling."""
    keys = jax.random.split(jax.random.key(0), 4)
    layers = eqx.nn.make_with_state(
        lambda: eqx.nn.Sequential([
            eqx.nn.Conv2d(3, 8, 3, padding=1, key=keys[0]), eqx.nn.BatchNorm(8, "batch", mode="batch"), eqx.nn.Lambda(jax.nn.leaky_relu),
            eqx.nn.Conv2d(8, 16, 3, 2, padding=1, groups=4, key=keys[1]), eqx.nn.AdaptiveAvgPool2d((2, 2)),
            eqx.nn.Lambda(jnp.ravel), eqx.nn.Linear(64, 10, key=keys[2]),
        ])
    )
    model, state = layers()
    params, static = eqx.partition((model, state), eqx.is_array)

    @jax.jit
    def run(params, x):
        model, state = eqx.combine(params, static)
        out, state = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)
        return jax.nn.softmax(out), eqx.filter(state, eqx.is_array)

    return run, (params, normal(1, 4, 3, 12, 12))


@program("equinox")
def score_matching_hutchinson():
    """Sliced score matching: a Jacobian-vector product inside the loss, gradients through it, schedule-free Adam."""
    model = eqx.nn.MLP(4, 4, 32, 2, jax.nn.softplus, key=jax.random.key(0))

    def loss(model, x, key):
        def one(x, v):
            score, directional = jax.jvp(model, (x,), (v,))
            return v @ directional + 0.5 * score @ score

        return jnp.mean(jax.vmap(one)(x, jax.random.normal(key, x.shape)))

    return training(model, optax.contrib.schedule_free_adamw(1e-3), loss, normal(1, 12, 4), jax.random.key(2))
