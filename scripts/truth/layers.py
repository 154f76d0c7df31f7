"""Layers, losses and optimizers that the families share.

Parameters are trees of shapes: nothing is ever computed. A layer is a function of its parameters and what flows through it.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

F32, BF16, F16, S32, S8, U8 = jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32, jnp.int8, jnp.uint8

# What `jax.checkpoint` keeps, by names short enough for variants. `kept` is what layers here name.
POLICIES = dict(
    everything=jax.checkpoint_policies.nothing_saveable,  # is recomputed
    dots=jax.checkpoint_policies.dots_saveable,
    dots_no_batch=jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    names=jax.checkpoint_policies.save_only_these_names('kept'),
    offload=jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=['kept'], offload_src='device', offload_dst='pinned_host'
    ),
)


# Shapes.


def shape(*extents, dtype=F32):
    return jax.ShapeDtypeStruct(extents, dtype)


def tokens(*extents):
    return shape(*extents, dtype=S32)


def as_type(tree, dtype):
    """The same shapes or arrays, with the floats of another type."""

    def one(leaf):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return shape(*leaf.shape, dtype=dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf.astype(dtype)

    return jax.tree.map(one, tree)


def stacked(layer, count):
    """Parameters of several layers for a scan: each with a leading dimension."""
    return jax.tree.map(lambda leaf: shape(count, *leaf.shape, dtype=leaf.dtype), layer)


def layers(layer, count, is_scanned):
    return stacked(layer, count) if is_scanned else [layer] * count


def through(layer, parameters, x, policy=None):
    """What layers make of x, scanned or one after the other, each checkpointed under a policy."""
    is_scanned = isinstance(parameters, dict)
    if policy:
        layer = jax.checkpoint(layer, policy=POLICIES[policy], prevent_cse=not is_scanned)
    if is_scanned:
        return lax.scan(lambda x, p: (layer(p, x), None), x, parameters)[0]
    for p in parameters:
        x = layer(p, x)
    return x


# Perceptrons and norms.


def dense(*widths):
    """Parameters of a perceptron."""
    return [dict(w=shape(a, b), b=shape(b)) for a, b in zip(widths, widths[1:])]


def perceptron(p, x, activation=jax.nn.relu):
    for i, q in enumerate(p):
        x = x @ q['w'] + q['b']
        if i + 1 < len(p):
            x = activation(x)
    return x


def layer_norm(x, gain=None, epsilon=1e-5):
    wide = x.astype(F32)
    centred = wide - wide.mean(-1, keepdims=True)
    y = (centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + epsilon)).astype(x.dtype)
    return y if gain is None else y * gain


def rms_norm(x, gain):
    return (x * lax.rsqrt((x.astype(F32) ** 2).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * gain


def dropout(key, x, rate=0.1):
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0).astype(x.dtype)


# Attention: arrays are (batch, length, heads, width of a head).


def causal(length):
    return jnp.tril(jnp.ones((length, length), bool))


def attend(q, k, v, mask=None, bias=0.0, wide=True):
    """Softmax attention; queries may have several times as many heads as keys. Scores are f32 if `wide`."""
    b, t, heads, width = q.shape
    groups = k.shape[2]
    q = q.reshape(b, t, groups, heads // groups, width)
    scores = jnp.einsum('btghe,bsge->bghts', q, k) * width**-0.5
    scores = scores.astype(F32) if wide else scores
    scores = scores + bias
    if mask is not None:
        scores = jnp.where(mask, scores, -1e9 if wide else -1e4)
    weights = jax.nn.softmax(scores, -1).astype(v.dtype)
    return jnp.einsum('bghts,bsge->btghe', weights, v).reshape(b, t, heads, width)


def attend_in_blocks(q, k, v, block, is_causal=True):
    """The same with running maxima over blocks of keys (FlashAttention, in JAX)."""
    b, t, heads, width = q.shape
    cut = lambda x: x.reshape(b, -1, block, heads, width).swapaxes(0, 1)
    rows = jnp.arange(t)

    @jax.checkpoint
    def one(carry, of):
        best, total, sums = carry
        k, v, start = of
        scores = jnp.einsum('bthe,bshe->bhts', q, k).astype(F32) * width**-0.5
        if is_causal:
            scores = jnp.where(rows[:, None] >= start + jnp.arange(block), scores, -1e9)
        now = jnp.maximum(best, scores.max(-1))
        weights, decay = jnp.exp(scores - now[..., None]), jnp.exp(best - now)
        sums = sums * decay[..., None] + jnp.einsum('bhts,bshe->bhte', weights.astype(v.dtype), v)
        return (now, total * decay + weights.sum(-1), sums), None

    begin = jnp.full((b, heads, t), -1e9, F32), jnp.zeros((b, heads, t), F32), jnp.zeros((b, heads, t, width), F32)
    blocks = cut(k), cut(v), jnp.arange(0, k.shape[1], block)
    (_, total, sums), _ = lax.scan(one, begin, blocks)
    return (sums / total[..., None]).swapaxes(1, 2).astype(q.dtype)


def rotate(x, positions=None):
    """Rotary positions."""
    positions = jnp.arange(x.shape[1]) if positions is None else positions
    angles = positions[..., None] * 10000.0 ** -jnp.linspace(0, 1, x.shape[-1] // 2)
    cos, sin = jnp.cos(angles)[..., None, :].astype(x.dtype), jnp.sin(angles)[..., None, :].astype(x.dtype)
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def heads_of(x, weights, heads):
    return (x @ weights).reshape(*x.shape[:2], heads, -1)


def attention(width, groups=1):
    """Parameters of attention. Keys and values have width / groups."""
    few = width // groups
    return dict(q=shape(width, width), k=shape(width, few), v=shape(width, few), o=shape(width, width))


def self_attention(p, x, heads, groups=1, source=None, use=attend, rotary=False, **options):
    source = x if source is None else source
    q, k, v = heads_of(x, p['q'], heads), heads_of(source, p['k'], heads // groups), heads_of(source, p['v'], heads // groups)
    if rotary:
        q, k = rotate(q), rotate(k)
    return checkpoint_name(use(q, k, v, **options).reshape(x.shape) @ p['o'], 'kept')


def block(width, wider=4):
    """Parameters of a layer of a transformer as GPT and ViT have it."""
    inner = dict(up=shape(width, wider * width), up_b=shape(wider * width), down=shape(wider * width, width), down_b=shape(width))
    return dict(attention=attention(width), norm1=shape(width), norm2=shape(width), **inner)


def transformer(p, x, heads, **options):
    """A layer of GPT and ViT: norms first, gelu."""
    x = x + self_attention(p['attention'], layer_norm(x, p['norm1']), heads, **options)
    h = jax.nn.gelu(layer_norm(x, p['norm2']) @ p['up'] + p['up_b'])
    return x + checkpoint_name(h @ p['down'] + p['down_b'], 'kept')


def llama_block(width, groups=1, inner=None):
    """Parameters of a layer of Llama: grouped queries and a gated perceptron."""
    inner = inner or width * 8 // 3 // 128 * 128
    gated = dict(gate=shape(width, inner), up=shape(width, inner), down=shape(inner, width))
    return dict(attention=attention(width, groups), norm1=shape(width), norm2=shape(width), **gated)


def gated(p, x):
    return (jax.nn.silu(x @ p['gate']) * (x @ p['up'])) @ p['down']


def llama_layer(p, x, heads, groups=1, **options):
    options = dict(mask=causal(x.shape[1])) | options
    x = x + self_attention(p['attention'], rms_norm(x, p['norm1']), heads, groups, rotary=True, **options)
    return x + checkpoint_name(gated(p, rms_norm(x, p['norm2'])), 'kept')


# Convolutions, in NHWC.


def conv(x, w, stride=1, groups=1, padding='SAME', dilation=1):
    rank = x.ndim - 2
    letters = 'DHW'[-rank:]
    numbers = f'N{letters}C', f'{letters}IO', f'N{letters}C'
    return lax.conv_general_dilated(
        x, w, (stride,) * rank, padding, rhs_dilation=(dilation,) * rank, dimension_numbers=numbers, feature_group_count=groups
    )


def up_conv(x, w, stride=2):
    return lax.conv_transpose(x, w, (stride,) * (x.ndim - 2), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC'))


def batch_norm(x, gain, axes=(0, 1, 2)):
    wide = x.astype(F32)
    mean, square = wide.mean(axes), (wide**2).mean(axes)
    return ((wide - mean) * lax.rsqrt(square - mean**2 + 1e-5)).astype(x.dtype) * gain


def group_norm(x, gain, groups=32):
    wide = x.reshape(*x.shape[:-1], groups, -1).astype(F32)
    axes = (*range(1, x.ndim - 1), x.ndim)
    centred = wide - wide.mean(axes, keepdims=True)
    return (centred * lax.rsqrt((centred**2).mean(axes, keepdims=True) + 1e-5)).reshape(x.shape).astype(x.dtype) * gain


def max_pool(x, size=2):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, size, size, 1), (1, size, size, 1), 'VALID')


def twice_as_large(x, method='nearest'):
    b, h, w, c = x.shape
    return jax.image.resize(x, (b, 2 * h, 2 * w, c), method)


# Losses.


def cross_entropy(logits, labels):
    logits = logits.astype(F32)
    picked = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - picked).mean()


def chunked_cross_entropy(x, head, labels, chunks):
    """The loss of x @ head, a part of the positions at a time, so that logits never exist all at once."""
    cut = lambda a: a.reshape(a.shape[0], chunks, -1, *a.shape[2:]).swapaxes(0, 1)
    part = jax.checkpoint(lambda x, labels: cross_entropy(x @ head, labels))
    total, _ = lax.scan(lambda total, of: (total + part(*of), None), jnp.zeros(()), (cut(x), cut(labels)))
    return total / chunks


def square_error(x, y):
    return ((x - y).astype(F32) ** 2).mean()


# Optimizers: each has the shapes of its state for given parameters, and (parameters, state, gradients) -> (parameters, state).


def moved(parameters, direction, rate=1e-3):
    return jax.tree.map(lambda p, d: (p - rate * d).astype(p.dtype), parameters, direction)


def sgd():
    return (lambda parameters: ()), (lambda p, state, g: (moved(p, g), ()))


def momentum():
    def update(p, state, g):
        state = jax.tree.map(lambda m, g: 0.9 * m + g.astype(m.dtype), state, g)
        return moved(p, state), state

    return (lambda parameters: as_type(parameters, F32)), update


def adam(dtype=F32, decay=0.0):
    def update(p, state, g):
        m, v, count = state
        count = count + 1
        m = jax.tree.map(lambda m, g: (0.9 * m + 0.1 * g).astype(m.dtype), m, g)
        v = jax.tree.map(lambda v, g: (0.999 * v + 0.001 * jnp.square(g)).astype(v.dtype), v, g)
        large = 1 - 0.9 ** count.astype(F32), 1 - 0.999 ** count.astype(F32)
        step = lambda p, m, v: (m / large[0]) / (jnp.sqrt(v / large[1]) + 1e-8) + decay * p
        return moved(p, jax.tree.map(step, p, m, v)), (m, v, count)

    return (lambda parameters: (as_type(parameters, dtype), as_type(parameters, dtype), tokens())), update


def lion():
    def update(p, m, g):
        direction = jax.tree.map(lambda m, g: jnp.sign(0.9 * m + 0.1 * g), m, g)
        return moved(p, direction), jax.tree.map(lambda m, g: (0.99 * m + 0.01 * g).astype(m.dtype), m, g)

    return (lambda parameters: as_type(parameters, BF16)), update


OPTIMIZERS = dict(sgd=sgd(), momentum=momentum(), adam=adam(), adam_bf16=adam(BF16), adamw=adam(decay=0.01), lion=lion())


# Steps.


def training(loss, parameters, *batch, held=(), optimizer='adam', parts=1, donate=True, compute=None, clip=False):
    """A jitted step of training and its arguments. The loss is a function of parameters, what is `held` as it is, and a batch.

    `compute`: parameters and floats of the batch are cast to this type for the loss. `parts`: gradients are accumulated over as many parts of the
    batch. `clip`: gradients are scaled by their norm. `optimizer` is a name or a pair, as OPTIMIZERS has them.
    """
    begin, update = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer

    def of_cast(p, held, batch):
        return loss(as_type(p, compute), *held, *as_type(batch, compute)) if compute else loss(p, *held, *batch)

    def value_and_gradients(p, held, batch):
        if parts == 1:
            return jax.value_and_grad(of_cast)(p, held, batch)

        def part(sums, batch):
            return jax.tree.map(jnp.add, sums, jax.value_and_grad(of_cast)(p, held, batch)), None

        cut = jax.tree.map(lambda a: a.reshape(parts, a.shape[0] // parts, *a.shape[1:]), batch)
        nothing = jnp.zeros(()), jax.tree.map(jnp.zeros_like, p)
        sums, _ = lax.scan(part, nothing, cut)
        return jax.tree.map(lambda leaf: leaf / parts, sums)

    def step(parameters, state, held, *batch):
        value, gradients = value_and_gradients(parameters, held, batch)
        if clip:
            norm = jnp.sqrt(sum((g.astype(F32) ** 2).sum() for g in jax.tree.leaves(gradients)))
            gradients = jax.tree.map(lambda g: g * jnp.minimum(1, 1 / norm).astype(g.dtype), gradients)
        parameters, state = update(parameters, state, gradients)
        return parameters, state, value

    return jax.jit(step, donate_argnums=(0, 1) if donate else ()), (parameters, begin(parameters), held, *batch)


def inference(function, parameters, *inputs, donate=()):
    """A jitted function and its arguments. `donate` counts the inputs after the parameters."""
    return jax.jit(function, donate_argnums=tuple(i + 1 for i in donate)), (parameters, *inputs)
