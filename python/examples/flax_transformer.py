"""A flax language model: what a training step will need on machines that are not here, and the step itself with less.

python flax_transformer.py
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import memplan


class Block(nn.Module):
    """Attention and a network, each beside what it reads."""

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = nn.LayerNorm()(x)
        mask = nn.make_causal_mask(y[..., 0])
        x = x + nn.MultiHeadDotProductAttention(num_heads=self.heads)(y, mask=mask)
        y = nn.Dense(4 * x.shape[-1])(nn.LayerNorm()(x))
        return x + nn.Dense(x.shape[-1])(nn.gelu(y))


class Model(nn.Module):
    """A stack of blocks between an embedding and itself."""

    vocabulary: int = 512
    width: int = 64
    layers: int = 4

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        embedding = nn.Embed(self.vocabulary, self.width)
        x = embedding(tokens)
        for _ in range(self.layers):
            x = Block(heads=4)(x)
        return embedding.attend(nn.LayerNorm()(x))


model, optimizer = Model(), optax.adamw(1e-3)


def step(params, state, tokens):
    """One step of training."""

    def loss(params):
        logits = model.apply(params, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    value, gradient = jax.value_and_grad(loss)(params)
    updates, state = optimizer.update(gradient, state, params)
    return optax.apply_updates(params, updates), state, value


def main() -> None:
    tokens = jax.random.randint(jax.random.key(0), (8, 257), 0, model.vocabulary)
    params = model.init(jax.random.key(1), tokens[:, :-1])
    state = optimizer.init(params)

    # Before anything runs: shapes are enough, and so is a laptop.
    large = jax.ShapeDtypeStruct((4096, 257), jnp.int32)
    for target in ("gpu-a100", "gpu-h200", "tpu-v5e"):
        print(memplan.fits(jax.jit(step, donate_argnums=(0, 1)), params, state, large, target=target))

    train = memplan.jit(step, donate_argnums=(0, 1), report=print)
    for i in range(3):
        params, state, loss = train(params, state, tokens)
        print(f"step {i}: loss {loss:.4f}")


if __name__ == "__main__":
    main()
