"""Programs for unseen.py, third batch: pictures, sound, molecules, points, graphs and what people click."""

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import nnx
from jax import lax
from optax import contrib

from layers import BF16, F32, S32, shape, tokens
from libraries import KEY, cross_entropy, initial, is_shape, program, training, training_keras, updated, updated_with

# Pictures.


@program
def keras_deeplab_dilated():
    """Keras: segmentation by dilated separable convolutions in mixed precision, with a pyramid of rates and Adam."""
    import keras
    from keras import layers as kl

    keras.mixed_precision.set_dtype_policy('mixed_bfloat16')

    def separable(x, width, stride=1, rate=1):
        x = kl.DepthwiseConv2D(3, stride, 'same', dilation_rate=rate, use_bias=False)(x)
        x = kl.Activation('relu')(kl.BatchNormalization()(x))
        x = kl.Conv2D(width, 1, use_bias=False)(x)
        return kl.Activation('relu')(kl.BatchNormalization()(x))

    def block(x, width, stride=1, rate=1):
        y = separable(separable(x, width), width, stride, rate)
        if stride > 1 or x.shape[-1] != width:
            x = kl.BatchNormalization()(kl.Conv2D(width, 1, stride, use_bias=False)(x))
        return kl.Add()([x, y])

    given = keras.Input((256, 256, 3))
    x = kl.Activation('relu')(kl.BatchNormalization()(kl.Conv2D(32, 3, 2, 'same', use_bias=False)(given)))
    near = x = block(x, 64, 2)
    x = block(block(x, 128, 2), 128)
    for rate in (1, 2, 2):
        x = block(x, 256, 1, rate)
    parts = [kl.Activation('relu')(kl.BatchNormalization()(kl.Conv2D(128, 1, use_bias=False)(x)))]
    parts += [separable(x, 128, 1, rate) for rate in (6, 12, 18)]
    whole = kl.Conv2D(128, 1, activation='relu')(kl.GlobalAveragePooling2D(keepdims=True)(x))
    parts.append(kl.UpSampling2D(x.shape[1:3], interpolation='bilinear')(whole))
    x = kl.Dropout(0.1)(kl.Conv2D(128, 1, activation='relu')(kl.Concatenate()(parts)))
    x = kl.UpSampling2D(2, interpolation='bilinear')(x)
    x = separable(kl.Concatenate()([x, kl.Conv2D(32, 1, activation='relu')(near)]), 128)
    x = kl.Conv2D(21, 1, dtype='float32')(x)
    model = keras.Model(given, kl.UpSampling2D(4, interpolation='bilinear', dtype='float32')(x))
    keras.mixed_precision.set_dtype_policy('float32')

    def error(y, predicted):
        each = keras.ops.sparse_categorical_crossentropy(y, predicted, from_logits=True)
        return keras.ops.mean(each)

    return training_keras(model, keras.optimizers.Adam(1e-3), error, shape(8, 256, 256, 3), tokens(8, 256, 256))


@program
def haiku_barlow_resnet():
    """Haiku: a residual network whose outputs for two views are alike and not related to one another (Barlow twins)."""

    def net(x, is_training):
        x = hk.nets.ResNet18(1024, resnet_v2=True, bn_config=dict(decay_rate=0.9))(x, is_training)
        for _ in range(2):
            x = hk.Linear(2048, with_bias=False)(x)
            x = jax.nn.relu(hk.BatchNorm(True, True, 0.9)(x, is_training))
        return hk.BatchNorm(False, False, 0.9)(hk.Linear(2048, with_bias=False)(x), is_training)

    model = hk.without_apply_rng(hk.transform_with_state(net))
    x = shape(48, 128, 128, 3)
    p, stats = jax.eval_shape(lambda key, x: model.init(key, x, True), KEY, x)
    optimizer = optax.lars(0.2, weight_decay=1.5e-6)

    def step(p, stats, state, x, y):
        def loss(p):
            a, after = model.apply(p, stats, x, True)
            b, after = model.apply(p, after, y, True)
            c = a.T @ b / len(a)
            on = jnp.diag(c)
            return jnp.sum((on - 1) ** 2) + 5e-3 * (jnp.sum(c**2) - jnp.sum(on**2)), after

        p, state, value, after = updated_with(optimizer, loss, p, state)
        return p, after, state, value

    return step, (p, stats, jax.eval_shape(optimizer.init, p), x, x), (0, 1, 2)


