"""Models of language: training."""

import jax
import jax.numpy as jnp
from jax import lax

from layers import (
    BF16,
    F16,
    F32,
    as_type,
    attend_in_blocks,
    attention,
    block,
    causal,
    chunked_cross_entropy,
    cross_entropy,
    dropout,
    gated,
    layer_norm,
    layers,
    llama_block,
    llama_layer,
    rms_norm,
    self_attention,
    shape,
    through,
    tokens,
    training,
    transformer,
)
from program import family


def decoder(width, depth, words, groups=1, is_scanned=True, inner=None):
    """Parameters of Llama."""
    return dict(
        embedding=shape(words, width),
        layers=layers(llama_block(width, groups, inner), depth, is_scanned),
        norm=shape(width),
        head=shape(width, words),
    )


def decoder_loss(heads, groups=1, policy=None, chunks=1, **options):
    """Loss of Llama: the next words."""

    def loss(p, words):
        x = p['embedding'][words[:, :-1]]
        x = through(lambda q, x: llama_layer(q, x, heads, groups, **options), p['layers'], x, policy)
        x = rms_norm(x, p['norm'])
        if chunks > 1:
            return chunked_cross_entropy(x, p['head'], words[:, 1:], chunks)
        return cross_entropy(x @ p['head'], words[:, 1:])

    return loss


