"""flax.linen: modules with default initialisers, TrainState, batch statistics, dropout, masks."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training import train_state
from program import integers, normal, program, shape


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


class MnistCnn(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.avg_pool(nn.relu(nn.Conv(16, (3, 3))(x)), (2, 2), (2, 2))
        x = nn.avg_pool(nn.relu(nn.Conv(32, (3, 3))(x)), (2, 2), (2, 2))
        x = nn.relu(nn.Dense(64)(x.reshape(len(x), -1)))
        x = nn.Dropout(0.3, deterministic=not train)(x)
        return nn.Dense(10)(x)


@program("flax linen")
def mnist_train():
    """The example of flax: TrainState, SGD with momentum, accuracy."""
    model = MnistCnn()
    images, labels = normal(0, 8, 14, 14, 1), integers(1, 10, 8)
    params = model.init(jax.random.key(0), images, False)["params"]
    state = train_state.TrainState.create(apply_fn=model.apply, params=params, tx=optax.sgd(0.1, 0.9))

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state, images, labels, key):
        def loss(params):
            logits = state.apply_fn({"params": params}, images, True, rngs={"dropout": jax.random.fold_in(key, state.step)})
            return cross_entropy(logits, labels), logits

        (value, logits), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        return state.apply_gradients(grads=grads), value, jnp.mean(jnp.argmax(logits, -1) == labels)

    return step, (state, images, labels, jax.random.key(1))


class ResidualBlock(nn.Module):
    filters: int
    strides: tuple = (1, 1)
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x, train):
        norm = functools.partial(nn.BatchNorm, use_running_average=not train, momentum=0.9, dtype=self.dtype)
        conv = functools.partial(nn.Conv, use_bias=False, dtype=self.dtype)
        y = nn.relu(norm()(conv(self.filters, (3, 3), self.strides)(x)))
        y = norm(scale_init=nn.initializers.zeros_init())(conv(self.filters, (3, 3))(y))
        if x.shape != y.shape:
            x = norm()(conv(self.filters, (1, 1), self.strides)(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    stages: tuple
    filters: int
    dtype: jnp.dtype = jnp.float32
    classes: int = 10

    @nn.compact
    def __call__(self, x, train):
        x = nn.Conv(self.filters, (3, 3), use_bias=False, dtype=self.dtype)(x)
        for stage, blocks in enumerate(self.stages):
            for i in range(blocks):
                x = ResidualBlock(self.filters * 2**stage, (2, 2) if stage and not i else (1, 1), self.dtype)(x, train)
        return nn.Dense(self.classes)(jnp.mean(x, (1, 2))).astype(jnp.float32)


class BatchState(train_state.TrainState):
    batch_stats: dict


def resnet_step(model, images_shape, optimizer):
    def create(key):
        variables = model.init(key, jnp.zeros(images_shape), False)
        return BatchState.create(apply_fn=model.apply, params=variables["params"], batch_stats=variables["batch_stats"], tx=optimizer)

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state, images, labels):
        def loss(params):
            variables = {"params": params, "batch_stats": state.batch_stats}
            logits, updates = state.apply_fn(variables, images, True, mutable=["batch_stats"])
            return cross_entropy(logits, labels), (logits, updates)

        (value, (logits, updates)), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        state = state.apply_gradients(grads=grads, batch_stats=updates["batch_stats"])
        return state, {"loss": value, "accuracy": jnp.mean(jnp.argmax(logits, -1) == labels), "norm": optax.global_norm(grads)}

    return create, step


@program("flax linen")
def resnet_train_small():
    create, step = resnet_step(ResNet((1, 1), 8), (4, 16, 16, 3), optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)))
    return step, (create(jax.random.key(0)), normal(1, 4, 16, 16, 3), integers(2, 10, 4))


@program("flax linen", runs=False)
def resnet_train_bf16():
    """ResNet-34 for ImageNet in bf16, momentum and a cosine schedule; only compiled."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.1, 1000, 90000)
    create, step = resnet_step(ResNet((3, 4, 6, 3), 64, jnp.bfloat16, 1000), (1, 224, 224, 3), optax.sgd(schedule, 0.9, nesterov=True))
    return step, (jax.eval_shape(create, jax.random.key(0)), shape(128, 224, 224, 3), shape(128, dtype=jnp.int32))