@program
def linen_wide_resnet_sam():
    """Flax Linen: a wide residual network in flat places of its loss (SAM), with smoothed labels and Nesterov's momentum."""

    class Block(nn.Module):
        width: int
        stride: int

        @nn.compact
        def __call__(self, x, train):
            norm = lambda: nn.BatchNorm(use_running_average=not train, momentum=0.9)
            h = nn.relu(norm()(x))
            y = nn.Conv(self.width, (3, 3), self.stride, use_bias=False)(h)
            y = nn.Dropout(0.3, deterministic=not train)(nn.relu(norm()(y)))
            y = nn.Conv(self.width, (3, 3), use_bias=False)(y)
            if x.shape != y.shape:
                x = nn.Conv(self.width, (1, 1), self.stride, use_bias=False)(h)
            return x + y

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train=True):
            x = nn.Conv(16, (3, 3), use_bias=False)(x)
            for i, width in enumerate((128, 256, 512)):
                for j in range(2):
                    x = Block(width, 2 if i and not j else 1)(x, train)
            x = nn.relu(nn.BatchNorm(use_running_average=not train)(x)).mean((1, 2))
            return nn.Dense(100)(x)

    model, x = Net(), shape(64, 32, 32, 3)
    start = jax.eval_shape(lambda key, x: model.init(dict(params=key, dropout=key), x), KEY, x)
    p, stats = start['params'], start['batch_stats']
    usual = optax.chain(optax.add_decayed_weights(5e-4), optax.sgd(0.1, 0.9, nesterov=True))
    optimizer = contrib.sam(usual, optax.chain(contrib.normalize(), optax.sgd(0.05)), opaque_mode=True)

    def step(p, stats, state, x, y, key):
        labels = optax.smooth_labels(jax.nn.one_hot(y, 100), 0.1)

        def loss(p):
            logits, after = model.apply(dict(params=p, batch_stats=stats), x, mutable=['batch_stats'], rngs=dict(dropout=key))
            return optax.softmax_cross_entropy(logits, labels).mean(), after['batch_stats']

        (value, after), g = jax.value_and_grad(loss, has_aux=True)(p)
        updates, state = optimizer.update(g, state, p, grad_fn=lambda p, _: jax.grad(loss, has_aux=True)(p)[0])
        return optax.apply_updates(p, updates), after, state, value

    return step, (p, stats, jax.eval_shape(optimizer.init, p), x, tokens(64), KEY), (0, 1, 2)


