"""Programs for unseen.py, third batch: ways to train sequence models, by optimizers, losses and layers."""

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import nnx
from jax import lax
from optax import contrib

from layers import BF16, F32, S8, shape, tokens
from libraries import KEY, cross_entropy, initial, is_shape, program, training, updated
from libraries_inference import normed, turned

# Optimizers.


@program
def sophia_hutchinson():
    """Flax Linen: a language model under Sophia, whose curvature comes from a Hessian-vector product in every tenth step."""
    words = 32000

    class Net(nn.Module):
        @nn.compact
        def __call__(self, text):
            x = nn.Embed(words, 512)(text)
            x = x + self.param('at', nn.initializers.normal(0.02), (text.shape[1], 512))
            for _ in range(4):
                h = nn.LayerNorm(use_bias=False)(x)
                x = x + nn.SelfAttention(8, use_bias=False)(h, mask=nn.make_causal_mask(text))
                x = x + nn.Dense(512)(nn.gelu(nn.Dense(2048)(nn.LayerNorm(use_bias=False)(x))))
            return nn.Dense(words, use_bias=False)(nn.LayerNorm()(x))

    model, text = Net(), tokens(8, 257)

    def step(p, m, h, count, key, text):
        def loss(p, text):
            return cross_entropy(model.apply(p, text[:, :-1]), text[:, 1:]).mean()

        value, g = jax.value_and_grad(loss)(p, text)

        def curved(h):
            leaves, tree = jax.tree.flatten(p)
            keys = jax.random.split(key, len(leaves))
            u = tree.unflatten([jax.random.rademacher(k, x.shape, x.dtype) for k, x in zip(keys, leaves)])
            _, hu = jax.jvp(jax.grad(lambda p: loss(p, text[:2])), (p,), (u,))
            return jax.tree.map(lambda h, u, hu: 0.99 * h + 0.01 * u * hu, h, u, hu)

        h = lax.cond(count % 10 == 0, curved, lambda h: h, h)
        m = jax.tree.map(lambda m, g: 0.965 * m + 0.035 * g, m, g)
        move = lambda m, h: jnp.clip(m / jnp.maximum(0.05 * h, 1e-12), -1, 1)
        p = jax.tree.map(lambda p, m, h: p * (1 - 1e-4) - 1e-3 * move(m, h), p, m, h)
        return p, m, h, count + 1, value

    p = initial(model, tokens(8, 256))
    return step, (p, p, p, tokens(), KEY, text), (0, 1, 2)


@program
def soap_eigenbases():
    """Haiku: Adam in the bases of Shampoo's factors, which a QR decomposition turns a little in each step."""
    words, width = 16000, 512

    def net(text):
        x = hk.Embed(words, width)(text)
        for _ in range(3):
            h = hk.RMSNorm(-1)(x)
            q, k, v = [hk.Linear(width, False)(h).reshape(*text.shape, 8, -1) for _ in range(3)]
            x = x + hk.Linear(width, False)(jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape))
            x = x + hk.Linear(width, False)(jax.nn.gelu(hk.Linear(1024, False)(hk.RMSNorm(-1)(x))))
        return hk.Linear(words, False)(hk.RMSNorm(-1)(x))

    model = hk.without_apply_rng(hk.transform(net))

    def has_bases(p):
        return p.ndim == 2 and max(p.shape) <= 1024

    def start(p):
        sides = [jnp.eye(n) for n in p.shape] if has_bases(p) else []
        return dict(m=jnp.zeros_like(p), v=jnp.zeros_like(p), factors=[jnp.zeros_like(s) for s in sides], bases=sides)

    def one(p, g, s):
        m = 0.9 * s['m'] + 0.1 * g
        if not has_bases(p):
            v = 0.95 * s['v'] + 0.05 * g**2
            return p - 3e-4 * m / (jnp.sqrt(v) + 1e-8), s | dict(m=m, v=v)
        left, right = s['bases']
        into = lambda a: left.T @ a @ right
        v = 0.95 * s['v'] + 0.05 * into(g) ** 2
        p = p - 3e-3 * (left @ (into(m) / (jnp.sqrt(v) + 1e-8)) @ right.T) - 3e-5 * p
        factors = [0.95 * f + 0.05 * a for f, a in zip(s['factors'], (g @ g.T, g.T @ g))]
        bases = []
        for f, q in zip(factors, s['bases']):
            q = q[:, jnp.argsort(-jnp.diag(q.T @ f @ q))]
            bases.append(jnp.linalg.qr(f @ q)[0])
        return p, dict(m=m, v=v, factors=factors, bases=bases)

    def step(p, state, text):
        value, gradients = jax.value_and_grad(lambda p: cross_entropy(model.apply(p, text[:, :-1]), text[:, 1:]).mean())(p)
        leaves, tree = jax.tree.flatten(p)
        after = [one(*of) for of in zip(leaves, jax.tree.leaves(gradients), state)]
        return tree.unflatten([a for a, _ in after]), [s for _, s in after], value

    p = initial(model, tokens(16, 256))
    state = jax.eval_shape(lambda p: [start(x) for x in jax.tree.leaves(p)], p)
    return step, (p, state, tokens(16, 257)), (0, 1)