class TransformerBlock(nn.Module):
    heads: int
    dropout: float
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x, mask, train):
        y = nn.LayerNorm(dtype=self.dtype)(x)
        attention = nn.MultiHeadDotProductAttention(self.heads, dtype=self.dtype, dropout_rate=self.dropout, deterministic=not train)
        x = x + attention(y, y, mask=mask)
        y = nn.LayerNorm(dtype=self.dtype)(x)
        y = nn.Dense(x.shape[-1], dtype=self.dtype)(nn.gelu(nn.Dense(4 * x.shape[-1], dtype=self.dtype)(y)))
        return x + nn.Dropout(self.dropout, deterministic=not train)(y)


class Gpt(nn.Module):
    layers: int
    heads: int
    width: int
    vocabulary: int
    dtype: jnp.dtype = jnp.bfloat16
    remat: bool = False

    @nn.compact
    def __call__(self, tokens, train=True):
        embed = nn.Embed(self.vocabulary, self.width, dtype=self.dtype)
        x = embed(tokens) + nn.Embed(1024, self.width, dtype=self.dtype)(jnp.arange(tokens.shape[1]))
        mask = nn.combine_masks(nn.make_causal_mask(tokens), nn.make_attention_mask(tokens > 0, tokens > 0))
        block = nn.remat(TransformerBlock, static_argnums=(3,)) if self.remat else TransformerBlock
        for _ in range(self.layers):
            x = block(self.heads, 0.1, self.dtype)(x, mask, train)
        return embed.attend(nn.LayerNorm(dtype=self.dtype)(x)).astype(jnp.float32)


def language_step(model, tokens_shape, optimizer):
    def create(key):
        params = model.init(key, jnp.ones(tokens_shape, jnp.int32), False)["params"]
        return train_state.TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state, tokens, key):
        def loss(params):
            logits = state.apply_fn({"params": params}, tokens[:, :-1], rngs={"dropout": jax.random.fold_in(key, state.step)})
            weights = (tokens[:, 1:] > 0).astype(jnp.float32)
            each = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
            return jnp.sum(each * weights) / jnp.sum(weights)

        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads), value

    return create, step


@program("flax linen")
def gpt_train_bf16_small():
    create, step = language_step(Gpt(2, 4, 32, 64), (2, 16), optax.adamw(1e-3, weight_decay=0.1))
    return step, (create(jax.random.key(0)), integers(1, 64, 2, 17), jax.random.key(2))


@program("flax linen")
def gpt_train_f32_lion():
    create, step = language_step(Gpt(1, 2, 16, 50, jnp.float32), (2, 12), optax.lion(1e-4))
    return step, (create(jax.random.key(0)), integers(1, 50, 2, 13), jax.random.key(2))


@program("flax linen", runs=False)
def gpt_medium_train_remat():
    """24 layers, 1024 wide, rematerialised blocks, adafactor; only compiled."""
    create, step = language_step(Gpt(24, 16, 1024, 50304, remat=True), (1, 1024), optax.adafactor(1e-3))
    return step, (jax.eval_shape(create, jax.random.key(0)), shape(8, 1025, dtype=jnp.int32), jax.eval_shape(lambda: jax.random.key(2)))


@program("flax linen")
def lstm_text_classifier():
    """A bidirectional LSTM over sentences of different lengths, nn.RNN, embedding, evaluation only."""

    class Classifier(nn.Module):
        @nn.compact
        def __call__(self, tokens, lengths):
            x = nn.Embed(100, 16)(tokens)
            forward, backward = nn.RNN(nn.OptimizedLSTMCell(24)), nn.RNN(nn.GRUCell(24), reverse=True, keep_order=True)
            x = nn.Bidirectional(forward, backward)(x, seq_lengths=lengths)
            mask = (jnp.arange(x.shape[1]) < lengths[:, None])[..., None]
            return nn.Dense(5)(jnp.sum(x * mask, 1) / lengths[:, None])

    model = Classifier()
    arguments = integers(0, 100, 4, 14), jnp.array([14, 3, 9, 6])
    params = model.init(jax.random.key(0), *arguments)
    return jax.jit(lambda params, *batch: jax.nn.log_softmax(model.apply(params, *batch))), (params, *arguments)


