"""Programs for unseen.py, second batch: pictures, videos and sound with Flax, Haiku, Equinox and Keras."""

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import nnx
from jax import lax

from layers import BF16, F16, F32, shape, tokens
from libraries import KEY, cross_entropy, initial, is_shape, program, training, training_keras, updated, updated_with

# Classes.


class ConvNeXtBlock(nnx.Module):
    def __init__(self, width, rngs):
        self.depthwise = nnx.Conv(width, width, (7, 7), feature_group_count=width, dtype=BF16, rngs=rngs)
        self.norm = nnx.LayerNorm(width, epsilon=1e-6, dtype=BF16, rngs=rngs)
        self.wide = nnx.Linear(width, 4 * width, dtype=BF16, rngs=rngs)
        self.narrow = nnx.Linear(4 * width, width, dtype=BF16, rngs=rngs)
        self.gamma = nnx.Param(jnp.full((width,), 1e-6))

    def __call__(self, x, key, rate):
        h = self.narrow(jax.nn.gelu(self.wide(self.norm(self.depthwise(x)))))
        kept = jax.random.bernoulli(key, 1 - rate, (x.shape[0], 1, 1, 1))
        return x + jnp.where(kept, h * self.gamma[...] / (1 - rate), 0).astype(x.dtype)


class ConvNeXt(nnx.Module):
    def __init__(self, widths, depths, rngs):
        self.stem = nnx.Conv(3, widths[0], (4, 4), (4, 4), dtype=BF16, rngs=rngs)
        self.stages = nnx.List([nnx.List([ConvNeXtBlock(w, rngs) for _ in range(d)]) for w, d in zip(widths, depths)])
        self.norms = nnx.List([nnx.LayerNorm(w, dtype=BF16, rngs=rngs) for w in widths])
        pairs = list(zip(widths, widths[1:]))
        self.downs = nnx.List([nnx.Conv(a, b, (2, 2), (2, 2), dtype=BF16, rngs=rngs) for a, b in pairs])
        self.head = nnx.Linear(widths[-1], 1000, rngs=rngs)

    def __call__(self, x, key):
        x, number = self.stem(x), 0
        for i, stage in enumerate(self.stages):
            for block in stage:
                x = block(x, jax.random.fold_in(key, number), 0.02 * number)
                number += 1
            x = self.norms[i](x)
            if i < len(self.downs):
                x = self.downs[i](x)
        return self.head(x.mean((1, 2)).astype(F32))


@program
def nnx_convnext_mixup():
    """Flax NNX: ConvNeXt with mixed pictures, dropped paths, AdamW and an average of weights."""
    model = nnx.eval_shape(lambda: ConvNeXt((96, 192, 384), (2, 2, 3), nnx.Rngs(0)))
    definition, parameters = nnx.split(model, nnx.Param)
    decayed = jax.tree.map(lambda p: len(p.shape) > 1, parameters)
    optimizer = optax.adamw(optax.cosine_decay_schedule(4e-3, 1000), weight_decay=0.05, mask=decayed)

    def step(parameters, state, average, images, labels, key):
        of_mix, of_order, of_paths = jax.random.split(key, 3)
        part = jax.random.beta(of_mix, 0.8, 0.8)
        order = jax.random.permutation(of_order, images.shape[0])
        x = images.astype(F32) / 127.5 - 1
        x = part * x + (1 - part) * x[order]
        wanted = optax.smooth_labels(jax.nn.one_hot(labels, 1000), 0.1)
        wanted = part * wanted + (1 - part) * wanted[order]

        def loss(p):
            return optax.softmax_cross_entropy(nnx.merge(definition, p)(x.astype(BF16), of_paths), wanted).mean()

        parameters, state, value = updated(optimizer, loss, parameters, state)
        return parameters, state, optax.incremental_update(parameters, average, 1e-4), value

    state = jax.eval_shape(optimizer.init, parameters)
    images = shape(64, 224, 224, 3, dtype=jnp.uint8)
    return step, (parameters, state, parameters, images, tokens(64), KEY), (0, 1, 2)


