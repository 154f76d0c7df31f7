"""Programs of libraries, for unseen.py: images with Flax, Keras and Equinox."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax import lax

from layers import BF16, F16, F32, shape, tokens
from libraries import KEY, cross_entropy, initial, is_shape, program, training, training_keras, updated, updated_with


class Encoder(nn.Module):
    d: int
    h: int
    dtype: type = F32

    @nn.compact
    def __call__(self, x, train):
        y = nn.LayerNorm(dtype=self.dtype)(x)
        attention = nn.MultiHeadDotProductAttention(self.h, dropout_rate=0.1, dtype=self.dtype)
        x = x + attention(y, deterministic=not train)
        y = nn.LayerNorm(dtype=self.dtype)(x)
        y = nn.gelu(nn.Dense(4 * self.d, dtype=self.dtype)(y))
        y = nn.Dropout(0.1)(y, deterministic=not train)
        y = nn.Dense(self.d, dtype=self.dtype)(y)
        return x + nn.Dropout(0.1)(y, deterministic=not train)


class ViT(nn.Module):
    d: int
    h: int
    n: int
    patch: int
    classes: int
    dtype: type = F32

    @nn.compact
    def __call__(self, x, train=True):
        x = nn.Conv(64, (3, 3), use_bias=False, dtype=self.dtype)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train, dtype=self.dtype)(x))
        x = nn.Conv(self.d, (self.patch,) * 2, (self.patch,) * 2, padding='VALID', dtype=self.dtype)(x)
        x = x.reshape(x.shape[0], -1, self.d)
        token = self.param('cls', nn.initializers.zeros, (1, 1, self.d))
        x = jnp.concatenate([jnp.tile(token.astype(x.dtype), (x.shape[0], 1, 1)), x], 1)
        x = x + self.param('pos', nn.initializers.normal(0.02), (1, x.shape[1], self.d)).astype(x.dtype)
        for _ in range(self.n):
            x = Encoder(self.d, self.h, self.dtype)(x, train)
        return nn.Dense(self.classes)(nn.LayerNorm()(x[:, 0]))


@program
def linen_vit_multisteps():
    """Flax Linen: a vision transformer with dropout, and LAMB on gradients of four steps."""
    model, images = ViT(384, 6, 3, 16, 1000), shape(64, 224, 224, 3)
    variables = jax.eval_shape(lambda k, x: model.init(dict(params=k, dropout=k), x), KEY, images)
    parameters, statistics = variables['params'], variables['batch_stats']
    optimizer = optax.MultiSteps(optax.chain(optax.clip_by_global_norm(1.0), optax.lamb(1e-3)), 4)

    def step(p, statistics, state, x, y, key):
        def loss(p):
            variables = dict(params=p, batch_stats=statistics)
            logits, changed = model.apply(variables, x, rngs=dict(dropout=key), mutable=['batch_stats'])
            labels = optax.smooth_labels(jax.nn.one_hot(y, 1000), 0.1)
            return optax.softmax_cross_entropy(logits, labels).mean(), changed['batch_stats']

        p, state, value, statistics_after = updated_with(optimizer, loss, p, state)
        return p, statistics_after, state, value

    state = jax.eval_shape(optimizer.init, parameters)
    return step, (parameters, statistics, state, images, tokens(64), KEY), (0, 1, 2)


@program
def siglip():
    """Flax Linen: images and texts in pairs, a sigmoid loss, and Adafactor."""

    class Text(nn.Module):
        @nn.compact
        def __call__(self, words, train=True):
            positions = self.param('pos', nn.initializers.normal(0.02), (words.shape[1], 384))
            x = nn.Embed(16000, 384, dtype=BF16)(words) + positions.astype(BF16)
            for _ in range(2):
                x = Encoder(384, 6, BF16)(x, train)
            return nn.Dense(256)(x.mean(1).astype(F32))

    of_images, of_texts = ViT(384, 6, 2, 16, 256, BF16), Text()
    images, texts = shape(256, 128, 128, 3), tokens(256, 64)
    v = jax.eval_shape(lambda k, x: of_images.init(k, x, train=False), KEY, images)
    t = jax.eval_shape(lambda k, x: of_texts.init(k, x, train=False), KEY, texts)
    parameters = dict(v=v['params'], t=t['params'], s=shape(), b=shape())
    optimizer = optax.adafactor(1e-3)

    def normal(z):
        return z / jnp.linalg.norm(z, axis=-1, keepdims=True)

    def step(p, statistics, state, images, texts, key):
        def loss(p):
            zi = of_images.apply(dict(params=p['v'], batch_stats=statistics), images, train=False)
            zt = of_texts.apply(dict(params=p['t']), texts, rngs=dict(dropout=key))
            logits = normal(zi) @ normal(zt).T * jnp.exp(p['s']) + p['b']
            labels = 2 * jnp.eye(logits.shape[0]) - 1
            return -jnp.mean(jnp.sum(jax.nn.log_sigmoid(labels * logits), -1))

        return updated(optimizer, loss, p, state)

    state = jax.eval_shape(optimizer.init, parameters)
    return step, (parameters, v['batch_stats'], state, images, texts, KEY), (0, 2)


@program
def perceiver():
    """Flax Linen: Perceiver IO segments images in half precision."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            b, h, w, _ = x.shape
            positions = fourier(h, w)
            pixels = jnp.broadcast_to(positions, (b, *positions.shape))
            data = jnp.concatenate([x.reshape(b, h * w, 3), pixels], -1)
            latent = self.param('lat', nn.initializers.normal(0.02), (256, 512))
            z = jnp.broadcast_to(latent.astype(F16), (b, 256, 512))
            for _ in range(2):
                cross = nn.MultiHeadDotProductAttention(1, qkv_features=256, out_features=512, dtype=F16)
                z = z + cross(nn.LayerNorm(dtype=F16)(z), nn.LayerNorm(dtype=F16)(data))
                for _ in range(2):
                    z = Encoder(512, 8, F16)(z, False)
            query = nn.Dense(512, dtype=F16)(positions)[None]
            attention = nn.MultiHeadDotProductAttention(8, dtype=F16)
            y = attention(jnp.broadcast_to(query, (b, *query.shape[1:])), z)
            return nn.Dense(21, dtype=F16)(y).reshape(b, h, w, 21).argmax(-1)

    def fourier(h, w):
        y, x = jnp.meshgrid(jnp.linspace(-1, 1, h), jnp.linspace(-1, 1, w), indexing='ij')
        frequencies = jnp.pi * jnp.linspace(1, h / 2, 32)
        angles = jnp.stack([y, x], -1)[..., None] * frequencies
        return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1).reshape(h * w, -1).astype(F16)

    model, images = Net(), shape(8, 128, 128, 3, dtype=F16)
    return model.apply, (initial(model, images), images), ()