@program("flax linen")
def variational_autoencoder():
    """The VAE of flax's examples: reparametrised samples, KL, Adam, pictures drawn from the prior in the same step."""

    class Vae(nn.Module):
        def setup(self):
            self.encoder = nn.Sequential([nn.Dense(32), nn.relu, nn.Dense(16)])
            self.decoder = nn.Sequential([nn.Dense(32), nn.relu, nn.Dense(64)])

        def __call__(self, x, key):
            mean, log_variance = jnp.split(self.encoder(x), 2, -1)
            z = mean + jnp.exp(0.5 * log_variance) * jax.random.normal(key, mean.shape)
            return self.decoder(z), mean, log_variance

        def generate(self, z):
            return nn.sigmoid(self.decoder(z))

    model, optimizer = Vae(), optax.adam(1e-3)
    x = jax.random.bernoulli(jax.random.key(3), 0.4, (8, 64)).astype(jnp.float32)
    params = model.init(jax.random.key(0), x, jax.random.key(1))["params"]

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, x, key, z):
        def loss(params):
            logits, mean, log_variance = model.apply({"params": params}, x, key)
            reconstruction = optax.sigmoid_binary_cross_entropy(logits, x).sum(-1).mean()
            divergence = -0.5 * jnp.sum(1 + log_variance - mean**2 - jnp.exp(log_variance), -1).mean()
            return reconstruction + divergence

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        return params, state, value, model.apply({"params": params}, z, method=Vae.generate).reshape(-1, 8, 8)

    return step, (params, optimizer.init(params), x, jax.random.key(5), normal(6, 4, 8))


@program("flax linen")
def unet_diffusion_train():
    """A denoising U-Net: timestep embedding, group norm, transposed convolutions, attention in the middle, EMA of parameters."""
    model, optimizer = DenoisingUNet(8), optax.adam(1e-4)
    x = normal(0, 2, 16, 16, 3)
    params = model.init(jax.random.key(0), x, jnp.zeros(2))

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(params, average, state, x, key):
        k1, k2 = jax.random.split(key)
        t = jax.random.uniform(k1, (len(x),))
        noise = jax.random.normal(k2, x.shape)
        alpha = jnp.cos(0.5 * jnp.pi * t)[:, None, None, None] ** 2
        noisy = jnp.sqrt(alpha) * x + jnp.sqrt(1 - alpha) * noise
        value, grads = jax.value_and_grad(lambda p: jnp.mean((model.apply(p, noisy, t) - noise) ** 2))(params)
        updates, state = optimizer.update(grads, state)
        params = optax.apply_updates(params, updates)
        return params, optax.incremental_update(params, average, 1e-3), state, value

    copy = jax.tree.map(jnp.copy, params)
    return step, (params, copy, optimizer.init(params), x, jax.random.key(2))


class DenoisingUNet(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x, t):
        frequency = jnp.exp(jnp.linspace(0.0, 4.0, 8))
        time = nn.Dense(self.width * 4)(jnp.concatenate([jnp.sin(t[:, None] * frequency), jnp.cos(t[:, None] * frequency)], -1))

        def block(x, width):
            y = nn.swish(nn.GroupNorm(4)(x))
            y = nn.Conv(width, (3, 3))(y) + nn.Dense(width)(nn.swish(time))[:, None, None]
            y = nn.Conv(width, (3, 3))(nn.swish(nn.GroupNorm(4)(y)))
            return y + (x if x.shape[-1] == width else nn.Conv(width, (1, 1))(x))

        x = nn.Conv(self.width, (3, 3))(x)
        skips = []
        for width in (self.width, 2 * self.width):
            x = block(x, width)
            skips.append(x)
            x = nn.Conv(width, (3, 3), (2, 2))(x)
        b, h, w, c = x.shape
        x = x + nn.SelfAttention(2)(nn.GroupNorm(4)(x).reshape(b, h * w, c)).reshape(x.shape)
        for width in (2 * self.width, self.width):
            x = nn.ConvTranspose(width, (2, 2), (2, 2))(x)
            x = block(jnp.concatenate([x, skips.pop()], -1), width)
        return nn.Conv(3, (3, 3), kernel_init=nn.initializers.zeros_init())(nn.swish(nn.GroupNorm(4)(x)))


