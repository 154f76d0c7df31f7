"""Models with a state that goes through time."""

import jax
import jax.numpy as jnp
from jax import lax

from layers import BF16, F32, conv, cross_entropy, layer_norm, layers, rms_norm, shape, through, tokens, training
from program import family


def lstm_cell(p, state, x):
    """One step; `x` is what the inputs bring to the gates."""
    h, c = state
    i, f, g, o = jnp.split(x + h @ p['hidden'], 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h


def lstm_weights(inputs, width):
    return dict(inputs=shape(inputs, 4 * width), hidden=shape(width, 4 * width), bias=shape(4 * width))


@family
def lstm():
    """Stacked LSTMs over time, time first: products of inputs inside the loop or before it."""

    def of(length, batch, width=512, depth=2, words=8192, ahead=False, is_checkpointed=False, unroll=1, blocks=0, trains=True, **options):
        def layer(p, xs):
            begin = (jnp.zeros((xs.shape[1], width), xs.dtype),) * 2
            if ahead:
                xs = xs @ p['inputs'] + p['bias']
                step = lambda state, x: lstm_cell(p, state, x)
            else:
                step = lambda state, x: lstm_cell(p, state, x @ p['inputs'] + p['bias'])
            step = jax.checkpoint(step) if is_checkpointed else step
            if blocks:  # Only states between blocks are kept.
                xs = xs.reshape(blocks, -1, *xs.shape[1:])
                block = jax.checkpoint(lambda state, xs: lax.scan(step, state, xs))
                return lax.scan(block, begin, xs)[1].reshape(length, -1, width)
            return lax.scan(step, begin, xs, unroll=unroll)[1]

        def forward(p, words):
            return through(layer, p['layers'], p['words'][words]) @ p['head']

        def loss(p, words, labels):
            return cross_entropy(forward(p, words), labels)

        parameters = dict(words=shape(words, width), layers=layers(lstm_weights(width, width), depth, False), head=shape(width, words))
        if not trains:
            return jax.jit(forward), (parameters, tokens(length, batch))
        return training(loss, parameters, tokens(length, batch), tokens(length, batch), **options)

    yield 'inside_f32', *of(128, 64)
    yield 'ahead_bf16', *of(256, 64, ahead=True, compute=BF16)
    yield 'checkpointed_steps', *of(256, 128, words=1024, is_checkpointed=True)
    yield 'blocks', *of(512, 128, words=256, blocks=16)
    yield 'forward', *of(256, 256, words=512, trains=False)
    yield 'unrolled_by_8_wide', *of(128, 128, width=1024, words=1024, unroll=8)
    yield 'deep_bf16', *of(128, 256, depth=4, words=1024, compute=BF16, optimizer='sgd')


@family
def keras_lstm():
    """LSTMs as Keras writes them: batch first, transposed for the scan, masks that keep states, both directions, dropout masks."""

    def of(batch, length, width=256, features=128, classes=64, both=True, masked=True, sequences=True, mask_dropout=False, **options):
        def run(p, x, mask, key, reverse):
            x = x.swapaxes(0, 1)
            begin = (jnp.zeros((batch, width), x.dtype),) * 2
            drop = jax.random.bernoulli(key, 0.8, (batch, x.shape[-1])) / 0.8 if mask_dropout else None

            def step(state, of):
                x, valid = of
                x = x * drop.astype(x.dtype) if mask_dropout else x
                (h, c), _ = lstm_cell(p, state, x @ p['inputs'] + p['bias'])
                if masked:
                    h, c = (jnp.where(valid[:, None], new, old) for new, old in zip((h, c), state))
                return (h, c), h

            (h, _), hs = lax.scan(step, begin, (x, mask.swapaxes(0, 1)), reverse=reverse)
            return hs.swapaxes(0, 1) if sequences else h

        def loss(p, x, mask, labels, key):
            y = x
            for q in p['layers']:
                one = [run(q[way], y, mask, key, way == 'backward') for way in q]
                y = jnp.concatenate(one, -1)
            return cross_entropy(y @ p['head'], labels)

        ways, wide = (('forward', 'backward'), 2 * width) if both else (('forward',), width)
        count = 2 if sequences else 1
        parameters = dict(
            layers=[{way: lstm_weights(features if i == 0 else wide, width) for way in ways} for i in range(count)],
            head=shape(wide, classes),
        )
        labels = tokens(batch, length) if sequences else tokens(batch)
        inputs = shape(batch, length, features), shape(batch, length, dtype=jnp.bool_), labels, jax.eval_shape(lambda: jax.random.key(0))
        return training(loss, parameters, *inputs, **options)

    yield 'both_ways_masked', *of(128, 256)
    yield 'one_way_last', *of(256, 512, both=False, masked=False, sequences=False)
    yield 'both_ways_bf16', *of(256, 256, compute=BF16)
    yield 'both_ways_dropout', *of(128, 200, mask_dropout=True)
    yield 'one_way_masked_wide', *of(128, 128, width=1024, both=False)


@family
def seq2seq():
    """A GRU reads, another writes while it attends to what was read."""

    def gru(p, h, x):
        z, r = jnp.split(jax.nn.sigmoid(jnp.concatenate([x, h], -1) @ p['gates']), 2, -1)
        n = jnp.tanh(jnp.concatenate([x, r * h], -1) @ p['new'])
        return (1 - z) * n + z * h

    def of(batch, length, target, width=512, words=8192, is_checkpointed=False, additive=True, **options):
        cell = lambda inputs: dict(gates=shape(inputs + width, 2 * width), new=shape(inputs + width, width))
        parameters = dict(
            words=shape(words, width),
            read=cell(width),
            write=cell(2 * width),
            keys=shape(width, width),
            query=shape(width, width),
            score=shape(width),
            head=shape(2 * width, words),
        )

        def loss(p, source, words):
            def read(h, x):
                h = gru(p['read'], h, x)
                return h, h

            begin = jnp.zeros((batch, width), p['words'].dtype)
            last, states = lax.scan(read, begin, p['words'][source].swapaxes(0, 1))
            states = states.swapaxes(0, 1)
            keys = states @ p['keys']

            def write(h, x):
                query = h @ p['query']
                scores = jnp.tanh(keys + query[:, None]) @ p['score'] if additive else jnp.einsum('bd,btd->bt', query, keys)
                seen = jnp.einsum('bt,btd->bd', jax.nn.softmax(scores), states)
                h = gru(p['write'], h, jnp.concatenate([x, seen], -1))
                return h, jnp.concatenate([h, seen], -1)

            write = jax.checkpoint(write) if is_checkpointed else write
            _, out = lax.scan(write, last, p['words'][words[:, :-1]].swapaxes(0, 1))
            return cross_entropy(out @ p['head'], words[:, 1:].T)

        return training(loss, parameters, tokens(batch, length), tokens(batch, target + 1), **options)

    yield 'additive_f32', *of(32, 64, 64)
    yield 'products_bf16', *of(128, 128, 64, additive=False, compute=BF16)
    yield 'additive_checkpointed', *of(64, 128, 64, is_checkpointed=True)
    yield 'products_large_vocabulary', *of(32, 64, 64, words=32000, additive=False)
    yield 'additive_wide', *of(32, 64, 32, width=1024)


@family
def mamba():
    """Selective state spaces: the recurrence of each channel by associative scan, step by step, or in chunks."""

    def scan_associative(decay, inputs):
        return lax.associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (decay, inputs), axis=1)[1]

    def scan_steps(decay, inputs):
        step = lambda h, of: (of[0] * h + of[1],) * 2
        return lax.scan(step, jnp.zeros_like(inputs[:, 0]), (decay.swapaxes(0, 1), inputs.swapaxes(0, 1)))[1].swapaxes(0, 1)

    def of(batch, length, width=512, depth=2, state=16, words=8192, how=scan_associative, chunk=0, is_scanned=True, policy=None, **options):
        inner, rank = 2 * width, width // 16
        one = dict(
            norm=shape(width),
            into=shape(width, 2 * inner),
            conv=shape(4, 1, inner),
            select=shape(inner, rank + 2 * state),
            step=shape(rank, inner),
            log=shape(inner, state),
            skip=shape(inner),
            out=shape(inner, width),
        )

        def layer(p, x):
            u, gate = jnp.split(rms_norm(x, p['norm']) @ p['into'], 2, -1)
            u = jax.nn.silu(conv(u, p['conv'], groups=inner, padding=[(3, 0)]))
            low, b, c = jnp.split(u @ p['select'], [rank, rank + state], -1)

            def outputs(state_before, of):
                u, low, b, c = of
                step = jax.nn.softplus(low @ p['step']).astype(F32)
                decay = jnp.exp(-step[..., None] * jnp.exp(p['log'].astype(F32)))
                inputs = (step * u)[..., None] * b[:, :, None].astype(F32)
                if state_before is not None:
                    inputs = inputs.at[:, 0].add(decay[:, 0] * state_before)
                h = how(decay, inputs)
                return h[:, -1], jnp.einsum('btds,bts->btd', h, c.astype(F32)).astype(x.dtype)

            if chunk:
                cut = lambda a: a.reshape(batch, length // chunk, chunk, -1).swapaxes(0, 1)
                begin = jnp.zeros((batch, inner, state), F32)
                y = lax.scan(jax.checkpoint(outputs), begin, jax.tree.map(cut, (u, low, b, c)))[1]
                y = y.swapaxes(0, 1).reshape(batch, length, inner)
            else:
                y = outputs(None, (u, low, b, c))[1]
            return x + ((y + u * p['skip']) * jax.nn.silu(gate)) @ p['out']

        def loss(p, words):
            x = through(layer, p['layers'], p['words'][words[:, :-1]], policy)
            return cross_entropy(x @ p['words'].T, words[:, 1:])

        parameters = dict(words=shape(words, width), layers=layers(one, depth, is_scanned))
        return training(loss, parameters, tokens(batch, length + 1), **options)

    yield 'associative_bf16', *of(2, 512, compute=BF16)
    yield 'steps_f32', *of(4, 512, how=scan_steps)
    yield 'chunks_everything_bf16', *of(4, 2048, chunk=128, policy='everything', compute=BF16)
    yield 'associative_everything_unrolled', *of(2, 1024, is_scanned=False, policy='everything')
    yield 'steps_bf16_everything', *of(8, 1024, how=scan_steps, policy='everything', compute=BF16)
    yield 'chunks_of_steps', *of(4, 1024, chunk=64, how=scan_steps, compute=BF16)
    yield 'associative_one_layer', *of(1, 2048, depth=1, width=768, is_scanned=False)


@family
def rwkv():
    """Receptance weighted keys and values: a numerically safe recurrence over time, and shifts by one step."""

    def of(batch, length, width=512, depth=3, words=8192, is_scanned=True, policy=None, **options):
        one = dict(
            norm1=shape(width),
            norm2=shape(width),
            mix=shape(5, width),
            decay=shape(width),
            first=shape(width),
            **{name: shape(width, width) for name in ('k', 'v', 'r', 'o', 'r2')},
            up=shape(width, 4 * width),
            down=shape(4 * width, width),
        )

        def weighted(decay, first, k, v):
            def step(state, of):
                k, v = of
                a, b, best = state
                top = jnp.maximum(best, first + k)
                old, new = jnp.exp(best - top), jnp.exp(first + k - top)
                out = (old * a + new * v) / (old * b + new)
                top = jnp.maximum(best - decay, k)
                old, new = jnp.exp(best - decay - top), jnp.exp(k - top)
                return (old * a + new * v, old * b + new, top), out

            begin = jnp.zeros((batch, width)), jnp.zeros((batch, width)), jnp.full((batch, width), -1e38)
            return lax.scan(step, begin, (k.astype(F32).swapaxes(0, 1), v.astype(F32).swapaxes(0, 1)))[1].swapaxes(0, 1).astype(k.dtype)

        def layer(p, x):
            y = layer_norm(x, p['norm1'])
            before = jnp.pad(y, ((0, 0), (1, 0), (0, 0)))[:, :-1]
            k, v, r = (((y * m + before * (1 - m)) @ p[name]) for name, m in zip('kvr', p['mix']))
            x = x + (jax.nn.sigmoid(r) * weighted(jnp.exp(p['decay'].astype(F32)), p['first'].astype(F32), k, v)) @ p['o']
            y = layer_norm(x, p['norm2'])
            before = jnp.pad(y, ((0, 0), (1, 0), (0, 0)))[:, :-1]
            k, r = y * p['mix'][3] + before * (1 - p['mix'][3]), y * p['mix'][4] + before * (1 - p['mix'][4])
            return x + jax.nn.sigmoid(r @ p['r2']) * (jnp.square(jax.nn.relu(k @ p['up'])) @ p['down'])

        def loss(p, words):
            x = through(layer, p['layers'], p['words'][words[:, :-1]], policy)
            return cross_entropy(layer_norm(x) @ p['words'].T, words[:, 1:])

        parameters = dict(words=shape(words, width), layers=layers(one, depth, is_scanned))
        return training(loss, parameters, tokens(batch, length + 1), **options)

    yield 'scanned_f32', *of(8, 512)
    yield 'unrolled_bf16', *of(8, 512, is_scanned=False, compute=BF16)
    yield 'scanned_everything_bf16', *of(16, 1024, policy='everything', compute=BF16)
    yield 'unrolled_dots', *of(8, 256, is_scanned=False, policy='dots')
    yield 'scanned_wide', *of(4, 256, width=1024, compute=BF16)


@family
def linear_attention():
    """Retention: outer products of keys and values that decay, in chunks or step by step."""

    def of(batch, length, width=512, heads=8, depth=3, words=8192, chunk=128, is_scanned=True, policy=None, **options):
        one = dict(
            norm1=shape(width),
            norm2=shape(width),
            up=shape(width, 4 * width),
            down=shape(4 * width, width),
            **{name: shape(width, width) for name in 'qkvo'},
        )

        def in_chunks(q, k, v):
            cut = lambda x: x.reshape(batch, length // chunk, chunk, heads, -1).swapaxes(0, 1)
            apart = jnp.arange(chunk)[:, None] - jnp.arange(chunk)
            decays = 1 - 2.0 ** (-5 - jnp.arange(heads, dtype=F32))
            within = jnp.where(apart >= 0, decays[:, None, None] ** apart, 0.0)
            since, until = decays[:, None] ** (jnp.arange(chunk) + 1), decays[:, None] ** (chunk - 1 - jnp.arange(chunk))

            def step(state, of):
                q, k, v = (x.astype(F32) for x in of)
                inner = jnp.einsum('bthe,bshe->bhts', q, k) * within
                y = jnp.einsum('bhts,bshe->bthe', inner, v) + jnp.einsum('bthe,bhef,ht->bthf', q, state, since)
                state = state * (decays**chunk)[:, None, None] + jnp.einsum('bshe,bshf,hs->bhef', k, v, until)
                return state, y.astype(of[0].dtype)

            e = width // heads
            y = lax.scan(step, jnp.zeros((batch, heads, e, e)), (cut(q), cut(k), cut(v)))[1]
            return y.swapaxes(0, 1).reshape(batch, length, width)

        def layer(p, x):
            y = layer_norm(x, p['norm1'])
            q, k, v = ((y @ p[name]).reshape(batch, length, heads, -1) for name in 'qkv')
            x = x + in_chunks(q, k, v) @ p['o']
            return x + jax.nn.gelu(layer_norm(x, p['norm2']) @ p['up']) @ p['down']

        def loss(p, words):
            x = through(layer, p['layers'], p['words'][words[:, :-1]], policy)
            return cross_entropy(x @ p['words'].T, words[:, 1:])

        return training(loss, dict(words=shape(words, width), layers=layers(one, depth, is_scanned)), tokens(batch, length + 1), **options)

    yield 'chunks_f32', *of(4, 1024)
    yield 'chunks_bf16_everything', *of(8, 2048, policy='everything', compute=BF16)
    yield 'unrolled_bf16', *of(4, 1024, is_scanned=False, depth=2, compute=BF16)
    yield 'one_chunk_unrolled', *of(8, 512, chunk=512, is_scanned=False, depth=2)
    yield 'steps', *of(4, 256, chunk=1, depth=1, compute=BF16)


@family
def wavenet():
    """Stacks of dilated, causal 1-D convolutions of sound."""

    def of(batch, length, width=128, skips=256, depth=6, levels=256, policy=None, trains=True, **options):
        one = dict(filter=shape(2, width, width), gate=shape(2, width, width), out=shape(1, width, width), skip=shape(1, width, skips))
        parameters = dict(into=shape(levels, width), layers=[one] * depth, head1=shape(1, skips, skips), head2=shape(1, skips, levels))

        def forward(p, x):
            y, total = p['into'][x], 0.0
            for i, q in enumerate(p['layers']):

                def layer(q, y, i=i):
                    before = dict(dilation=2**i, padding=[(2**i, 0)])
                    h = jnp.tanh(conv(y, q['filter'], **before)) * jax.nn.sigmoid(conv(y, q['gate'], **before))
                    return y + conv(h, q['out']), conv(h, q['skip'])

                y, skip = (jax.checkpoint(layer) if policy else layer)(q, y)
                total = total + skip
            return conv(jax.nn.relu(conv(jax.nn.relu(total), p['head1'])), p['head2'])

        def loss(p, x):
            return cross_entropy(forward(p, x[:, :-1]), x[:, 1:])

        if not trains:
            return jax.jit(forward), (parameters, tokens(batch, length))
        return training(loss, parameters, tokens(batch, length + 1), **options)

    yield 'f32', *of(8, 4096, depth=4)
    yield 'bf16_checkpointed', *of(8, 16384, policy='everything', compute=BF16)
    yield 'forward', *of(16, 8192, trains=False)
    yield 'wide_bf16', *of(4, 8192, width=256, skips=512, depth=4, compute=BF16)
    yield 'long_sgd', *of(1, 32768, depth=5, optimizer='sgd')


@family
def speech():
    """Speech to text as Conformer: strided convolutions, attention, depthwise 1-D convolutions, and a loss over alignments (CTC)."""

    def ctc(odds, labels):
        """Forward algorithm in logarithms over labels with blanks in between."""
        batch, many = labels.shape
        path = jnp.zeros((batch, 2 * many + 1), jnp.int32).at[:, 1::2].set(labels)
        skips = jnp.pad((path[:, 2:] != path[:, :-2]) & (path[:, 2:] != 0), ((0, 0), (2, 0)))

        def step(a, now):
            shift = lambda a, by: jnp.pad(a, ((0, 0), (by, 0)), constant_values=-1e9)[:, :-by]
            both = jnp.logaddexp(a, shift(a, 1))
            both = jnp.where(skips, jnp.logaddexp(both, shift(a, 2)), both)
            return both + jnp.take_along_axis(now, path, 1), None

        begin = jnp.full(path.shape, -1e9).at[:, :2].set(0.0)
        last, _ = lax.scan(step, begin, odds.swapaxes(0, 1))
        return -jnp.logaddexp(last[:, -1], last[:, -2]).mean()

    def of(batch, frames, labels=64, bands=80, width=256, heads=4, depth=3, words=1024, policy=None, is_scanned=False, **options):
        half = dict(norm=shape(width), up=shape(width, 4 * width), down=shape(4 * width, width))
        one = dict(
            first=half,
            second=half,
            norm1=shape(width),
            norm2=shape(width),
            into=shape(1, width, 2 * width),
            each=shape(31, 1, width),
            out=shape(1, width, width),
            **{name: shape(width, width) for name in 'qkvo'},
        )
        parameters = dict(
            conv1=shape(3, 3, 1, width),
            conv2=shape(3, 3, width, width),
            into=shape(bands // 4 * width, width),
            layers=layers(one, depth, is_scanned),
            head=shape(width, words),
        )

        def layer(p, x):
            feed = lambda q, x: 0.5 * jax.nn.silu(layer_norm(x, q['norm']) @ q['up']) @ q['down']
            x = x + feed(p['first'], x)
            y = layer_norm(x, p['norm1'])
            q, k, v = ((y @ p[name]).reshape(*y.shape[:2], heads, -1) for name in 'qkv')
            weights = jax.nn.softmax(jnp.einsum('bthe,bshe->bhts', q, k).astype(F32) * (width // heads) ** -0.5).astype(x.dtype)
            x = x + jnp.einsum('bhts,bshe->bthe', weights, v).reshape(x.shape) @ p['o']
            a, b = jnp.split(conv(layer_norm(x, p['norm2']), p['into']), 2, -1)
            x = x + conv(jax.nn.silu(layer_norm(conv(a * jax.nn.sigmoid(b), p['each'], groups=width))), p['out'])
            return x + feed(p['second'], x)

        def loss(p, sound, labels):
            x = jax.nn.relu(conv(jax.nn.relu(conv(sound[..., None], p['conv1'], 2)), p['conv2'], 2))
            x = through(layer, p['layers'], x.reshape(*x.shape[:2], -1) @ p['into'], policy)
            return ctc(jax.nn.log_softmax((x @ p['head']).astype(F32)), labels)

        return training(loss, parameters, shape(batch, frames, bands), tokens(batch, labels), **options)

    yield 'f32', *of(8, 1024, depth=2)
    yield 'scanned_bf16', *of(32, 1024, is_scanned=True, compute=BF16)
    yield 'everything_bf16', *of(16, 1600, depth=2, policy='everything', compute=BF16)
    yield 'scanned_everything_long', *of(4, 4096, is_scanned=True, policy='everything')
    yield 'scanned_parts', *of(32, 800, is_scanned=True, parts=4)