@program
def keras_resnet_fit():
    """Keras: a small residual network with separable convolutions and Nesterov's momentum."""
    import keras
    from keras import layers

    images = keras.Input((96, 96, 3))
    x = layers.Conv2D(64, 7, 2, 'same', use_bias=False)(layers.Rescaling(1 / 127.5, -1)(images))
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.MaxPooling2D(3, 2, 'same')(x)
    for channels in (64, 128):
        y = layers.BatchNormalization()(layers.SeparableConv2D(channels, 3, padding='same')(x))
        y = layers.Conv2D(channels, 3, padding='same')(layers.Activation('swish')(y))
        y = layers.BatchNormalization()(y)
        x = layers.ReLU()(layers.Add()([layers.Conv2D(channels, 1)(x), y]))
    x = layers.Dropout(0.3, seed=3)(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(images, layers.Dense(100)(x))
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)
    of_logits = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return training_keras(model, optimizer, of_logits, shape(128, 96, 96, 3), tokens(128))


@program
def dp_sgd():
    """Flax Linen: gradients of every example, clipped and with noise."""
    from optax import contrib

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            for channels in (32, 64, 128):
                x = nn.max_pool(nn.relu(nn.Conv(channels, (3, 3))(x)), (2, 2), (2, 2))
            return nn.Dense(10)(nn.relu(nn.Dense(128)(x.reshape(x.shape[0], -1))))

    model = Net()
    parameters = initial(model, shape(1, 32, 32, 3))['params']
    optimizer = contrib.differentially_private_aggregate(1.0, 1.1, jax.random.key(0))

    def loss(p, x, y):
        return cross_entropy(model.apply(dict(params=p), x[None]), y[None]).mean()

    def step(p, state, x, y):
        values, gradients = jax.vmap(jax.value_and_grad(loss), (None, 0, 0))(p, x, y)
        updates, state = optimizer.update(gradients, state, p)
        return optax.apply_updates(p, jax.tree.map(lambda u: -0.1 * u, updates)), state, values.mean()

    state = jax.eval_shape(optimizer.init, parameters)
    return step, (parameters, state, shape(256, 32, 32, 3), tokens(256)), (0, 1)