class WindowAttention(nn.Module):
    """Swin V2: products of normalised queries and keys, and a bias that a small network computes."""

    width: int
    heads: int
    window: int
    shift: int

    @nn.compact
    def __call__(self, x):
        b, h, w, c = x.shape
        n, side = self.window, self.window**2
        if self.shift:
            x = jnp.roll(x, (-self.shift, -self.shift), (1, 2))
        parts = x.reshape(b, h // n, n, w // n, n, c).transpose(0, 1, 3, 2, 4, 5).reshape(-1, side, c)
        q, k, v = jnp.split(nn.Dense(3 * c)(parts).reshape(-1, side, 3 * self.heads, c // self.heads), 3, 2)
        q = q / (jnp.linalg.norm(q, axis=-1, keepdims=True) + 1e-6)
        k = k / (jnp.linalg.norm(k, axis=-1, keepdims=True) + 1e-6)
        scale = jnp.exp(jnp.minimum(self.param('scale', nn.initializers.constant(2.3), (self.heads, 1, 1)), 4.6))
        scores = jnp.einsum('wqhd,wkhd->whqk', q, k) * scale + self.bias()
        if self.shift:
            group = jnp.zeros((h, w), jnp.int32)
            for i in range(2):
                group = group.at[h - n :].add(1) if i == 0 else group.at[:, w - self.shift :].add(2)
            group = group.reshape(h // n, n, w // n, n).transpose(0, 2, 1, 3).reshape(-1, side)
            mask = jnp.where(group[:, :, None] == group[:, None], 0.0, -100.0)
            scores = scores.reshape(b, -1, self.heads, side, side) + mask[None, :, None]
            scores = scores.reshape(-1, self.heads, side, side)
        y = jnp.einsum('whqk,wkhd->wqhd', jax.nn.softmax(scores), v).reshape(-1, side, c)
        y = nn.Dense(c)(y).reshape(b, h // n, w // n, n, n, c).transpose(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return jnp.roll(y, (self.shift, self.shift), (1, 2)) if self.shift else y

    def bias(self):
        n = self.window
        r = jnp.arange(1 - n, n) / (n - 1)
        r = jnp.sign(r) * jnp.log1p(8 * jnp.abs(r)) / jnp.log(8.0)
        table = jnp.stack(jnp.meshgrid(r, r, indexing='ij'), -1).reshape(-1, 2)
        table = nn.Dense(self.heads, use_bias=False)(nn.relu(nn.Dense(512)(table)))
        at = jnp.stack(jnp.meshgrid(jnp.arange(n), jnp.arange(n), indexing='ij'), -1).reshape(-1, 2)
        d = at[:, None] - at[None] + n - 1
        return 16 * jax.nn.sigmoid(table[d[..., 0] * (2 * n - 1) + d[..., 1]]).transpose(2, 0, 1)


@program
def linen_swin_v2():
    """Flax Linen: windows that shift, with norms after each half, checkpointed blocks and AdamW."""

    class Block(nn.Module):
        width: int
        heads: int
        shift: int

        @nn.compact
        def __call__(self, x):
            x = x + nn.LayerNorm()(WindowAttention(self.width, self.heads, 8, self.shift)(x))
            return x + nn.LayerNorm()(nn.Dense(self.width)(nn.gelu(nn.Dense(4 * self.width)(x))))

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.LayerNorm()(nn.Conv(96, (4, 4), (4, 4))(x))
            for stage, (width, heads) in enumerate(((96, 3), (192, 6))):
                if stage:
                    b, h, w, c = x.shape
                    x = x.reshape(b, h // 2, 2, w // 2, 2, c).transpose(0, 1, 3, 2, 4, 5).reshape(b, h // 2, w // 2, 4 * c)
                    x = nn.LayerNorm()(nn.Dense(width, use_bias=False)(x))
                for shift in (0, 4):
                    x = nn.remat(Block)(width, heads, shift)(x)
            return nn.Dense(1000)(nn.LayerNorm()(x).mean((1, 2)))

    model, images = Net(), shape(32, 256, 256, 3)

    def loss(p, x, y):
        return cross_entropy(model.apply(p, x), y).mean()

    return training(loss, optax.adamw(1e-3), initial(model, images), images, tokens(32))


@program
def keras_conv3d_video():
    """Keras: factored convolutions of videos in mixed precision, with squeeze and excitation, and Adam."""
    import keras
    from keras import layers

    keras.config.set_dtype_policy('mixed_bfloat16')
    frames = keras.Input((16, 112, 112, 3))
    x = layers.Conv3D(32, (3, 7, 7), (1, 2, 2), 'same', use_bias=False)(frames)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    for channels, stride in ((64, 1), (128, 2)):
        y = layers.Conv3D(channels, (1, 3, 3), (1, stride, stride), 'same', use_bias=False)(x)
        y = layers.Activation('swish')(layers.BatchNormalization()(y))
        y = layers.Conv3D(channels, (3, 1, 1), (stride, 1, 1), 'same', use_bias=False)(y)
        y = layers.BatchNormalization()(y)
        gate = layers.GlobalAveragePooling3D(keepdims=True)(y)
        gate = layers.Conv3D(channels, 1, activation='sigmoid')(layers.Conv3D(channels // 4, 1, activation='relu')(gate))
        shortcut = layers.Conv3D(channels, 1, (stride, stride, stride), 'same')(x)
        x = layers.Activation('swish')(layers.Add()([shortcut, layers.Multiply()([y, gate])]))
        x = layers.MaxPooling3D((1, 2, 2))(x)
    x = layers.GlobalAveragePooling3D()(x)
    model = keras.Model(frames, layers.Dense(400, dtype='float32')(x))
    optimizer = keras.optimizers.Adam(1e-3, clipnorm=1.0)
    of_logits = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def right(y, predicted):
        return jnp.mean(predicted.argmax(-1) == y)

    made = training_keras(model, optimizer, of_logits, shape(16, 16, 112, 112, 3), tokens(16), right)
    keras.config.set_dtype_policy('float32')
    return made


# Without labels.


class SmallResNet(nn.Module):
    """With norms over the batch."""

    widths: tuple = (64, 128, 256)
    dtype: type = F32

    @nn.compact
    def __call__(self, x, train=True):
        def norm(x, **options):
            return nn.BatchNorm(not train, momentum=0.9, dtype=self.dtype, **options)(x)

        x = nn.relu(norm(nn.Conv(self.widths[0], (3, 3), use_bias=False, dtype=self.dtype)(x)))
        for i, width in enumerate(self.widths):
            for j in range(2):
                stride = 2 if i > 0 and j == 0 else 1
                y = nn.relu(norm(nn.Conv(width, (3, 3), (stride, stride), use_bias=False, dtype=self.dtype)(x)))
                y = norm(nn.Conv(width, (3, 3), use_bias=False, dtype=self.dtype)(y), scale_init=nn.initializers.zeros)
                if y.shape != x.shape:
                    x = norm(nn.Conv(width, (1, 1), (stride, stride), use_bias=False, dtype=self.dtype)(x))
                x = nn.relu(x + y)
        return x.mean((1, 2))


@program
def simclr_batch_norm():
    """Flax Linen: two views of each picture in one batch, a loss with a temperature, and LARS."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train=True):
            h = SmallResNet()(x, train)
            h = nn.relu(nn.BatchNorm(not train)(nn.Dense(256, use_bias=False)(h)))
            return nn.Dense(128, use_bias=False)(h)

    model, views = Net(), shape(512, 32, 32, 3)
    variables = initial(model, views)
    optimizer = optax.lars(0.3, weight_decay=1e-6)

    def step(p, statistics, state, first, second):
        def loss(p):
            x = jnp.concatenate([first, second])
            z, changed = model.apply(dict(params=p, batch_stats=statistics), x, mutable=['batch_stats'])
            z = z / jnp.linalg.norm(z, axis=-1, keepdims=True)
            n = z.shape[0]
            scores = jnp.where(jnp.eye(n, dtype=bool), -1e9, z @ z.T / 0.5)
            pairs = (jnp.arange(n) + n // 2) % n
            correct = jnp.mean(scores.argmax(-1) == pairs)
            return cross_entropy(scores, pairs).mean(), (changed['batch_stats'], correct)

        p, state, value, (statistics_after, correct) = updated_with(optimizer, loss, p, state)
        return p, statistics_after, state, value, correct

    state = jax.eval_shape(optimizer.init, variables['params'])
    return step, (variables['params'], variables['batch_stats'], state, views, views), (0, 1, 2)


class PreNorm(nnx.Module):
    def __init__(self, width, heads, rngs, dtype=F32):
        self.a = nnx.LayerNorm(width, dtype=dtype, rngs=rngs)
        self.b = nnx.LayerNorm(width, dtype=dtype, rngs=rngs)
        self.att = nnx.MultiHeadAttention(heads, width, decode=False, dtype=dtype, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, dtype=dtype, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, dtype=dtype, rngs=rngs)

    def __call__(self, x):
        x = x + self.att(self.a(x))
        return x + self.down(jax.nn.gelu(self.up(self.b(x))))


@program
def nnx_mae_gather():
    """Flax NNX: a quarter of the patches is encoded, and the others are decoded from them."""
    patch, side, width, narrow = 16, 14, 384, 256
    count, kept = side * side, side * side // 4

    class MAE(nnx.Module):
        def __init__(self, rngs):
            self.into = nnx.Linear(3 * patch**2, width, rngs=rngs)
            self.pos = nnx.Param(jnp.zeros((count, width)))
            self.encoder = nnx.List([PreNorm(width, 6, rngs) for _ in range(4)])
            self.between = nnx.Linear(width, narrow, rngs=rngs)
            self.token = nnx.Param(jnp.zeros(narrow))
            self.pos_out = nnx.Param(jnp.zeros((count, narrow)))
            self.decoder = nnx.List([PreNorm(narrow, 8, rngs) for _ in range(2)])
            self.out = nnx.Linear(narrow, 3 * patch**2, rngs=rngs)

        def __call__(self, images, key):
            b = images.shape[0]
            x = images.reshape(b, side, patch, side, patch, 3).transpose(0, 1, 3, 2, 4, 5).reshape(b, count, -1)
            order = jnp.argsort(jax.random.uniform(key, (b, count)), 1)
            back = jnp.argsort(order, 1)
            h = self.into(x) + self.pos[...]
            h = jnp.take_along_axis(h, order[:, :kept, None], 1)
            for block in self.encoder:
                h = block(h)
            h = self.between(h)
            masked = jnp.broadcast_to(self.token[...], (b, count - kept, narrow))
            h = jnp.take_along_axis(jnp.concatenate([h, masked], 1), back[..., None], 1) + self.pos_out[...]
            for block in self.decoder:
                h = block(h)
            wanted = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6)
            each = jnp.mean((self.out(h) - wanted) ** 2, -1)
            is_masked = back >= kept
            return jnp.sum(each * is_masked) / jnp.sum(is_masked)

    definition, parameters = nnx.split(nnx.eval_shape(lambda: MAE(nnx.Rngs(0))), nnx.Param)
    optimizer = optax.adamw(optax.warmup_cosine_decay_schedule(0, 1.5e-4, 40, 800), 0.9, 0.95, weight_decay=0.05)

    def loss(p, images, key):
        return nnx.merge(definition, p)(images, key)

    return training(loss, optimizer, parameters, shape(96, 224, 224, 3), KEY)


@program
def dino_teacher():
    """Flax Linen: a student sees small and large views, a teacher that follows it sees the large ones."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Conv(256, (8, 8), (8, 8), dtype=BF16)(x)
            b, h, w, c = x.shape
            pos = self.param('pos', nn.initializers.normal(0.02), (1, 12, 12, c))
            pos = jax.image.resize(pos, (1, h, w, c), 'bicubic').astype(BF16)
            x = (x + pos).reshape(b, h * w, c)
            for _ in range(3):
                y = nn.LayerNorm(dtype=BF16)(x)
                x = x + nn.MultiHeadDotProductAttention(4, dtype=BF16)(y, y)
                y = nn.Dense(1024, dtype=BF16)(nn.LayerNorm(dtype=BF16)(x))
                x = x + nn.Dense(c, dtype=BF16)(nn.gelu(y))
            z = nn.gelu(nn.Dense(1024)(nn.LayerNorm()(x.mean(1).astype(F32))))
            z = nn.Dense(256)(z)
            return nn.WeightNorm(nn.Dense(8192, use_bias=False))(z / jnp.linalg.norm(z, axis=-1, keepdims=True))

    model, large, small = Net(), shape(2, 48, 96, 96, 3), shape(4, 48, 48, 48, 3)
    parameters = initial(model, shape(1, 96, 96, 3))
    optimizer = optax.chain(optax.clip_by_global_norm(3.0), optax.adamw(5e-4, weight_decay=0.04))

    def step(p, teacher, state, centre, large, small):
        def flat(x):
            return x.reshape(-1, *x.shape[2:])

        taught = model.apply(teacher, flat(large)).reshape(2, 48, -1)
        odds = jax.nn.softmax((taught - centre) / 0.04)

        def loss(p):
            seen = jnp.concatenate([model.apply(p, flat(large)), model.apply(p, flat(small))]).reshape(6, 48, -1)
            likely = jax.nn.log_softmax(seen / 0.1)
            pairs = -jnp.einsum('tbk,sbk->ts', odds, likely) / 48
            return jnp.sum(jnp.where(jnp.eye(2, 6, dtype=bool), 0, pairs)) / 10

        p, state, value = updated(optimizer, loss, p, state)
        teacher = jax.tree.map(lambda t, s: 0.996 * t + 0.004 * s, teacher, p)
        return p, teacher, state, 0.9 * centre + 0.1 * taught.mean((0, 1)), value

    state = jax.eval_shape(optimizer.init, parameters)
    return step, (parameters, parameters, state, shape(8192), large, small), (0, 1, 2, 3)


# From pictures to pictures.


@program
def seg_unet_group_norm():
    """Flax Linen: segmentation with group norms, a loss of overlaps beside that of classes, and SGD."""

    class Twice(nn.Module):
        width: int

        @nn.compact
        def __call__(self, x):
            for _ in range(2):
                x = nn.silu(nn.GroupNorm(16)(nn.Conv(self.width, (3, 3))(x)))
            return x

    class UNet(nn.Module):
        @nn.compact
        def __call__(self, x):
            kept = []
            for width in (32, 64, 128):
                x = Twice(width)(x)
                kept.append(x)
                x = nn.max_pool(x, (2, 2), (2, 2))
            x = Twice(256)(x)
            for width in (128, 64, 32):
                x = nn.ConvTranspose(width, (2, 2), (2, 2))(x)
                x = Twice(width)(jnp.concatenate([kept.pop(), x], -1))
            return nn.Conv(5, (1, 1))(x)

    model, images = UNet(), shape(8, 256, 256, 1)

    def loss(p, x, y):
        logits = model.apply(p, x)
        odds, wanted = jax.nn.softmax(logits), jax.nn.one_hot(y, 5)
        common = jnp.sum(odds * wanted, (1, 2))
        dice = 1 - jnp.mean((2 * common + 1) / (jnp.sum(odds, (1, 2)) + jnp.sum(wanted, (1, 2)) + 1))
        return cross_entropy(logits, y).mean() + dice

    optimizer = optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(1e-2, 0.99, nesterov=True))
    return training(loss, optimizer, initial(model, images), images, tokens(8, 256, 256))


@program
def fcos_heads():
    """Flax Linen: boxes at every place of a pyramid, with focal losses, overlaps and centres."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            levels = []
            for i, width in enumerate((32, 64, 128, 256)):
                x = nn.relu(nn.GroupNorm(8)(nn.Conv(width, (3, 3), (2, 2))(x)))
                x = x + nn.relu(nn.GroupNorm(8)(nn.Conv(width, (3, 3))(x)))
                if i >= 1:
                    levels.append(nn.Conv(128, (1, 1))(x))
            for i in (1, 0):
                b, h, w, c = levels[i].shape
                levels[i] = levels[i] + jax.image.resize(levels[i + 1], (b, h, w, c), 'nearest')
            shared = [nn.Conv(128, (3, 3)) for _ in range(4)]
            norms = [nn.GroupNorm(16) for _ in range(4)]
            classes, boxes = nn.Conv(80, (3, 3)), nn.Conv(5, (3, 3))
            found = []
            for level in levels:
                a = b = level
                for i in range(2):
                    a = nn.relu(norms[i](shared[i](a)))
                    b = nn.relu(norms[i + 2](shared[i + 2](b)))
                found.append((classes(a), boxes(b)))
            flat = lambda x: x.reshape(x.shape[0], -1, x.shape[-1])
            return jnp.concatenate([flat(c) for c, _ in found], 1), jnp.concatenate([flat(b) for _, b in found], 1)

    model, images = Net(), shape(8, 384, 384, 3)
    places = 96 * 96 + 48 * 48 + 24 * 24

    def giou(a, b):
        """Of boxes as four distances from one place."""
        low, high = jnp.minimum(a, b), jnp.maximum(a, b)
        area = lambda d: (d[..., 0] + d[..., 2]) * (d[..., 1] + d[..., 3])
        common = area(low)
        union = area(a) + area(b) - common
        return common / (union + 1e-6) - (area(high) - union) / (area(high) + 1e-6)

    def loss(p, x, kinds, distances):
        logits, found = model.apply(p, x)
        is_object = kinds >= 0
        count = jnp.maximum(is_object.sum(), 1)
        wanted = jax.nn.one_hot(kinds, 80)
        focal = optax.sigmoid_focal_loss(logits, wanted, alpha=0.25, gamma=2.0).sum() / count
        overlaps = giou(jnp.exp(found[..., :4]), distances)
        pairs = distances.reshape(*distances.shape[:-1], 2, 2)
        centres = jnp.sqrt(jnp.prod(pairs.min(-2) / (pairs.max(-2) + 1e-6), -1))
        of_boxes = jnp.sum(jnp.where(is_object, (1 - overlaps) * centres, 0)) / count
        of_centres = jnp.sum(jnp.where(is_object, optax.sigmoid_binary_cross_entropy(found[..., 4], centres), 0)) / count
        return focal + of_boxes + of_centres

    batch = images, tokens(8, places), shape(8, places, 4)
    return training(loss, optax.sgd(0.01, 0.9), initial(model, images), *batch)


class EDSR(eqx.Module):
    head: eqx.nn.Conv2d
    body: list
    ups: list
    tail: eqx.nn.Conv2d

    def __init__(self, width, depth, key):
        keys = iter(jax.random.split(key, 2 * depth + 4))
        conv = lambda a, b: eqx.nn.Conv2d(a, b, 3, padding=1, key=next(keys))
        self.head = conv(3, width)
        self.body = [(conv(width, width), conv(width, width)) for _ in range(depth)]
        self.ups = [conv(width, 4 * width) for _ in range(2)]
        self.tail = conv(width, 3)

    def __call__(self, x):
        h = first = self.head(x)
        for a, b in self.body:
            h = h + 0.1 * b(jax.nn.relu(a(h)))
        h = h + first
        for up in self.ups:
            h = up(h)
            c, rows, columns = h.shape
            h = h.reshape(c // 4, 2, 2, rows, columns).transpose(0, 3, 1, 4, 2).reshape(c // 4, 2 * rows, 2 * columns)
        return self.tail(h)


@program
def eqx_super_resolution():
    """Equinox: pictures four times as large by shuffled pixels, with a smooth absolute loss and Adam."""
    arrays, static = eqx.partition(eqx.filter_eval_shape(EDSR, 64, 6, KEY), is_shape)

    def loss(p, low, high):
        made = jax.vmap(eqx.combine(p, static))(low)
        return jnp.mean(jnp.sqrt((made - high) ** 2 + 1e-6))

    return training(loss, optax.adam(1e-4), arrays, shape(16, 3, 48, 48), shape(16, 3, 192, 192))


@program
def haiku_vqgan():
    """Haiku: an autoencoder with codes, and a discriminator that decides on patches; both take a step."""

    def res(x, width):
        h = hk.Conv2D(width, 3)(jax.nn.silu(hk.GroupNorm(16)(x)))
        h = hk.Conv2D(width, 3)(jax.nn.silu(hk.GroupNorm(16)(h)))
        return h + (x if x.shape[-1] == width else hk.Conv2D(width, 1)(x))

    def generator(x):
        h = hk.Conv2D(64, 3)(x)
        for width in (64, 128):
            h = hk.Conv2D(width, 3, 2)(res(h, width))
        z = hk.Conv2D(32, 1)(res(h, 128))
        codes = hk.get_parameter('codes', (2048, 32), init=hk.initializers.RandomUniform(-1e-3, 1e-3))
        flat = z.reshape(-1, 32)
        flat = flat / (jnp.linalg.norm(flat, axis=-1, keepdims=True) + 1e-6)
        units = codes / (jnp.linalg.norm(codes, axis=-1, keepdims=True) + 1e-6)
        nearest = jnp.argmax(flat @ units.T, -1)
        q = units[nearest].reshape(z.shape)
        z = flat.reshape(z.shape)
        commit = jnp.mean((lax.stop_gradient(q) - z) ** 2) + 0.25 * jnp.mean((q - lax.stop_gradient(z)) ** 2)
        h = res(hk.Conv2D(128, 3)(z + lax.stop_gradient(q - z)), 128)
        for width in (128, 64):
            b, rows, columns, c = h.shape
            h = hk.Conv2D(width, 3)(jax.image.resize(h, (b, 2 * rows, 2 * columns, c), 'nearest'))
            h = res(h, width)
        return jnp.tanh(hk.Conv2D(3, 3)(jax.nn.silu(hk.GroupNorm(16)(h)))), commit

    def discriminator(x):
        for i, width in enumerate((64, 128, 256)):
            x = hk.Conv2D(width, 4, 2)(x)
            x = jax.nn.leaky_relu(x if i == 0 else hk.InstanceNorm(True, True)(x), 0.2)
        return hk.Conv2D(1, 4)(x)

    g, d = [hk.without_apply_rng(hk.transform(f)) for f in (generator, discriminator)]
    images = shape(16, 128, 128, 3)
    of_g, of_d = initial(g, images), initial(d, images)
    optimizer = optax.adam(2e-4, 0.5, 0.9)

    def step(pg, pd, sg, sd, x):
        def loss_g(p):
            y, commit = g.apply(p, x)
            return jnp.mean(jnp.abs(x - y)) + commit - 0.1 * jnp.mean(d.apply(pd, y)), y

        pg, sg, value_g, y = updated_with(optimizer, loss_g, pg, sg)
        y = lax.stop_gradient(y)

        def loss_d(p):
            return jnp.mean(jax.nn.relu(1 - d.apply(p, x))) + jnp.mean(jax.nn.relu(1 + d.apply(p, y)))

        pd, sd, value_d = updated(optimizer, loss_d, pd, sd)
        return pg, pd, sg, sd, value_g, value_d

    states = [jax.eval_shape(optimizer.init, p) for p in (of_g, of_d)]
    return step, (of_g, of_d, *states, images), (0, 1, 2, 3)


@program
def raft_flow():
    """Flax Linen: how pixels move between two pictures, by twelve steps of a convolutional GRU (inference in half precision)."""

    class Features(nn.Module):
        width: int

        @nn.compact
        def __call__(self, x):
            for width in (64, 96, self.width):
                x = nn.relu(nn.GroupNorm(8, dtype=F16)(nn.Conv(width, (3, 3), (2, 2), dtype=F16)(x)))
                x = nn.relu(x + nn.Conv(width, (3, 3), dtype=F16)(x))
            return x

    class Update(nn.Module):
        @nn.compact
        def __call__(self, h, seen, flow):
            motion = nn.relu(nn.Conv(96, (3, 3), dtype=F16)(jnp.concatenate([seen, flow.astype(F16)], -1)))
            x = jnp.concatenate([h, motion], -1)
            z, r = jnp.split(jax.nn.sigmoid(nn.Conv(256, (3, 3), dtype=F16)(x)), 2, -1)
            q = jnp.tanh(nn.Conv(128, (3, 3), dtype=F16)(jnp.concatenate([r * h, motion], -1)))
            h = (1 - z) * h + z * q
            return h, nn.Conv(2, (3, 3))(nn.relu(nn.Conv(128, (3, 3), dtype=F16)(h)))

    b, rows, columns, radius = 2, 48, 96, 3
    features, context, update = Features(128), Features(128), Update()

    def looked_up(pyramid, at):
        r = jnp.arange(-radius, radius + 1)
        dy, dx = jnp.meshgrid(r, r, indexing='ij')
        found = []
        for level, scores in enumerate(pyramid):
            y = at[..., 0].reshape(-1, 1, 1) / 2**level + dy
            x = at[..., 1].reshape(-1, 1, 1) / 2**level + dx
            sampled = jax.vmap(lambda s, y, x: jax.scipy.ndimage.map_coordinates(s, [y, x], 1))(scores, y, x)
            found.append(sampled.reshape(b, rows, columns, -1))
        return jnp.concatenate(found, -1).astype(F16)

    def run(p, first, second):
        f1, f2 = [features.apply(p['f'], x) for x in (first, second)]
        scores = jnp.einsum('bijc,bklc->bijkl', f1, f2, preferred_element_type=F32) / jnp.sqrt(128.0)
        scores = scores.reshape(-1, rows, columns)
        pyramid = [scores]
        for _ in range(3):
            scores = nn.avg_pool(scores[..., None], (2, 2), (2, 2))[..., 0]
            pyramid.append(scores)
        h = jnp.tanh(context.apply(p['c'], first))
        grid = jnp.stack(jnp.meshgrid(jnp.arange(rows), jnp.arange(columns), indexing='ij'), -1).astype(F32)
        grid = jnp.broadcast_to(grid, (b, rows, columns, 2))

        def step(of, _):
            h, at = of
            h, moved = update.apply(p['u'], h, looked_up(pyramid, at), at - grid)
            return (h, at + moved), None

        (_, at), _ = lax.scan(step, (h, grid), None, length=12)
        return jax.image.resize(8 * (at - grid), (b, 8 * rows, 8 * columns, 2), 'bilinear')

    images, h = shape(b, 8 * rows, 8 * columns, 3), shape(b, rows, columns, 128, dtype=F16)
    seen = shape(b, rows, columns, 4 * (2 * radius + 1) ** 2, dtype=F16)
    weights = dict(f=initial(features, images), c=initial(context, images), u=initial(update, h, seen, shape(b, rows, columns, 2)))
    return run, (weights, images, images), ()


@program
def eqx_glow():
    """Equinox: couplings of halves with channels mixed between them; the likelihood takes a step."""

    class Coupling(eqx.Module):
        mix: jax.Array
        scale: jax.Array
        shift: jax.Array
        layers: list

        def __init__(self, channels, width, key):
            keys = jax.random.split(key, 4)
            self.mix = jnp.linalg.qr(jax.random.normal(keys[0], (channels, channels)))[0]
            self.scale, self.shift = jnp.zeros(channels), jnp.zeros(channels)
            self.layers = [
                eqx.nn.Conv2d(channels // 2, width, 3, padding=1, key=keys[1]),
                eqx.nn.Conv2d(width, width, 1, key=keys[2]),
                eqx.nn.Conv2d(width, channels, 3, padding=1, key=keys[3]),
            ]

        def __call__(self, x):
            c, rows, columns = x.shape
            x = (x + self.shift[:, None, None]) * jnp.exp(self.scale)[:, None, None]
            x = jnp.einsum('ij,jhw->ihw', self.mix, x)
            volume = rows * columns * (self.scale.sum() + jnp.linalg.slogdet(self.mix)[1])
            a, b = jnp.split(x, 2)
            h = jax.nn.relu(self.layers[1](jax.nn.relu(self.layers[0](a))))
            s, t = jnp.split(self.layers[2](h), 2)
            s = jax.nn.log_sigmoid(s + 2)
            return jnp.concatenate([a, (b + t) * jnp.exp(s)]), volume + s.sum()

    def make(key):
        keys = jax.random.split(key, 8)
        return [[Coupling(12 * 2**level, 256, keys[4 * level + i]) for i in range(4)] for level in range(2)]

    def squeezed(x):
        c, rows, columns = x.shape
        return x.reshape(c, rows // 2, 2, columns // 2, 2).transpose(0, 2, 4, 1, 3).reshape(4 * c, rows // 2, columns // 2)

    arrays, static = eqx.partition(eqx.filter_eval_shape(make, KEY), is_shape)

    def likelihood(model, x):
        total, prior = 0.0, 0.0
        for level in model:
            x = squeezed(x)
            for coupling in level:
                x, volume = coupling(x)
                total = total + volume
            x, z = jnp.split(x, 2)
            prior = prior - 0.5 * jnp.sum(z**2)
        return total + prior - 0.5 * jnp.sum(x**2)

    def loss(p, x, key):
        x = (x.astype(F32) + jax.random.uniform(key, x.shape)) / 256 - 0.5
        model = eqx.combine(p, static)
        return -jnp.mean(jax.vmap(lambda x: likelihood(model, x))(x)) / (3 * 64 * 64)

    optimizer = optax.chain(optax.clip(1.0), optax.adamax(1e-3))
    return training(loss, optimizer, arrays, shape(32, 3, 64, 64, dtype=jnp.uint8), KEY)
