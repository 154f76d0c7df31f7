"""Programs for unseen.py, third batch: models that answer, speak or are made smaller, without training."""

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx
from jax import lax

from layers import BF16, F32, S8, S32, U8, shape, tokens
from libraries import KEY, initial, is_shape, program


def normed(x, gain):
    y = x.astype(F32)
    return (y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-5) * gain).astype(x.dtype)


def turned(x, at, base=500000.0):
    """Rotary positions; x is (batch, length, heads, width), at (batch, length)."""
    half = x.shape[-1] // 2
    angles = at[..., None] * base ** (-jnp.arange(half) / half)
    c, s = jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]
    a, b = x[..., :half].astype(F32), x[..., half:].astype(F32)
    return jnp.concatenate([a * c - b * s, a * s + b * c], -1).astype(x.dtype)


# Models made smaller.


@program
def gptq_columns():
    """Weights of a layer become four bits, column by column; what a column loses goes into those after it."""
    outputs, inputs, block = 4096, 2048, 128

    def run(w, calls):
        def add(h, x):
            x = x.astype(F32)
            return h + x.T @ x, None

        h, _ = lax.scan(add, jnp.zeros((inputs, inputs)), calls)
        h = h + 0.01 * jnp.mean(jnp.diag(h)) * jnp.eye(inputs)
        order = jnp.argsort(-jnp.diag(h))
        h, w = h[order][:, order], w[:, order].astype(F32)
        inverse = jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(h), True), jnp.eye(inputs))
        upper = jnp.linalg.cholesky(inverse).T

        def block_of(i, of):
            w, codes, scales = of
            at = i * block
            part = lax.dynamic_slice(w, (0, at), (outputs, block))
            corner = lax.dynamic_slice(upper, (at, at), (block, block))
            scale = jnp.max(jnp.abs(part), 1) / 7

            def column(j, of):
                part, errors, found = of
                x = part[:, j]
                code = jnp.clip(jnp.round(x / scale), -8, 7)
                error = (x - code * scale) / corner[j, j]
                part = part - jnp.outer(error, jnp.where(jnp.arange(block) >= j, corner[j], 0))
                return part, errors.at[:, j].set(error), found.at[:, j].set(code.astype(S8))

            empty = jnp.zeros((outputs, block))
            _, errors, found = lax.fori_loop(0, block, column, (part, empty, empty.astype(S8)))
            rows = lax.dynamic_slice(upper, (at, 0), (block, inputs))
            w = w - errors @ jnp.where(jnp.arange(inputs) >= at + block, rows, 0)
            return w, lax.dynamic_update_slice(codes, found, (0, at)), scales.at[:, i].set(scale)

        start = w, jnp.zeros((outputs, inputs), S8), jnp.zeros((outputs, inputs // block))
        _, codes, scales = lax.fori_loop(0, inputs // block, block_of, start)
        pairs = codes.reshape(outputs, -1, 2) + 8
        return (pairs[..., 0] | (pairs[..., 1] << 4)).astype(U8), scales, order

    return run, (shape(outputs, inputs, dtype=BF16), shape(16, 2048, inputs, dtype=BF16)), ()


@program
def awq_search():
    """Which scales of channels, and which limits, lose least when weights become four bits in groups."""
    outputs, inputs, group = 3072, 1024, 128

    def coded(w, limit=1.0):
        grouped = w.reshape(outputs, -1, group)
        high = grouped.max(-1, keepdims=True) * limit
        low = grouped.min(-1, keepdims=True) * limit
        scale = jnp.maximum(high - low, 1e-5) / 15
        zero = jnp.clip(jnp.round(-low / scale), 0, 15)
        codes = jnp.clip(jnp.round(grouped / scale) + zero, 0, 15)
        return ((codes - zero) * scale).reshape(w.shape)

    def run(w, x):
        target = x @ w.T
        usual = jnp.mean(jnp.abs(x.astype(F32)), 0)

        def loss_of(power):
            s = jnp.maximum(usual**power, 1e-4)
            s = s / jnp.sqrt(s.max() * s.min())
            y = (x / s).astype(BF16) @ coded(w.astype(F32) * s).astype(BF16).T
            return jnp.mean((y.astype(F32) - target.astype(F32)) ** 2), s

        losses, scales = lax.map(loss_of, jnp.linspace(0, 1, 20, endpoint=False))
        s = scales[jnp.argmin(losses)]
        wide = w.astype(F32) * s

        def lost(limit):
            y = (x[:512] / s).astype(F32) @ (coded(wide, limit) - wide).T
            return jnp.mean(y**2, 0)

        limits = 1 - jnp.arange(10) / 20
        best = limits[jnp.argmin(jax.vmap(lost)(limits), 0)]
        return coded(wide, best[:, None, None]).astype(BF16), s, losses

    return run, (shape(outputs, inputs, dtype=BF16), shape(8192, inputs, dtype=BF16)), (0,)


# Words, one or many at a time.


@program
def sampler_penalties():
    """The next word of many requests: penalties for what was said, the likeliest by number, by mass and by ratio."""
    rows, words, past = 128, 128256, 2048

    def run(logits, said, lengths, bias, options, key):
        logits = logits.astype(F32) + bias[options['group']]
        known = jnp.arange(past) < lengths[:, None]
        counts = jax.vmap(lambda s, k: jnp.zeros(words, S32).at[s].add(k.astype(S32)))(said, known)
        was = counts > 0
        factor = options['repeat'][:, None]
        logits = jnp.where(was, jnp.where(logits > 0, logits / factor, logits * factor), logits)
        logits = logits - options['often'][:, None] * counts - options['once'][:, None] * was
        logits = logits / jnp.maximum(options['heat'], 1e-3)[:, None]
        order = jnp.argsort(-logits, -1)
        ordered = jnp.take_along_axis(logits, order, -1)
        odds = jax.nn.softmax(ordered, -1)
        before = jnp.cumsum(odds, -1) - odds
        kept = (before < options['mass'][:, None]) & (jnp.arange(words) < options['number'][:, None])
        kept &= odds >= options['ratio'][:, None] * odds[:, :1]
        ordered = jnp.where(kept, ordered, -jnp.inf)
        place = jax.vmap(jax.random.categorical)(jax.random.split(key, rows), ordered)
        chosen = jnp.take_along_axis(order, place[:, None], -1)[:, 0]
        chosen = jnp.where(options['heat'] == 0, jnp.argmax(logits, -1), chosen)
        best, which = lax.top_k(jax.nn.log_softmax(logits), 20)
        return said.at[jnp.arange(rows), lengths].set(chosen), lengths + 1, best, which

    options = {name: shape(rows) for name in ['repeat', 'often', 'once', 'heat', 'mass', 'ratio']}
    options |= dict(number=tokens(rows), group=tokens(rows))
    arguments = shape(rows, words, dtype=BF16), tokens(rows, past), tokens(rows), shape(8, words), options, KEY
    return run, arguments, (1,)


@program
def jacobi_decode():
    """Haiku: words of a block are guessed together until nothing changes, block after block."""
    width, heads, words, block, blocks, prompt = 768, 12, 32000, 32, 8, 256
    room = prompt + block * blocks

    def net(text, at, cache_k, cache_v):
        x = hk.Embed(words, width)(text)
        places = at + jnp.arange(text.shape[1])
        mask = jnp.arange(room) <= places[:, None]
        keys, values = [], []
        for i in range(4):
            h = hk.RMSNorm(-1)(x)
            q, k, v = [hk.Linear(width, False)(h).reshape(*text.shape, heads, -1) for _ in range(3)]
            at_all = jnp.broadcast_to(places, text.shape)
            q, k = turned(q, at_all), turned(k, at_all)
            k = lax.dynamic_update_slice(cache_k[i], k, (0, at, 0, 0))
            v = lax.dynamic_update_slice(cache_v[i], v, (0, at, 0, 0))
            scores = jnp.einsum('bthd,bshd->bhts', q, k) / 8
            odds = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1)
            x = x + hk.Linear(width, False)(jnp.einsum('bhts,bshd->bthd', odds, v).reshape(x.shape))
            h = hk.RMSNorm(-1)(x)
            x = x + hk.Linear(width)(jax.nn.silu(hk.Linear(2048)(h)) * hk.Linear(2048)(h))
            keys.append(k)
            values.append(v)
        return hk.Linear(words)(hk.RMSNorm(-1)(x)), jnp.stack(keys), jnp.stack(values)

    model = hk.without_apply_rng(hk.transform(net))
    batch = 16
    cache = shape(4, batch, room, heads, width // heads)
    parameters = initial(model, tokens(batch, block), tokens(), cache, cache)

    def run(p, text):
        k = v = jnp.zeros(cache.shape)
        logits, k, v = model.apply(p, text, 0, k, v)
        last = jnp.argmax(logits[:, -1], -1)

        def one(of, i):
            k, v, last = of
            at = prompt + i * block

            def again(of):
                guess, _, steps, _, _ = of
                given = jnp.concatenate([last[:, None], guess[:, :-1]], 1)
                logits, new_k, new_v = model.apply(p, given, at, k, v)
                better = jnp.argmax(logits, -1)
                return better, jnp.any(better != guess), steps + 1, new_k, new_v

            start = jnp.zeros((batch, block), last.dtype), True, 0, k, v
            guess, _, steps, k, v = lax.while_loop(lambda of: of[1] & (of[2] < block), again, start)
            return (k, v, guess[:, -1]), (guess, steps)

        _, (found, steps) = lax.scan(one, (k, v, last), jnp.arange(blocks))
        return found.transpose(1, 0, 2).reshape(batch, -1), steps

    return run, (parameters, tokens(batch, prompt)), ()


@program
def sink_ring_decode():
    """A token for each text: windows kept in rings in every other layer, whole caches in the others, a learnt sink for each head."""
    depth, width, heads, groups, head, batch, window, room, words = 12, 1536, 24, 4, 64, 64, 256, 4096, 100000

    def attended(q, k, v, seen, sink):
        q = q.reshape(batch, groups, -1, head)
        scores = jnp.einsum('bgrd,bsgd->bgrs', q, k, preferred_element_type=F32) * head**-0.5
        scores = jnp.where(seen[:, None, None], scores, -1e30)
        top = jnp.broadcast_to(sink.reshape(groups, -1)[None, :, :, None], (*scores.shape[:3], 1))
        odds = jax.nn.softmax(jnp.concatenate([scores, top.astype(F32)], -1), -1)[..., :-1]
        return jnp.einsum('bgrs,bsgd->bgrd', odds.astype(BF16), v).reshape(batch, -1)

    def step(p, caches, word, at):
        x = p['emb'][word]
        rows = jnp.arange(batch)
        after = []
        for i in range(depth):
            w = jax.tree.map(lambda a: a[i], p['layers'])
            k_cache, v_cache = caches[i]
            h = normed(x, w['n1'])
            qkv = (h @ w['qkv'] + w['qkv_bias']).reshape(batch, 1, heads + 2 * groups, head)
            q, k, v = jnp.split(qkv, [heads, heads + groups], 2)
            q, k = turned(q, at[:, None]), turned(k, at[:, None])
            size = k_cache.shape[1]
            k_cache = k_cache.at[rows, at % size].set(k[:, 0])
            v_cache = v_cache.at[rows, at % size].set(v[:, 0])
            seen = jnp.arange(size) <= at[:, None]
            x = x + attended(q[:, 0], k_cache, v_cache, seen, w['sink']) @ w['o']
            h = normed(x, w['n2'])
            gate, up = jnp.split(h @ w['gu'], 2, -1)
            gate = jnp.minimum(gate, 7)
            x = x + (gate * jax.nn.sigmoid(1.702 * gate) * (jnp.clip(up, -7, 7) + 1)) @ w['d']
            after.append((k_cache, v_cache))
        logits = jnp.einsum('bd,vd->bv', normed(x, p['n']), p['emb'], preferred_element_type=F32)
        return after, jnp.argmax(logits, -1), at + 1

    of = lambda *extents: shape(depth, *extents, dtype=BF16)
    layers = dict(n1=of(width), n2=of(width), qkv=of(width, (heads + 2 * groups) * head), qkv_bias=of((heads + 2 * groups) * head))
    layers |= dict(sink=of(heads), o=of(heads * head, width), gu=of(width, 8192), d=of(4096, width))
    parameters = dict(emb=shape(words, width, dtype=BF16), n=shape(width, dtype=BF16), layers=layers)
    caches = [(shape(batch, window if i % 2 else room, groups, head, dtype=BF16),) * 2 for i in range(depth)]
    return step, (parameters, caches, tokens(batch), tokens(batch)), (1,)


@program
def experts_gathered_int8():
    """Eight tokens after one another for few texts: experts of eight bits are taken from a table for each token."""
    depth, width, inner, experts, top, batch, words, heads, room = 4, 1024, 768, 64, 6, 4, 32000, 16, 1024

    def opened(codes, scales):
        return codes.astype(BF16) * scales.astype(BF16)

    def layer(carry, of):
        x, at = carry
        w, k_cache, v_cache = of
        h = normed(x, w['n1'])
        q, k, v = jnp.split((h @ opened(w['qkv'], w['qkv_s'])).reshape(batch, 1, 3 * heads, -1), 3, 2)
        k_cache = lax.dynamic_update_slice(k_cache, turned(k, at[None, None]), (0, at, 0, 0))
        v_cache = lax.dynamic_update_slice(v_cache, v, (0, at, 0, 0))
        mask = (jnp.arange(room) <= at)[None, None, None]
        y = jax.nn.dot_product_attention(turned(q, at[None, None]), k_cache, v_cache, mask=mask)
        x = x + y.reshape(batch, -1) @ opened(w['o'], w['o_s'])
        h = normed(x, w['n2'])
        odds = jax.nn.sigmoid((h @ w['router']).astype(F32))
        _, chosen = lax.top_k(odds + w['bias'], top)
        share = jnp.take_along_axis(odds, chosen, -1)
        share = share / share.sum(-1, keepdims=True)
        up = opened(w['up'][chosen], w['up_s'][chosen])
        a, b = jnp.split(jnp.einsum('bd,bedf->bef', h, up), 2, -1)
        down = opened(w['down'][chosen], w['down_s'][chosen])
        y = jnp.einsum('bef,befd->bed', jax.nn.silu(a) * b, down)
        x = x + jnp.einsum('bed,be->bd', y, share.astype(BF16))
        return (x, at), (k_cache, v_cache)

    def run(p, k, v, word, at):
        def token(of, _):
            k, v, word, at = of
            (x, _), (k, v) = lax.scan(layer, (p['emb'][word], at), (p['layers'], k, v))
            word = jnp.argmax((normed(x, p['n']) @ p['head']).astype(F32), -1)
            return (k, v, word, at + 1), word

        (k, v, _, at), found = lax.scan(token, (k, v, word, at), None, length=8)
        return k, v, at, found

    codes = lambda *extents: shape(depth, *extents, dtype=S8)
    scales = lambda *extents: shape(depth, *extents)
    layers = dict(n1=scales(width), n2=scales(width), qkv=codes(width, 3 * width), qkv_s=scales(3 * width), o=codes(width, width))
    layers |= dict(o_s=scales(width), router=shape(depth, width, experts, dtype=BF16), bias=scales(experts))
    layers |= dict(up=codes(experts, width, 2 * inner), up_s=scales(experts, 1, 2 * inner))
    layers |= dict(down=codes(experts, inner, width), down_s=scales(experts, 1, width))
    p = dict(emb=shape(words, width, dtype=BF16), head=shape(width, words, dtype=BF16), n=shape(width), layers=layers)
    cache = shape(depth, batch, room, heads, width // heads, dtype=BF16)
    return run, (p, cache, cache, tokens(batch), tokens()), (1, 2)


@program
def masked_diffusion_text():
    """Flax Linen: a text that was all blanks is filled in sixteen rounds, the surest words first."""
    width, words, length, batch, blank = 768, 32000, 512, 8, 31999

    class Net(nn.Module):
        @nn.compact
        def __call__(self, text):
            x = nn.Embed(words, width, dtype=BF16)(text)
            x = x + self.param('at', nn.initializers.normal(0.02), (length, width)).astype(BF16)
            for _ in range(4):
                x = x + nn.SelfAttention(12, dtype=BF16)(nn.LayerNorm(dtype=BF16)(x))
                h = nn.LayerNorm(dtype=BF16)(x)
                x = x + nn.Dense(width, dtype=BF16)(nn.gelu(nn.Dense(4 * width, dtype=BF16)(h)))
            return nn.Dense(words, dtype=BF16)(nn.LayerNorm(dtype=BF16)(x))

    model = Net()

    def run(p, prompt, key):
        is_given = jnp.arange(length) < prompt.shape[1]
        text = jnp.full((batch, length), blank).at[:, : prompt.shape[1]].set(prompt)

        def round_of(i, text):
            is_blank = text == blank
            both = jnp.concatenate([text, jnp.where(is_given, blank, text)])
            told, free = jnp.split(model.apply(p, both).astype(F32), 2)
            logits = free + 2.5 * (told - free)
            noise = jax.random.gumbel(jax.random.fold_in(key, i), logits.shape)
            guess = jnp.argmax(logits + 0.6 * noise, -1)
            sure = jnp.take_along_axis(jax.nn.softmax(logits), guess[..., None], -1)[..., 0]
            sure = jnp.where(is_blank, sure, -1.0)
            left = jnp.floor((length - prompt.shape[1]) * jnp.cos((i + 1) / 16 * jnp.pi / 2)).astype(S32)
            fill = is_blank.sum(-1) - left
            rank = jnp.argsort(jnp.argsort(-sure, -1), -1)
            return jnp.where(is_blank & (rank < fill[:, None]), guess, text)

        return lax.fori_loop(0, 16, round_of, text)

    return run, (initial(model, tokens(batch, length)), tokens(batch, 64), KEY), ()


@program
def adapters_many_requests():
    """A step for requests that each have an adapter of their own, of different ranks, from one table."""
    depth, width, inner, batch, slots, rank, words, room = 6, 2048, 5504, 32, 24, 32, 32000, 768
    heads = 16

    def run(p, adapters, caches, word, at, who, ranks):
        is_used = (jnp.arange(rank) < ranks[who][:, None]).astype(BF16)

        def adapted(x, w, a, b):
            low = jnp.einsum('bd,bdr->br', x, a[who]) * is_used
            return x @ w + jnp.einsum('br,bro->bo', low, b[who])

        x = p['emb'][word]
        after = []
        for w, a, (k_cache, v_cache) in zip(p['layers'], adapters, caches):
            h = normed(x, w['n1'])
            q, k, v = [adapted(h, w[n], a[n]['a'], a[n]['b']).reshape(batch, 1, heads, -1) for n in 'qkv']
            q, k = turned(q, at[:, None]), turned(k, at[:, None])
            put = jax.vmap(lambda cache, new, at: lax.dynamic_update_slice(cache, new, (at, 0, 0)))
            k_cache, v_cache = put(k_cache, k, at), put(v_cache, v, at)
            y = jax.nn.dot_product_attention(q, k_cache, v_cache, key_value_seq_lengths=at + 1)
            x = x + adapted(y.reshape(batch, -1), w['o'], a['o']['a'], a['o']['b'])
            h = normed(x, w['n2'])
            x = x + (jax.nn.silu(h @ w['g']) * (h @ w['u'])) @ w['d']
            after.append((k_cache, v_cache))
        return after, (normed(x, p['n']) @ p['emb'].T).astype(F32)

    of = lambda *extents: shape(*extents, dtype=BF16)
    layer = {n: of(width, width) for n in 'qkvo'} | dict(g=of(width, inner), u=of(width, inner), d=of(inner, width))
    layer |= dict(n1=of(width), n2=of(width))
    adapter = {n: dict(a=of(slots, width, rank), b=of(slots, rank, width)) for n in 'qkvo'}
    cache = of(batch, room, heads, width // heads)
    p = dict(emb=of(words, width), n=of(width), layers=[layer] * depth)
    requests = tokens(batch), tokens(batch), tokens(batch), tokens(slots)
    return run, (p, [adapter] * depth, [(cache, cache)] * depth, *requests), (2,)


@program
def hybrid_state_decode():
    """Flax NNX: sixteen tokens by layers with states, convolutions of the last few tokens, and attention in every fourth."""
    width, inner, state, batch, room, words = 1024, 2048, 16, 32, 512, 50000

    class State(nnx.Module):
        def __init__(self, rngs):
            linear = lambda a, b, **options: nnx.Linear(a, b, rngs=rngs, param_dtype=BF16, dtype=BF16, **options)
            self.norm = nnx.RMSNorm(width, rngs=rngs, dtype=BF16)
            self.to, self.back = linear(width, 2 * inner, use_bias=False), linear(inner, width, use_bias=False)
            self.few, self.wide = linear(inner, 64 + 2 * state, use_bias=False), linear(64, inner)
            self.kernel = nnx.Param(jnp.zeros((4, inner), BF16))
            self.log_a = nnx.Param(jnp.zeros((inner, state)))
            self.skip = nnx.Param(jnp.ones(inner))

        def __call__(self, x, cache, at):
            recent, s = cache
            y, gate = jnp.split(self.to(self.norm(x)), 2, -1)
            recent = jnp.concatenate([recent[:, 1:], y[:, None]], 1)
            y = jax.nn.silu(jnp.sum(recent * self.kernel[...], 1))
            low, b, c = jnp.split(self.few(y), [64, 64 + state], -1)
            step = jax.nn.softplus(self.wide(low).astype(F32))
            decay = jnp.exp(step[..., None] * -jnp.exp(self.log_a[...]))
            s = decay * s + (step * y)[..., None] * b[:, None].astype(F32)
            z = jnp.einsum('bis,bs->bi', s, c.astype(F32)) + self.skip[...] * y
            return x + self.back((z * jax.nn.silu(gate)).astype(BF16)), (recent, s)

    class Attention(nnx.Module):
        def __init__(self, rngs):
            options = dict(rngs=rngs, param_dtype=BF16, dtype=BF16)
            of = lambda a, b: nnx.LinearGeneral(a, b, axis=(-2, -1) if isinstance(a, tuple) else -1, **options)
            self.norm = nnx.RMSNorm(width, rngs=rngs, dtype=BF16)
            self.q, self.k, self.v, self.o = of(width, (16, 64)), of(width, (4, 64)), of(width, (4, 64)), of((16, 64), width)

        def __call__(self, x, cache, at):
            h = self.norm(x)[:, None]
            k, v = [lax.dynamic_update_slice(c, new, (0, at, 0, 0)) for c, new in zip(cache, (self.k(h), self.v(h)))]
            y = jax.nn.dot_product_attention(self.q(h), k, v, mask=(jnp.arange(room) <= at)[None, None, None])
            return x + self.o(y)[:, 0], (k, v)

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.emb = nnx.Embed(words, width, rngs=rngs, param_dtype=BF16)
            self.layers = nnx.List([Attention(rngs) if i % 4 == 3 else State(rngs) for i in range(8)])
            self.norm = nnx.RMSNorm(width, rngs=rngs)

        def __call__(self, word, caches, at):
            x, after = self.emb(word), []
            for layer, cache in zip(self.layers, caches):
                x, cache = layer(x, cache, at)
                after.append(cache)
            return self.emb.attend(self.norm(x)), after

    definition, parameters = nnx.split(nnx.eval_shape(lambda: Net(nnx.Rngs(0))))

    def run(p, caches, word, at, key):
        model = nnx.merge(definition, p)

        def token(of, key):
            caches, word, at = of
            logits, caches = model(word, caches, at)
            word = jax.random.categorical(key, logits.astype(F32) / 0.8)
            return (caches, word, at + 1), word

        (caches, _, at), found = lax.scan(token, (caches, word, at), jax.random.split(key, 16))
        return caches, at, found

    of_state = shape(batch, 4, inner, dtype=BF16), shape(batch, inner, state)
    of_attention = (shape(batch, room, 4, 64, dtype=BF16),) * 2
    caches = [of_attention if i % 4 == 3 else of_state for i in range(8)]
    return run, (parameters, caches, tokens(batch), tokens(), KEY), (1,)


# Sound, pictures and search.


@program
def whisper_transcribe():
    """Flax Linen: sound to mel spectrograms, an encoder, and words one by one until all texts have ended."""
    width, heads, words, longest, batch = 512, 8, 51864, 96, 8

    def mel(sound, filters):
        n, hop = 400, 160
        padded = jnp.pad(sound, ((0, 0), (n // 2, n // 2)), mode='reflect')
        frames = (padded.shape[1] - n) // hop
        at = jnp.arange(frames)[:, None] * hop + jnp.arange(n)
        power = jnp.abs(jnp.fft.rfft(padded[:, at] * jnp.hanning(n), axis=-1)) ** 2
        logs = jnp.log10(jnp.maximum(power @ filters, 1e-10))
        logs = jnp.maximum(logs, logs.max((1, 2), keepdims=True) - 8)
        return (logs + 4) / 4

    class Encoder(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.gelu(nn.Conv(width, (3,), dtype=BF16)(x))
            x = nn.gelu(nn.Conv(width, (3,), 2, dtype=BF16)(x))
            x = x + self.param('at', nn.initializers.normal(0.01), x.shape[1:]).astype(BF16)
            for _ in range(4):
                x = x + nn.SelfAttention(heads, dtype=BF16)(nn.LayerNorm(dtype=BF16)(x))
                h = nn.gelu(nn.Dense(4 * width, dtype=BF16)(nn.LayerNorm(dtype=BF16)(x)))
                x = x + nn.Dense(width, dtype=BF16)(h)
            return nn.LayerNorm(dtype=BF16)(x)

    class Decoder(nn.Module):
        @nn.compact
        def __call__(self, word, at, heard):
            emb = nn.Embed(words, width, dtype=BF16)
            places = self.param('at', nn.initializers.normal(0.01), (longest, width)).astype(BF16)
            x = emb(word) + lax.dynamic_slice_in_dim(places, at, 1)
            for _ in range(4):
                x = x + nn.SelfAttention(heads, dtype=BF16, decode=True)(nn.LayerNorm(dtype=BF16)(x))
                h = nn.LayerNorm(dtype=BF16)(x)
                x = x + nn.MultiHeadDotProductAttention(heads, dtype=BF16)(h, heard)
                h = nn.gelu(nn.Dense(4 * width, dtype=BF16)(nn.LayerNorm(dtype=BF16)(x)))
                x = x + nn.Dense(width, dtype=BF16)(h)
            return emb.attend(nn.LayerNorm(dtype=BF16)(x))

    encoder, decoder = Encoder(), Decoder()
    of_encoder = initial(encoder, shape(batch, 1500, 80))
    frames = jax.eval_shape(encoder.apply, of_encoder, shape(batch, 1500, 80))

    # A decoder starts its caches from a whole text.
    shapes = jax.eval_shape(lambda key, t, h: decoder.init(key, t, 0, h), KEY, tokens(batch, longest), frames)
    cache = shapes['cache']

    def run(p, q, sound, filters):
        heard = encoder.apply(p, mel(sound, filters))
        caches = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), cache)

        def more(of):
            caches, text, at, has_ended = of
            word = lax.dynamic_slice_in_dim(text, at, 1, 1)
            logits, after = decoder.apply(dict(params=q, cache=caches), word, at, heard, mutable=['cache'])
            word = jnp.where(has_ended, 0, jnp.argmax(logits[:, 0].astype(F32), -1).astype(S32))
            text = lax.dynamic_update_slice(text, word[:, None], (0, at + 1))
            return after['cache'], text, at + 1, has_ended | (word == 50257)

        start = caches, jnp.full((batch, longest), 50258, S32), 0, jnp.zeros(batch, bool)
        return lax.while_loop(lambda of: (of[2] < longest - 1) & ~of[3].all(), more, start)[1]

    return run, (of_encoder, shapes['params'], shape(batch, 240000), shape(201, 80)), ()


@program
def colbert_maxsim():
    """Queries against documents by the best word for each of theirs: codes of a quarter byte are opened, the best hundred are kept."""
    queries, length, documents, longest, width, centroids = 16, 32, 32768, 96, 128, 8192

    def run(q, centres, which, codes, lengths, steps):
        q = q / jnp.linalg.norm(q, axis=-1, keepdims=True)
        near = jnp.einsum('qtd,cd->qtc', q, centres)

        def chunk(_, of):
            which, codes, lengths = of
            bits = (codes[..., None] >> jnp.arange(0, 8, 2, dtype=U8)) & 3
            rest = steps[bits.astype(S32)].reshape(*codes.shape[:2], width)
            x = centres[which] + rest
            x = (x / jnp.linalg.norm(x, axis=-1, keepdims=True)).astype(BF16)
            scores = jnp.einsum('qtd,nsd->qnts', q.astype(BF16), x, preferred_element_type=F32)
            scores = jnp.where(jnp.arange(longest) < lengths[:, None, None], scores, -1e4)
            rough = jnp.where(jnp.arange(longest) < lengths[:, None], near.max(1)[:, which], 0).max(-1)
            return None, jnp.where(rough > 0.2, scores.max(-1).sum(-1), -1e4)

        parts = jax.tree.map(lambda a: a.reshape(32, -1, *a.shape[1:]), (which, codes, lengths))
        _, scores = lax.scan(chunk, None, parts)
        return lax.top_k(scores.transpose(1, 0, 2).reshape(queries, -1), 100)

    index = tokens(documents, longest), shape(documents, longest, width // 4, dtype=U8), tokens(documents)
    return run, (shape(queries, length, width), shape(centroids, width), *index, shape(4)), ()


@program
def eqx_picture_questions():
    """Equinox: pictures cut into patches of several sizes are packed, read by an encoder and put among the words of a prompt."""
    width, seen, words, patches, pictures, length, batch = 1024, 768, 64000, 1024, 4, 1536, 4

    class Layer(eqx.Module):
        n1: eqx.nn.LayerNorm
        n2: eqx.nn.LayerNorm
        qkv: eqx.nn.Linear
        o: eqx.nn.Linear
        up: eqx.nn.Linear
        down: eqx.nn.Linear
        heads: int = eqx.field(static=True)

        def __init__(self, width, heads, key):
            a, b, c, d = jax.random.split(key, 4)
            self.n1, self.n2, self.heads = eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width), heads
            self.qkv, self.o = eqx.nn.Linear(width, 3 * width, key=a), eqx.nn.Linear(width, width, key=b)
            self.up, self.down = eqx.nn.Linear(width, 4 * width, key=c), eqx.nn.Linear(4 * width, width, key=d)

        def __call__(self, x, mask):
            q, k, v = jnp.split(jax.vmap(self.qkv)(jax.vmap(self.n1)(x)).reshape(len(x), 3 * self.heads, -1), 3, 1)
            y = jax.nn.dot_product_attention(q[None], k[None], v[None], mask=mask[None, None])[0]
            x = x + jax.vmap(self.o)(y.reshape(len(x), -1))
            return x + jax.vmap(self.down)(jax.nn.gelu(jax.vmap(self.up)(jax.vmap(self.n2)(x)))), k, v

    class Net(eqx.Module):
        cut: eqx.nn.Linear
        at: jax.Array
        eyes: list
        bridge: eqx.nn.MLP
        emb: jax.Array
        layers: list

        def __init__(self, key):
            keys = jax.random.split(key, 14)
            self.cut = eqx.nn.Linear(588, seen, key=keys[0])
            self.at = jax.random.normal(keys[1], (64, 64, seen))
            self.eyes = [Layer(seen, 12, k) for k in keys[2:6]]
            self.bridge = eqx.nn.MLP(4 * seen, width, 2 * width, 1, jax.nn.gelu, key=keys[6])
            self.emb = jax.random.normal(keys[7], (words, width))
            self.layers = [Layer(width, 16, k) for k in keys[8:14]]

        def __call__(self, patches, where, of, text):
            x = jax.vmap(self.cut)(patches) + self.at[where[:, 0], where[:, 1]]
            same = (of[:, None] == of[None]) & (of > 0)[None]
            for layer in self.eyes:
                x, _, _ = layer(x, same)
            seen_words = jax.vmap(self.bridge)(x.reshape(-1, 4 * seen))
            y = self.emb[text]
            is_picture = text == 7
            y = jnp.where(is_picture[:, None], seen_words[jnp.cumsum(is_picture) - 1], y)
            caches = []
            for layer in self.layers:
                y, k, v = layer(y, jnp.tril(jnp.ones((length, length), bool)))
                caches.append((k, v))
            return self.emb @ y[-1], caches

    arrays, static = eqx.partition(eqx.filter_eval_shape(Net, KEY), is_shape)
    arrays = jax.tree.map(lambda a: shape(*a.shape, dtype=BF16), arrays)

    def run(p, patches, where, of, text):
        return jax.vmap(eqx.combine(p, static))(patches, where, of, text)

    pixels = shape(batch, pictures * patches // 4, 588, dtype=BF16)
    of = pixels.shape[1]
    return run, (arrays, pixels, tokens(batch, of, 2), tokens(batch, of), tokens(batch, length)), ()
