"""haiku: transformed functions, state, recurrent cores."""

import functools

import haiku as hk
import jax
import jax.numpy as jnp
import optax
from program import integers, normal, program


@program("haiku")
def resnet18_block_groups_train():
    """hk.nets.ResNet with its batch statistics in haiku's state; weight decay by tree_map, momentum."""

    def forward(images, is_training):
        groups = dict(blocks_per_group=(1, 1, 1, 1), channels_per_group=(8, 8, 16, 16), bottleneck=True, initial_conv_config=dict(stride=1))
        return hk.nets.ResNet(num_classes=10, resnet_v2=True, **groups)(images, is_training)

    network, optimizer = hk.transform_with_state(forward), optax.sgd(0.05, 0.9)
    images, labels = normal(0, 2, 16, 16, 3), integers(1, 10, 2)
    params, state = network.init(jax.random.key(0), images, True)

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(params, state, optimizer_state, images, labels):
        def loss(params):
            logits, new = network.apply(params, state, None, images, True)
            decay = sum(jnp.sum(p**2) for (name, _, p) in hk.data_structures.traverse(params) if "batchnorm" not in name)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean() + 1e-4 * decay, new

        (value, new), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, optimizer_state = optimizer.update(grads, optimizer_state)
        return optax.apply_updates(params, updates), new, optimizer_state, value

    return step, (params, state, optimizer.init(params), images, labels)


@program("haiku")
def char_lstm_train():
    """Two LSTMs unrolled by hk.dynamic_unroll over a text; the core's state goes from batch to batch."""

    def unroll(tokens, state):
        core = hk.DeepRNN([lambda x: jax.nn.one_hot(x, 30), hk.LSTM(24), jax.nn.relu, hk.LSTM(24), hk.nets.MLP([24, 30])])
        state = core.initial_state(tokens.shape[1]) if state is None else state
        return hk.dynamic_unroll(core, tokens, state)

    network, optimizer = hk.without_apply_rng(hk.transform(unroll)), optax.chain(optax.clip_by_global_norm(1.0), optax.rmsprop(1e-3))
    tokens = integers(0, 30, 13, 3)
    params = network.init(jax.random.key(0), tokens[:-1], None)
    _, core = network.apply(params, tokens[:-1], None)

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(params, state, core, tokens):
        def loss(params):
            logits, new = network.apply(params, tokens[:-1], core)
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[1:]).mean(), new

        (value, core_new), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, core_new, value

    return step, (params, optimizer.init(params), core, tokens)