@program
def maml_conv():
    """Flax Linen: gradients through three steps of learning from a few examples (MAML)."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            for _ in range(4):
                x = nn.max_pool(nn.relu(nn.GroupNorm(4)(nn.Conv(32, (3, 3))(x))), (2, 2), (2, 2))
            return nn.Dense(5)(x.reshape(x.shape[0], -1))

    model = Net()

    def of_examples(p, x, y):
        return cross_entropy(model.apply(p, x), y).mean()

    def of_task(p, xs, ys, xq, yq):
        def inner(q, _):
            return jax.tree.map(lambda a, b: a - 0.01 * b, q, jax.grad(of_examples)(q, xs, ys)), None

        q, _ = lax.scan(inner, p, None, length=3)
        return of_examples(q, xq, yq)

    def loss(p, *tasks):
        return jax.vmap(of_task, (None, 0, 0, 0, 0))(p, *tasks).mean()

    tasks = shape(4, 25, 84, 84, 3), tokens(4, 25), shape(4, 75, 84, 84, 3), tokens(4, 75)
    return training(loss, optax.adam(1e-3), initial(model, shape(1, 84, 84, 3)), *tasks)


@program
def vqvae():
    """Flax Linen: an autoencoder with a code book, and AdamW without a schedule."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            h = nn.relu(nn.Conv(64, (4, 4), (2, 2))(x))
            h = nn.relu(nn.Conv(128, (4, 4), (2, 2))(h))
            z = nn.Conv(64, (3, 3))(h)
            codes = self.param('E', nn.initializers.normal(1.0), (1024, 64))
            flat = z.reshape(-1, 64)
            distances = jnp.sum(flat**2, 1, keepdims=True) - 2 * flat @ codes.T + jnp.sum(codes**2, 1)
            nearest = distances.argmin(1)
            q = codes[nearest].reshape(z.shape)
            through = z + lax.stop_gradient(q - z)
            h = nn.relu(nn.ConvTranspose(128, (4, 4), (2, 2))(through))
            y = nn.ConvTranspose(3, (4, 4), (2, 2))(h)
            of_codes = jnp.mean((lax.stop_gradient(z) - q) ** 2) + 0.25 * jnp.mean((z - lax.stop_gradient(q)) ** 2)
            return y, of_codes, jnp.bincount(nearest, length=1024)

    model, images = Net(), shape(64, 64, 64, 3)
    parameters = initial(model, images)
    optimizer = optax.contrib.schedule_free_adamw(1e-3)

    def step(p, state, x):
        def loss(p):
            y, of_codes, used = model.apply(p, x)
            return jnp.mean((y - x) ** 2) + of_codes, used

        return updated_with(optimizer, loss, p, state)

    return step, (parameters, jax.eval_shape(optimizer.init, parameters), images), (0, 1)


class ResBlock(eqx.Module):
    n1: eqx.nn.GroupNorm
    n2: eqx.nn.GroupNorm
    c1: eqx.nn.Conv2d
    c2: eqx.nn.Conv2d
    t: eqx.nn.Linear
    skip: eqx.nn.Conv2d

    def __init__(self, given, made, time, key):
        keys = jax.random.split(key, 4)
        self.n1 = eqx.nn.GroupNorm(8, given)
        self.n2 = eqx.nn.GroupNorm(8, made)
        self.c1 = eqx.nn.Conv2d(given, made, 3, padding=1, key=keys[0])
        self.c2 = eqx.nn.Conv2d(made, made, 3, padding=1, key=keys[1])
        self.t = eqx.nn.Linear(time, made, key=keys[2])
        self.skip = eqx.nn.Conv2d(given, made, 1, key=keys[3])

    def __call__(self, x, time):
        h = self.c1(jax.nn.silu(self.n1(x))) + self.t(time)[:, None, None]
        return self.skip(x) + self.c2(jax.nn.silu(self.n2(h)))