@program
def galore_projected():
    """Plain JAX: moments are kept of gradients projected to a low rank, and projections are found again now and then."""
    depth, width, inner, words, rank, length, batch = 4, 768, 2048, 32000, 128, 512, 8

    def layer(x, w):
        h = normed(x, w['n1'])
        at = jnp.broadcast_to(jnp.arange(length), x.shape[:2])
        q, k, v = jnp.split((h @ w['qkv']).reshape(*x.shape[:2], 36, 64), 3, 2)
        y = jax.nn.dot_product_attention(turned(q, at), turned(k, at), v, is_causal=True)
        x = x + y.reshape(x.shape) @ w['o']
        h = normed(x, w['n2'])
        return x + (jax.nn.silu(h @ w['g']) * (h @ w['u'])) @ w['d'], None

    def loss(p, text):
        x, _ = lax.scan(jax.checkpoint(layer), p['emb'][text[:, :-1]], p['layers'])
        return cross_entropy((normed(x, p['n']) @ p['head']).astype(F32), text[:, 1:]).mean()

    def is_projected(p):
        return p.ndim == 3

    def basis(g):
        """By one pass of a random range finder, of stacked matrices."""
        noise = jax.random.normal(jax.random.key(3), (g.shape[0], g.shape[2], rank))
        return jnp.linalg.qr(g @ (g.swapaxes(1, 2) @ (g @ noise)))[0]

    def one(p, g, s, count):
        g = g.astype(F32)
        if is_projected(p):
            base = lax.cond(count % 200 == 0, lambda: basis(g), lambda: s['base'])
            low = jnp.einsum('lir,lio->lro', base, g)
        else:
            base, low = s['base'], g
        m, v = 0.9 * s['m'] + 0.1 * low, 0.999 * s['v'] + 0.001 * low**2
        move = m / (jnp.sqrt(v) + 1e-8)
        if is_projected(p):
            move = 0.25 * jnp.einsum('lir,lro->lio', base, move)
        return (p.astype(F32) - 1e-3 * move).astype(p.dtype), dict(m=m, v=v, base=base)

    def step(p, state, count, text):
        value, gradients = jax.value_and_grad(loss)(p, text)
        leaves, tree = jax.tree.flatten(p)
        after = [one(a, g, s, count) for a, g, s in zip(leaves, jax.tree.leaves(gradients), state)]
        return tree.unflatten([a for a, _ in after]), [s for _, s in after], count + 1, value

    of = lambda *extents: shape(depth, *extents, dtype=BF16)
    layers = dict(n1=of(width), n2=of(width), qkv=of(width, 3 * width), o=of(width, width), g=of(width, inner), u=of(width, inner))
    layers |= dict(d=of(inner, width))
    flat = lambda *extents: shape(*extents, dtype=BF16)
    p = dict(emb=flat(words, width), head=flat(width, words), n=flat(width), layers=layers)

    def state_of(p):
        if not is_projected(p):
            return dict(m=shape(*p.shape), v=shape(*p.shape), base=shape())
        low = shape(depth, rank, p.shape[2])
        return dict(m=low, v=low, base=shape(depth, p.shape[1], rank))

    return step, (p, [state_of(x) for x in jax.tree.leaves(p)], tokens(), tokens(batch, length + 1)), (0, 1)


