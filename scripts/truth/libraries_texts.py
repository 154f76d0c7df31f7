"""Programs for unseen.py, second batch: language models that train, generate and are tuned."""

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from layers import BF16, F32, S8, S32, shape, tokens
from libraries import KEY, cross_entropy, initial, is_shape, program, training, training_keras, updated


def rms(x, gain):
    y = x.astype(F32)
    return (y * lax.rsqrt(jnp.mean(jnp.square(y), -1, keepdims=True) + 1e-6)).astype(x.dtype) * (1 + gain)


def rotated(x, positions, base=10000.0):
    """Rotary positions, of (..., length, heads, width)."""
    half = x.shape[-1] // 2
    angles = positions[..., None, None].astype(F32) / base ** (jnp.arange(half) / half)
    a, b = jnp.split(x.astype(F32), 2, -1)
    return jnp.concatenate([a * jnp.cos(angles) - b * jnp.sin(angles), b * jnp.cos(angles) + a * jnp.sin(angles)], -1).astype(x.dtype)


# Training.


@program
def gemma_windows():
    """Plain JAX and Optax: grouped queries, windows in every other layer, capped scores, and Adafactor."""
    depth, width, heads, groups, head, inner, words, length, window = 2, 1024, 8, 4, 128, 4096, 64000, 1024, 256

    def attention(p, x, mask):
        q = rotated(jnp.einsum('btd,dhk->bthk', x, p['q']), jnp.arange(length))
        k = rotated(jnp.einsum('btd,dhk->bthk', x, p['k']), jnp.arange(length))
        v = jnp.einsum('btd,dhk->bthk', x, p['v'])
        q = q.reshape(*q.shape[:2], groups, heads // groups, head) * head**-0.5
        scores = jnp.einsum('btgrk,bsgk->bgrts', q, k).astype(F32)
        scores = jnp.tanh(scores / 50) * 50
        odds = jax.nn.softmax(jnp.where(mask, scores, -2.4e38)).astype(x.dtype)
        y = jnp.einsum('bgrts,bsgk->btgrk', odds, v).reshape(*x.shape[:2], heads, head)
        return jnp.einsum('bthk,hkd->btd', y, p['o'])

    def layer(p, x, mask):
        x = x + rms(attention(p, rms(x, p['n1']), mask), p['n2'])
        h = rms(x, p['n3'])
        return x + rms((jax.nn.gelu(h @ p['g']) * (h @ p['u'])) @ p['d'], p['n4'])

    def pair(x, p):
        before = jnp.tril(jnp.ones((length, length), bool))
        near = before & ~jnp.tril(before, -window)
        x = layer(jax.tree.map(lambda a: a[0], p), x, near)
        return layer(jax.tree.map(lambda a: a[1], p), x, before), None

    def loss(p, text):
        w = jax.tree.map(lambda a: a.astype(BF16), p)
        x = w['emb'][text[:, :-1]] * jnp.sqrt(width).astype(BF16)
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        x, _ = lax.scan(jax.checkpoint(pair, policy=policy), x, w['l'])
        logits = jnp.einsum('btd,vd->btv', rms(x, w['n']), w['emb'], preferred_element_type=F32)
        logits = jnp.tanh(logits / 30) * 30
        return cross_entropy(logits, text[:, 1:]).mean() + 1e-4 * jnp.mean(jax.nn.logsumexp(logits, -1) ** 2)

    of = lambda *extents: shape(depth, 2, *extents)
    norms = {f'n{i}': of(width) for i in range(1, 5)}
    layers = dict(
        q=of(width, heads, head),
        k=of(width, groups, head),
        v=of(width, groups, head),
        o=of(heads, head, width),
        g=of(width, inner),
        u=of(width, inner),
        d=of(inner, width),
    )
    parameters = dict(emb=shape(words, width), n=shape(width), l=layers | norms)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adafactor(1e-3, multiply_by_parameter_scale=False))
    return training(loss, optimizer, parameters, tokens(4, length + 1))