class UNet(eqx.Module):
    inp: eqx.nn.Conv2d
    downs: list
    mid: ResBlock
    att: eqx.nn.MultiheadAttention
    ups: list
    out: eqx.nn.Conv2d
    tm: eqx.nn.MLP

    def __init__(self, channels, key):
        keys, time = iter(jax.random.split(key, 20)), 128
        pairs = list(zip(channels[:-1], channels[1:]))
        self.inp = eqx.nn.Conv2d(3, channels[0], 3, padding=1, key=next(keys))
        self.tm = eqx.nn.MLP(time, time, time, 1, jax.nn.silu, key=next(keys))
        self.downs = [ResBlock(a, b, time, next(keys)) for a, b in pairs]
        self.mid = ResBlock(channels[-1], channels[-1], time, next(keys))
        self.att = eqx.nn.MultiheadAttention(4, channels[-1], key=next(keys))
        self.ups = [ResBlock(b + b, a, time, next(keys)) for a, b in reversed(pairs)]
        self.out = eqx.nn.Conv2d(channels[0], 3, 3, padding=1, key=next(keys))

    def __call__(self, x, time):
        frequencies = jnp.exp(-jnp.arange(64) * 0.15)
        time = self.tm(jnp.concatenate([jnp.sin(time * frequencies), jnp.cos(time * frequencies)]))
        h, kept = self.inp(x), []
        for block in self.downs:
            h = block(h, time)
            kept.append(h)
            h = eqx.nn.AvgPool2d(2, 2)(h)
        h = self.mid(h, time)
        pixels = h.reshape(h.shape[0], -1).T
        h = h + self.att(pixels, pixels, pixels).T.reshape(h.shape)
        for block in self.ups:
            h = jax.image.resize(h, (h.shape[0], h.shape[1] * 2, h.shape[2] * 2), 'nearest')
            h = block(jnp.concatenate([h, kept.pop()]), time)
        return self.out(h)


@program
def eqx_diffusion_unet():
    """Equinox: a U-Net learns to remove noise, with AdaBelief."""
    arrays, static = eqx.partition(eqx.filter_eval_shape(UNet, (64, 128, 256), KEY), is_shape)

    def loss(p, x, key):
        model = eqx.combine(p, static)
        of_time, of_noise = jax.random.split(key)
        time = jax.random.uniform(of_time, (x.shape[0],))
        noise = jax.random.normal(of_noise, x.shape)
        a = jnp.cos(time * jnp.pi / 2)[:, None, None, None]
        s = jnp.sin(time * jnp.pi / 2)[:, None, None, None]
        return jnp.mean((jax.vmap(model)(a * x + s * noise, time * 1000) - noise) ** 2)

    return training(loss, optax.adabelief(3e-4), arrays, shape(32, 3, 64, 64), KEY)


@program
def detect_nms():
    """Detection: the best thousand boxes of each image, without those that overlap a better one."""
    anchors, classes, most = 49104, 80, 1000

    def overlap(a, b):
        low = jnp.maximum(a[:, None, :2], b[None, :, :2])
        high = jnp.minimum(a[:, None, 2:], b[None, :, 2:])
        common = jnp.prod(jnp.maximum(high - low, 0), -1)
        area = lambda z: jnp.prod(z[:, 2:] - z[:, :2], -1)
        return common / (area(a)[:, None] + area(b)[None] - common + 1e-6)

    def placed(moved, a):
        """Boxes from how far they are from their anchors."""
        centre, size = (a[:, :2] + a[:, 2:]) / 2, a[:, 2:] - a[:, :2]
        centre = moved[:, :2] * size + centre
        size = jnp.exp(moved[:, 2:]) * size
        return jnp.concatenate([centre - size / 2, centre + size / 2], -1)

    def of_image(boxes, logits, all_anchors):
        scores = jax.nn.sigmoid(logits)
        kinds, scores = scores.argmax(-1), scores.max(-1)
        scores, best = lax.top_k(scores, most)
        kinds = kinds[best]
        b = placed(boxes[best], all_anchors[best])
        overlaps = overlap(b + kinds[:, None] * 4096.0, b + kinds[:, None] * 4096.0) > 0.5

        def step(i, kept):
            return jnp.where(kept[i] & (jnp.arange(most) > i), kept & ~overlaps[i], kept)

        kept = lax.fori_loop(0, most, step, scores > 0.05)
        scores, best = lax.top_k(jnp.where(kept, scores, -1), 100)
        return b[best], kinds[best], scores

    found = shape(16, anchors, 4), shape(16, anchors, classes), shape(anchors, 4)
    return jax.vmap(of_image, (0, 0, None)), found, ()