@program("haiku")
def transformer_layer_stack():
    """hk.layer_stack over attention layers with dropout, bf16 by a mixed-precision policy, adafactor."""

    def forward(tokens):
        x = hk.Embed(50, 32)(tokens).astype(jnp.bfloat16)

        @hk.layer_stack(3)
        def layer(x):
            y = hk.LayerNorm(-1, True, True)(x)
            mask = jnp.tril(jnp.ones((x.shape[1],) * 2))[None, None]
            x = x + hk.MultiHeadAttention(4, 8, w_init=hk.initializers.VarianceScaling(0.3), model_size=32)(y, y, y, mask)
            y = hk.dropout(hk.next_rng_key(), 0.1, hk.LayerNorm(-1, True, True)(x))
            return x + hk.nets.MLP([64, 32], activation=jax.nn.gelu)(y)

        return hk.Linear(50)(layer(x)).astype(jnp.float32)

    network, optimizer = hk.transform(forward), optax.adafactor(1e-2, min_dim_size_to_factor=16)
    tokens = integers(0, 50, 2, 11)
    params = network.init(jax.random.key(0), tokens)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, key, tokens):
        def loss(params):
            half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
            logits = network.apply(half, key, tokens[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return step, (params, optimizer.init(params), jax.random.key(1), tokens)


@program("haiku")
def vector_quantiser_ema():
    """hk.nets.VectorQuantizerEMA: a codebook that follows by moving averages, straight-through gradients."""

    def forward(x, is_training):
        z = hk.Linear(8)(jax.nn.relu(hk.Linear(32)(x)))
        out = hk.nets.VectorQuantizerEMA(8, 16, 0.25, 0.99)(z, is_training)
        return hk.nets.MLP([32, x.shape[-1]])(out["quantize"]), out

    network = hk.transform_with_state(forward)
    x = normal(0, 20, 12)
    params, state = network.init(jax.random.key(0), x, True)

    @jax.jit
    def step(params, state, x):
        def loss(params):
            (y, out), new = network.apply(params, state, None, x, True)
            return jnp.mean((y - x) ** 2) + out["loss"], (new, out["perplexity"])

        (value, aux), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), aux, value

    return step, (params, state, x)


@program("haiku")
def spectral_norm_gan():
    """A generator and a discriminator under spectral normalisation, both updated in one step."""

    def draw(z):
        layers = [hk.Linear(64), jax.nn.relu, hk.Reshape((4, 4, 4)), hk.Conv2DTranspose(4, 4, 2), jax.nn.relu]
        return hk.Sequential([*layers, hk.Conv2DTranspose(1, 4, 2), jnp.tanh])(z)

    def judge(x):
        for width in (4, 8):
            x = jax.nn.leaky_relu(hk.Conv2D(width, 3, 2)(x))
        return hk.Linear(1)(hk.Flatten()(x))

    generator = hk.without_apply_rng(hk.transform(draw))
    discriminator = hk.without_apply_rng(hk.transform(judge))
    normaliser = hk.transform_with_state(lambda params: hk.SNParamsTree(ignore_regex=".*b$")(params))
    z, x = normal(0, 4, 8), normal(1, 4, 16, 16, 1)
    g = generator.init(jax.random.key(0), z)
    d = discriminator.init(jax.random.key(1), x)
    _, normaliser_state = normaliser.init(jax.random.key(2), d)
    optimizer = optax.adam(2e-4, 0.5)

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2, 3))
    def step(g, d, state, normaliser_state, z, x):
        def scores(g, d):
            normal_d, new = normaliser.apply(None, normaliser_state, None, d)
            fake = generator.apply(g, z)
            return discriminator.apply(normal_d, fake), discriminator.apply(normal_d, x), new

        g_grad = jax.grad(lambda g: -jnp.mean(scores(g, d)[0]))(g)

        def hinge(d):
            fake, real, new = scores(g, d)
            return jnp.mean(jax.nn.relu(1 + fake)) + jnp.mean(jax.nn.relu(1 - real)), new

        (value, new), d_grad = jax.value_and_grad(hinge, has_aux=True)(d)
        updates, state = optimizer.update((g_grad, d_grad), state)
        g, d = optax.apply_updates((g, d), updates)
        return g, d, state, new, value

    return step, (g, d, optimizer.init((g, d)), normaliser_state, z, x)


@program("haiku")
def attention_over_unrolled_gru():
    """A recurrent core that is unrolled by haiku's scan, attention over its states, batch normalisation with state."""

    def network(x, is_training):
        core = hk.GRU(16)
        states, _ = hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))
        states = hk.BatchNorm(True, True, 0.9)(states, is_training).swapaxes(0, 1)
        attention = hk.MultiHeadAttention(2, 8, w_init=hk.initializers.VarianceScaling())
        return hk.Linear(3)(attention(states, states, states)[:, -1])

    model = hk.without_apply_rng(hk.transform_with_state(network))
    x, y = normal(1, 9, 4, 6), integers(2, 3, 4)
    params, state = model.init(jax.random.key(0), x, True)
    optimizer = optax.rmsprop(1e-3, momentum=0.9)

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(params, state, moments, x, y):
        def loss(params):
            logits, new = model.apply(params, state, x, True)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), new

        (value, new), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, moments = optimizer.update(grads, moments)
        return optax.apply_updates(params, updates), new, moments, value

    return step, (params, state, optimizer.init(params), x, y)