@program
def stylegan_penalty():
    """Flax Linen: pictures from styles that scale each picture's own kernels; the critic's slopes are penalized; both take a step."""

    def batchwise(x, w):
        """A convolution with other kernels for each picture, as groups."""
        b, h, v, c = x.shape
        x = x.transpose(1, 2, 0, 3).reshape(1, h, v, b * c)
        w = w.transpose(1, 2, 3, 0, 4).reshape(*w.shape[1:4], -1)
        y = lax.conv_general_dilated(x, w, (1, 1), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC'), feature_group_count=b)
        return y.reshape(h, v, b, -1).transpose(2, 0, 1, 3)

    class Styled(nn.Module):
        width: int

        @nn.compact
        def __call__(self, x, style, key):
            w = self.param('w', nn.initializers.normal(1.0), (3, 3, x.shape[-1], self.width))
            w = w * (nn.Dense(x.shape[-1])(style) + 1)[:, None, None, :, None]
            w = w * lax.rsqrt(jnp.sum(w**2, (1, 2, 3), keepdims=True) + 1e-8)
            y = batchwise(x, w)
            y = y + self.param('noise', nn.initializers.zeros, ()) * jax.random.normal(key, (*y.shape[:3], 1))
            return nn.leaky_relu(y + self.param('bias', nn.initializers.zeros, (self.width,)), 0.2) * 2**0.5

    class Generator(nn.Module):
        @nn.compact
        def __call__(self, z, key):
            for _ in range(4):
                z = nn.leaky_relu(nn.Dense(256)(z), 0.2)
            x = jnp.broadcast_to(self.param('start', nn.initializers.normal(1.0), (4, 4, 256)), (len(z), 4, 4, 256))
            picture = 0.0
            for i, width in enumerate((256, 256, 256, 128, 64)):
                if i:
                    x = jax.image.resize(x, (len(x), 2 * x.shape[1], 2 * x.shape[2], x.shape[3]), 'bilinear')
                    picture = jax.image.resize(picture, (*x.shape[:3], 3), 'bilinear')
                for j in range(2):
                    x = Styled(width)(x, z, jax.random.fold_in(key, 2 * i + j))
                picture = picture + nn.Conv(3, (1, 1))(x)
            return picture

    class Critic(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.leaky_relu(nn.Conv(64, (1, 1))(x), 0.2)
            for width in (128, 256, 256, 256):
                y = nn.leaky_relu(nn.Conv(x.shape[-1], (3, 3))(x), 0.2)
                y = nn.leaky_relu(nn.Conv(width, (3, 3), 2)(y), 0.2)
                x = (y + nn.avg_pool(nn.Conv(width, (1, 1), use_bias=False)(x), (2, 2), (2, 2))) / 2**0.5
            groups = x.reshape(4, -1, *x.shape[1:])
            spread = jnp.sqrt(groups.var(0) + 1e-8).mean((1, 2, 3))
            x = jnp.concatenate([x, jnp.broadcast_to(jnp.tile(spread, 4)[:, None, None, None], (*x.shape[:3], 1))], -1)
            x = nn.leaky_relu(nn.Conv(256, (3, 3))(x), 0.2).reshape(len(x), -1)
            return nn.Dense(1)(nn.leaky_relu(nn.Dense(256)(x), 0.2))[:, 0]

    generator, critic = Generator(), Critic()
    z, x = shape(32, 256), shape(32, 64, 64, 3)
    g, c = initial(generator, z, KEY), initial(critic, x)
    optimizer = optax.adam(2e-3, 0.0, 0.99)

    def step(g, c, average, of_g, of_c, x, z, key):
        def loss_of_critic(c):
            fake = generator.apply(g, z, key)
            real, pull = jax.vjp(lambda x: critic.apply(c, x), x)
            slopes = jnp.sum(pull(jnp.ones(len(x)))[0] ** 2, (1, 2, 3))
            return jnp.mean(jax.nn.softplus(critic.apply(c, fake)) + jax.nn.softplus(-real) + 5 * slopes)

        def loss_of_generator(g):
            return jnp.mean(jax.nn.softplus(-critic.apply(c, generator.apply(g, z, key))))

        c, of_c, a = updated(optimizer, loss_of_critic, c, of_c)
        g, of_g, b = updated(optimizer, loss_of_generator, g, of_g)
        return g, c, optax.incremental_update(g, average, 0.001), of_g, of_c, a, b

    states = [jax.eval_shape(optimizer.init, of) for of in (g, c)]
    return step, (g, c, g, *states, x, z, KEY), (0, 1, 2, 3, 4)


@program
def linen_deformable_detr():
    """Flax Linen: attention that looks at a few places between pixels, and an auction that gives boxes to queries."""
    width, heads, places, queries, most, batch = 256, 8, 4, 200, 40, 8

    def looked(values, at):
        """Bilinear: values (heads, h, w, d), at (n, heads, places, 2) from 0 to 1."""
        _, h, w, _ = values.shape
        x, y = at[..., 0] * w - 0.5, at[..., 1] * h - 0.5
        x0, y0 = jnp.floor(x), jnp.floor(y)
        total = 0.0
        head = jnp.arange(heads)[None, :, None]
        for i in (0, 1):
            for j in (0, 1):
                xi, yj = x0 + i, y0 + j
                weight = (1 - jnp.abs(x - xi)) * (1 - jnp.abs(y - yj))
                is_in = (xi >= 0) & (xi < w) & (yj >= 0) & (yj < h)
                found = values[head, jnp.clip(yj, 0, h - 1).astype(S32), jnp.clip(xi, 0, w - 1).astype(S32)]
                total = total + found * (weight * is_in)[..., None]
        return total

    class Deformable(nn.Module):
        @nn.compact
        def __call__(self, q, where, maps):
            b, n, _ = q.shape
            off = nn.Dense(heads * 3 * places * 2)(q).reshape(b, n, heads, 3, places, 2)
            odds = jax.nn.softmax(nn.Dense(heads * 3 * places)(q).reshape(b, n, heads, -1)).reshape(b, n, heads, 3, places)
            total = 0.0
            project = nn.Dense(width)
            for i, x in enumerate(maps):
                v = project(x).reshape(*x.shape[:3], heads, -1).transpose(0, 3, 1, 2, 4)
                at = where[:, :, None, None] + off[:, :, :, i] / jnp.array([x.shape[2], x.shape[1]])
                total = total + jnp.einsum('bnhpd,bnhp->bnhd', jax.vmap(looked)(v, at), odds[:, :, :, i])
            return nn.Dense(width)(total.reshape(b, n, -1))

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            maps = []
            for i, size in enumerate((64, 128, 256, 256, 256)):
                x = nn.relu(nn.GroupNorm(16)(nn.Conv(size, (3, 3), 2)(x)))
                x = nn.relu(x + nn.GroupNorm(16)(nn.Conv(size, (3, 3))(x)))
                maps += [nn.Dense(width)(x)] if i > 1 else []
            middles = lambda n: (jnp.arange(n) + 0.5) / n
            grids = [jnp.stack(jnp.meshgrid(middles(m.shape[2]), middles(m.shape[1])), -1) for m in maps]
            where = jnp.concatenate([g.reshape(-1, 2) for g in grids])
            flat = jnp.concatenate([m.reshape(batch, -1, width) for m in maps], 1)
            sizes = [m.shape[1:3] for m in maps]
            for _ in range(2):
                parts, start = [], 0
                for h, w in sizes:
                    parts.append(flat[:, start : start + h * w].reshape(batch, h, w, width))
                    start += h * w
                y = Deformable()(flat, jnp.broadcast_to(where, (batch, *where.shape)), parts)
                flat = nn.LayerNorm()(flat + y)
                flat = nn.LayerNorm()(flat + nn.Dense(width)(nn.relu(nn.Dense(1024)(flat))))
            parts, start = [], 0
            for h, w in sizes:
                parts.append(flat[:, start : start + h * w].reshape(batch, h, w, width))
                start += h * w
            q = jnp.broadcast_to(self.param('q', nn.initializers.normal(1.0), (queries, width)), (batch, queries, width))
            at = nn.sigmoid(nn.Dense(2)(q))
            found = []
            for _ in range(3):
                q = nn.LayerNorm()(q + nn.SelfAttention(heads)(q))
                q = nn.LayerNorm()(q + Deformable()(q, at, parts))
                q = nn.LayerNorm()(q + nn.Dense(width)(nn.relu(nn.Dense(1024)(q))))
                found.append((nn.Dense(91)(q), nn.sigmoid(nn.Dense(4)(nn.relu(nn.Dense(width)(q))))))
            return found

    def auction(worth):
        """Which query each of the boxes gets, of (boxes, queries)."""

        def more(of):
            prices, owner, mine, steps = of
            value = worth - prices
            (best, second), at = lax.top_k(value, 2)[0].T, jnp.argmax(value, 1)
            bid = jnp.where(mine < 0, prices[at] + best - second + 1e-2, -jnp.inf)
            offers = jnp.full((most, queries), -jnp.inf).at[jnp.arange(most), at].set(bid)
            highest, winner = offers.max(0), jnp.argmax(offers, 0)
            is_sold = highest > -jnp.inf
            owner = jnp.where(is_sold, winner, owner)
            prices = jnp.where(is_sold, highest, prices)
            mine = jnp.full(most, -1).at[jnp.where(owner >= 0, owner, most)].set(jnp.arange(queries), mode='drop')
            return prices, owner, mine, steps + 1

        start = jnp.zeros(queries), jnp.full(queries, -1), jnp.full(most, -1), 0
        return lax.while_loop(lambda of: jnp.any(of[2] < 0) & (of[3] < 300), more, start)[2]

    model, x = Net(), shape(batch, 256, 256, 3)

    def loss(p, x, labels, boxes, mask):
        total = 0.0
        for logits, found in model.apply(p, x):

            def one(logits, found, labels, boxes, mask):
                far = jnp.abs(boxes[:, None] - found).sum(-1)
                worth = lax.stop_gradient(jax.nn.log_softmax(logits)[:, labels].T - 5 * far)
                at = auction(jnp.where(mask[:, None], worth, 0.0))
                goal = jnp.full(queries, 90).at[jnp.where(mask, at, queries)].set(labels, mode='drop')
                each = cross_entropy(logits, goal) * jnp.where(goal == 90, 0.1, 1)
                return each.mean() + 5 * jnp.sum(jnp.where(mask[:, None], jnp.abs(found[at] - boxes), 0)) / jnp.maximum(mask.sum(), 1)

            total = total + jax.vmap(one)(logits, found, labels, boxes, mask).mean()
        return total

    optimizer = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-4))
    data = tokens(batch, most), shape(batch, most, 4), shape(batch, most, dtype=jnp.bool_)
    return training(loss, optimizer, initial(model, x), x, *data)


