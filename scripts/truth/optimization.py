"""Optimizers with states of many shapes, gradients added up, and what else happens around a model."""

import jax
import jax.numpy as jnp
from jax import lax

from layers import (
    BF16,
    F32,
    OPTIMIZERS,
    S8,
    U8,
    block,
    causal,
    chunked_cross_entropy,
    cross_entropy,
    dense,
    inference,
    layer_norm,
    layers,
    moved,
    perceptron,
    shape,
    square_error,
    through,
    tokens,
    training,
    transformer,
)
from program import family


def factored(rate=1e-3):
    """Adafactor: second moments of matrices as rows and columns."""

    def begin(parameters):
        one = lambda p: (
            dict(rows=shape(*p.shape[:-1]), columns=shape(*p.shape[:-2], p.shape[-1])) if len(p.shape) > 1 else dict(all=shape(*p.shape))
        )
        return jax.tree.map(one, parameters)

    def update(p, state, gradients):
        leaves, form = jax.tree.flatten(p)
        new, states = [], []
        for p, s, g in zip(leaves, form.flatten_up_to(state), jax.tree.leaves(gradients)):
            square = g.astype(F32) ** 2 + 1e-30
            if 'all' in s:
                s = dict(all=0.99 * s['all'] + 0.01 * square)
                way = g / jnp.sqrt(s['all'])
            else:
                s = dict(rows=0.99 * s['rows'] + 0.01 * square.mean(-1), columns=0.99 * s['columns'] + 0.01 * square.mean(-2))
                share = s['rows'] / s['rows'].mean(-1, keepdims=True)
                way = g / jnp.sqrt(share[..., None] * s['columns'][..., None, :])
            way = way / jnp.maximum(1, jnp.sqrt((way**2).mean()))
            new.append((p - rate * way).astype(p.dtype))
            states.append(s)
        return jax.tree.unflatten(form, new), jax.tree.unflatten(form, states)

    return begin, update


def muon(steps=5):
    """Momentum made orthogonal by iterations of Newton and Schulz, for matrices."""

    def begin(parameters):
        return parameters

    def orthogonal(g):
        x = g.astype(BF16)
        flat = x.shape[-2] > x.shape[-1]
        x = x.swapaxes(-1, -2) if flat else x
        x = x / (jnp.sqrt((x.astype(F32) ** 2).sum((-1, -2), keepdims=True)) + 1e-7).astype(BF16)
        for _ in range(steps):
            a = x @ x.swapaxes(-1, -2)
            x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
        return (x.swapaxes(-1, -2) if flat else x).astype(g.dtype)

    def update(p, m, g):
        m = jax.tree.map(lambda m, g: 0.95 * m + g, m, g)
        return moved(p, jax.tree.map(lambda m: orthogonal(m) if m.ndim > 1 and min(m.shape[-2:]) > 16 else m, m)), m

    return begin, update


def shampoo():
    """Second moments of rows and of columns as matrices, and their inverse roots by iteration."""

    def begin(parameters):
        one = lambda p: (
            dict(left=shape(*p.shape[:-2], p.shape[-2], p.shape[-2]), right=shape(*p.shape[:-2], p.shape[-1], p.shape[-1]))
            if len(p.shape) > 1
            else dict(all=shape(*p.shape))
        )
        return jax.tree.map(one, parameters)

    def root(a):
        side = a.shape[-1]
        a = a / (jnp.trace(a, axis1=-2, axis2=-1)[..., None, None] + 1e-9) + 1e-4 * jnp.eye(side)
        begin = a, jnp.broadcast_to(jnp.eye(side), a.shape)
        step = lambda _, of: (of[0] @ (1.5 * jnp.eye(side) - 0.5 * of[1] @ of[0]), (1.5 * jnp.eye(side) - 0.5 * of[1] @ of[0]) @ of[1])
        return lax.fori_loop(0, 8, step, begin)[1]

    def update(p, state, gradients):
        leaves, form = jax.tree.flatten(p)
        new, states = [], []
        for p, s, g in zip(leaves, form.flatten_up_to(state), jax.tree.leaves(gradients)):
            t = g.swapaxes(-1, -2) if g.ndim > 1 else g
            s = dict(left=0.9 * s['left'] + g @ t, right=0.9 * s['right'] + t @ g) if g.ndim > 1 else dict(all=s['all'] + g * g)
            way = root(s['left']) @ g @ root(s['right']) if g.ndim > 1 else g / jnp.sqrt(s['all'] + 1e-9)
            new.append(p - 1e-3 * way)
            states.append(s)
        return jax.tree.unflatten(form, new), jax.tree.unflatten(form, states)

    return begin, update


