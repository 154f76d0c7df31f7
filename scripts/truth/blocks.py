"""Building blocks, each alone: heads of attention, sorts, running sums, messages, and images with one kind of layer."""

import jax
import jax.numpy as jnp
from jax import lax

from layers import BF16, F32, shape, tokens
from program import family


def attention(q, k, v):
    """Attention over [batch, row, head, element], with scores and softmax in f32."""
    scores = jnp.einsum('bqhe,bkhe->bhqk', q, k, preferred_element_type=F32) / q.shape[-1] ** 0.5
    return jnp.einsum('bhqk,bkhe->bqhe', jax.nn.softmax(scores).astype(v.dtype), v)


def projected(x, w):
    return jnp.einsum('bri,ihe->brhe', x, w)


def of_heads(run, *arguments):
    return jax.jit(run), arguments


@family
def heads_beside():
    """Heads that are beside each other in a row of a matrix, or of a cache."""

    def flat(elements, rows=1024, heads=16, width=2048):
        def run(x, *weights):
            return attention(*((x @ w).reshape(*x.shape[:2], heads, elements) for w in weights))

        w = shape(width, heads * elements, dtype=BF16)
        return of_heads(run, shape(4, rows, width, dtype=BF16), w, w, w)

    def cached(elements, rows=512, keys=2048, heads=16, width=2048):
        cache = shape(4, keys, heads, elements, dtype=BF16)
        x, w = shape(4, rows, width, dtype=BF16), shape(width, heads, elements, dtype=BF16)
        return of_heads(lambda x, w, k, v: attention(projected(x, w), k, v), x, w, cache, cache)

    yield 'flat_128', *flat(128)
    yield 'cached_128', *cached(128)
    yield 'flat_64', *flat(64)


@family
def heads_sliced():
    """Queries, keys and values that are slices of one product."""

    def of(elements, equation, axes, rows=1024, heads=16, width=2048):
        def run(x, w):
            return attention(*jnp.moveaxis(jnp.einsum(equation, x, w), axes, 0))

        return of_heads(run, shape(4, rows, width, dtype=BF16), shape(width, 3, heads, elements, dtype=BF16))

    yield 'inside', *of(64, 'bri,ithe->brthe', 2)
    yield 'outside', *of(128, 'bri,ithe->tbrhe', 0)