@program
def linen_moe_capacity():
    """Flax Linen: experts with a capacity, to which one-hot products send words, vmapped, and Lion."""
    experts, words = 8, 16000

    class Experts(nn.Module):
        @nn.compact
        def __call__(self, x):
            b, t, d = x.shape
            room = 2 * t // experts
            odds = jax.nn.softmax(nn.Dense(experts, use_bias=False)(x.astype(F32)))
            best, chosen = lax.top_k(odds, 2)
            best = best / best.sum(-1, keepdims=True)
            hot = jax.nn.one_hot(chosen, experts)
            ordered = hot.transpose(0, 2, 1, 3).reshape(b, 2 * t, experts)
            place = (jnp.cumsum(ordered, 1) - ordered).reshape(b, 2, t, experts).transpose(0, 2, 1, 3)
            place = jnp.sum(place * hot, -1)
            placed = jax.nn.one_hot(place, room)
            send = jnp.einsum('btke,btkc->btec', hot, placed).astype(BF16)
            weigh = jnp.einsum('btk,btke,btkc->btec', best, hot, placed).astype(BF16)
            sent = jnp.einsum('btec,btd->ebcd', send, x)
            dense = nn.vmap(nn.Dense, variable_axes=dict(params=0), split_rngs=dict(params=True))
            h = nn.silu(dense(4 * d, use_bias=False, dtype=BF16)(sent))
            y = dense(d, use_bias=False, dtype=BF16)(h)
            balance = experts * jnp.sum(hot[:, :, 0].mean((0, 1)) * odds.mean((0, 1)))
            self.sow('losses', 'balance', balance)
            return jnp.einsum('btec,ebcd->btd', weigh, y)

    class Net(nn.Module):
        @nn.compact
        def __call__(self, text):
            x = nn.Embed(words, 512, dtype=BF16)(text)
            x = x + self.param('pos', nn.initializers.normal(0.02), (text.shape[1], 512)).astype(BF16)
            for _ in range(2):
                h = nn.RMSNorm(dtype=BF16)(x)
                x = x + nn.MultiHeadDotProductAttention(8, dtype=BF16)(h, mask=nn.make_causal_mask(text, dtype=bool))
                x = x + Experts()(nn.RMSNorm(dtype=BF16)(x))
            return nn.Dense(words, dtype=BF16)(nn.RMSNorm(dtype=BF16)(x))

    model, text = Net(), tokens(16, 512)

    def loss(p, text):
        logits, others = model.apply(dict(params=p), text, mutable=['losses'])
        each = cross_entropy(logits[:, :-1].astype(F32), text[:, 1:])
        return each.mean() + 0.01 * sum(jnp.sum(v) for v in jax.tree.leaves(others))

    return training(loss, optax.lion(1e-4, weight_decay=0.1), initial(model, text)['params'], text)


@program
def haiku_hyena():
    """Haiku: long convolutions by Fourier transforms between gates, with implicit filters, and AdamW."""
    width, length, depth, words = 384, 2048, 2, 8000

    def filters():
        t = jnp.linspace(0, 1, length)[:, None]
        bands = jnp.arange(1, 9) * jnp.pi * 2
        h = jnp.concatenate([t, jnp.sin(t * bands), jnp.cos(t * bands)], -1)
        for _ in range(2):
            h = jnp.sin(10 * hk.Linear(64)(h))
        h = hk.Linear(2 * width, with_bias=False)(h).reshape(length, 2, width)
        decay = jnp.exp(-t[:, :, None] * jnp.linspace(1, 20, width))
        return (h * decay).transpose(1, 2, 0)

    def convolved(x, f):
        n = 2 * length
        y = jnp.fft.irfft(jnp.fft.rfft(x, n) * jnp.fft.rfft(f, n), n)
        return y[..., :length]

    def net(text):
        x = hk.Embed(words, width)(text)
        for _ in range(depth):
            h = hk.LayerNorm(-1, True, True)(x)
            h = hk.Linear(3 * width)(h)
            h = hk.DepthwiseConv1D(1, 3, padding=[(2, 0)])(h)
            a, b, v = jnp.split(h.transpose(0, 2, 1), 3, 1)
            f = filters()
            skip = hk.get_parameter('skip', (2, width, 1), init=jnp.ones)
            v = a * (convolved(v, f[0]) + skip[0] * v)
            v = b * (convolved(v, f[1]) + skip[1] * v)
            x = x + hk.Linear(width)(v.transpose(0, 2, 1))
            h = hk.LayerNorm(-1, True, True)(x)
            x = x + hk.Linear(width)(jax.nn.gelu(hk.Linear(2 * width)(h)))
        return hk.Linear(words)(hk.LayerNorm(-1, True, True)(x))

    model = hk.without_apply_rng(hk.transform(net))

    def loss(p, text):
        return cross_entropy(model.apply(p, text[:, :-1]), text[:, 1:]).mean()

    return training(loss, optax.adamw(6e-4), initial(model, tokens(8, length)), tokens(8, length + 1))