def windowed(q, k, v, window):
    """Attention to the last `window` positions, in blocks of as many: each sees its own block and the one before."""
    b, t, heads, width = q.shape
    cut = lambda x: x.reshape(b, t // window, window, heads, width)
    q, k, v = cut(q), cut(k), cut(v)
    with_last = lambda x: jnp.concatenate([jnp.pad(x, [(0, 0), (1, 0)] + [(0, 0)] * 3)[:, :-1], x], 2)
    apart = jnp.arange(window)[:, None] + window - jnp.arange(2 * window)
    scores = jnp.einsum('bnthe,bnshe->bnhts', q, with_last(k)).astype(F32) * width**-0.5
    weights = jax.nn.softmax(jnp.where((apart >= 0) & (apart < window), scores, -1e9), -1).astype(v.dtype)
    return jnp.einsum('bnhts,bnshe->bnthe', weights, with_last(v)).reshape(b, t, heads, width)


@family
def llama():
    """Decoders as Llama: grouped queries, rotary positions, gated perceptrons."""

    def of(batch, length, width=1024, depth=4, words=16384, heads=16, groups=4, is_scanned=True, policy=None, chunks=1, **options):
        loss = decoder_loss(heads, groups, policy, chunks)
        return training(loss, decoder(width, depth, words, groups, is_scanned), tokens(batch, length + 1), **options)

    bf16 = dict(compute=BF16)
    yield 'scanned_bf16', *of(8, 1024, **bf16)
    yield 'unrolled_everything', *of(8, 1024, is_scanned=False, policy='everything', **bf16)
    yield 'scanned_dots', *of(8, 1024, policy='dots', **bf16)
    yield 'unrolled_f32', *of(4, 512, is_scanned=False)
    yield 'scanned_everything_chunks', *of(16, 1024, policy='everything', chunks=8, **bf16)
    yield 'scanned_everything_parts', *of(16, 1024, policy='everything', chunks=8, parts=4, **bf16)
    yield 'unrolled_dots_no_batch', *of(8, 1024, is_scanned=False, policy='dots_no_batch', **bf16)
    yield 'scanned_names', *of(8, 1024, policy='names', **bf16)
    yield 'scanned_everything_not_donated', *of(4, 2048, policy='everything', donate=False, **bf16)
    yield 'one_layer_wide', *of(2, 512, width=4096, depth=1, heads=32, groups=8, words=32000, is_scanned=False, **bf16)
    yield 'scanned_sgd_large_vocabulary', *of(8, 512, width=512, depth=2, words=128000, heads=8, optimizer='sgd', **bf16)
    yield 'scanned_everything_long', *of(1, 4096, heads=8, policy='everything', optimizer='adam_bf16', **bf16)


@family
def gpt():
    """Decoders as GPT-2: learned positions, norms with gains, dropout, the embedding as head."""

    def of(batch, length, width=768, depth=4, words=16384, heads=12, is_scanned=False, policy=None, rate=0.0, dtype=None, **options):
        parameters = dict(
            words=shape(words, width), positions=shape(length, width), layers=layers(block(width), depth, is_scanned), norm=shape(width)
        )

        def loss(p, words, key):
            x = p['words'][words[:, :-1]] + p['positions']

            def layer(of, x):
                q, key = of if rate else (of, None)
                x = transformer(q, x, heads, mask=causal(length))
                return dropout(key, x, rate) if rate else x

            each = p['layers']
            if rate and is_scanned:

                def step(x, of):
                    return layer(of, x), None

                x, _ = lax.scan(step, x, (each, jax.random.split(key, depth)))
            else:
                x = through(layer, list(zip(each, jax.random.split(key, depth))) if rate else each, x, policy)
            return cross_entropy(layer_norm(x, p['norm']) @ p['words'].T, words[:, 1:])

        return training(loss, parameters, tokens(batch, length + 1), jax.eval_shape(lambda: jax.random.key(0)), **options)

    yield 'unrolled_f32', *of(8, 512)
    yield 'scanned_dropout', *of(8, 512, is_scanned=True, rate=0.1)
    yield 'unrolled_bf16_everything', *of(16, 512, policy='everything', compute=BF16)
    yield 'unrolled_dropout_bf16', *of(8, 1024, depth=2, rate=0.1, compute=BF16)
    yield 'scanned_bf16', *of(8, 1024, is_scanned=True, compute=BF16)
    yield 'unrolled_f16', *of(8, 512, compute=F16)
    yield 'scanned_dots_no_batch', *of(16, 512, is_scanned=True, policy='dots_no_batch')
    yield 'unrolled_clip_adamw', *of(4, 1024, depth=3, optimizer='adamw', clip=True, compute=BF16)
    yield 'scanned_everything_large_vocabulary', *of(8, 512, words=50304, is_scanned=True, policy='everything', compute=BF16)


@family
def t5():
    """Encoders and decoders as T5: relative positions as a bias that all layers share, cross attention, no scaling of scores."""
    buckets = 32

    def bias_of(table, queries, keys):
        apart = jnp.arange(keys)[None] - jnp.arange(queries)[:, None]
        large = jnp.log(jnp.abs(apart) / 8 + 1e-6) / jnp.log(16.0) * 8
        bucket = jnp.where(jnp.abs(apart) < 8, jnp.abs(apart), 8 + large.astype(jnp.int32)).clip(0, 15) + 16 * (apart > 0)
        heads = table.shape[1]
        return table[bucket].transpose(2, 0, 1).reshape(1, heads, 1, queries, keys)

    def of(batch, length, target, width=512, depth=3, words=16384, heads=8, is_scanned=False, policy=None, **options):
        inner = dict(gate=shape(width, 2 * width), up=shape(width, 2 * width), down=shape(2 * width, width))
        one = dict(attention=attention(width), norm1=shape(width), norm2=shape(width), **inner)
        parameters = dict(
            words=shape(words, width),
            encoder=layers(one, depth, is_scanned),
            bias=shape(buckets, heads),
            norm=shape(width),
            decoder=layers(one | dict(across=attention(width), norm3=shape(width)), depth, is_scanned),
            decoder_bias=shape(buckets, heads),
            decoder_norm=shape(width),
        )

        def loss(p, source, words):
            inputs, labels = words[:, :-1], words[:, 1:]
            bias = bias_of(p['bias'], length, length)

            def encode(q, x):
                x = x + self_attention(q['attention'], rms_norm(x, q['norm1']), heads, bias=bias)
                return x + gated(q, rms_norm(x, q['norm2']))

            encoded = rms_norm(through(encode, p['encoder'], p['words'][source], policy), p['norm'])
            bias_down = bias_of(p['decoder_bias'], target, target)

            def decode(q, x):
                x = x + self_attention(q['attention'], rms_norm(x, q['norm1']), heads, bias=bias_down, mask=causal(target))
                x = x + self_attention(q['across'], rms_norm(x, q['norm3']), heads, source=encoded)
                return x + gated(q, rms_norm(x, q['norm2']))

            x = rms_norm(through(decode, p['decoder'], p['words'][inputs], policy), p['decoder_norm'])
            return cross_entropy(x * width**-0.5 @ p['words'].T, labels)

        return training(loss, parameters, tokens(batch, length), tokens(batch, target + 1), **options)

    yield 'unrolled_f32', *of(8, 512, 128, depth=2)
    yield 'scanned_bf16', *of(16, 512, 128, is_scanned=True, compute=BF16)
    yield 'scanned_everything', *of(16, 512, 256, is_scanned=True, policy='everything')
    yield 'unrolled_bf16_dots_no_batch', *of(16, 512, 128, policy='dots_no_batch', compute=BF16)
    yield 'scanned_parts', *of(32, 512, 128, is_scanned=True, parts=4, compute=BF16)
    yield 'unrolled_momentum_long', *of(2, 2048, 256, depth=2, optimizer='momentum', compute=BF16)


@family
def bert():
    """Encoders as BERT: norms after each half, masks of padding, words left out predicted at their places."""

    def of(
        batch,
        length,
        width=768,
        depth=4,
        words=30522,
        heads=12,
        masked=None,
        is_scanned=False,
        policy=None,
        dtype=None,
        trains=True,
        **options,
    ):
        masked = masked or length * 3 // 20
        parameters = dict(
            words=shape(words, width),
            positions=shape(512, width),
            types=shape(2, width),
            norm=shape(width),
            layers=layers(block(width), depth, is_scanned),
            head=shape(width, width),
            bias=shape(words),
        )

        def encode(p, ids, types, valid):
            x = layer_norm(p['words'][ids] + p['positions'][:length] + p['types'][types], p['norm'])

            def layer(q, x):
                x = layer_norm(x + self_attention(q['attention'], x, heads, mask=valid[:, None, None, None, :]), q['norm1'])
                h = jax.nn.gelu(x @ q['up'] + q['up_b'], approximate=False)
                return layer_norm(x + h @ q['down'] + q['down_b'], q['norm2'])

            return through(layer, p['layers'], x, policy)

        def loss(p, ids, types, valid, places, labels):
            x = encode(p, ids, types, valid)
            x = jax.nn.gelu(jnp.take_along_axis(x, places[..., None], 1) @ p['head'])
            return cross_entropy(x @ p['words'].T + p['bias'], labels)

        inputs = tokens(batch, length), tokens(batch, length), shape(batch, length, dtype=jnp.bool_)
        if not trains:
            return jax.jit(encode), (parameters, *inputs)
        return training(loss, parameters, *inputs, tokens(batch, masked), tokens(batch, masked), **options)

    yield 'unrolled_f32', *of(8, 512, depth=2)
    yield 'scanned_bf16', *of(32, 256, is_scanned=True, compute=BF16)
    yield 'encode_scanned', *of(64, 384, is_scanned=True, trains=False)
    yield 'unrolled_bf16_everything', *of(16, 512, policy='everything', compute=BF16)
    yield 'scanned_f16_dots', *of(16, 512, is_scanned=True, policy='dots', compute=F16)
    yield 'encode_unrolled', *of(16, 512, trains=False)
    yield 'scanned_short_large_batch', *of(256, 64, is_scanned=True, compute=BF16)


def moe_loss(layer, heads, policy, weight=0.01):
    """Loss of a decoder whose layers also return how unevenly they use their experts."""

    def loss(p, words):
        x = p['words'][words[:, :-1]]

        def both(of, x):
            x, uneven = x
            y = rms_norm(x, of['norm1'])
            x = x + self_attention(of['attention'], y, heads, mask=causal(y.shape[1]), rotary=True)
            y, more = layer(of, rms_norm(x, of['norm2']))
            return x + y, uneven + more

        x, uneven = through(both, p['layers'], (x, jnp.zeros((), F32)), policy)
        return cross_entropy(x @ p['words'].T, words[:, 1:]) + weight * uneven

    return loss


def moe_parameters(width, inner, experts, depth, words, is_scanned, gated_experts):
    each = dict(up=shape(experts, width, inner), down=shape(experts, inner, width))
    each |= dict(gate=shape(experts, width, inner)) if gated_experts else {}
    one = dict(attention=attention(width), norm1=shape(width), norm2=shape(width), router=shape(width, experts), **each)
    return dict(words=shape(words, width), layers=layers(one, depth, is_scanned))


@family
def moe_dense():
    """Experts with a fixed capacity: words are dispatched by one-hot products (GShard) or by scatters (Switch in places)."""

    def of(
        batch, length, width=512, inner=1024, experts=8, top=2, depth=2, words=8192, is_scanned=True, policy=None, scatters=False, **options
    ):
        def layer(p, x):
            n = x.shape[0] * x.shape[1]
            flat, capacity = x.reshape(n, width), 5 * n * top // (4 * experts)
            odds = jax.nn.softmax((flat @ p['router']).astype(F32))
            weights, chosen = lax.top_k(odds, top)
            picked = jax.nn.one_hot(chosen, experts, dtype=jnp.int32).swapaxes(0, 1).reshape(top * n, experts)
            place = (jnp.cumsum(picked, 0) * picked).sum(-1).reshape(top, n).T - 1
            uneven = (odds.mean(0) * jax.nn.one_hot(chosen[:, 0], experts).mean(0)).sum()
            if scatters:
                inside = jnp.zeros((experts, capacity, width), x.dtype).at[chosen, place].set(flat[:, None], mode='drop')
            else:
                where = jnp.einsum('nke,nkc->nec', jax.nn.one_hot(chosen, experts), jax.nn.one_hot(place, capacity) * weights[..., None])
                inside = jnp.einsum('nec,nd->ecd', (where > 0).astype(x.dtype), flat)
            inside = jnp.einsum('ecf,efd->ecd', jax.nn.gelu(jnp.einsum('ecd,edf->ecf', inside, p['up'])), p['down'])
            if scatters:
                y = (inside.at[chosen, place].get(mode='fill', fill_value=0) * weights[..., None].astype(x.dtype)).sum(1)
            else:
                y = jnp.einsum('nec,ecd->nd', where.astype(x.dtype), inside)
            return y.reshape(x.shape), uneven

        parameters = moe_parameters(width, inner, experts, depth, words, is_scanned, False)
        return training(moe_loss(layer, 8, policy), parameters, tokens(batch, length + 1), **options)

    yield 'scanned_one_hot', *of(4, 512)
    yield 'unrolled_scatters_bf16', *of(8, 1024, is_scanned=False, scatters=True, compute=BF16)
    yield 'scanned_one_hot_everything', *of(4, 1024, policy='everything', compute=BF16)
    yield 'scanned_scatters', *of(16, 512, experts=16, top=1, scatters=True)
    yield 'unrolled_one_hot_top1', *of(4, 512, experts=16, top=1, is_scanned=False, compute=BF16)
    yield 'scanned_scatters_parts', *of(16, 1024, scatters=True, policy='everything', parts=4, compute=BF16)


@family
def moe_ragged():
    """Experts without capacity: words sorted by their expert, and products of ragged groups."""

    def of(
        batch, length, width=512, inner=1024, experts=8, top=2, depth=2, words=8192, is_scanned=True, policy=None, trains=True, **options
    ):
        def layer(p, x):
            n = x.shape[0] * x.shape[1]
            flat = x.reshape(n, width)
            weights, chosen = lax.top_k(jax.nn.softmax((flat @ p['router']).astype(F32)), top)
            order = jnp.argsort(chosen.reshape(-1))
            counts = jnp.bincount(chosen.reshape(-1), length=experts).astype(jnp.int32)
            sorted_ = flat[order // top]
            product = lambda x, w: lax.ragged_dot(x, w, counts)
            y = product(jax.nn.silu(product(sorted_, p['gate'])) * product(sorted_, p['up']), p['down'])
            y = y * weights.reshape(-1)[order][:, None].astype(y.dtype)
            return jnp.zeros_like(flat).at[order // top].add(y).reshape(x.shape), jnp.square(counts.astype(F32) / n).sum()

        parameters, loss = moe_parameters(width, inner, experts, depth, words, is_scanned, True), moe_loss(layer, 8, policy)
        if not trains:
            return jax.jit(loss), (as_type(parameters, BF16), tokens(batch, length + 1))
        return training(loss, parameters, tokens(batch, length + 1), **options)

    yield 'scanned_f32', *of(4, 512)
    yield 'forward_bf16', *of(8, 1024, trains=False)
    yield 'scanned_bf16_everything', *of(4, 1024, policy='everything', compute=BF16)
    yield 'unrolled_bf16', *of(8, 512, is_scanned=False, compute=BF16)
    yield 'scanned_fine_experts', *of(4, 512, inner=256, experts=32, top=4, compute=BF16)


@family
def long_context():
    """Decoders over long texts: attention in blocks with running maxima, or within windows."""

    def of(batch, length, width=512, depth=2, heads=8, words=8192, policy=None, is_scanned=True, chunks=8, use=attend_in_blocks, **options):
        how = dict(block=512) if use is attend_in_blocks else dict(window=512)

        def attend(q, k, v, mask):
            return use(q, k, v, **how)

        loss = decoder_loss(heads, 1, policy, chunks, use=attend, mask=None)
        return training(loss, decoder(width, depth, words, 1, is_scanned), tokens(batch, length + 1), **options)

    yield 'blocks_bf16', *of(1, 8192, compute=BF16)
    yield 'windows_bf16', *of(1, 8192, use=windowed, compute=BF16)
    yield 'blocks_f32_unrolled', *of(2, 2048, is_scanned=False, chunks=1)
    yield 'blocks_everything', *of(2, 8192, policy='everything', compute=BF16)
    yield 'windows_everything_unrolled', *of(2, 8192, use=windowed, policy='everything', is_scanned=False, compute=BF16)
    yield 'blocks_two_heads_wide', *of(1, 16384, width=256, heads=2, policy='everything', compute=BF16)


@family
def distillation():
    """A small decoder learns the odds of a large one, which is not trained."""

    def of(batch, length, teacher_width=1024, width=256, depth=2, words=8192, policy=None, is_scanned=True, **options):
        def logits(p, words, heads, policy=None):
            x = through(lambda q, x: llama_layer(q, x, heads), p['layers'], p['embedding'][words], policy)
            return (rms_norm(x, p['norm']) @ p['head']).astype(F32)

        def loss(p, teacher, words):
            wanted = jax.nn.log_softmax(lax.stop_gradient(logits(teacher, words, 16)))
            found = jax.nn.log_softmax(logits(p, words, 4, policy))
            return (jnp.exp(wanted) * (wanted - found)).sum(-1).mean()

        teacher = as_type(decoder(teacher_width, depth, words, 1, is_scanned), BF16)
        return training(loss, decoder(width, depth, words, 1, is_scanned), tokens(batch, length), held=(teacher,), **options)

    yield 'scanned_bf16', *of(8, 512, compute=BF16)
    yield 'unrolled_f32', *of(4, 512, is_scanned=False)
    yield 'scanned_everything_large_batch', *of(16, 512, policy='everything', compute=BF16)
    yield 'unrolled_large_vocabulary', *of(4, 512, words=32768, is_scanned=False, compute=BF16)
    yield 'scanned_sgd_not_donated', *of(8, 1024, optimizer='sgd', donate=False, compute=BF16)