@family
def heads_repeated():
    """Keys and values of one head for several, repeated or in groups."""

    def of(elements, in_groups=False, rows=1024, heads=16, shared=4, width=2048):
        def run(x, q, k, v):
            q, k, v = (projected(x, w) for w in (q, k, v))
            if in_groups:
                q = jnp.moveaxis(q.reshape(*q.shape[:2], shared, heads // shared, elements), 3, 0)
                return jax.vmap(attention, (0, None, None))(q, k, v)
            return attention(q, *(jnp.repeat(x, heads // shared, 2) for x in (k, v)))

        one = shape(width, shared, elements, dtype=BF16)
        return of_heads(run, shape(4, rows, width, dtype=BF16), shape(width, heads, elements, dtype=BF16), one, one)

    yield 'repeated_64', *of(64)
    yield 'repeated_128', *of(128)
    yield 'in_groups', *of(64, in_groups=True)


@family
def heads_of_long_rows():
    """Scores with long rows."""

    def of(keys, dtype=F32, rows=512, heads=16, elements=64, width=1024):
        def run(x, y, q, k, v):
            q, k, v = projected(x, q), projected(y, k), projected(y, v)
            if dtype == F32:
                return attention(q, k, v)
            return jnp.einsum('bhqk,bkhe->bqhe', jax.nn.softmax(jnp.einsum('bqhe,bkhe->bhqk', q, k)), v)

        w = shape(width, heads, elements, dtype=BF16)
        return of_heads(run, shape(4, rows, width, dtype=BF16), shape(4, keys, width, dtype=BF16), w, w, w)

    yield 'f32_8192', *of(8192)
    yield 'bf16_8192', *of(8192, BF16)
    yield 'f32_4096', *of(4096)


@family
def sorting():
    """Rows sorted, with and without positions, and along another dimension."""
    yield 'rows', jax.jit(lambda x: jnp.sort(x)), (shape(65_536, 512),)
    yield 'positions', jax.jit(lambda x: jnp.argsort(x)), (shape(512, 65_536),)
    yield 'columns', jax.jit(lambda x: jnp.sort(x, 0)), (shape(4096, 8192),)


@family
def largest():
    """The largest elements of rows: few of them, and many."""

    def of(rows, columns, count):
        return jax.jit(lambda x: lax.top_k(2 * x, count)), (shape(rows, columns),)

    yield 'many_of_short_rows', *of(65_536, 512, 16)
    yield 'few_of_long_rows', *of(512, 65_536, 16)
    yield 'few_of_short_rows', *of(65_536, 512, 4)


@family
def running_sums():
    """Sums, products and logarithms of sums along rows and columns, and a recurrence."""

    def recurrence(a, x):
        return lax.associative_scan(lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1]), (a, x))[1]

    x = shape(16_384, 2048)
    yield 'rows', jax.jit(lambda x: 2 * jnp.cumsum(x, 1)), (x,)
    yield 'columns', jax.jit(lambda x: 2 * jnp.cumsum(x, 0)), (x,)
    yield 'logarithms', jax.jit(lambda x: lax.cumlogsumexp(x, axis=1)), (x,)
    yield 'products_trained', jax.jit(jax.grad(lambda x: (jnp.cumsum(x * x, 1) ** 2).sum())), (x,)
    yield 'recurrence', jax.jit(recurrence), (x, x)


@family
def messages():
    """Sums of what edges of a graph carry, and their gradients."""

    def of(nodes, edges, width, trained):
        def loss(w, x, senders, receivers):
            sent = jax.nn.relu((x @ w)[senders])
            return (jax.ops.segment_sum(sent, receivers, nodes) ** 2).sum()

        def both(w, x, senders, receivers):
            sent = jax.nn.silu(jnp.concatenate([x[senders], x[receivers]], -1) @ w)
            return jax.ops.segment_sum(sent, receivers, nodes)

        ends = tokens(edges)
        weights = shape(width if trained else 2 * width, width)
        return jax.jit(jax.grad(loss) if trained else both), (weights, shape(nodes, width), ends, ends)

    yield 'trained_narrow', *of(200_000, 1_000_000, 16, True)
    yield 'both_ends', *of(50_000, 400_000, 64, False)
    yield 'trained_wide', *of(20_000, 200_000, 128, True)


def convolved(x, w, stride=1, groups=1):
    form = ('NHWC', 'HWIO', 'NHWC')
    return lax.conv_general_dilated(x, w, (stride, stride), 'SAME', dimension_numbers=form, feature_group_count=groups)


def mean_square(x):
    return (x.astype(F32) ** 2).mean()


def images(batch, extent, features, dtype=F32):
    return shape(batch, extent, extent, features, dtype=dtype)


@family
def looped_convolutions():
    """One convolution again and again, with a mean of each step, or its gradient."""

    def of(batch, extent, features, dtype, trained):
        def steps(w, x, length):
            def step(x, _):
                x = jnp.tanh(convolved(x, w))
                return x, None if trained else x.mean((1, 2))

            return lax.scan(step, x, None, length=length)

        run = jax.grad(lambda w, x: mean_square(steps(w, x, 4)[0])) if trained else lambda w, x: steps(w, x, 8)
        return jax.jit(run), (shape(3, 3, features, features, dtype=dtype), images(batch, extent, features, dtype))

    yield 'f32', *of(16, 128, 64, F32, False)
    yield 'trained_bf16', *of(32, 96, 32, BF16, True)
    yield 'bf16', *of(32, 96, 32, BF16, False)


@family
def group_normalised():
    """Residual convolutions with group normalization in two passes."""

    def of(batch, extent, features, dtype, groups=8):
        def normalised(x):
            parts = x.reshape(*x.shape[:3], groups, -1).astype(F32)
            over = dict(axis=(1, 2, 4), keepdims=True)
            parts = (parts - parts.mean(**over)) * lax.rsqrt(parts.var(**over) + 1e-5)
            return parts.reshape(x.shape).astype(x.dtype)

        def loss(weights, x):
            for w in weights:
                x = x + jax.nn.relu(normalised(convolved(x, w)))
            return mean_square(x)

        weights = (shape(3, 3, features, features, dtype=dtype),) * 3
        return jax.jit(jax.grad(loss)), (weights, images(batch, extent, features, dtype))

    yield 'f32', *of(16, 128, 64, F32)
    yield 'bf16', *of(32, 96, 32, BF16)


@family
def upsampled():
    """Images of twice the extent, between convolutions."""

    def of(batch, extent, features, dtype, method):
        def loss(w, x):
            x = convolved(x, w)
            larger = (x.shape[0], 2 * x.shape[1], 2 * x.shape[2], x.shape[3])
            return mean_square(convolved(jax.image.resize(x, larger, method), w))

        return jax.jit(jax.grad(loss)), (shape(3, 3, features, features, dtype=dtype), images(batch, extent, features, dtype))

    yield 'nearest', *of(16, 64, 64, F32, 'nearest')
    yield 'bilinear', *of(16, 64, 64, F32, 'bilinear')
    yield 'nearest_bf16', *of(32, 48, 32, BF16, 'nearest')


@family
def depthwise():
    """Convolutions of each feature alone, trained."""

    def of(batch, extent, features, dtype):
        def loss(w, x):
            x = jax.nn.silu(convolved(x, w, groups=features))
            return mean_square(convolved(x, w, groups=features))

        return jax.jit(jax.grad(loss)), (shape(3, 3, 1, features, dtype=dtype), images(batch, extent, features, dtype))

    yield 'f32', *of(16, 128, 64, F32)
    yield 'bf16', *of(128, 64, 64, BF16)


@family
def normalised_perceptron():
    """Layer normalization in two passes before each perceptron, trained."""

    def of(batch, rows, width, dtype):
        def normalised(x):
            x = x.astype(F32)
            x = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)
            return x.astype(dtype)

        def loss(weights, x):
            wide, narrow = weights
            for _ in range(2):
                x = x + jax.nn.gelu(normalised(x) @ wide) @ narrow
            return x.astype(F32).mean()

        weights = shape(width, 4 * width, dtype=dtype), shape(4 * width, width, dtype=dtype)
        return jax.jit(jax.grad(loss)), (weights, shape(batch, rows, width, dtype=dtype))

    yield 'bf16', *of(32, 512, 512, BF16)
    yield 'f32', *of(16, 1024, 512, F32)


@family
def gated_recurrence():
    """A gated recurrent unit, and a long short-term memory, trained."""

    def of(steps, batch, width, dtype, gates):
        def unit(h, x, wx, wh):
            gx, gh = x @ wx, h @ wh
            r, z, _ = jnp.split(jax.nn.sigmoid(gx + gh), 3, -1)
            n = jnp.tanh(jnp.split(gx, 3, -1)[2] + r * jnp.split(gh, 3, -1)[2])
            h = (1 - z) * n + z * h
            return h, h

        def memory(state, x, wx, wh):
            h, c = state
            i, f, o, u = jnp.split(x @ wx + h @ wh, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(u)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        def loss(weights, x, h):
            cell, first = (unit, h) if gates == 3 else (memory, (h, h))
            return mean_square(lax.scan(lambda state, x: cell(state, x, *weights), first, x)[1])

        w = shape(width, gates * width, dtype=dtype)
        return jax.jit(jax.grad(loss)), ((w, w), shape(steps, batch, width, dtype=dtype), shape(batch, width, dtype=dtype))

    yield 'unit_f32', *of(100, 512, 256, F32, 3)
    yield 'memory_bf16', *of(50, 256, 512, BF16, 4)
    yield 'unit_bf16', *of(50, 256, 512, BF16, 3)


@family
def complex_numbers():
    """Products of complex numbers, of complex matrices, and transforms."""
    wide, square = shape(4096, 8192, dtype=jnp.complex64), shape(4096, 4096, dtype=jnp.complex64)
    yield 'elementwise', jax.jit(lambda x, y: x * y + y), (wide, wide)
    yield 'matrices', jax.jit(jnp.matmul), (square, square)
    yield 'transformed', jax.jit(jnp.fft.fft2), (shape(96, 512, 512, dtype=jnp.complex64),)


@family
def vectors_of_batches():
    """Matrices times vectors, batch by batch."""

    def of(rows, columns):
        batch = 2**25 // (rows * columns)
        matrices, vectors = shape(batch, rows, columns), shape(batch, columns)
        return jax.jit(lambda a, x: jnp.einsum('nij,nj->ni', a, x)), (matrices, vectors)

    yield 'short', *of(16, 16)
    yield 'long', *of(128, 64)
    yield 'few_rows', *of(4, 128)


@family
def small_matrices():
    """Products of many small matrices."""

    def of(rows, between, columns):
        batch = 2**22 // (rows * between)
        product = jax.jit(lambda a, x: jnp.einsum('nik,nkj->nij', a, x))
        return product, (shape(batch, rows, between), shape(batch, between, columns))

    yield 'square', *of(4, 4, 4)
    yield 'outer', *of(16, 2, 16)
    yield 'chained', jax.jit(lambda x, y: jnp.tanh(x @ y) @ x), (shape(8192, 32, 32), shape(8192, 32, 32))


@family
def strided():
    """Every other element along one dimension."""
    x = shape(256, 256, 1024)
    yield 'rows', jax.jit(lambda x: x[:, ::2] * x[:, 1::2]), (x,)
    yield 'computed', jax.jit(lambda x: jnp.tanh(x)[::2] + 1), (x,)
    yield 'columns', jax.jit(lambda x: x[:, :, ::4] * x[:, :, 1::4]), (x,)


@family
def pairs():
    """Functions of the distance of each pair of points, and what they sum up to for each point."""

    def attraction(y, p):
        apart = y[:, None] - y[None]
        near = p / (1 + (apart**2).sum(-1))
        return (near[..., None] * apart).sum(1)

    def energy(y, p):
        return (p * jnp.log1p(((y[:, None] - y[None]) ** 2).sum(-1))).sum()

    weights = shape(8192, 8192)
    yield 'of_planes', jax.jit(attraction), (shape(8192, 2), weights)
    yield 'energy_of_planes', jax.jit(jax.grad(energy)), (shape(8192, 2), weights)
    yield 'of_features', jax.jit(attraction), (shape(8192, 16), weights)


@family
def lookups():
    """Slices and elements that are looked up, along each dimension."""
    x = shape(256, 384, 640)
    of_each = jax.vmap(lambda rows, at: rows[:, at], in_axes=(1, 0))
    yield 'columns', jax.jit(of_each), (x, shape(384, dtype=jnp.int32))
    yield 'middle', jax.jit(lambda x, at: x[at, :, at]), (x, shape(5000, dtype=jnp.int32))
    yield 'along_last', jax.jit(lambda x, at: jnp.take_along_axis(x, at, 2)), (x, shape(256, 384, 300, dtype=jnp.int32))
    short = shape(256, 96, 32, 4, dtype=jnp.int32)
    yield 'short_rows', jax.jit(lambda x, at: x[at]), (shape(1024), short)
    yield 'small_table', jax.jit(lambda x, at: jnp.tanh(x[at % 16])), (shape(16), shape(4096, 5000, dtype=jnp.int32))


def attention(batch, length, heads, width, rate=0.0):
    """The gradients of one layer of attention, without parameters that are no weights."""

    def loss(p, x, key):
        of_heads = (batch, length, heads, width // heads)
        q, k, v = (jnp.reshape(x @ w, of_heads) for w in p[:3])
        weights = jax.nn.softmax(jnp.einsum('bqhd,bkhd->bhqk', q / q.shape[-1] ** 0.5, k), -1)
        if rate:
            kept = jax.random.bernoulli(key, 1 - rate, weights.shape)
            weights = jnp.where(kept, weights / (1 - rate), 0)
        found = jnp.einsum('bhqk,bkhd->bqhd', weights, v)
        return jnp.mean((x + found.reshape(x.shape) @ p[3]) ** 2)

    shapes = [shape(width, width)] * 4, shape(batch, length, width), shape(2, dtype=jnp.uint32)
    return jax.jit(jax.value_and_grad(loss)), shapes


@family
def dropout_in_attention():
    """Attention some of whose weights are dropped."""
    yield 'tiles', *attention(384, 256, 8, 256, 0.1)
    yield 'parts_of_tiles', *attention(480, 200, 8, 256, 0.1)
    yield 'one_tile', *attention(768, 128, 8, 256, 0.1)


@family
def attention_lengths():
    """Attention over as many positions as fill lanes, or not."""
    yield 'half_a_tile', *attention(1000, 50, 8, 512)
    yield 'parts_of_tiles', *attention(200, 197, 12, 768)
    yield 'one_tile', *attention(500, 128, 4, 512)