@program("flax linen")
def diffusion_sampling():
    """Ten steps of DDIM with classifier-free guidance, as a fori_loop over the network."""
    model = DenoisingUNet(8)
    x = normal(0, 2, 16, 16, 3)
    params = model.init(jax.random.key(0), x, jnp.zeros(2))
    params = jax.tree.map(lambda p: p + 0.02 * jax.random.normal(jax.random.key(7), p.shape), params)

    @jax.jit
    def sample(params, x):
        def denoise(i, x):
            t, s = 0.98 - 0.09 * i, 0.98 - 0.09 * (i + 1)
            noise = model.apply(params, jnp.concatenate([x, x]), jnp.concatenate([jnp.full(len(x), t), jnp.zeros(len(x))]))
            conditional, free = jnp.split(noise, 2)
            noise = free + 2.0 * (conditional - free)
            a, b = jnp.cos(0.5 * jnp.pi * t) ** 2, jnp.cos(0.5 * jnp.pi * s) ** 2
            clean = jnp.clip((x - jnp.sqrt(1 - a) * noise) / jnp.sqrt(a), -1, 1)
            return jnp.sqrt(b) * clean + jnp.sqrt(1 - b) * noise

        return jax.lax.fori_loop(0, 10, denoise, x)

    return sample, (params, x)


@program("flax linen")
def lm_decode_with_flax_cache():
    """Autoregressive decoding with flax's own cache collection (decode=True), greedy, a scan over steps."""

    class Decoder(nn.Module):
        @nn.compact
        def __call__(self, token):
            x = nn.Embed(40, 16)(token)
            for _ in range(2):
                y = nn.LayerNorm()(x)
                x = x + nn.MultiHeadDotProductAttention(2, decode=True)(y, y)
                x = x + nn.Dense(16)(nn.gelu(nn.Dense(32)(nn.LayerNorm()(x))))
            return nn.Dense(40)(x)

    model = Decoder()
    variables = model.init(jax.random.key(0), jnp.ones((2, 12), jnp.int32))

    @functools.partial(jax.jit, donate_argnums=1)
    def decode(params, cache, token):
        def step(carry, _):
            cache, token = carry
            logits, new = model.apply({"params": params, "cache": cache}, token, mutable=["cache"])
            token = jnp.argmax(logits[:, -1:], -1)
            return (new["cache"], token), token[:, 0]

        (cache, _), tokens = jax.lax.scan(step, (cache, token), None, length=8)
        return tokens.T, cache

    return decode, (variables["params"], variables["cache"], jnp.array([[1], [2]]))


class EncoderBlock(nn.Module):
    """As in the examples of flax: everything by default, but for the width."""

    heads: int = 4

    @nn.compact
    def __call__(self, x, mask, train):
        y = nn.MultiHeadDotProductAttention(self.heads, dropout_rate=0.1, deterministic=not train)(nn.LayerNorm()(x), mask=mask)
        x = x + nn.Dropout(0.1, deterministic=not train)(y)
        y = nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(4 * x.shape[-1])(nn.LayerNorm()(x))))
        return x + nn.Dropout(0.1, deterministic=not train)(y)


@program("flax linen")
def encoder_with_gradient_accumulation():
    """optax.MultiSteps around AdamW with a warm-up and clipping: the update is a conditional, and all state is donated."""

    class Encoder(nn.Module):
        @nn.compact
        def __call__(self, tokens, train):
            mask = nn.make_attention_mask(tokens > 0, tokens > 0)
            x = nn.Embed(50, 32)(tokens)
            for _ in range(2):
                x = EncoderBlock()(x, mask, train)
            return nn.Dense(5)(x.mean(1))

    model = Encoder()
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100)
    optimizer = optax.MultiSteps(optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule)), every_k_schedule=4)
    tokens, labels = integers(1, 50, 4, 12), integers(2, 5, 4)
    params = model.init(jax.random.key(0), tokens, False)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, rng, tokens, labels):
        def loss(params):
            logits = model.apply(params, tokens, True, rngs={"dropout": rng})
            return cross_entropy(logits, labels)

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return step, (params, optimizer.init(params), jax.random.key(3), tokens, labels)