@program
def mmdit_flow():
    """Flax NNX: pictures and words with weights of their own meet in one attention; a straight flow, checkpointed, in bf16."""
    width, heads, depth, words = 768, 12, 4, 128

    class Side(nnx.Module):
        def __init__(self, rngs):
            of = lambda a, b: nnx.Linear(a, b, rngs=rngs, dtype=BF16)
            self.scale, self.qkv, self.o = of(width, 6 * width), of(width, 3 * width), of(width, width)
            self.up, self.down = of(width, 4 * width), of(4 * width, width)
            self.qn, self.kn = nnx.RMSNorm(64, rngs=rngs, dtype=BF16), nnx.RMSNorm(64, rngs=rngs, dtype=BF16)
            self.norm = nnx.LayerNorm(width, use_scale=False, use_bias=False, rngs=rngs, dtype=BF16)

        def first(self, x, c):
            self_of = jnp.split(self.scale(jax.nn.silu(c))[:, None], 6, -1)
            h = self.norm(x) * (1 + self_of[1]) + self_of[0]
            q, k, v = jnp.split(self.qkv(h).reshape(*x.shape[:2], 3 * heads, -1), 3, 2)
            return self_of, (self.qn(q), self.kn(k), v)

        def second(self, x, y, of):
            x = x + of[2] * self.o(y.reshape(x.shape))
            h = self.norm(x) * (1 + of[4]) + of[3]
            return x + of[5] * self.down(jax.nn.gelu(self.up(h), approximate=True))

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.a, self.b = Side(rngs), Side(rngs)

        def __call__(self, x, y, c):
            of_x, qkv_x = self.a.first(x, c)
            of_y, qkv_y = self.b.first(y, c)
            q, k, v = [jnp.concatenate(pair, 1) for pair in zip(qkv_x, qkv_y)]
            z = jax.nn.dot_product_attention(q, k, v)
            return self.a.second(x, z[:, : x.shape[1]], of_x), self.b.second(y, z[:, x.shape[1] :], of_y)

    class Net(nnx.Module):
        def __init__(self, rngs):
            of = lambda a, b: nnx.Linear(a, b, rngs=rngs, dtype=BF16)
            self.cut, self.words, self.time, self.pooled = of(64, width), of(1024, width), of(256, width), of(768, width)
            self.blocks = nnx.List([Block(rngs) for _ in range(depth)])
            self.out = of(width, 64)
            self.at = nnx.Param(jax.random.normal(rngs.params(), (1024, width)) * 0.02)

        def __call__(self, x, t, text, pooled):
            angles = 1000 * t[:, None] * jnp.exp(-jnp.arange(128) / 128 * jnp.log(10000.0))
            c = self.time(jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], -1)) + self.pooled(pooled)
            b, h, w, _ = x.shape
            x = x.reshape(b, h // 2, 2, w // 2, 2, 16).transpose(0, 1, 3, 2, 4, 5).reshape(b, -1, 64)
            x, y = self.cut(x) + self.at[...].astype(BF16), self.words(text)
            for block in self.blocks:
                x, y = nnx.remat(lambda block, x, y, c: block(x, y, c))(block, x, y, c)
            x = self.out(x).reshape(b, h // 2, w // 2, 2, 2, 16).transpose(0, 1, 3, 2, 4, 5)
            return x.reshape(b, h, w, 16)

    definition, p = nnx.split(nnx.eval_shape(lambda: Net(nnx.Rngs(0))), nnx.Param)

    def loss(p, x, text, pooled, key):
        a, b = jax.random.split(key)
        t = jax.nn.sigmoid(jax.random.normal(a, (len(x),)))
        noise = jax.random.normal(b, x.shape)
        mixed = (1 - t)[:, None, None, None] * x + t[:, None, None, None] * noise
        found = nnx.merge(definition, p)(mixed, t, text, pooled).astype(F32)
        return jnp.mean((found - (noise - x)) ** 2)

    data = shape(8, 64, 64, 16), shape(8, words, 1024), shape(8, 768), KEY
    return training(loss, optax.adamw(1e-4, weight_decay=0.01), p, *data)


@program
def cellular_automata_pool():
    """Haiku: cells that grow to a picture by rules of their neighbours, from a pool of states, over checkpointed steps."""
    side, channels, pool, batch, steps = 72, 16, 512, 16, 64

    def rule(x):
        i = jnp.array([[0.0, 0, 0], [0, 1, 0], [0, 0, 0]])
        dx = jnp.array([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
        taps = jnp.tile(jnp.stack([i, dx, dx.T], -1)[:, :, None], (1, 1, 1, channels))
        y = lax.conv_general_dilated(x, taps, (1, 1), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC'), feature_group_count=channels)
        return hk.Linear(channels, w_init=jnp.zeros)(jax.nn.relu(hk.Linear(128)(y)))

    model = hk.without_apply_rng(hk.transform(rule))
    p = initial(model, shape(batch, side, side, channels))
    optimizer = optax.chain(optax.normalize_by_update_norm(), optax.adam(2e-3))

    def alive(x):
        return lax.reduce_window(x[..., 3:4], -jnp.inf, lax.max, (1, 3, 3, 1), (1, 1, 1, 1), 'SAME') > 0.1

    def step(p, state, pool, picture, seed, key):
        a, b, c = jax.random.split(key, 3)
        at = jax.random.choice(a, len(pool), (batch,), replace=False)
        x = pool[at]
        worst = jnp.argsort(-jnp.mean((x[..., :4] - picture) ** 2, (1, 2, 3)))
        x = x[worst].at[0].set(seed)
        grid = jnp.stack(jnp.meshgrid(jnp.arange(side), jnp.arange(side)), -1)
        middle = jax.random.uniform(b, (3, 1, 1, 2), minval=0.25, maxval=0.75) * side
        x = x.at[-3:].multiply((jnp.linalg.norm(grid - middle, axis=-1) > 12)[..., None])

        def loss(p):
            def one(x, key):
                before = alive(x)
                fired = jax.random.bernoulli(key, 0.5, (*x.shape[:3], 1))
                y = x + model.apply(p, x) * fired
                return y * (before & alive(y)), None

            y, _ = lax.scan(jax.checkpoint(one), x, jax.random.split(c, steps))
            return jnp.mean((y[..., :4] - picture) ** 2), y

        p, state, value, y = updated_with(optimizer, loss, p, state)
        return p, state, pool.at[at[worst]].set(y), value

    place = shape(side, side, channels)
    arguments = p, jax.eval_shape(optimizer.init, p), shape(pool, *place.shape), shape(side, side, 4), place, KEY
    return step, arguments, (0, 1, 2)


@program
def ct_total_variation():
    """JAXopt: a slice from few projections: rays by interpolation, a smooth variation, and steps of proximal gradients."""
    import jaxopt

    side, angles, batch = 256, 90, 4

    def projected(x, theta):
        at = jnp.arange(side) - (side - 1) / 2

        def one(theta):
            c, s = jnp.cos(theta), jnp.sin(theta)
            places = [c * at[:, None] - s * at + (side - 1) / 2, s * at[:, None] + c * at + (side - 1) / 2]
            return jax.vmap(lambda x: jax.scipy.ndimage.map_coordinates(x, places, 1))(x).sum(1)

        return lax.map(one, theta, batch_size=10).swapaxes(0, 1)

    def run(x, sinogram, theta, weight):
        def loss(x):
            a, b = jnp.diff(x, axis=1)[:, :, :-1], jnp.diff(x, axis=2)[:, :-1]
            smooth = jnp.sum(jnp.sqrt(a**2 + b**2 + 1e-6))
            return 0.5 * jnp.sum((projected(x, theta) - sinogram) ** 2) / side + weight * smooth

        positive = jaxopt.projection.projection_non_negative
        solver = jaxopt.ProjectedGradient(loss, positive, stepsize=1e-3, maxiter=15, implicit_diff=False)
        found = solver.run(x)
        return found.params, found.state.error

    return run, (shape(batch, side, side), shape(batch, angles, side), shape(angles), shape()), (0,)


# Sound.


@program
def eqx_codec_residual():
    """Equinox: sound to codes by eight code books, each of what the one before left, with losses of spectra at five scales."""
    width, codes, books, samples, batch = 32, 1024, 8, 24000, 8

    class Unit(eqx.Module):
        a: eqx.nn.Conv1d
        b: eqx.nn.Conv1d
        alpha: jax.Array

        def __init__(self, c, rate, key):
            k, l = jax.random.split(key)
            self.a, self.b = eqx.nn.Conv1d(c, c, 7, padding=3 * rate, dilation=rate, key=k), eqx.nn.Conv1d(c, c, 1, key=l)
            self.alpha = jnp.ones((2, c, 1))

        def __call__(self, x):
            snake = lambda x, a: x + jnp.sin(a * x) ** 2 / (a + 1e-9)
            return x + self.b(snake(self.a(snake(x, self.alpha[0])), self.alpha[1]))

    class Net(eqx.Module):
        first: eqx.nn.Conv1d
        downs: list
        ups: list
        last: eqx.nn.Conv1d
        books: jax.Array
        to: eqx.nn.Conv1d
        back: eqx.nn.Conv1d

        def __init__(self, key):
            keys = iter(jax.random.split(key, 40))
            self.first = eqx.nn.Conv1d(1, width, 7, padding=3, key=next(keys))
            self.downs, self.ups, c = [], [], width
            for s in (2, 4, 5, 8):
                pad = (s + 1) // 2
                units = [Unit(c, r, next(keys)) for r in (1, 3, 9)]
                self.downs.append((units, eqx.nn.Conv1d(c, 2 * c, 2 * s, s, padding=((pad, s - pad),), key=next(keys))))
                c *= 2
            for s in (8, 5, 4, 2):
                up = eqx.nn.ConvTranspose1d(c, c // 2, 2 * s, s, padding=s // 2, output_padding=s % 2, key=next(keys))
                c //= 2
                self.ups.append((up, [Unit(c, r, next(keys)) for r in (1, 3, 9)]))
            self.last = eqx.nn.Conv1d(width, 1, 7, padding=3, key=next(keys))
            self.books = jax.random.normal(next(keys), (books, codes, 64))
            self.to, self.back = eqx.nn.Conv1d(512, 64, 1, key=next(keys)), eqx.nn.Conv1d(64, 512, 1, key=next(keys))

        def __call__(self, x):
            x = self.first(x[None])
            for units, down in self.downs:
                for unit in units:
                    x = unit(x)
                x = down(x)
            z = self.to(x).T

            def book(of, c):
                left, total = of
                far = jnp.sum(left**2, -1, keepdims=True) - 2 * left @ c.T + jnp.sum(c**2, -1)
                at = jnp.argmin(far, -1)
                q = c[at]
                lost = jnp.mean((lax.stop_gradient(left) - q) ** 2) + 0.25 * jnp.mean((left - lax.stop_gradient(q)) ** 2)
                return (left - lax.stop_gradient(q), total + left + lax.stop_gradient(q - left)), (lost, at)

            (_, q), (lost, at) = lax.scan(book, (z, jnp.zeros_like(z)), self.books)
            q = z + lax.stop_gradient(q - z)
            y = self.back(q.T)
            for up, units in self.ups:
                y = up(y)
                for unit in units:
                    y = unit(y)
            return jnp.tanh(self.last(y))[0], lost.sum(), at

    p, static = eqx.partition(eqx.filter_eval_shape(Net, KEY), is_shape)

    def spectrum(x, n):
        frames = (x.shape[-1] - n) // (n // 4) + 1
        at = jnp.arange(frames)[:, None] * (n // 4) + jnp.arange(n)
        return jnp.abs(jnp.fft.rfft(x[:, at] * jnp.hanning(n)) + 1e-7)

    def loss(p, x):
        y, lost, _ = jax.vmap(eqx.combine(p, static))(x)
        y = y[:, :samples]
        total = jnp.mean(jnp.abs(x - y)) + lost.mean()
        for n in (128, 256, 512, 1024, 2048):
            a, b = spectrum(x, n), spectrum(y, n)
            total = total + jnp.mean(jnp.abs(a - b)) + jnp.mean((jnp.log(a) - jnp.log(b)) ** 2)
        return total

    return training(loss, optax.adam(1e-4, 0.8, 0.99), p, shape(batch, samples))


# Molecules, points and graphs.


@program
def haiku_evoformer():
    """Haiku: rows and columns of aligned sequences, and pairs of residues by triangles, checkpointed, with losses of distances."""
    rows, n, of_rows, of_pairs = 32, 128, 128, 64

    def norm(x):
        return hk.LayerNorm(-1, True, True)(x)

    def attention(x, heads, bias=None):
        """Over the axis before the last, gated."""
        h = norm(x)
        q, k, v = [hk.Linear(heads * 16, with_bias=False)(h).reshape(*h.shape[:-1], heads, 16) for _ in range(3)]
        scores = jnp.einsum('...qhd,...khd->...hqk', q, k) / 4
        odds = jax.nn.softmax(scores if bias is None else scores + bias, -1)
        y = jnp.einsum('...hqk,...khd->...qhd', odds, v).reshape(*h.shape[:-1], -1)
        return hk.Linear(x.shape[-1])(y * jax.nn.sigmoid(hk.Linear(heads * 16)(h)))

    def triangle(z, is_out):
        h = norm(z)
        a, b = [jax.nn.sigmoid(hk.Linear(of_pairs)(h)) * hk.Linear(of_pairs)(h) for _ in range(2)]
        y = jnp.einsum('ikc,jkc->ijc', a, b) if is_out else jnp.einsum('kic,kjc->ijc', a, b)
        return jax.nn.sigmoid(hk.Linear(of_pairs)(h)) * hk.Linear(of_pairs)(norm(y))

    def perceptron(x):
        return hk.Linear(x.shape[-1])(jax.nn.relu(hk.Linear(4 * x.shape[-1])(norm(x))))

    def block(of):
        m, z = of
        bias = hk.Linear(8, with_bias=False)(norm(z)).transpose(2, 0, 1)
        m = m + attention(m, 8, bias)
        m = m + attention(m.swapaxes(0, 1), 8).swapaxes(0, 1)
        m = m + perceptron(m)
        h = norm(m)
        a, b = hk.Linear(16)(h), hk.Linear(16)(h)
        outer = jnp.einsum('sic,sjd->ijcd', a, b) / rows
        z = z + hk.Linear(of_pairs)(outer.reshape(n, n, -1))
        z = z + triangle(z, True)
        z = z + triangle(z, False)
        z = z + attention(z, 4, hk.Linear(4, with_bias=False)(norm(z)).transpose(2, 0, 1))
        w = z.swapaxes(0, 1)
        z = z + attention(w, 4, hk.Linear(4, with_bias=False)(norm(w)).transpose(2, 0, 1)).swapaxes(0, 1)
        return m, z + perceptron(z)

    def net(msa):
        m = hk.Linear(of_rows)(jax.nn.one_hot(msa, 23))
        a, b = hk.Linear(of_pairs)(m[0]), hk.Linear(of_pairs)(m[0])
        apart = jnp.clip(jnp.arange(n)[:, None] - jnp.arange(n), -32, 32) + 32
        z = a[:, None] + b + hk.Embed(65, of_pairs)(apart)
        m, z = hk.layer_stack(4)(hk.remat(lambda m, z: block((m, z))))(m, z)
        return hk.Linear(64)(z + z.swapaxes(0, 1)), hk.Linear(23)(m)

    model = hk.without_apply_rng(hk.transform(net))

    def loss(p, msa, hidden, distances, key):
        seen = jnp.where(hidden, 22, msa)
        logits, words = jax.vmap(lambda x: model.apply(p, x))(seen)
        bins = jnp.clip(jnp.floor((distances - 2) / 0.3125), 0, 63).astype(S32)
        filled = jnp.sum(cross_entropy(words, msa) * hidden) / hidden.sum()
        return cross_entropy(logits, bins).mean() + 2 * filled

    msa = tokens(2, rows, n)
    optimizer = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-3))
    return training(loss, optimizer, initial(model, tokens(rows, n)), msa, shape(*msa.shape, dtype=jnp.bool_), shape(2, n, n), KEY)


@program
def nnx_points_farthest():
    """Flax NNX: points in space: the farthest are chosen one after the other, groups of their nearest go through perceptrons."""
    batch, points, classes = 16, 2048, 13

    def farthest(x, count):
        def one(of, _):
            far, last = of
            far = jnp.minimum(far, jnp.sum((x - x[last]) ** 2, -1))
            return (far, jnp.argmax(far)), last

        return lax.scan(one, (jnp.full(len(x), jnp.inf), 0), None, length=count)[1]

    class Perceptron(nnx.Module):
        def __init__(self, widths, rngs):
            self.layers = nnx.List([nnx.Linear(a, b, rngs=rngs) for a, b in zip(widths, widths[1:])])
            self.norms = nnx.List([nnx.BatchNorm(b, rngs=rngs) for b in widths[1:]])

        def __call__(self, x):
            for layer, norm in zip(self.layers, self.norms):
                x = jax.nn.relu(norm(layer(x)))
            return x

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.downs = nnx.List([Perceptron(of, rngs) for of in ([6, 64, 64, 128], [131, 128, 128, 256], [259, 256, 512])])
            self.ups = nnx.List([Perceptron(of, rngs) for of in ([768, 256, 256], [384, 256, 128], [131, 128, 128])])
            self.drop, self.head = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(128, classes, rngs=rngs)

        def __call__(self, x):
            places, features = [x], [x]
            for layer, count, near in zip(self.downs, (512, 128, 32), (32, 32, 16)):
                x, f = places[-1], features[-1]
                at = jax.vmap(lambda x: farthest(x, count))(x)
                centre = jnp.take_along_axis(x, at[..., None], 1)
                far = jnp.sum((centre[:, :, None] - x[:, None]) ** 2, -1)
                _, who = lax.top_k(-far, near)
                take = jax.vmap(lambda a, i: a[i])
                both = jnp.concatenate([take(x, who) - centre[:, :, None], take(f, who)], -1)
                places.append(centre)
                features.append(layer(both).max(2))
            f = features[-1]
            for layer, i in zip(self.ups, (2, 1, 0)):
                far = jnp.sum((places[i][:, :, None] - places[i + 1][:, None]) ** 2, -1)
                best, who = lax.top_k(-far, 3)
                weight = 1 / (1e-8 - best)
                weight = weight / weight.sum(-1, keepdims=True)
                spread = jnp.sum(jax.vmap(lambda a, i: a[i])(f, who) * weight[..., None], 2)
                f = layer(jnp.concatenate([spread, features[i]], -1))
            return self.head(self.drop(f))

    definition, p, rest = nnx.split(nnx.eval_shape(lambda: Net(nnx.Rngs(0))), nnx.Param, ...)
    optimizer = optax.adam(optax.exponential_decay(1e-3, 1000, 0.7))

    def step(p, rest, state, x, y):
        def loss(p):
            model = nnx.merge(definition, p, rest, copy=True)
            found = cross_entropy(model(x), y).mean()
            return found, nnx.split(model, nnx.Param, ...)[2]

        p, state, value, rest_after = updated_with(optimizer, loss, p, state)
        return p, rest_after, state, value

    return step, (p, rest, jax.eval_shape(optimizer.init, p), shape(batch, points, 3), tokens(batch, points)), (0, 1, 2)


@program
def jraph_encode_process():
    """jraph and Haiku: meshes as batched graphs: networks of edges, nodes and wholes, eight rounds that share nothing, and Adam."""
    import jraph

    nodes, edges, graphs, width = 12000, 72000, 4, 128

    def perceptron(x, out=width, is_normal=True):
        x = hk.nets.MLP([width, width, out])(x)
        return hk.LayerNorm(-1, True, True)(x) if is_normal else x

    def net(graph):
        joined = lambda *of: jnp.concatenate(of, -1)
        graph = jraph.GraphMapFeatures(perceptron, perceptron, perceptron)(graph)
        for _ in range(8):
            once = jraph.GraphNetwork(
                update_edge_fn=lambda e, s, r, g: perceptron(joined(e, s, r, g)),
                update_node_fn=lambda x, s, r, g: perceptron(joined(x, r, g)),
                update_global_fn=lambda x, e, g: perceptron(joined(x, e, g)),
            )
            new = once(graph)
            graph = new._replace(nodes=graph.nodes + new.nodes, edges=graph.edges + new.edges, globals=graph.globals + new.globals)
        return perceptron(graph.nodes, 3, False)

    model = hk.without_apply_rng(hk.transform(net))
    graph = jraph.GraphsTuple(
        nodes=shape(nodes, 11), edges=shape(edges, 7), globals=shape(graphs, 2), senders=tokens(edges), receivers=tokens(edges),
        n_node=tokens(graphs), n_edge=tokens(graphs),
    )  # fmt: skip

    def loss(p, graph, goal, key):
        mask = jraph.get_node_padding_mask(graph)[:, None]
        noisy = graph._replace(nodes=graph.nodes.at[:, :3].add(0.02 * jax.random.normal(key, (nodes, 3))))
        return jnp.sum(jnp.where(mask, (model.apply(p, noisy) - goal) ** 2, 0)) / mask.sum()

    optimizer = optax.adam(optax.exponential_decay(1e-4, 1000, 0.1))
    return training(loss, optimizer, initial(model, graph), graph, shape(nodes, 3), KEY)


# What people click.


@program
def sasrec_sampled_negatives():
    """Equinox: the next thing in a sequence, against things drawn by how often they are seen, with lazy rows of Adagrad."""
    things, width, length, batch, drawn = 200000, 128, 200, 128, 256

    class Layer(eqx.Module):
        n1: eqx.nn.LayerNorm
        n2: eqx.nn.LayerNorm
        att: eqx.nn.MultiheadAttention
        mlp: eqx.nn.MLP

        def __init__(self, key):
            a, b = jax.random.split(key)
            self.n1, self.n2 = eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width)
            self.att = eqx.nn.MultiheadAttention(2, width, dropout_p=0.2, key=a)
            self.mlp = eqx.nn.MLP(width, width, 256, 1, jax.nn.gelu, key=b)

        def __call__(self, x, mask, key):
            h = jax.vmap(self.n1)(x)
            x = x + self.att(h, h, h, mask=mask, key=key)
            return x + jax.vmap(self.mlp)(jax.vmap(self.n2)(x))

    class Net(eqx.Module):
        layers: list
        at: jax.Array
        norm: eqx.nn.LayerNorm

        def __init__(self, key):
            self.layers = [Layer(k) for k in jax.random.split(key, 2)]
            self.at, self.norm = jnp.zeros((length, width)), eqx.nn.LayerNorm(width)

        def __call__(self, x, is_thing, key):
            x = x + self.at
            mask = jnp.tril(jnp.ones((length, length), bool)) & is_thing
            for i, layer in enumerate(self.layers):
                x = layer(x, mask, jax.random.fold_in(key, i))
            return jax.vmap(self.norm)(x)

    p, static = eqx.partition(eqx.filter_eval_shape(Net, KEY), is_shape)
    optimizer = optax.adam(1e-3)

    def step(p, table, squares, state, seen, after, often, key):
        a, b = jax.random.split(key)
        negative = jnp.searchsorted(often, jax.random.uniform(a, (batch, drawn)))
        at = jnp.concatenate([seen, after, negative], 1)

        def loss(of):
            p, rows = of
            x, good, bad = jnp.split(rows, [length, 2 * length], 1)
            y = jax.vmap(eqx.combine(p, static))(x, seen > 0, jax.random.split(b, batch))
            share = jnp.diff(often, prepend=0)
            right = jnp.sum(y * good, -1) - jnp.log(share[after] + 1e-9)
            wrong = jnp.einsum('btd,bnd->btn', y, bad) - jnp.log(share[negative] + 1e-9)[:, None]
            wrong = jnp.where(negative[:, None] == after[..., None], -1e9, wrong)
            each = jax.nn.logsumexp(jnp.concatenate([right[..., None], wrong], -1), -1) - right
            return jnp.sum(each * (after > 0)) / (after > 0).sum()

        value, (g, of_rows) = jax.value_and_grad(loss)((p, table[at]))
        updates, state = optimizer.update(g, state)
        order = jnp.argsort(at.reshape(-1))
        which, rows = at.reshape(-1)[order], of_rows.reshape(-1, width)[order]
        first = jnp.cumsum(jnp.concatenate([jnp.zeros(1, bool), which[1:] != which[:-1]]))
        summed = jax.ops.segment_sum(rows, first, len(which), indices_are_sorted=True)
        once = jnp.full(len(which), things).at[first].set(which)
        squares = squares.at[once].add(jnp.mean(summed**2, -1), mode='drop')
        move = 0.05 * summed * lax.rsqrt(squares.at[once].get(mode='fill', fill_value=1.0) + 1e-8)[:, None]
        return optax.apply_updates(p, updates), table.at[once].add(-move, mode='drop'), squares, state, value

    text = tokens(batch, length)
    arguments = p, shape(things, width), shape(things), jax.eval_shape(optimizer.init, p), text, text, shape(things), KEY
    return step, arguments, (0, 1, 2, 3)