def adam8(group=256):
    """Adam with moments of 8 bits and a scale for each group of numbers."""

    def begin(parameters):
        def one(p):
            count = -(-p.size // group)
            return dict(m=shape(count, group, dtype=S8), v=shape(count, group, dtype=U8), m_scale=shape(count, 1), v_scale=shape(count, 1))

        return jax.tree.map(one, parameters)

    def update(p, state, gradients):
        leaves, form = jax.tree.flatten(p)
        new, states = [], []
        for p, s, g in zip(leaves, form.flatten_up_to(state), jax.tree.leaves(gradients)):
            flat = jnp.pad(g.reshape(-1).astype(F32), (0, s['m'].size - g.size)).reshape(s['m'].shape)
            m = 0.9 * s['m'].astype(F32) * s['m_scale'] + 0.1 * flat
            v = 0.999 * s['v'].astype(F32) * s['v_scale'] + 0.001 * flat**2
            tops = jnp.abs(m).max(1, keepdims=True) / 127 + 1e-12, v.max(1, keepdims=True) / 255 + 1e-12
            states.append(dict(m=jnp.round(m / tops[0]).astype(S8), v=jnp.round(v / tops[1]).astype(U8), m_scale=tops[0], v_scale=tops[1]))
            new.append((p - 1e-3 * (m / (jnp.sqrt(v) + 1e-8)).reshape(-1)[: g.size].reshape(g.shape)).astype(p.dtype))
        return jax.tree.unflatten(form, new), jax.tree.unflatten(form, states)

    return begin, update


def averaged(inner):
    """Another optimizer, with a moving average of the parameters beside them."""
    begin, update = inner

    def update_both(p, of, g):
        state, average = of
        p, state = update(p, state, g)
        return p, (state, jax.tree.map(lambda a, p: 0.999 * a + 0.001 * p, average, p))

    return (lambda parameters: (begin(parameters), parameters)), update_both


def one_step_before(inner):
    """Gradients that were computed are only applied in the next step; parameters of bf16 have a copy of f32 in the state."""
    begin, update = inner

    def update_later(p, of, g):
        state, kept, wide = of
        wide, state = update(wide, state, kept)
        return jax.tree.map(lambda w, p: w.astype(p.dtype), wide, p), (state, g, wide)

    wide = lambda parameters: jax.tree.map(lambda p: shape(*p.shape), parameters)
    return (lambda parameters: (begin(wide(parameters)), parameters, wide(parameters))), update_later


def small_decoder(width, depth, words, is_scanned=True):
    return dict(words=shape(words, width), layers=layers(block(width), depth, is_scanned), norm=shape(width))


def small_loss(heads, policy=None, chunks=1):
    def loss(p, words):
        x = through(lambda q, x: transformer(q, x, heads, mask=causal(x.shape[1])), p['layers'], p['words'][words[:, :-1]], policy)
        x = layer_norm(x, p['norm'])
        return chunked_cross_entropy(x, p['words'].T, words[:, 1:], chunks) if chunks > 1 else cross_entropy(x @ p['words'].T, words[:, 1:])

    return loss


@family
def optimizers():
    """One decoder under many optimizers: most bytes are parameters, gradients and states."""

    def of(optimizer, width=1024, depth=6, words=32000, batch=4, length=256, is_scanned=True, policy='everything', compute=BF16, **options):
        return training(
            small_loss(16, policy),
            small_decoder(width, depth, words, is_scanned),
            tokens(batch, length + 1),
            optimizer=optimizer,
            compute=compute,
            **options,
        )

    yield 'adafactor', *of(factored())
    yield 'muon', *of(muon())
    yield 'adam_8_bits', *of(adam8())
    yield 'shampoo', *of(shampoo(), width=512, words=2048)
    yield 'lion', *of('lion')
    yield 'adamw_averaged', *of(averaged(OPTIMIZERS['adamw']))
    yield 'adafactor_unrolled', *of(factored(), is_scanned=False, depth=4)
    yield 'adam_clipped_unrolled', *of('adam', is_scanned=False, depth=4, clip=True)
    yield 'delayed_wide_copy', *of(one_step_before(OPTIMIZERS['adam_bf16']))
    yield 'sgd_not_donated', *of('sgd', donate=False)
    yield 'muon_unrolled', *of(muon(), is_scanned=False, depth=3)
    yield 'adam_8_bits_unrolled', *of(adam8(), is_scanned=False, depth=3)


@family
def accumulated_gradients():
    """Parts of a batch one after the other: gradients summed in a scan, in a loop written out, in other types, with and without policies."""

    def of(
        parts,
        batch=32,
        length=512,
        width=768,
        depth=3,
        words=16384,
        is_scanned=True,
        policy=None,
        chunks=1,
        sums=F32,
        written_out=False,
        optimizer='adam',
    ):
        loss, parameters = small_loss(12, policy, chunks), small_decoder(width, depth, words, is_scanned)
        begin, update = OPTIMIZERS[optimizer]

        def step(p, state, words):
            cut = words.reshape(parts, batch // parts, length + 1)
            narrow = jax.tree.map(lambda leaf: leaf.astype(BF16), p)
            part = lambda total, words: (jax.tree.map(lambda t, g: t + g.astype(t.dtype), total, jax.grad(loss)(narrow, words)), None)
            total = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, sums), p)
            if written_out:
                for i in range(parts):
                    total, _ = part(total, cut[i])
            else:
                total, _ = lax.scan(part, total, cut)
            return update(p, state, jax.tree.map(lambda t: t / parts, total))

        return jax.jit(step, donate_argnums=(0, 1)), (parameters, begin(parameters), tokens(batch, length + 1))

    yield 'four_scanned', *of(4)
    yield 'two_written_out', *of(2, batch=8, depth=2, written_out=True)
    yield 'eight_everything_chunks', *of(8, policy='everything', chunks=8)
    yield 'four_unrolled_layers', *of(4, is_scanned=False, depth=2)
    yield 'four_bf16_sums', *of(4, sums=BF16)
    yield 'three_written_out_everything', *of(3, batch=12, depth=2, written_out=True, policy='everything')
    yield 'sixteen_dots_sgd', *of(16, batch=64, policy='dots', optimizer='sgd')
    yield 'four_unrolled_everything', *of(4, is_scanned=False, policy='everything')