@program
def linen_t5_packed():
    """Flax Linen: an encoder and a decoder on packed texts, whose attention stays within a text."""
    width, heads, head, words = 512, 8, 64, 32000

    def buckets(d, both):
        n, exact = (16, 8) if both else (32, 16)
        offset = jnp.where(d > 0, n, 0) if both else 0
        d = jnp.abs(d) if both else -jnp.minimum(d, 0)
        far = exact + (jnp.log(jnp.maximum(d, 1) / exact) / jnp.log(128 / exact) * (n - exact)).astype(S32)
        return offset + jnp.where(d < exact, d, jnp.minimum(far, n - 1))

    class Attention(nn.Module):
        @nn.compact
        def __call__(self, x, source, mask, bias):
            of = lambda name: nn.DenseGeneral((heads, head), use_bias=False, dtype=BF16, name=name)
            y = nn.dot_product_attention(of('q')(x), of('k')(source), of('v')(source), bias=bias, mask=mask, dtype=BF16)
            return nn.DenseGeneral(width, (-2, -1), use_bias=False, dtype=BF16, name='o')(y)

    class Net(nn.Module):
        @nn.compact
        def __call__(self, source, of_source, target, of_target):
            emb = nn.Embed(words, width)

            def norm(x):
                return nn.RMSNorm(dtype=BF16)(x)

            def perceptron(x):
                h = nn.gelu(nn.Dense(1024, use_bias=False, dtype=BF16)(x)) * nn.Dense(1024, use_bias=False, dtype=BF16)(x)
                return nn.Dense(width, use_bias=False, dtype=BF16)(h)

            def bias(n, both):
                at = jnp.arange(n)
                return nn.Embed(32, heads)(buckets(at[None] - at[:, None], both)).transpose(2, 0, 1)[None]

            same = lambda a, b: (a[:, :, None] == b[:, None])[:, None] & (b > 0)[:, None, None]
            x, mask, of_places = emb(source).astype(BF16), same(of_source, of_source), bias(source.shape[1], True)
            for _ in range(2):
                h = norm(x)
                x = x + Attention()(h, h, mask, of_places)
                x = x + perceptron(norm(x))
            found = norm(x)
            x, of_places = emb(target).astype(BF16), bias(target.shape[1], False)
            before = same(of_target, of_target) & jnp.tril(jnp.ones((target.shape[1],) * 2, bool))
            for _ in range(2):
                h = norm(x)
                x = x + Attention()(h, h, before, of_places)
                x = x + Attention()(norm(x), found, same(of_target, of_source), None)
                x = x + perceptron(norm(x))
            return emb.attend(norm(x).astype(F32) * width**-0.5)

    model, source, target = Net(), tokens(8, 512), tokens(8, 256)

    def loss(p, source, of_source, target, of_target):
        shifted = jnp.where(of_target == jnp.roll(of_target, 1, 1), jnp.roll(target, 1, 1), 0)
        each = cross_entropy(model.apply(p, source, of_source, shifted, of_target), target)
        return jnp.sum(each * (of_target > 0)) / jnp.sum(of_target > 0)

    batch = source, source, target, target
    optimizer = optax.adamw(optax.warmup_exponential_decay_schedule(0, 1e-3, 100, 1000, 0.5))
    return training(loss, optimizer, initial(model, *batch), *batch)