@program
def adam_8bit_blocks():
    """Equinox: both moments are codes of eight bits with a scale for each block of 256, opened for a moment in each step."""
    words, width, depth = 50304, 768, 4

    class Block(eqx.Module):
        n1: eqx.nn.LayerNorm
        n2: eqx.nn.LayerNorm
        att: eqx.nn.MultiheadAttention
        mlp: eqx.nn.MLP

        def __init__(self, key):
            a, b = jax.random.split(key)
            self.n1, self.n2 = eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width)
            self.att = eqx.nn.MultiheadAttention(12, width, key=a)
            self.mlp = eqx.nn.MLP(width, width, 4 * width, 1, jax.nn.gelu, key=b)

        def __call__(self, x):
            h = jax.vmap(self.n1)(x)
            x = x + self.att(h, h, h, mask=jnp.tril(jnp.ones((len(x), len(x)), bool)))
            return x + jax.vmap(self.mlp)(jax.vmap(self.n2)(x))

    class LM(eqx.Module):
        emb: eqx.nn.Embedding
        blocks: list
        norm: eqx.nn.LayerNorm

        def __init__(self, key):
            a, *keys = jax.random.split(key, depth + 1)
            self.emb = eqx.nn.Embedding(words, width, key=a)
            self.blocks = [Block(k) for k in keys]
            self.norm = eqx.nn.LayerNorm(width)

        def __call__(self, text):
            x = jax.vmap(self.emb)(text)
            for block in self.blocks:
                x = block(x)
            return jax.vmap(self.norm)(x) @ self.emb.weight.T

    p, static = eqx.partition(eqx.filter_eval_shape(LM, KEY), is_shape)

    def opened(of, like, power):
        codes, scales = of
        x = codes.astype(F32).reshape(-1, 256) / 127
        return (jnp.sign(x) * jnp.abs(x) ** power * scales).reshape(-1)[: like.size].reshape(like.shape)

    def closed(x, power):
        flat = jnp.pad(x.reshape(-1), (0, -x.size % 256)).reshape(-1, 256)
        scales = jnp.max(jnp.abs(flat), 1, keepdims=True)
        part = flat / (scales + 1e-12)
        return jnp.round(127 * jnp.sign(part) * jnp.abs(part) ** (1 / power)).astype(S8).reshape(-1), scales

    def one(p, g, m, v):
        m = 0.9 * opened(m, p, 2) + 0.1 * g
        v = 0.999 * opened(v, p, 4) + 0.001 * g**2
        return p - 1e-4 * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * p), closed(m, 2), closed(v, 4)

    def step(p, m, v, text):
        def loss(p):
            narrow = jax.tree.map(lambda a: a.astype(BF16), p)
            logits = jax.vmap(eqx.combine(narrow, static))(text[:, :-1])
            return cross_entropy(logits.astype(F32), text[:, 1:]).mean()

        value, gradients = jax.value_and_grad(loss)(p)
        leaves, tree = jax.tree.flatten(p)
        after = [one(*of) for of in zip(leaves, jax.tree.leaves(gradients), m, v)]
        return tree.unflatten([a for a, _, _ in after]), [m for _, m, _ in after], [v for _, _, v in after], value

    def moments(p):
        return [(shape(-(-x.size // 256) * 256, dtype=S8), shape(-(-x.size // 256), 1)) for x in jax.tree.leaves(p)]

    return step, (p, moments(p), moments(p), tokens(8, 513)), (0, 1, 2)


@program
def muon_stacked_scan():
    """Plain JAX: layers in a checkpointed scan, value residuals, and Newton-Schulz steps on all layers' matrices at once in bf16."""
    depth, width, words, length, batch, heads = 6, 768, 50304, 1024, 4, 6

    def layer(carry, w):
        x, first, first_value = carry
        x = w['mix'][0] * x + w['mix'][1] * first
        h = normed(x, 1.0)
        q, k, v = [jnp.einsum('btd,dhk->bthk', h, w[n].reshape(width, heads, -1)) for n in 'qkv']
        at = jnp.broadcast_to(jnp.arange(length), (batch, length))
        q, k = turned(normed(q, 1.0), at, 10000.0), turned(normed(k, 1.0), at, 10000.0)
        v = w['keep'][0] * v + w['keep'][1] * first_value
        y = jax.nn.dot_product_attention(q, k, v.astype(BF16), is_causal=True, scale=0.12)
        x = x + y.reshape(x.shape) @ w['o']
        x = x + jnp.square(jax.nn.relu(normed(x, 1.0) @ w['up'])) @ w['down']
        return (x.astype(BF16), first, first_value), None

    def loss(p, text):
        w = jax.tree.map(lambda a: a.astype(BF16), p)
        x = normed(w['emb'][text[:, :-1]], 1.0)
        value = w['value'][text[:, :-1]].reshape(batch, length, heads, -1)
        (x, _, _), _ = lax.scan(jax.checkpoint(layer), (x, x, value), w['layers'])
        logits = (normed(x, 1.0) @ w['head']).astype(F32)
        return cross_entropy(30 * jax.nn.sigmoid(logits / 7.5), text[:, 1:]).mean()

    def straight(g):
        x = g.astype(BF16)
        is_tall = x.shape[-2] > x.shape[-1]
        x = x.swapaxes(-1, -2) if is_tall else x
        x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + 1e-7)

        def once(x, _):
            a = x @ x.swapaxes(-1, -2)
            b = -4.775 * a + 2.0315 * (a @ a)
            return 3.4445 * x + b @ x, None

        x, _ = lax.scan(once, x, None, length=5)
        return x.swapaxes(-1, -2) if is_tall else x

    adam = optax.adamw(3e-3, 0.8, 0.95, weight_decay=0)

    def step(p, m, state, text):
        value, gradients = jax.value_and_grad(loss)(p, text)
        matrices = {n: gradients['layers'][n] for n in 'q k v o up down'.split()}
        m = jax.tree.map(lambda m, g: 0.95 * m + g, m, matrices)
        moved = jax.tree.map(lambda m, g: straight(g + 0.95 * m).astype(F32), m, matrices)
        rest, of_rest = split(p), split(gradients)
        updates, state = adam.update(of_rest, state, rest)
        rest = optax.apply_updates(rest, updates)
        layers = {n: p['layers'][n] - 0.02 * u * max(1, u.shape[1] / u.shape[2]) ** 0.5 for n, u in moved.items()}
        return dict(rest, layers=layers | rest['layers']), m, state, value

    def split(p):
        """What Muon does not move."""
        return dict(p, layers={n: p['layers'][n] for n in ('mix', 'keep')})

    of = lambda *extents: shape(depth, *extents)
    matrices = {n: of(width, width) for n in 'qkvo'} | dict(up=of(width, 4 * width), down=of(4 * width, width))
    p = dict(emb=shape(words, width), value=shape(words, width), head=shape(width, words), layers=matrices | dict(mix=of(2), keep=of(2)))
    return step, (p, matrices, jax.eval_shape(adam.init, split(p)), tokens(batch, length + 1)), (0, 1, 2)


@program
def electra_schedule_free():
    """Flax Linen: a small network fills gaps, a larger one tells which words are not the author's; Adam without a schedule."""
    words = 30522

    class Encoder(nn.Module):
        width: int
        depth: int

        @nn.compact
        def __call__(self, x, is_word, train):
            x = nn.Dense(self.width)(nn.LayerNorm()(x + self.param('at', nn.initializers.normal(0.02), x.shape[1:])))
            mask = nn.make_attention_mask(is_word, is_word)
            for _ in range(self.depth):
                y = nn.SelfAttention(self.width // 64, dropout_rate=0.1, deterministic=not train)(x, mask=mask)
                x = nn.LayerNorm()(x + nn.Dropout(0.1, deterministic=not train)(y))
                h = nn.Dense(self.width)(nn.gelu(nn.Dense(4 * self.width)(x)))
                x = nn.LayerNorm()(x + nn.Dropout(0.1, deterministic=not train)(h))
            return x

    class Net(nn.Module):
        @nn.compact
        def __call__(self, text, train=True):
            is_word = text > 0
            emb = nn.Embed(words, 256)
            chosen = jax.random.bernoulli(self.make_rng('gaps'), 0.15, text.shape) & is_word
            h = Encoder(128, 2)(emb(jnp.where(chosen, 103, text)), is_word, train)
            guesses = emb.attend(nn.LayerNorm()(nn.gelu(nn.Dense(256)(h))))
            drawn = jax.random.categorical(self.make_rng('gaps'), lax.stop_gradient(guesses))
            given = jnp.where(chosen, drawn, text)
            logit = nn.Dense(1)(nn.gelu(nn.Dense(512)(Encoder(512, 4)(emb(given), is_word, train))))[..., 0]
            filled = jnp.sum(cross_entropy(guesses, text) * chosen) / chosen.sum()
            told = optax.sigmoid_binary_cross_entropy(logit, (given != text).astype(F32))
            return filled + 50 * jnp.sum(told * is_word) / is_word.sum()

    model, text = Net(), tokens(16, 256)

    def loss(p, text, key):
        a, b = jax.random.split(key)
        return model.apply(dict(params=p), text, rngs=dict(gaps=a, dropout=b))

    p = jax.eval_shape(lambda key, text: model.init(dict(params=key, gaps=key, dropout=key), text), KEY, text)['params']
    return training(loss, contrib.schedule_free_adamw(1e-3, warmup_steps=100), p, text, KEY)


# Losses.


@program
def rnnt_transducer():
    """Haiku: speech to text by a transducer; all pairs of a frame and a place are scored and summed along diagonals."""
    frames, places, words, batch = 150, 40, 512, 8

    def net(sound, text):
        x = hk.Linear(512)(sound)
        for _ in range(2):
            core = hk.LSTM(512)
            y, _ = hk.dynamic_unroll(core, hk.LayerNorm(-1, True, True)(x).swapaxes(0, 1), core.initial_state(batch))
            x = x + y.swapaxes(0, 1)
        x = x[:, ::2]
        core = hk.GRU(512)
        y, _ = hk.dynamic_unroll(core, hk.Embed(words, 256)(text).swapaxes(0, 1), core.initial_state(batch))
        joint = jnp.tanh(hk.Linear(512)(x)[:, :, None] + hk.Linear(512)(y.swapaxes(0, 1))[:, None])
        return jax.nn.log_softmax(hk.Linear(words)(joint))

    model = hk.without_apply_rng(hk.transform(net))

    def loss(p, sound, text, lengths, of_text):
        starts = jnp.pad(text, ((0, 0), (1, 0)))
        odds = model.apply(p, sound, starts)
        blank = odds[..., 0]
        label = jnp.take_along_axis(odds[:, :, :-1], text[:, None, :, None], -1)[..., 0]
        label = jnp.pad(label, ((0, 0), (0, 0), (0, 1)), constant_values=-1e30)

        def skewed(a):
            """Rows are diagonals."""
            at = jnp.arange(frames + places)[:, None] - jnp.arange(places + 1)
            found = a[:, jnp.clip(at, 0, frames - 1), jnp.arange(places + 1)]
            return jnp.where((at >= 0) & (at < frames), found, -1e30).swapaxes(0, 1)

        def diagonal(alpha, of):
            blank, label = of
            moved = jnp.pad((alpha + label)[:, :-1], ((0, 0), (1, 0)), constant_values=-1e30)
            after = jnp.logaddexp(alpha + blank, moved)
            return after, alpha + blank

        start = jnp.full((batch, places + 1), -1e30).at[:, 0].set(0.0)
        _, ends = lax.scan(diagonal, start, (skewed(blank), skewed(label)))
        return -jnp.mean(ends[lengths - 1 + of_text, jnp.arange(batch), of_text])

    p = initial(model, shape(batch, 2 * frames, 80), tokens(batch, places + 1))
    optimizer = optax.chain(optax.adaptive_grad_clip(0.1), optax.adam(1e-3))
    data = shape(batch, 2 * frames, 80), tokens(batch, places), tokens(batch), tokens(batch)
    return training(loss, optimizer, p, *data)


@program
def multi_token_modules():
    """Flax NNX: a decoder and two modules that foretell the words after the next, with shared embeddings and AdamW."""
    words, width, length = 32000, 768, 512

    class Layer(nnx.Module):
        def __init__(self, rngs):
            self.n1, self.n2 = nnx.RMSNorm(width, rngs=rngs, dtype=BF16), nnx.RMSNorm(width, rngs=rngs, dtype=BF16)
            self.att = nnx.MultiHeadAttention(12, width, rngs=rngs, decode=False, use_bias=False, dtype=BF16)
            self.gate = nnx.Linear(width, 4096, use_bias=False, rngs=rngs, dtype=BF16)
            self.down = nnx.Linear(2048, width, use_bias=False, rngs=rngs, dtype=BF16)

        def __call__(self, x):
            mask = nnx.make_causal_mask(x[..., 0])
            x = x + self.att(self.n1(x), mask=mask)
            a, b = jnp.split(self.gate(self.n2(x)), 2, -1)
            return x + self.down(jax.nn.silu(a) * b)

    class Ahead(nnx.Module):
        def __init__(self, rngs):
            self.n1, self.n2 = nnx.RMSNorm(width, rngs=rngs, dtype=BF16), nnx.RMSNorm(width, rngs=rngs, dtype=BF16)
            self.join = nnx.Linear(2 * width, width, use_bias=False, rngs=rngs, dtype=BF16)
            self.layer = Layer(rngs)

        def __call__(self, x, e):
            return self.layer(self.join(jnp.concatenate([self.n1(x), self.n2(e)], -1)))

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.emb = nnx.Embed(words, width, rngs=rngs, dtype=BF16)
            self.layers = nnx.List([Layer(rngs) for _ in range(4)])
            self.ahead = nnx.List([Ahead(rngs) for _ in range(2)])
            self.norm = nnx.RMSNorm(width, rngs=rngs, dtype=BF16)
            self.head = nnx.Linear(width, words, use_bias=False, rngs=rngs, dtype=BF16)

        def __call__(self, text):
            x = self.emb(text[:, :length])
            for layer in self.layers:
                x = layer(x)
            found = [x]
            for i, module in enumerate(self.ahead, 1):
                found.append(module(found[-1], self.emb(text[:, i : i + length])))
            return [self.head(self.norm(x)) for x in found]

    definition, p = nnx.split(nnx.eval_shape(lambda: Net(nnx.Rngs(0))))

    def loss(p, text):
        each = [
            cross_entropy(logits.astype(F32), text[:, i : i + length]).mean()
            for i, logits in enumerate(nnx.merge(definition, p)(text), 1)
        ]
        return each[0] + 0.15 * sum(each[1:])

    return training(loss, optax.adamw(3e-4, mu_dtype=BF16), p, tokens(8, length + 3))


# Layers.


@program
def ttt_linear_chunks():
    """Flax Linen: layers whose state is a small network that learns while it reads, a chunk at a time."""
    heads, head, chunk, width, words = 8, 64, 16, 512, 16000

    class Learning(nn.Module):
        @nn.compact
        def __call__(self, x):
            b, t, _ = x.shape
            q, k, v = [nn.DenseGeneral((heads, head), use_bias=False)(x) for _ in range(3)]
            rate = nn.sigmoid(nn.Dense(heads)(x)) / head
            w0 = self.param('w', nn.initializers.normal(0.02), (heads, head, head))
            b0 = self.param('b', nn.initializers.zeros, (heads, 1, head))
            gain = self.param('gain', nn.initializers.ones, (heads, 1, head))

            def normal(y):
                y = y - y.mean(-1, keepdims=True)
                return gain * y * lax.rsqrt(jnp.mean(y**2, -1, keepdims=True) + 1e-6)

            def inner(of, k, v, rate):
                """Losses of a chunk, of (heads, chunk, head)."""
                w, b = of
                return 0.5 * jnp.sum(rate[..., None] * (normal(k @ w + b) + k - v) ** 2)

            def one(state, of):
                q, k, v, rate = of
                g, gb = jax.grad(inner)(state, k, v, rate)
                w, b = state[0] - g, state[1] - gb
                return (w, b), q + normal(q @ w + b)

            parts = lambda a: a.reshape(b, t // chunk, chunk, heads, -1).transpose(0, 1, 3, 2, 4)
            run = lambda *of: lax.scan(jax.checkpoint(one), (w0, b0), of)[1]
            y = jax.vmap(run)(parts(q), parts(k), parts(v), parts(rate[..., None])[..., 0])
            y = y.transpose(0, 1, 3, 2, 4).reshape(b, t, -1)
            return nn.Dense(width)(y * nn.gelu(nn.Dense(heads * head)(x)))

    class Net(nn.Module):
        @nn.compact
        def __call__(self, text):
            x = nn.Embed(words, width)(text)
            for _ in range(2):
                x = x + Learning()(nn.RMSNorm()(x))
                h = nn.RMSNorm()(x)
                x = x + nn.Dense(width)(nn.silu(nn.Dense(1408)(h)) * nn.Dense(1408)(h))
            return nn.Dense(words)(nn.RMSNorm()(x))

    model = Net()

    def loss(p, text):
        return cross_entropy(model.apply(p, text[:, :-1]), text[:, 1:]).mean()

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    return training(loss, optimizer, initial(model, tokens(8, 1024)), tokens(8, 1025))


@program
def griffin_rglru():
    """Flax NNX: gated linear recurrences by an associative scan, and attention to the last 256 words, in turn; checkpointed."""
    words, width, inner, near = 32000, 768, 1024, 256

    class Recurrence(nnx.Module):
        def __init__(self, rngs):
            of = lambda a, b: nnx.Linear(a, b, rngs=rngs, dtype=BF16)
            self.a, self.b, self.o = of(width, inner), of(width, inner), of(inner, width)
            self.conv = nnx.Conv(inner, inner, 4, padding='CAUSAL', feature_group_count=inner, rngs=rngs, dtype=BF16)
            self.gates = nnx.Param(jax.random.normal(rngs.params(), (2, 16, inner // 16, inner // 16)) * 0.02)
            self.decay = nnx.Param(jnp.ones(inner))

        def __call__(self, x):
            y = self.conv(self.a(x))
            blocks = y.reshape(*y.shape[:2], 16, -1)
            r, i = jax.nn.sigmoid(jnp.einsum('btgd,sgde->sbtge', blocks, self.gates[...].astype(BF16)).reshape(2, *y.shape).astype(F32))
            log_a = -8 * r * jax.nn.softplus(self.decay[...])
            given = jnp.sqrt(-jnp.expm1(2 * log_a)) * i * y

            def joined(p, q):
                return p[0] * q[0], q[0] * p[1] + q[1]

            _, h = lax.associative_scan(joined, (jnp.exp(log_a), given), axis=1)
            return self.o(h.astype(BF16) * jax.nn.gelu(self.b(x)))

    class Near(nnx.Module):
        def __init__(self, rngs):
            of = lambda heads: nnx.LinearGeneral(width, (heads, 64), rngs=rngs, dtype=BF16)
            self.q, self.k, self.v = of(12), of(1), of(1)
            self.o = nnx.LinearGeneral((12, 64), width, axis=(-2, -1), rngs=rngs, dtype=BF16)

        def __call__(self, x):
            at = jnp.broadcast_to(jnp.arange(x.shape[1]), x.shape[:2])
            q, k = turned(self.q(x), at), turned(self.k(x), at)
            return self.o(jax.nn.dot_product_attention(q, k, self.v(x), is_causal=True, local_window_size=(near - 1, 0)))

    class Layer(nnx.Module):
        def __init__(self, mixer, rngs):
            self.n1, self.n2, self.mixer = nnx.RMSNorm(width, rngs=rngs), nnx.RMSNorm(width, rngs=rngs), mixer(rngs)
            self.up, self.down = [nnx.Linear(*of, rngs=rngs, dtype=BF16) for of in ((width, 4096), (2048, width))]

        def __call__(self, x):
            x = x + self.mixer(self.n1(x).astype(BF16))
            a, b = jnp.split(self.up(self.n2(x).astype(BF16)), 2, -1)
            return x + self.down(jax.nn.gelu(a) * b)

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.emb = nnx.Embed(words, width, rngs=rngs)
            self.layers = nnx.List([Layer(mixer, rngs) for mixer in (Recurrence, Recurrence, Near)])
            self.norm = nnx.RMSNorm(width, rngs=rngs)

        def __call__(self, text):
            x = self.emb(text).astype(BF16)
            for layer in self.layers:
                x = nnx.remat(lambda layer, x: layer(x))(layer, x)
            return self.emb.attend(self.norm(x))

    definition, p = nnx.split(nnx.eval_shape(lambda: Net(nnx.Rngs(0))), nnx.Param)

    def loss(p, text):
        logits = nnx.merge(definition, p)(text[:, :-1]).astype(F32)
        return cross_entropy(30 * jnp.tanh(logits / 30), text[:, 1:]).mean()

    return training(loss, optax.adamw(1e-3), p, tokens(4, 1025))


@program
def s5_complex_scan():
    """Equinox: states of complex numbers by an associative scan in both directions, batch norms, and labels for long sequences."""
    width, state, depth, length, classes = 256, 128, 4, 2048, 10

    class Layer(eqx.Module):
        lambda_log: jax.Array
        frequency: jax.Array
        b: jax.Array
        c: jax.Array
        d: jax.Array
        step: jax.Array
        norm: eqx.nn.LayerNorm
        gate: eqx.nn.Linear
        drop: eqx.nn.Dropout

        def __init__(self, key):
            keys = jax.random.split(key, 4)
            self.lambda_log, self.frequency = jnp.zeros(state), jnp.arange(state) * jnp.pi
            self.b = jax.random.normal(keys[0], (2, state, width)) * width**-0.5
            self.c = jax.random.normal(keys[1], (2, 2, width, state)) * state**-0.5
            self.d, self.step = jnp.ones(width), jnp.full(state, -4.0)
            self.norm, self.gate, self.drop = eqx.nn.LayerNorm(width), eqx.nn.Linear(width, width, key=keys[2]), eqx.nn.Dropout(0.1)

        def __call__(self, x, key):
            h = jax.vmap(self.norm)(x)
            root = -jnp.exp(self.lambda_log) + 1j * self.frequency
            a = jnp.exp(root * jnp.exp(self.step))
            b = ((a - 1) / root)[:, None] * (self.b[0] + 1j * self.b[1])
            given = h.astype(b.dtype) @ b.T
            spread = jnp.broadcast_to(a, given.shape)
            joined = lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1])
            _, s = lax.associative_scan(joined, (spread, given))
            _, t = lax.associative_scan(joined, (spread, given), reverse=True)
            c = self.c[:, 0] + 1j * self.c[:, 1]
            y = 2 * (s @ c[0].T + t @ c[1].T).real + self.d * h
            y = jax.nn.gelu(y)
            return x + self.drop(y * jax.nn.sigmoid(jax.vmap(self.gate)(y)), key=key)

    class Net(eqx.Module):
        encode: eqx.nn.Linear
        layers: list
        decode: eqx.nn.Linear

        def __init__(self, key):
            a, b, *keys = jax.random.split(key, depth + 2)
            self.encode, self.decode = eqx.nn.Linear(3, width, key=a), eqx.nn.Linear(width, classes, key=b)
            self.layers = [Layer(k) for k in keys]

        def __call__(self, x, key):
            x = jax.vmap(self.encode)(x)
            for i, layer in enumerate(self.layers):
                x = layer(x, jax.random.fold_in(key, i))
            return self.decode(x.mean(0))

    p, static = eqx.partition(eqx.filter_eval_shape(Net, KEY), is_shape)

    def loss(p, x, y, key):
        logits = jax.vmap(eqx.combine(p, static))(x, jax.random.split(key, len(x)))
        return jnp.mean(cross_entropy(logits, y))

    return training(loss, optax.adamw(1e-3), p, shape(8, length, 3), tokens(8), KEY)


@program
def reversible_halves():
    """Plain JAX: layers in two halves whose inputs the backward pass computes again from their outputs (custom_vjp)."""
    depth, width, words, length, batch = 8, 512, 32000, 1024, 8

    def f(w, x):
        at = jnp.broadcast_to(jnp.arange(length), x.shape[:2])
        q, k, v = jnp.split((normed(x, w['n1']) @ w['qkv']).reshape(*x.shape[:2], 24, 64), 3, 2)
        return jax.nn.dot_product_attention(turned(q, at), turned(k, at), v, is_causal=True).reshape(x.shape) @ w['o']

    def g(w, x):
        a, b = jnp.split(normed(x, w['n2']) @ w['u'], 2, -1)
        return (jax.nn.silu(a) * b) @ w['d']

    def forward(layers, a, b):
        def one(of, w):
            a, b = of
            a = a + f(w, b)
            return (a, b + g(w, a)), None

        return lax.scan(one, (a, b), layers)[0]

    @jax.custom_vjp
    def through(layers, a, b):
        return forward(layers, a, b)

    def keep(layers, a, b):
        after = forward(layers, a, b)
        return after, (layers, after)

    def back(kept, of_after):
        layers, (a, b) = kept

        def one(of, w):
            a, b, da, db = of
            y, pull = jax.vjp(g, w, a)
            b = b - y
            dw, more = pull(db)
            da = da + more
            y, pull = jax.vjp(f, w, b)
            a = a - y
            dv, more = pull(da)
            return (a, b, da, db + more), jax.tree.map(jnp.add, dw, dv)

        (_, _, da, db), dw = lax.scan(one, (a, b, *of_after), layers, reverse=True)
        return dw, da, db

    through.defvjp(keep, back)

    def loss(p, text):
        x = p['emb'][text[:, :-1]]
        a, b = through(p['layers'], x, x)
        return cross_entropy(normed(a + b, p['n']) @ p['emb'].T, text[:, 1:]).mean()

    of = lambda *extents: shape(depth, *extents)
    layers = dict(n1=of(width), n2=of(width), qkv=of(width, 3 * width), o=of(width, width), u=of(width, 2816), d=of(1408, width))
    return training(loss, optax.adamw(3e-4), dict(emb=shape(words, width), n=shape(width), layers=layers), tokens(batch, length + 1))


@program
def megabyte_patches():
    """Haiku: bytes in patches; a large network reads patches, a small one writes each patch's bytes, scanned and checkpointed."""
    patch, wide, narrow, length = 8, 1024, 384, 4096

    class Block(hk.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.width, self.heads = width, heads

        def __call__(self, x):
            h = hk.LayerNorm(-1, True, True)(x)
            mask = jnp.tril(jnp.ones((1, 1, x.shape[1], x.shape[1])))
            start = hk.initializers.VarianceScaling(1.0)
            x = x + hk.MultiHeadAttention(self.heads, self.width // self.heads, w_init=start)(h, h, h, mask=mask)
            h = hk.LayerNorm(-1, True, True)(x)
            return x + hk.Linear(self.width)(jax.nn.gelu(hk.Linear(4 * self.width)(h)))

    def net(text):
        b, t = text.shape
        places = hk.get_parameter('at', (t // patch, wide), init=hk.initializers.RandomNormal(0.02))
        x = hk.Embed(256, wide // patch)(text).reshape(b, t // patch, wide)
        x = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1] + places
        x = hk.layer_stack(4, name='global')(hk.remat(lambda x: Block(wide, 16)(x)))(x)
        y = hk.Linear(patch * narrow)(x).reshape(-1, patch, narrow)
        near = hk.Embed(256, narrow)(text).reshape(-1, patch, narrow)
        y = y + jnp.pad(near, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        for _ in range(2):
            y = Block(narrow, 6)(y)
        return hk.Linear(256)(hk.LayerNorm(-1, True, True)(y)).reshape(b, t, 256)

    model = hk.without_apply_rng(hk.transform(net))

    def loss(p, text):
        return cross_entropy(model.apply(p, text), text).mean() / jnp.log(2)

    adam = optax.scale_by_adam(b2=0.95), optax.add_decayed_weights(0.1), optax.scale(-3e-4)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), *adam)

    def step(p, state, text):
        return updated(optimizer, lambda p: loss(p, text), p, state)

    p = initial(model, tokens(4, length))
    return step, (p, jax.eval_shape(optimizer.init, p), tokens(4, length)), (0, 1)