@family
def checkpointing():
    """One decoder under all policies, around layers, pairs of layers, or all at once."""

    def of(policy, batch=16, length=512, width=768, depth=4, words=8192, is_scanned=True, around='layer', compute=BF16, optimizer='adam'):
        def layer(q, x):
            return transformer(q, x, 12, mask=causal(length))

        def loss(p, words):
            x = p['words'][words[:, :-1]]
            if around == 'pair':
                pair = lambda q, x: layer(q[1], layer(q[0], x))
                x = through(pair, [p['layers'][i : i + 2] for i in range(0, depth, 2)], x, policy)
            elif around == 'all':
                x = jax.checkpoint(lambda q, x: through(layer, q, x))(p['layers'], x)
            elif around == 'half':
                x = layer(p['layers'][0], x)
                x = through(layer, p['layers'][1:], x, policy)
            elif around == 'blocks':
                blocks = jax.tree.map(lambda a: a.reshape(depth // 2, 2, *a.shape[1:]), p['layers'])
                x = through(lambda q, x: through(layer, q, x, policy), blocks, x, 'everything')
            else:
                x = through(layer, p['layers'], x, policy)
            return cross_entropy(layer_norm(x, p['norm']) @ p['words'].T, words[:, 1:])

        return training(
            loss, small_decoder(width, depth, words, is_scanned), tokens(batch, length + 1), compute=compute, optimizer=optimizer
        )

    yield 'scanned_nothing', *of(None)
    yield 'unrolled_pairs', *of('everything', is_scanned=False, around='pair')
    yield 'scanned_offload', *of('offload')
    yield 'scanned_everything_f32', *of('everything', compute=None, batch=8)
    yield 'scanned_dots', *of('dots')
    yield 'scanned_dots_no_batch', *of('dots_no_batch')
    yield 'scanned_names', *of('names')
    yield 'unrolled_dots_f32', *of('dots', is_scanned=False, depth=3, compute=None, batch=8)
    yield 'unrolled_names', *of('names', is_scanned=False, depth=3)
    yield 'unrolled_all_at_once', *of(None, is_scanned=False, depth=3, around='all')
    yield 'scanned_blocks_of_blocks', *of('everything', depth=8, around='blocks')
    yield 'unrolled_but_one', *of('everything', is_scanned=False, around='half')


@family
def multilayer_perceptron():
    """Plain perceptrons and autoencoders of tables: products, biases, activations; many types and batches."""

    def of(batch, widths, activation=jax.nn.relu, policy=None, is_scanned=False, depth=0, trains=True, dtype=F32, **options):
        parameters = (
            dict(edges=dense(*widths), inner=layers(dense(widths[1], widths[1])[0], depth, is_scanned)) if depth else dense(*widths)
        )

        def forward(p, x):
            if depth:
                x = activation(perceptron(p['edges'][:1], x))
                x = through(lambda q, x: activation(x @ q['w'] + q['b']), p['inner'], x, policy)
                return perceptron(p['edges'][1:], x)
            return perceptron(p, x, activation)

        if not trains:
            narrow = jax.tree.map(lambda leaf: shape(*leaf.shape, dtype=dtype), parameters)
            return inference(forward, narrow, shape(batch, widths[0], dtype=dtype))
        return training(
            lambda p, x, y: square_error(forward(p, x), y), parameters, shape(batch, widths[0]), shape(batch, widths[-1]), **options
        )

    yield 'deep_f32', *of(16384, (1024, 2048, 1024), depth=6)
    yield 'scanned_gelu_bf16', *of(32768, (1024, 2048, 1024), depth=8, is_scanned=True, activation=jax.nn.gelu, compute=BF16)
    yield 'autoencoder_momentum', *of(8192, (4096, 2048, 256, 2048, 4096), optimizer='momentum')
    yield 'scanned_everything', *of(65536, (512, 1024, 512), depth=8, is_scanned=True, policy='everything')
    yield 'forward_f16', *of(65536, (2048, 4096, 2048), depth=4, trains=False, dtype=jnp.float16)
    yield 'wide_sgd_f16', *of(4096, (4096, 8192, 4096), optimizer='sgd', compute=jnp.float16)
    yield 'parts_tanh', *of(131072, (256, 1024, 256), depth=4, activation=jnp.tanh, parts=8)


@family
def hypernetwork():
    """Gradients of gradients in training: learned initial weights (MAML), learned optimizers, contrast of fast weights."""

    def maml(tasks, shots, widths=(64, 256, 256, 1), steps=3, first_order=False, chunks=0, **options):
        def loss(p, x, y):
            return square_error(perceptron(p, x, jnp.tanh), y)

        def adapted(p, x, y):
            def step(p, _):
                g = jax.grad(loss)(p, x, y)
                g = lax.stop_gradient(g) if first_order else g
                return jax.tree.map(lambda p, g: p - 0.01 * g, p, g), None

            return lax.scan(step, p, None, length=steps)[0]

        def outer(p, x, y, new_x, new_y):
            one = lambda x, y, new_x, new_y: loss(adapted(p, x, y), new_x, new_y)
            if chunks:
                cut = jax.tree.map(lambda a: a.reshape(chunks, -1, *a.shape[1:]), (x, y, new_x, new_y))
                return lax.map(jax.checkpoint(lambda of: jax.vmap(one)(*of).mean()), cut).mean()
            return jax.vmap(one)(x, y, new_x, new_y).mean()

        xs, ys = shape(tasks, shots, widths[0]), shape(tasks, shots, widths[-1])
        return training(outer, dense(*widths), xs, ys, xs, ys, **options)

    def learned(size, steps=20, width=32):
        """An optimizer that is a perceptron for each number, trained through its own steps."""

        def outer(p, w, x, y):
            inner = lambda w: square_error(jnp.tanh(x @ w.reshape(x.shape[1], -1)), y)

            def step(of, _):
                w, m = of
                g = jax.grad(inner)(w)
                m = 0.9 * m + g
                return (w - 0.01 * perceptron(p, jnp.stack([g, m, w], -1), jax.nn.relu)[:, 0], m), inner(w)

            return lax.scan(jax.checkpoint(step), (w, jnp.zeros_like(w)), None, length=steps)[1].mean()

        return training(outer, dense(3, width, width, 1), shape(size * size), shape(1024, size), shape(1024, size))

    yield 'maml', *maml(256, 64)
    yield 'learned_optimizer', *learned(512)
    yield 'maml_first_order', *maml(1024, 64, first_order=True)
    yield 'maml_in_chunks', *maml(1024, 128, chunks=16)
