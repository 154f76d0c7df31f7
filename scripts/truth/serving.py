"""Models that answer: prefill, decoding with caches, search, weights of few bits."""

import jax
import jax.numpy as jnp
from jax import lax

from language import decoder
from layers import (
    BF16,
    F32,
    S8,
    as_type,
    attend,
    attend_in_blocks,
    block,
    causal,
    dense,
    gated,
    inference,
    layer_norm,
    layers,
    llama_layer,
    perceptron,
    rms_norm,
    rotate,
    shape,
    square_error,
    stacked,
    through,
    tokens,
    training,
)
from program import family


def cache_shapes(depth, batch, length, groups, width, is_scanned, dtype=BF16):
    one = shape(batch, length, groups, width, dtype=dtype)
    return dict(k=stacked(one, depth), v=stacked(one, depth)) if is_scanned else [dict(k=one, v=one)] * depth


def cached_attention(p, x, cache, at, heads, groups):
    """Attention of new positions, from `at` on, to all that is in a cache, which gets them first."""
    b, t, _ = x.shape
    positions = at + jnp.arange(t)
    split = lambda w, n: (x @ w).reshape(b, t, n, -1)
    q, k, v = rotate(split(p['q'], heads), positions), rotate(split(p['k'], groups), positions), split(p['v'], groups)
    cache = {
        name: lax.dynamic_update_slice(cache[name], new.astype(cache[name].dtype), (0, at, 0, 0)) for name, new in (('k', k), ('v', v))
    }
    seen = jnp.arange(cache['k'].shape[1]) <= positions[:, None]
    y = attend(q, cache['k'].astype(x.dtype), cache['v'].astype(x.dtype), mask=seen)
    return y.reshape(x.shape) @ p['o'], cache


def cached_layer(p, x, cache, at, heads, groups):
    y, cache = cached_attention(p['attention'], rms_norm(x, p['norm1']), cache, at, heads, groups)
    x = x + y
    return x + gated(p, rms_norm(x, p['norm2'])), cache


def run_cached(p, cache, words, at, heads, groups, carried=False, layer=cached_layer):
    """Logits of new words and the cache with them. Scanned caches are outputs of the loop, or carried through it as one."""
    x = p['embedding'][words]
    if isinstance(cache, list):
        filled = []
        for q, c in zip(p['layers'], cache):
            x, c = layer(q, x, c, at, heads, groups)
            filled.append(c)
        cache = filled
    elif carried:

        def step(of, numbered):
            x, cache = of
            q, i = numbered
            x, c = layer(q, x, jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, i, 0, False), cache), at, heads, groups)
            return (x, jax.tree.map(lambda a, c: lax.dynamic_update_index_in_dim(a, c, i, 0), cache, c)), None

        depth = cache['k'].shape[0]
        (x, cache), _ = lax.scan(step, (x, cache), (p['layers'], jnp.arange(depth)))
    else:

        def step(x, of):
            q, c = of
            return layer(q, x, c, at, heads, groups)

        x, cache = lax.scan(step, x, (p['layers'], cache))
    return rms_norm(x, p['norm']) @ p['head'], cache