class GatedLayer(eqx.Module):
    att: eqx.nn.MultiheadAttention
    n1: eqx.nn.RMSNorm
    n2: eqx.nn.RMSNorm
    rope: eqx.nn.RotaryPositionalEmbedding
    g: eqx.nn.Linear
    u: eqx.nn.Linear
    d: eqx.nn.Linear

    def __init__(self, width, heads, key):
        keys = jax.random.split(key, 4)
        self.att = eqx.nn.MultiheadAttention(heads, width, key=keys[0])
        self.n1, self.n2 = eqx.nn.RMSNorm(width), eqx.nn.RMSNorm(width)
        self.rope = eqx.nn.RotaryPositionalEmbedding(width // heads)
        self.g, self.u = [eqx.nn.Linear(width, 3 * width, use_bias=False, key=k) for k in keys[1:3]]
        self.d = eqx.nn.Linear(3 * width, width, use_bias=False, key=keys[3])

    def __call__(self, x):
        def placed(q, k, v):
            turn = jax.vmap(self.rope, 1, 1)
            return turn(q), turn(k), v

        h = jax.vmap(self.n1)(x)
        mask = jnp.tril(jnp.ones((x.shape[0],) * 2, bool))
        x = x + self.att(h, h, h, mask=mask, process_heads=placed).astype(x.dtype)
        h = jax.vmap(self.n2)(x)
        return x + jax.vmap(self.d)(jax.nn.silu(jax.vmap(self.g)(h)) * jax.vmap(self.u)(h))


@program
def eqx_chunked_loss():
    """Equinox: stacked layers in a checkpointed scan, and a loss over chunks of places that never has all logits."""
    width, words, depth, chunk = 768, 50304, 3, 256

    class LM(eqx.Module):
        emb: jax.Array
        layers: GatedLayer
        norm: eqx.nn.RMSNorm

        def __init__(self, key):
            a, b = jax.random.split(key)
            self.emb = jax.random.normal(a, (words, width)) * 0.02
            self.layers = eqx.filter_vmap(lambda k: GatedLayer(width, 12, k))(jax.random.split(b, depth))
            self.norm = eqx.nn.RMSNorm(width)

    def whole(model, text):
        stacked, static = eqx.partition(model.layers, eqx.is_array)

        def body(x, layer):
            return eqx.combine(layer, static)(x), None

        x, _ = lax.scan(jax.checkpoint(body), model.emb[text].astype(BF16), stacked)
        return jax.vmap(model.norm)(x)

    arrays, static = eqx.partition(eqx.filter_eval_shape(LM, KEY), is_shape)

    def loss(p, text):
        model = eqx.combine(jax.tree.map(lambda a: a.astype(BF16), p), static)
        x = jax.vmap(lambda t: whole(model, t))(text[:, :-1])
        x = x.reshape(-1, chunk, width)
        y = text[:, 1:].reshape(-1, chunk)

        @jax.checkpoint
        def part(total, of):
            x, y = of
            logits = (x @ model.emb.T).astype(F32)
            return total + cross_entropy(logits, y).sum(), None

        return lax.scan(part, 0.0, (x, y))[0] / y.size

    def step(p, state, text):
        return updated(optimizer, lambda p: loss(p, text), p, state)

    optimizer = optax.adamw(3e-4, mu_dtype=BF16)
    return step, (arrays, jax.eval_shape(optimizer.init, arrays), tokens(8, 1025)), (0, 1)


@program
def accumulate_named_policy():
    """Flax NNX: gradients of eight parts summed by a scan, with names of what checkpoints keep."""

    class Layer(nnx.Module):
        def __init__(self, width, heads, rngs):
            self.n1, self.n2 = nnx.RMSNorm(width, rngs=rngs), nnx.RMSNorm(width, rngs=rngs)
            self.qkv = nnx.LinearGeneral(width, (3, heads, width // heads), rngs=rngs)
            self.o = nnx.LinearGeneral((heads, width // heads), width, axis=(-2, -1), rngs=rngs)
            self.up = nnx.Linear(width, 4 * width, rngs=rngs)
            self.down = nnx.Linear(4 * width, width, rngs=rngs)

        def __call__(self, x):
            q, k, v = jnp.moveaxis(self.qkv(self.n1(x)), 2, 0)
            y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
            x = x + checkpoint_name(self.o(y), 'attended')
            h = checkpoint_name(self.up(self.n2(x)), 'wide')
            return x + self.down(jnp.square(jax.nn.relu(h)))

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.emb = nnx.Embed(16000, 640, rngs=rngs)
            self.layers = nnx.List([Layer(640, 10, rngs) for _ in range(3)])
            self.norm = nnx.RMSNorm(640, rngs=rngs)
            self.head = nnx.Linear(640, 16000, use_bias=False, rngs=rngs)

        def __call__(self, text):
            x = self.emb(text).astype(BF16)
            policy = jax.checkpoint_policies.save_only_these_names('attended', 'wide')
            for layer in self.layers:
                x = jax.checkpoint(lambda x, layer=layer: layer(x).astype(BF16), policy=policy)(x)
            return self.head(self.norm(x))

    definition, parameters = nnx.split(nnx.eval_shape(lambda: Net(nnx.Rngs(0))), nnx.Param)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.nadamw(3e-4))

    def step(parameters, state, text):
        def loss(p, text):
            narrow = jax.tree.map(lambda a: a.astype(BF16), p)
            logits = nnx.merge(definition, narrow)(text[:, :-1])
            return cross_entropy(logits.astype(F32), text[:, 1:]).mean()

        def add(of, text):
            total, gradients = of
            value, new = jax.value_and_grad(loss)(parameters, text)
            return (total + value, jax.tree.map(jnp.add, gradients, new)), None

        zeros = jax.tree.map(jnp.zeros_like, parameters)
        (total, gradients), _ = lax.scan(add, (0.0, zeros), text.reshape(8, -1, text.shape[-1]))
        updates, state = optimizer.update(jax.tree.map(lambda g: g / 8, gradients), state, parameters)
        return optax.apply_updates(parameters, updates), state, total / 8

    return step, (parameters, jax.eval_shape(optimizer.init, parameters), tokens(32, 513)), (0, 1)


@program
def shampoo_newton():
    """Flax Linen: a small decoder under Shampoo, whose roots Newton's iteration finds."""
    words = 8000

    class Net(nn.Module):
        @nn.compact
        def __call__(self, text):
            x = nn.Embed(words, 384)(text)
            for _ in range(2):
                h = nn.LayerNorm()(x)
                x = x + nn.SelfAttention(6)(h, mask=nn.make_causal_mask(text))
                x = x + nn.Dense(384)(nn.relu(nn.Dense(1024)(nn.LayerNorm()(x))))
            return nn.Dense(words)(x)

    model, text = Net(), tokens(8, 256)
    parameters = initial(model, text)

    def sides(p):
        """How a parameter becomes a matrix; None where it has no factors."""
        if p.ndim < 2:
            return None
        rows = p.shape[0] if p.ndim == 2 else p.shape[0] if p.shape[0] > p.shape[-1] or p.ndim == 2 else p.size // p.shape[-1]
        columns = p.size // rows
        return (rows, columns) if max(rows, columns) <= 1024 else None

    def root(a):
        """To the power -1/4."""
        n = a.shape[0]
        a = a + 1e-4 * jnp.trace(a) / n * jnp.eye(n)
        z = 5 / (2 * jnp.linalg.norm(a))

        def refine(of):
            m, x, error, i = of
            t = (5 * jnp.eye(n) - m) / 4
            t2 = t @ t
            m = t2 @ t2 @ m
            return m, x @ t, jnp.max(jnp.abs(m - jnp.eye(n))), i + 1

        start = a * z, jnp.eye(n) * z**0.25, jnp.inf, 0
        return lax.while_loop(lambda of: (of[2] > 1e-5) & (of[3] < 25), refine, start)[1]

    def factors(p):
        pair = sides(p)
        return () if pair is None else tuple(jnp.zeros((n, n)) for n in pair)

    def start(p):
        return dict(m=jnp.zeros_like(p), v=jnp.zeros_like(p), factors=factors(p))

    def one(p, g, s):
        m = 0.9 * s['m'] + g
        if not s['factors']:
            v = s['v'] + g**2
            return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), dict(m=m, v=v, factors=())
        matrix = g.reshape(sides(p))
        left, right = s['factors'][0] + matrix @ matrix.T, s['factors'][1] + matrix.T @ matrix
        better = root(left) @ m.reshape(matrix.shape) @ root(right)
        better = better * jnp.linalg.norm(matrix) / (jnp.linalg.norm(better) + 1e-9)
        return p - 1e-3 * better.reshape(p.shape), dict(m=m, v=s['v'], factors=(left, right))

    def step(p, state, text):
        def loss(p):
            return cross_entropy(model.apply(p, text)[:, :-1], text[:, 1:]).mean()

        value, gradients = jax.value_and_grad(loss)(p)
        leaves, tree = jax.tree.flatten(p)
        after = [one(*of) for of in zip(leaves, jax.tree.leaves(gradients), state)]
        return tree.unflatten([p for p, _ in after]), [s for _, s in after], value

    state = jax.eval_shape(lambda p: [start(x) for x in jax.tree.leaves(p)], parameters)
    return step, (parameters, state, text), (0, 1)


@program
def delta_net_chunks():
    """Flax Linen: linear attention by the delta rule, in chunks with a triangular solve, checkpointed."""
    heads, head, chunk, width, words = 8, 64, 64, 512, 16000

    def mixed(q, k, v, beta):
        """Of one head: (length, width of a head)."""
        split = lambda x: x.reshape(-1, chunk, *x.shape[1:])
        is_before = jnp.tril(jnp.ones((chunk, chunk), bool), -1)

        def step(state, of):
            q, k, v, beta = of
            kb = k * beta[:, None]
            a = jnp.where(is_before, kb @ k.T, 0) + jnp.eye(chunk)
            both = jax.scipy.linalg.solve_triangular(a, jnp.concatenate([v * beta[:, None], kb], -1), lower=True)
            u, w = jnp.split(both, 2, -1)
            u = u - w @ state
            y = q @ state + jnp.tril(q @ k.T) @ u
            return state + k.T @ u, y

        _, y = lax.scan(step, jnp.zeros((head, head)), (split(q), split(k), split(v), split(beta)))
        return y.reshape(-1, head)

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x):
            h = nn.RMSNorm()(x)
            q, k, v = [nn.silu(nn.Conv(width, (4,), padding='CAUSAL', feature_group_count=width)(nn.Dense(width)(h))) for _ in range(3)]
            split = lambda x: x.reshape(*x.shape[:2], heads, head)
            q, k, v = split(q), split(k), split(v)
            q, k = [a / (jnp.linalg.norm(a, axis=-1, keepdims=True) + 1e-6) for a in (q, k)]
            beta = jax.nn.sigmoid(nn.Dense(heads)(h))
            y = jax.vmap(jax.vmap(mixed, 1, 1))(q, k, v, beta)
            y = nn.RMSNorm()(y).reshape(x.shape) * nn.silu(nn.Dense(width)(h))
            x = x + nn.Dense(width)(y)
            h = nn.RMSNorm()(x)
            return x + nn.Dense(width)(nn.silu(nn.Dense(3 * width)(h)) * nn.Dense(3 * width)(h))

    class Net(nn.Module):
        @nn.compact
        def __call__(self, text):
            x = nn.Embed(words, width)(text)
            for _ in range(2):
                x = nn.remat(Layer)()(x)
            return nn.Dense(words)(nn.RMSNorm()(x))

    model, text = Net(), tokens(4, 2048)

    def loss(p, text):
        return cross_entropy(model.apply(p, text)[:, :-1], text[:, 1:]).mean()

    return training(loss, optax.adamw(1e-3), initial(model, text), text)


@program
def keras_text_classifier():
    """Keras: texts with padding, attention with masks, a bidirectional GRU, and RMSprop."""
    import keras
    from keras import layers

    words = keras.Input((200,), dtype='int32')
    x = layers.Embedding(20000, 128)(words)
    padded = keras.ops.not_equal(words, 0)
    y = layers.MultiHeadAttention(4, 32, dropout=0.1, seed=1)(x, x, attention_mask=keras.ops.expand_dims(padded, 1))
    x = layers.LayerNormalization()(layers.Add()([x, y]))
    y = layers.Dense(128)(layers.Dropout(0.1, seed=2)(layers.Dense(512, activation='gelu')(x)))
    x = layers.LayerNormalization()(layers.Add()([x, y]))
    x = layers.Bidirectional(layers.GRU(96, return_sequences=True))(x, mask=padded)
    x = layers.Concatenate()([layers.GlobalMaxPooling1D()(x), layers.GlobalAveragePooling1D()(x)])
    model = keras.Model(words, layers.Dense(20, activation='softmax')(layers.Dense(256, activation='relu')(x)))
    optimizer = keras.optimizers.RMSprop(1e-3, momentum=0.9, centered=True)
    of_odds = keras.losses.CategoricalCrossentropy(label_smoothing=0.1)
    return training_keras(model, optimizer, of_odds, tokens(256, 200), shape(256, 20))


@program
def dpo_two_models():
    """Haiku: preferences between two answers against a model that stays, in bf16, with checkpointed layers."""
    width, words, heads = 768, 32000, 12

    def layer(x):
        b, t, d = x.shape
        h = hk.RMSNorm(-1)(x)
        q, k, v = jnp.split(hk.Linear(3 * d, with_bias=False)(h).reshape(b, t, 3 * heads, -1), 3, 2)
        x = x + hk.Linear(d, with_bias=False)(jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(b, t, d))
        h = hk.RMSNorm(-1)(x)
        h = jax.nn.silu(hk.Linear(2 * d, with_bias=False)(h)) * hk.Linear(2 * d, with_bias=False)(h)
        return x + hk.Linear(d, with_bias=False)(h)

    def net(text):
        x = hk.Embed(words, width)(text)
        for _ in range(3):
            x = hk.remat(layer)(x)
        return hk.Linear(words, with_bias=False)(hk.RMSNorm(-1)(x))

    model = hk.without_apply_rng(hk.transform(net))

    def likely(p, text, mask):
        each = -cross_entropy(model.apply(p, text[:, :-1]).astype(F32), text[:, 1:])
        return jnp.sum(each * mask[:, 1:], -1)

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(5e-7))

    def step(p, state, reference, better, worse, of_better, of_worse):
        fixed = [lax.stop_gradient(likely(reference, *of)) for of in ((better, of_better), (worse, of_worse))]

        def loss(p):
            narrow = jax.tree.map(lambda a: a.astype(BF16), p)
            margin = likely(narrow, better, of_better) - fixed[0] - likely(narrow, worse, of_worse) + fixed[1]
            return -jnp.mean(jax.nn.log_sigmoid(0.1 * margin))

        return updated(optimizer, loss, p, state)

    p = initial(model, tokens(4, 512))
    reference = jax.tree.map(lambda a: shape(*a.shape, dtype=BF16), p)
    text, mask = tokens(4, 512), shape(4, 512)
    return step, (p, jax.eval_shape(optimizer.init, p), reference, text, text, mask, mask), (0, 1)


# Inference.


@program
def mla_decode():
    """A token for each text, with latent keys and values as DeepSeek has them; weights are absorbed into queries."""
    depth, width, heads, head, rope, latent, batch, length = 3, 2048, 16, 128, 64, 512, 32, 4096

    def step(w, cache, turned, lengths, words):
        x = w['emb'][words]

        def layer(of, p):
            x, i, cache, turned = of
            h = rms(x, p['n'])
            q = jnp.einsum('bl,lhk->bhk', h @ p['dq'], p['uq'])
            plain, placed = q[..., :head], rotated(q[..., None, :, head:], lengths[:, None])[:, 0]
            new = h @ p['dkv']
            row = jnp.arange(batch)
            cache = cache.at[i, row, lengths].set(new[:, :latent])
            key = rotated(new[:, None, None, latent:], lengths[:, None])[:, 0, 0]
            turned = turned.at[i, row, lengths].set(key)
            absorbed = jnp.einsum('bhk,lhk->bhl', plain, p['uk'])
            scores = jnp.einsum('bhl,btl->bht', absorbed, cache[i]) + jnp.einsum('bhr,btr->bht', placed, turned[i])
            scores = scores.astype(F32) * (head + rope) ** -0.5
            odds = jax.nn.softmax(jnp.where(jnp.arange(length) <= lengths[:, None, None], scores, -1e30)).astype(BF16)
            y = jnp.einsum('bhl,lhk->bhk', jnp.einsum('bht,btl->bhl', odds, cache[i]), p['uv'])
            x = x + y.reshape(batch, -1) @ p['o']
            h = rms(x, p['m'])
            x = x + (jax.nn.silu(h @ p['g']) * (h @ p['u'])) @ p['d']
            return (x, i + 1, cache, turned), None

        (x, _, cache, turned), _ = lax.scan(layer, (x, 0, cache, turned), w['l'])
        return cache, turned, lengths + 1, jnp.argmax(x @ w['emb'].T, -1)

    of = lambda *extents: shape(depth, *extents, dtype=BF16)
    layers = dict(
        n=of(width),
        m=of(width),
        dq=of(width, 768),
        uq=of(768, heads, head + rope),
        dkv=of(width, latent + rope),
        uk=of(latent, heads, head),
        uv=of(latent, heads, head),
        o=of(heads * head, width),
        g=of(width, 5120),
        u=of(width, 5120),
        d=of(5120, width),
    )
    weights = dict(emb=shape(32000, width, dtype=BF16), l=layers)
    return step, (weights, of(batch, length, latent), of(batch, length, rope), tokens(batch), tokens(batch)), (1, 2, 3)


@program
def prefill_into_pages():
    """A chunk of each of some prompts: its keys go into pages, and it attends to all pages before it."""
    depth, width, heads, groups, head, page, pages, most, batch, chunk = 2, 2048, 16, 4, 128, 32, 1024, 64, 4, 512

    def step(w, keys, values, table, starts, text):
        positions = starts[:, None] + jnp.arange(chunk)
        x = w['emb'][text]
        slots = jnp.take_along_axis(table, positions // page, 1)
        after_keys, after_values = [], []
        for i in range(depth):
            p = w['l'][i]
            h = rms(x, p['n'])
            q = rotated((h @ p['q']).reshape(batch, chunk, heads, head), positions)
            k = rotated((h @ p['k']).reshape(batch, chunk, groups, head), positions)
            v = (h @ p['v']).reshape(batch, chunk, groups, head)
            k_pages = keys[i].at[slots, positions % page].set(k, mode='drop')
            v_pages = values[i].at[slots, positions % page].set(v, mode='drop')
            every_k = k_pages[table].reshape(batch, most * page, groups, head)
            every_v = v_pages[table].reshape(batch, most * page, groups, head)
            every_k, every_v = [jnp.repeat(a, heads // groups, 2) for a in (every_k, every_v)]
            seen = jnp.arange(most * page)[None, None] <= positions[..., None]
            y = jax.nn.dot_product_attention(q, every_k, every_v, mask=seen[:, None])
            x = x + y.reshape(batch, chunk, -1) @ p['o']
            h = rms(x, p['m'])
            x = x + (jax.nn.silu(h @ p['g']) * (h @ p['u'])) @ p['d']
            after_keys.append(k_pages)
            after_values.append(v_pages)
        return after_keys, after_values, starts + chunk, (rms(x[:, -1], w['n']) @ w['emb'].T).astype(F32)

    of = lambda *extents: shape(*extents, dtype=BF16)
    layer = dict(
        n=of(width),
        m=of(width),
        q=of(width, heads * head),
        k=of(width, groups * head),
        v=of(width, groups * head),
        o=of(heads * head, width),
        g=of(width, 5632),
        u=of(width, 5632),
        d=of(5632, width),
    )
    cache = [of(pages, page, groups, head)] * depth
    weights = dict(emb=of(32000, width), n=of(width), l=[layer] * depth)
    return step, (weights, cache, cache, tokens(batch, most), tokens(batch), tokens(batch, chunk)), (1, 2, 4)


@program
def int4_fp8_generate():
    """Sixty-four tokens in a loop: weights of four bits in groups, caches of eight-bit floats, samples from the likeliest."""
    f8, depth, width, heads, inner, words, batch, length, group = jnp.float8_e4m3fn, 2, 2048, 16, 5632, 32000, 8, 1024, 128

    def product(x, w):
        wide = (w['w'].astype(BF16).reshape(-1, group, w['w'].shape[-1]) * w['s'][:, None]).reshape(w['w'].shape)
        return x @ wide

    def run(w, keys, values, text, at, key):
        def decode(word, t, keys, values):
            x = w['emb'][word].astype(BF16)
            for i, p in enumerate(w['l']):
                h = rms(x, p['n'])
                q, k, v = jnp.split(product(h, p['qkv']).reshape(batch, 3 * heads, -1), 3, 1)
                keys = keys.at[i, :, t].set((k * p['ks']).astype(f8))
                values = values.at[i, :, t].set((v * p['vs']).astype(f8))
                scores = jnp.einsum('bhd,bthd->bht', q, keys[i].astype(BF16)).astype(F32) / p['ks'].astype(F32) * 128**-0.5
                odds = jax.nn.softmax(jnp.where(jnp.arange(length) <= t, scores, -1e30)).astype(BF16)
                y = jnp.einsum('bht,bthd->bhd', odds, values[i].astype(BF16)) / p['vs']
                x = x + product(y.reshape(batch, -1), p['o'])
                a, b = jnp.split(product(rms(x, p['m']), p['gu']), 2, -1)
                x = x + product(jax.nn.silu(a) * b, p['d'])
            return (x @ w['emb'].T.astype(BF16)).astype(F32), keys, values

        def step(of):
            word, t, keys, values, text, key, is_over = of
            logits, keys, values = decode(word, t, keys, values)
            key, of_sample = jax.random.split(key)
            ordered = jnp.sort(logits / 0.8, -1)[:, ::-1]
            passed = jnp.cumsum(jax.nn.softmax(ordered), -1)
            least = jnp.take_along_axis(ordered, jnp.sum(passed < 0.9, -1, keepdims=True), -1)
            new = jax.random.categorical(of_sample, jnp.where(logits / 0.8 < least, -jnp.inf, logits / 0.8))
            new = jnp.where(is_over, 0, new)
            return new, t + 1, keys, values, text.at[:, t + 1].set(new), key, is_over | (new == 2)

        def goes_on(of):
            return (of[1] < at + 64) & ~jnp.all(of[6])

        start = text[jnp.arange(batch), at], at, keys, values, text, key, jnp.zeros(batch, bool)
        found = lax.while_loop(goes_on, step, start)
        return found[2], found[3], found[4], found[1]

    def narrow(a, b):
        return dict(w=shape(a, b, dtype=jnp.int4), s=shape(a // group, b, dtype=BF16))

    scalars = {name: shape(dtype=BF16) for name in ('ks', 'vs')}
    layer = dict(
        n=shape(width, dtype=BF16),
        m=shape(width, dtype=BF16),
        qkv=narrow(width, 3 * width),
        o=narrow(width, width),
        gu=narrow(width, 2 * inner),
        d=narrow(inner, width),
        **scalars,
    )
    weights = dict(emb=shape(words, width, dtype=S8), l=[layer] * depth)
    cache = shape(depth, batch, length, heads, width // heads, dtype=f8)
    return run, (weights, cache, cache, tokens(batch, length), tokens(), KEY), (1, 2, 3)


@program
def medusa_tree_verify():
    """Flax Linen: heads guess further words, and a tree of guesses is read at once with a mask."""
    width, heads, words, batch, room, guesses, depth = 1024, 8, 32000, 8, 1024, 4, 2
    parents = [-1] + [0] * 4 + [1 + i // 2 for i in range(8)] + [5 + i for i in range(8)]
    nodes = len(parents)

    def ancestors():
        rows = []
        for i in range(nodes):
            row, at = [False] * nodes, i
            while at >= 0:
                row[at], at = True, parents[at]
            rows.append(row)
        return jnp.array(rows)

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x, keys, values, mask):
            h = nn.RMSNorm(dtype=BF16)(x)
            q, k, v = [nn.DenseGeneral((heads, width // heads), use_bias=False, dtype=BF16)(h) for _ in range(3)]
            every_k, every_v = jnp.concatenate([keys, k], 1), jnp.concatenate([values, v], 1)
            y = nn.dot_product_attention(q, every_k, every_v, mask=mask[:, None], dtype=BF16)
            x = x + nn.DenseGeneral(width, (-2, -1), use_bias=False, dtype=BF16)(y)
            h = nn.Dense(3 * width, use_bias=False, dtype=BF16)(nn.RMSNorm(dtype=BF16)(x))
            return x + nn.Dense(width, use_bias=False, dtype=BF16)(nn.gelu(h)), k, v

    class Net(nn.Module):
        @nn.compact
        def __call__(self, guessed, keys, values, mask):
            x, new = nn.Embed(words, width, dtype=BF16)(guessed), []
            for i in range(depth):
                x, k, v = Layer()(x, keys[i], values[i], mask)
                new.append((k, v))
            further = [x + nn.silu(nn.Dense(width, dtype=BF16)(x)) for _ in range(guesses)]
            head = nn.Dense(words, use_bias=False, dtype=BF16)
            return head(x), [head(f) for f in further], new

    model, cache = Net(), shape(depth, batch, room, heads, width // heads, dtype=BF16)

    def step(p, keys, values, lengths, guessed):
        old = jnp.arange(room) < lengths[:, None]
        mask = jnp.concatenate([jnp.broadcast_to(old[:, None], (batch, nodes, room)), jnp.broadcast_to(ancestors(), (batch, nodes, nodes))], -1)
        logits, further, new = model.apply(p, guessed, keys, values, mask)
        said = logits.argmax(-1)
        up = jnp.array(parents)
        right = (said[:, jnp.maximum(up, 0)] == guessed) | (up < 0)
        whole = jnp.all(right[:, None] | ~ancestors()[None], -1)
        deep = ancestors().sum(-1)
        best = jnp.argmax(jnp.where(whole, deep, 0), -1)
        path = jnp.argsort(~ancestors()[best], -1, stable=True)[:, : guesses + 1]
        row, at = jnp.arange(batch)[:, None], lengths[:, None] + jnp.arange(guesses + 1)
        for i, (k, v) in enumerate(new):
            keys = keys.at[i, row, at].set(k[row, path])
            values = values.at[i, row, at].set(v[row, path])
        likely = jnp.stack([lax.top_k(f[jnp.arange(batch), best].astype(F32), 4)[1] for f in further], 1)
        return keys, values, lengths + deep[best], said[jnp.arange(batch), best], likely

    mask = shape(batch, nodes, room + nodes, dtype=bool)
    weights = initial(model, tokens(batch, nodes), cache, cache, mask)
    weights = jax.tree.map(lambda a: shape(*a.shape, dtype=BF16), weights)
    return step, (weights, cache, cache, tokens(batch), tokens(batch, nodes)), (1, 2, 3)