@family
def prefill():
    """Prompts at once: the caches are outputs, or filled where they were given."""

    def of(batch, length, room=0, width=1024, depth=4, heads=16, groups=4, words=16384, is_scanned=True, blocks=0, dtype=BF16, chunks=1):
        parameters = as_type(decoder(width, depth, words, heads // groups, is_scanned), dtype)

        def fresh(p, words):
            def layer(q, x):
                y = rms_norm(x, q['norm1'])
                a = q['attention']
                split = lambda w, n: (y @ w).reshape(batch, length, n, -1)
                query, k, v = rotate(split(a['q'], heads)), rotate(split(a['k'], groups)), split(a['v'], groups)
                wide = lambda x: jnp.repeat(x, heads // groups, 2)
                z = attend_in_blocks(query, wide(k), wide(v), blocks) if blocks else attend(query, k, v, causal(length))
                x = x + z.reshape(x.shape) @ a['o']
                return x + gated(q, rms_norm(x, q['norm2'])), dict(k=k, v=v)

            x = p['embedding'][words]
            if is_scanned:
                x, cache = lax.scan(lambda x, q: layer(q, x), x, p['layers'])
            else:
                cache = []
                for q in p['layers']:
                    x, c = layer(q, x)
                    cache.append(c)
            return (rms_norm(x[:, -1], p['norm']) @ p['head']).argmax(-1), cache

        def filled(p, cache, words):
            if chunks == 1:
                logits, cache = run_cached(p, cache, words, 0, heads, groups)
                return logits[:, -1].argmax(-1), cache

            def part(cache, of):
                i, words = of
                logits, cache = run_cached(p, cache, words, i * (length // chunks), heads, groups)
                return cache, logits[:, -1]

            cache, logits = lax.scan(part, cache, (jnp.arange(chunks), words.reshape(batch, chunks, -1).swapaxes(0, 1)))
            return logits[-1].argmax(-1), cache

        if room:
            return inference(
                filled,
                parameters,
                cache_shapes(depth, batch, room, groups, width // heads, is_scanned, dtype),
                tokens(batch, length),
                donate=(0,),
            )
        return inference(fresh, parameters, tokens(batch, length))

    yield 'scanned_fresh', *of(8, 1024)
    yield 'unrolled_into_cache', *of(8, 512, room=2048, is_scanned=False)
    yield 'scanned_into_cache_chunks', *of(8, 2048, room=4096, chunks=8)
    yield 'unrolled_fresh_f32', *of(4, 1024, is_scanned=False, dtype=F32)
    yield 'scanned_blocks_long', *of(1, 16384, width=512, heads=8, blocks=1024)
    yield 'scanned_into_cache', *of(16, 512, room=2048)
    yield 'unrolled_fresh_wide', *of(4, 1024, width=2048, depth=2, heads=32, groups=8, is_scanned=False)


@family
def decode():
    """One word after the other: a donated cache, unrolled, scanned as output or carried; alone or in a loop of many words."""

    def of(
        batch,
        room,
        width=1024,
        depth=4,
        heads=16,
        groups=4,
        words=16384,
        is_scanned=True,
        carried=False,
        steps=1,
        donate=True,
        dtype=BF16,
        samples=False,
    ):
        parameters = as_type(decoder(width, depth, words, heads // groups, is_scanned), dtype)

        def choose(logits, key):
            if not samples:
                return logits.argmax(-1)
            best = lax.top_k(logits.astype(F32), 50)[0][..., -1:]
            return jax.random.categorical(key, jnp.where(logits >= best, logits.astype(F32), -jnp.inf))

        def one(p, cache, word, at, key):
            logits, cache = run_cached(p, cache, word[:, None], at, heads, groups, carried)
            return choose(logits[:, 0], key), cache

        def many(p, cache, word, at, key):
            def step(of, i):
                cache, word = of
                word, cache = one(p, cache, word, at + i, jax.random.fold_in(key, i))
                return (cache, word), word

            (cache, word), all_of_them = lax.scan(step, (cache, word), jnp.arange(steps))
            return all_of_them, cache

        cache = cache_shapes(depth, batch, room, groups, width // heads, is_scanned, dtype)
        key = jax.eval_shape(lambda: jax.random.key(0))
        return inference(one if steps == 1 else many, parameters, cache, tokens(batch), tokens(), key, donate=(0,) if donate else ())

    yield 'scanned', *of(32, 4096)
    yield 'unrolled', *of(32, 4096, is_scanned=False)
    yield 'loop_scanned_carried', *of(16, 4096, carried=True, steps=64)
    yield 'scanned_carried', *of(32, 4096, carried=True)
    yield 'loop_unrolled_samples', *of(16, 2048, is_scanned=False, steps=64, samples=True)
    yield 'unrolled_not_donated', *of(16, 4096, is_scanned=False, donate=False)
    yield 'scanned_f32_many_heads', *of(16, 2048, groups=16, dtype=F32)
    yield 'loop_scanned', *of(16, 4096, steps=64)
    yield 'unrolled_wide', *of(8, 2048, width=4096, depth=2, heads=32, groups=8, words=32000, is_scanned=False)
    yield 'scanned_long_small_batch', *of(1, 131072, groups=2)


@family
def paged_decode():
    """Caches of pages that texts share: gathered by tables for each step, texts of many lengths."""

    def of(batch, pages, page=64, each=32, width=1024, depth=4, heads=16, groups=4, words=16384, is_scanned=True, keeps=S8):
        e = width // heads
        parameters = as_type(decoder(width, depth, words, heads // groups, is_scanned), BF16)
        pool = dict(k=shape(pages, page, groups, e, dtype=keeps), v=shape(pages, page, groups, e, dtype=keeps))

        def step(p, pool, table, lengths, word):
            def layer(x, of):
                q, pool = of
                a, y = q['attention'], rms_norm(x, q['norm1'])
                new = dict(k=(y @ a['k']).reshape(batch, groups, e), v=(y @ a['v']).reshape(batch, groups, e))
                where = jnp.take_along_axis(table, (lengths // page)[:, None], 1)[:, 0], lengths % page
                narrow = lambda x: jnp.round(x * 16).astype(S8) if keeps == S8 else x
                pool = {name: pool[name].at[where].set(narrow(new[name])) for name in new}
                k, v = (
                    pool[name][table].reshape(batch, each * page, groups, e).astype(BF16) * (1 / 16 if keeps == S8 else 1) for name in 'kv'
                )
                seen = (jnp.arange(each * page) <= lengths[:, None])[:, None, None, None]
                z = attend((y @ a['q']).reshape(batch, 1, heads, e), k.astype(BF16), v.astype(BF16), seen)
                x = x + z.reshape(batch, width) @ a['o']
                return x + gated(q, rms_norm(x, q['norm2'])), pool

            x = p['embedding'][word]
            if is_scanned:
                x, pool = lax.scan(layer, x, (p['layers'], pool))
            else:
                filled = []
                for of in zip(p['layers'], pool):
                    x, new = layer(x, of)
                    filled.append(new)
                pool = filled
            return (rms_norm(x, p['norm']) @ p['head']).argmax(-1), pool

        return inference(step, parameters, layers(pool, depth, is_scanned), tokens(batch, each), tokens(batch), tokens(batch), donate=(0,))

    yield 'scanned_s8', *of(64, 4096)
    yield 'unrolled_bf16', *of(64, 4096, is_scanned=False, keeps=BF16)
    yield 'scanned_bf16', *of(32, 2048, keeps=BF16)
    yield 'unrolled_s8_small_pages', *of(128, 16384, page=16, each=64, is_scanned=False)
    yield 'scanned_many_heads', *of(32, 2048, groups=16, keeps=BF16)


@family
def beam_search():
    """Several continuations of each text: caches reordered in every step."""

    def of(batch, beams, room, width=512, depth=3, heads=8, words=16384, steps=32, is_scanned=True, dtype=BF16):
        parameters = as_type(decoder(width, depth, words, 1, is_scanned), dtype)
        many = batch * beams

        def run(p, cache, word):
            def step(i, of):
                cache, texts, scores = of
                last = lax.dynamic_index_in_dim(texts, i, 2, False).reshape(many, 1)
                logits, cache = run_cached(p, cache, last, i, heads, heads)
                odds = scores[..., None] + jax.nn.log_softmax(logits.astype(F32)).reshape(batch, beams, words)
                scores, best = lax.top_k(odds.reshape(batch, -1), beams)
                came, word = best // words, best % words
                flat = (came + beams * jnp.arange(batch)[:, None]).reshape(-1)
                cache = jax.tree.map(lambda c: jnp.take(c, flat, axis=1 if is_scanned else 0), cache)
                texts = jnp.take_along_axis(texts, came[..., None], 1)
                return cache, lax.dynamic_update_slice(texts, word[..., None], (0, 0, i + 1)), scores

            texts = jnp.zeros((batch, beams, steps + 1), jnp.int32).at[:, :, 0].set(word[:, None])
            return lax.fori_loop(0, steps, step, (cache, texts, jnp.zeros((batch, beams))))[1:]

        cache = cache_shapes(depth, many, room, heads, width // heads, is_scanned, dtype)
        return inference(run, parameters, cache, tokens(batch), donate=(0,))

    yield 'scanned', *of(8, 4, 512)
    yield 'unrolled', *of(16, 4, 512, is_scanned=False)
    yield 'scanned_f32_many_beams', *of(4, 16, 256, dtype=F32)
    yield 'unrolled_large_vocabulary', *of(16, 8, 128, words=64000, depth=2, is_scanned=False)
    yield 'scanned_long', *of(4, 4, 4096)


@family
def speculative_decoding():
    """A small model drafts some words, a large one reads them at once and keeps those that it would have said."""

    def of(batch, room, draft=4, width=1024, small=256, depth=3, words=16384, rounds=16, is_scanned=True):
        large, little = (as_type(decoder(w, depth, words, 1, is_scanned), BF16) for w in (width, small))
        heads = {width: width // 64, small: small // 64}

        def run(p, q, large_cache, little_cache, word, at, key):
            def round_of(of, key):
                large_cache, little_cache, word, at = of

                def guess(of, i):
                    cache, word = of
                    logits, cache = run_cached(q, cache, word[:, None], at + i, heads[small], heads[small])
                    odds = jax.nn.log_softmax(logits[:, 0].astype(F32))
                    new = jax.random.categorical(jax.random.fold_in(key, i), odds)
                    return (cache, new), (new, odds)

                (little_cache, _), (words_of, odds) = lax.scan(guess, (little_cache, word), jnp.arange(draft))
                read = jnp.concatenate([word[:, None], words_of.T], 1)
                logits, large_cache = run_cached(p, large_cache, read, at, heads[width], heads[width])
                judged = jax.nn.log_softmax(logits.astype(F32))
                pick = lambda odds: jnp.take_along_axis(odds, words_of.T[..., None], -1)[..., 0]
                kept = jnp.log(jax.random.uniform(key, (batch, draft))) < pick(judged[:, :-1]) - pick(odds.swapaxes(0, 1))
                count = jnp.cumprod(kept, 1).sum(1)
                left = jnp.take_along_axis(judged, count[:, None, None], 1)[:, 0]
                word = jax.random.categorical(key, left)
                return (large_cache, little_cache, word, at + count.min() + 1), (words_of, count)

            return lax.scan(round_of, (large_cache, little_cache, word, at), jax.random.split(key, rounds))

        caches = [cache_shapes(depth, batch, room, heads[w], 64, is_scanned) for w in (width, small)]
        arguments = large, little, *caches, tokens(batch), tokens(), jax.eval_shape(lambda: jax.random.key(0))
        return jax.jit(run, donate_argnums=(2, 3)), arguments

    yield 'scanned', *of(8, 2048)
    yield 'unrolled', *of(16, 1024, depth=2, is_scanned=False)
    yield 'long_drafts', *of(8, 2048, draft=8)
    yield 'large_batch', *of(64, 512)


@family
def quantised_inference():
    """Weights of 8 or 4 bits, or of 8-bit floats: widened before products, or products of integers; scanned and not."""
    F8 = jnp.float8_e4m3fn

    def of(batch, length, width=2048, inner=8192, depth=3, how='weights', dtype=S8, is_scanned=True, group=128, classes=16384):
        low = dict(s8=S8, s4=jnp.int4, f8=F8).get(dtype, dtype)
        matrix = lambda a, b: dict(
            w=shape(a, b, dtype=low), scale=shape(a // group, b, dtype=BF16) if how == 'groups' else shape(b, dtype=BF16)
        )
        one = dict(
            q=matrix(width, width),
            k=matrix(width, width),
            v=matrix(width, width),
            o=matrix(width, width),
            up=matrix(width, inner),
            gate=matrix(width, inner),
            down=matrix(inner, width),
            norm1=shape(width, dtype=BF16),
            norm2=shape(width, dtype=BF16),
        )
        parameters = dict(
            words=dict(w=shape(classes, width, dtype=low), scale=shape(classes, dtype=BF16)),
            layers=layers(one, depth, is_scanned),
            head=matrix(width, classes),
        )

        def times(x, q):
            if how == 'integers':
                top = jnp.abs(x).max(-1, keepdims=True).astype(F32) / 127
                y = lax.dot_general(
                    jnp.round(x / top).astype(S8), q['w'], (((x.ndim - 1,), (0,)), ((), ())), preferred_element_type=jnp.int32
                )
                return (y.astype(F32) * top * q['scale']).astype(x.dtype)
            if how == 'floats':
                y = lax.dot_general(x.astype(F8), q['w'], (((x.ndim - 1,), (0,)), ((), ())), preferred_element_type=F32)
                return (y * q['scale']).astype(x.dtype)
            if how == 'groups':
                w = q['w'].astype(BF16).reshape(-1, group, q['w'].shape[-1]) * q['scale'][:, None]
                return x @ w.reshape(q['w'].shape)
            return (x @ q['w'].astype(BF16)) * q['scale']

        def layer(p, x):
            heads = width // 128
            y = rms_norm(x, p['norm1'])
            q, k, v = (times(y, p[name]).reshape(batch, length, heads, 128) for name in 'qkv')
            x = x + times(attend(q, k, v, causal(length)).reshape(x.shape), p['o'])
            y = rms_norm(x, p['norm2'])
            return x + times(jax.nn.silu(times(y, p['gate'])) * times(y, p['up']), p['down'])

        def forward(p, words):
            x = p['words']['w'][words].astype(BF16) * p['words']['scale'][words][..., None]
            return times(through(layer, p['layers'], x)[:, -1], p['head'])

        return inference(forward, parameters, tokens(batch, length))

    yield 'weights_s8_scanned', *of(4, 512)
    yield 'integers_s8_unrolled', *of(8, 512, how='integers', is_scanned=False)
    yield 'groups_s4_unrolled', *of(4, 512, how='groups', dtype='s4', is_scanned=False)
    yield 'weights_s8_unrolled', *of(4, 512, is_scanned=False)
    yield 'floats_f8_scanned', *of(8, 512, how='floats', dtype='f8')
    yield 'groups_s8_scanned', *of(2, 256, how='groups')
    yield 'integers_s8_scanned_large_batch', *of(64, 128, how='integers')
    yield 'weights_s8_one_word', *of(64, 1, depth=4, is_scanned=False)


@family
def quantised_training():
    """Training in narrow types: fake quantisation with gradients passed through, scaled losses in f16, products in 8-bit floats."""

    def of(batch, length, width=1024, depth=3, how='fake', is_scanned=True, words=8192, **options):
        one = block(width)

        @jax.custom_vjp
        def rounded(w):
            scale = jnp.abs(w).max(0, keepdims=True) / 127
            return (jnp.round(w / scale) * scale).astype(w.dtype)

        rounded.defvjp(lambda w: (rounded(w), None), lambda _, g: (g,))

        def narrow(x):
            top = jnp.abs(x).max().astype(F32) / 448
            return (x / top).astype(jnp.float8_e4m3fn), top

        @jax.custom_vjp
        def product8(x, w):
            (a, s), (b, t) = narrow(x), narrow(w)
            return (lax.dot_general(a, b, (((x.ndim - 1,), (0,)), ((), ())), preferred_element_type=F32) * s * t).astype(x.dtype)

        def back(kept, g):
            x, w = kept
            return (g @ w.T).astype(x.dtype), jnp.einsum('bti,bto->io', x, g).astype(w.dtype)

        product8.defvjp(lambda x, w: (product8(x, w), (x, w)), back)
        times = product8 if how == 'f8' else lambda x, w: x @ (rounded(w) if how == 'fake' else w)

        def layer(p, x):
            a, y = p['attention'], layer_norm(x, p['norm1'])
            q, k, v = (times(y, a[name]).reshape(batch, length, -1, 64) for name in 'qkv')
            x = x + times(attend(q, k, v, causal(length)).reshape(x.shape), a['o'])
            return x + times(jax.nn.gelu(times(layer_norm(x, p['norm2']), p['up'])), p['down'])

        def loss(p, words):
            x = through(layer, p['layers'], p['words'][words[:, :-1]])
            logits = (x @ p['words'].T).astype(F32)
            value = -jnp.take_along_axis(jax.nn.log_softmax(logits), words[:, 1:, None], -1).mean()
            return value * 1024 if how == 'scaled' else value

        return training(loss, dict(words=shape(words, width), layers=layers(one, depth, is_scanned)), tokens(batch, length + 1), **options)

    yield 'fake_bf16', *of(8, 512, compute=BF16)
    yield 'f8_scanned', *of(8, 512, how='f8', compute=BF16)
    yield 'scaled_f16', *of(8, 512, how='scaled', is_scanned=False, depth=2, clip=True, compute=jnp.float16)
    yield 'f8_unrolled', *of(8, 512, how='f8', depth=2, is_scanned=False, compute=BF16)


@family
def recommender():
    """Large tables of embeddings: dense and sparse updates, products of all pairs of features, two towers with sampled losses."""

    def pairs(batch, tables=26, rows=100_000, width=64, sparse=False, donate=True, trains=True, **options):
        parameters = dict(bottom=dense(13, 512, 256, width), top=dense(width + (tables + 1) * tables // 2, 512, 256, 1))
        table = shape(tables, rows, width)

        def forward(p, found, numbers):
            x = perceptron(p['bottom'], numbers)
            everything = jnp.concatenate([x[:, None], found], 1)
            both = jnp.einsum('bid,bjd->bij', everything, everything)
            i, j = jnp.tril_indices(tables + 1, -1)
            return perceptron(p['top'], jnp.concatenate([x, both[:, i, j]], -1))[:, 0]

        look = lambda table, ids: table[jnp.arange(tables), ids]
        if not trains:
            return inference(
                lambda p, table, ids, numbers: forward(p, look(table, ids), numbers),
                parameters,
                table,
                tokens(batch, tables),
                shape(batch, 13),
            )
        if not sparse:
            loss = lambda p, ids, numbers, y: square_error(forward(p, look(p['table'], ids), numbers), y)
            return training(
                loss, parameters | dict(table=table), tokens(batch, tables), shape(batch, 13), shape(batch), donate=donate, **options
            )

        def step(p, table, ids, numbers, y):
            gp, gf = jax.grad(lambda p, found: square_error(forward(p, found, numbers), y), (0, 1))(p, look(table, ids))
            return jax.tree.map(lambda p, g: p - 0.1 * g, p, gp), table.at[jnp.arange(tables), ids].add(-0.1 * gf)

        return jax.jit(step, donate_argnums=(0, 1) if donate else ()), (
            parameters,
            table,
            tokens(batch, tables),
            shape(batch, 13),
            shape(batch),
        )

    def towers(batch, rows=500_000, width=128, history=50, **options):
        parameters = dict(items=shape(rows, width), user=dense(width, 512, width), item=dense(width, 512, width))

        def loss(p, seen, wanted):
            users = perceptron(p['user'], p['items'][seen].mean(1))
            alike = users @ perceptron(p['item'], p['items'][wanted]).T
            return -jnp.diagonal(jax.nn.log_softmax(alike.astype(F32))).mean()

        return training(loss, parameters, tokens(batch, history), tokens(batch), **options)

    yield 'pairs_dense_adam', *pairs(8192)
    yield 'pairs_sparse', *pairs(32768, sparse=True)
    yield 'towers', *towers(8192)
    yield 'answers', *pairs(65536, trains=False)
    yield 'pairs_sparse_not_donated', *pairs(16384, sparse=True, donate=False)
    yield 'towers_sgd_bf16', *towers(16384, optimizer='sgd', compute=BF16)


@family
def retrieval():
    """Texts are encoded, compared with many others, and the best are ranked again by a cross encoder."""

    def of(batch, corpus, length=64, width=384, depth=3, best=32, is_scanned=True):
        def encode(p, words):
            x = through(lambda q, x: llama_layer(q, x, 6, mask=None), p['layers'], p['embedding'][words])
            return rms_norm(x, p['norm'])

        def run(p, q, index, texts, words):
            found = encode(p, words).mean(1) @ index.T
            _, which = lax.top_k(found.astype(F32), best)
            both = jnp.concatenate([jnp.broadcast_to(words[:, None], (batch, best, length)), texts[which]], -1).reshape(batch * best, -1)
            scores = (encode(q, both)[:, 0] @ q['head'])[:, 0].reshape(batch, best)
            return jnp.take_along_axis(which, jnp.argsort(-scores, -1), 1), scores

        model = as_type(decoder(width, depth, 30522, 1, is_scanned), BF16)
        judge = dict(model, head=shape(width, 1, dtype=BF16))
        return jax.jit(run), (model, judge, shape(corpus, width, dtype=BF16), tokens(corpus, length), tokens(batch, length))

    yield 'scanned', *of(64, 500_000)
    yield 'unrolled', *of(32, 1_000_000, is_scanned=False, depth=2)
    yield 'longer_texts', *of(16, 200_000, length=256, best=64)
    yield 'large_batch', *of(512, 100_000, best=8)
