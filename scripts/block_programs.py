"""Blocks of networks and of optimizers, each a program with its gradient: what programs are made of, too small to hide anything."""
import jax
import jax.numpy as jnp
from jax import lax, nn

from listed_programs import add

LINES = 1024  # of a sequence
NHWC = ('NHWC', 'HWIO', 'NHWC')


def both(name, function, shapes, types=('f32', 'bf16')):
    """A block forward and backward, in each type."""
    for each in types:
        text = shapes.replace('T[', f'{each}[')
        add('block', name, function, text, text)


def forward(name, function, shapes, types=('f32', 'bf16')):
    for each in types:
        add('block', name, function, shapes.replace('T[', f'{each}['))


# Language.

def layer_norm_linear(x, scale, bias, w):
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return ((x - mean) * lax.rsqrt(variance + 1e-5) * scale + bias) @ w


def rms_norm_linear(x, scale, w):
    wide = x.astype(jnp.float32)
    wide = wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)
    return (wide.astype(x.dtype) * scale) @ w


def causal_attention(q, k, v):
    scores = jnp.einsum('bqhd,bkhd->bhqk', q, k) / 8
    scores = jnp.where(jnp.tril(jnp.ones((LINES, LINES), bool)), scores, -1e9)
    return jnp.einsum('bhqk,bkhd->bqhd', nn.softmax(scores.astype(jnp.float32)).astype(q.dtype), v)


def grouped_attention(q, k, v):
    q = q.reshape(4, LINES, 4, 4, 64)
    scores = jnp.einsum('bqgrd,bkgd->bgrqk', q, k) / 8
    return jnp.einsum('bgrqk,bkgd->bqgrd', nn.softmax(scores), v)


def rotated(x, angles):
    left, right = jnp.split(x, 2, -1)
    cos, sin = (of(angles)[None, :, None].astype(x.dtype) for of in (jnp.cos, jnp.sin))
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)


def cross_entropy(x, w, labels):
    logits = (x @ w).astype(jnp.float32)
    return nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]


def modulated(x, conditions, w):
    scale, shift, gate, *_ = jnp.split((nn.silu(conditions) @ w)[:, None], 6, -1)
    return x + gate * ((x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-6) * (1 + scale) + shift)


def pooled(x, w, mask):
    return jnp.sum(jnp.tanh(x @ w) * mask[..., None], 1) / jnp.sum(mask, 1)[:, None]


def decoded(k, v, q):
    return jnp.einsum('bhs,bhsd->bhd', nn.softmax(jnp.einsum('bhd,bhsd->bhs', q, k)), v)


both('mlp_gelu', lambda x, a, b: nn.gelu(x @ a) @ b, 'T[16,1024,1024] T[1024,4096] T[4096,1024]')
both('swiglu', lambda x, a, b, c: (nn.silu(x @ a) * (x @ b)) @ c, 'T[16,1024,1024] T[1024,3072] T[1024,3072] T[3072,1024]')
both('layer_norm_linear', layer_norm_linear, 'T[16,1024,1024] T[1024] T[1024] T[1024,1024]')
both('rms_norm_linear', rms_norm_linear, 'T[16,1024,1024] T[1024] T[1024,1024]')
both('causal_attention', causal_attention, 'T[4,1024,16,64] T[4,1024,16,64] T[4,1024,16,64]')
both('grouped_attention', grouped_attention, 'T[4,1024,16,64] T[4,1024,4,64] T[4,1024,4,64]')
both('rotated', rotated, 'T[4,1024,16,64] T[1024,32]')
both('cross_entropy', cross_entropy, 'T[8,1024,1024] T[1024,32000] s32[8,1024]')
both('modulated', modulated, 'T[16,1024,1024] T[16,1024] T[1024,6144]')
both('pooled', pooled, 'T[8,1024,512] T[512,512] T[8,1024]')
forward('decoded', decoded, 'T[8,32,2048,128] T[8,32,2048,128] T[8,32,128]')


# Experts, adapters, tables.

def experts_for_all(x, a, b, router):
    shares = nn.softmax(x @ router)
    best, which = lax.top_k(shares, 2)
    gates = jnp.zeros_like(shares).at[jnp.arange(4096)[:, None], which].set(best)
    return jnp.einsum('enf,efd,ne->nd', nn.gelu(jnp.einsum('nd,edf->enf', x, a)), b, gates)


def experts_of_capacity(x, a, b, router):
    chosen = nn.one_hot(jnp.argmax(nn.softmax(x @ router), -1), 8, dtype=x.dtype)
    place = (jnp.cumsum(chosen, 0) * chosen).astype(jnp.int32)
    sent = chosen[:, :, None] * nn.one_hot(jnp.sum(place, -1) - 1, 1024, dtype=x.dtype)[:, None]
    hidden = nn.gelu(jnp.einsum('ecd,edf->ecf', jnp.einsum('nec,nd->ecd', sent, x), a))
    return jnp.einsum('nec,ecd->nd', sent, jnp.einsum('ecf,efd->ecd', hidden, b))


def adapters_looked_up(x, w, a, b, which):
    return x @ w + jnp.einsum('nr,nrd->nd', jnp.einsum('nd,ndr->nr', x, a[which]), b[which])


def updated(look_up):
    """A step of momentum on a table, of which a batch reads some rows."""
    def step(table, momentum, which, wanted):
        gradient = jax.grad(lambda table: jnp.sum((look_up(table, which) - wanted) ** 2))(table)
        momentum = 0.9 * momentum + 0.1 * gradient
        return table - 1e-3 * momentum, momentum
    return step


def of_each(tables, which):
    return tables[jnp.arange(tables.shape[0])[None], which]


def of_cells(grid, cells):
    return grid[cells[:, 0], cells[:, 1], cells[:, 2]]


both('experts_for_all', experts_for_all, 'T[4096,1024] T[8,1024,2048] T[8,2048,1024] T[1024,8]')
both('experts_of_capacity', experts_of_capacity, 'T[8192,512] T[8,512,1024] T[8,1024,512] T[512,8]')
both('adapters_looked_up', adapters_looked_up, 'T[4096,1024] T[1024,1024] T[4,1024,16] T[4,16,1024] s32[4096]')
for rows, features, n in ((100000, 64, 8192), (100000, 128, 8192), (524288, 16, 8192), (524288, 32, 4096), (1048576, 48, 4096),
                          (2097152, 4, 8192), (2097152, 32, 8192), (2600000, 64, 8192)):
    forward('updated_table', updated(lambda table, which: table[which]),
            f'T[{rows},{features}] T[{rows},{features}] s32[{n}] T[{n},{features}]', ['f32'])
for tables, rows, features, n in ((26, 10000, 64, 2048), (26, 10000, 128, 2048), (8, 16384, 64, 2048), (16, 65536, 2, 8192)):
    shape = f'T[{tables},{rows},{features}]'
    forward('updated_tables', updated(of_each), f'{shape} {shape} s32[{n},{tables}] T[{n},{tables},{features}]', ['f32'])
for side, features in ((64, 16), (128, 4)):
    shape = f'T[{side},{side},{side},{features}]'
    forward('updated_grid', updated(of_cells), f'{shape} {shape} s32[16384,3] T[16384,{features}]', ['f32'])


# Images and sequences.

def convolved(x, w, stride=1, **others):
    return lax.conv_general_dilated(x, w, (stride, stride), 'SAME', dimension_numbers=NHWC, **others)


def conv_norm_relu(x, w, scale, bias):
    y = convolved(x, w)
    mean = y.mean((0, 1, 2))
    return nn.relu((y - mean) * lax.rsqrt(jnp.square(y - mean).mean((0, 1, 2)) + 1e-5) * scale + bias)


def groups_silu_conv(x, w, scale, bias):
    groups = x.reshape(*x.shape[:3], 32, 4).astype(jnp.float32)
    centred = groups - groups.mean((1, 2, 4), keepdims=True)
    normal = centred * lax.rsqrt(jnp.square(centred).mean((1, 2, 4), keepdims=True) + 1e-5)
    return convolved(nn.silu(normal.reshape(x.shape).astype(x.dtype) * scale + bias), w)


def down_and_up(x, a, b):
    return x + convolved(jax.image.resize(nn.relu(convolved(x, a, 2)), (32, 64, 64, 128), 'nearest'), b)


def in_patches(x, w, positions):
    return x.reshape(32, 14, 16, 14, 16, 3).transpose(0, 1, 3, 2, 4, 5).reshape(32, 196, 768) @ w + positions


def window_attention(x, w, out):
    windows = x.reshape(16, 8, 7, 8, 7, 128).transpose(0, 1, 3, 2, 4, 5).reshape(-1, 49, 128)
    q, k, v = jnp.split((windows @ w).reshape(-1, 49, 12, 32), 3, 2)
    scores = nn.softmax(jnp.einsum('bqhd,bkhd->bhqk', q, k))
    windows = jnp.einsum('bhqk,bkhd->bqhd', scores, v).reshape(-1, 49, 128) @ out
    return windows.reshape(16, 8, 8, 7, 7, 128).transpose(0, 1, 3, 2, 4, 5).reshape(x.shape)


def conv1d(x, w):
    return nn.relu(lax.conv_general_dilated(x, w, (2,), 'SAME', dimension_numbers=('NWC', 'WIO', 'NWC')))


def conv3d(x, w):
    return nn.relu(lax.conv_general_dilated(x, w, (1, 1, 1), 'SAME', dimension_numbers=('NDHWC', 'DHWIO', 'NDHWC')))


both('conv_relu', lambda x, w: nn.relu(convolved(x, w)), 'T[32,64,64,128] T[3,3,128,128]')
both('conv_norm_relu', conv_norm_relu, 'T[32,64,64,128] T[3,3,128,128] T[128] T[128]')
both('groups_silu_conv', groups_silu_conv, 'T[32,64,64,128] T[3,3,128,128] T[128] T[128]')
both('depthwise_separable', lambda x, w, p: nn.relu(convolved(x, w, feature_group_count=128)) @ p, 'T[32,64,64,128] T[3,3,1,128] T[128,256]')
both('down_and_up', down_and_up, 'T[32,64,64,64] T[3,3,64,128] T[3,3,128,64]')
both('skipped', lambda x, y, w: convolved(nn.relu(jnp.concatenate([x, y], -1)), w), 'T[32,64,64,64] T[32,64,64,64] T[3,3,128,64]')
both('in_patches', in_patches, 'T[32,224,224,3] T[768,768] T[196,768]')
both('window_attention', window_attention, 'T[16,56,56,128] T[128,384] T[128,128]')
both('conv1d_relu', conv1d, 'T[64,16000,64] T[3,64,128]')
both('conv3d_relu', conv3d, 'T[8,32,64,64,16] T[3,3,3,16,32]')


# Steps in time.

def lstm(x, wx, wh, bias):
    def step(state, given):
        h, c = state
        i, f, g, o = jnp.split(given @ wx + h @ wh + bias, 4, -1)
        c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
        h = nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h
    zeros = jnp.zeros((64, 256), x.dtype)
    return lax.scan(step, (zeros, zeros), x.transpose(1, 0, 2))[1]


def gru(x, wx, wh):
    def step(h, given):
        reset, update, new = jnp.split(given, 3, -1)
        of_reset, of_update, of_new = jnp.split(h @ wh, 3, -1)
        update = nn.sigmoid(update + of_update)
        h = update * h + (1 - update) * jnp.tanh(new + nn.sigmoid(reset + of_reset) * of_new)
        return h, h
    return lax.scan(step, jnp.zeros((64, 256), x.dtype), (x @ wx).transpose(1, 0, 2))[1]


def state_space(x, a, b):
    def step(h, given):
        x, b = given
        h = jnp.exp(-nn.softplus(a)) * h + b * x
        return h, h
    return lax.scan(step, jnp.zeros((16, 256), x.dtype), (x.transpose(1, 0, 2), b.transpose(1, 0, 2)))[1]


def state_space_at_once(a, b):
    return lax.associative_scan(lambda x, y: (x[0] * y[0], y[0] * x[1] + y[1]), (nn.sigmoid(a), b), axis=1)[1]


def heated(u):
    def step(u, _):
        around = sum(jnp.roll(u, by, axis) for by in (1, -1) for axis in (1, 2))
        return u + 0.1 * (around - 4 * u), None
    return lax.scan(step, u, None, length=20)[0]


both('lstm', lstm, 'T[64,512,256] T[256,1024] T[256,1024] T[1024]')
both('gru', gru, 'T[64,512,256] T[256,768] T[256,768]')
both('state_space', state_space, 'T[16,2048,256] T[256] T[16,2048,256]')
both('state_space_at_once', state_space_at_once, 'T[16,2048,256] T[16,2048,256]', ['f32'])
both('heated', heated, 'T[64,256,256]', ['f32'])


# Graphs, points, optimizers.

def graph_attention(x, senders, receivers, w, a):
    h = x @ w
    logits = nn.leaky_relu(h @ a)
    edges = logits[senders] + logits[receivers]
    edges = jnp.exp(edges - jax.ops.segment_max(edges, receivers, 20000)[receivers])
    shares = edges / jax.ops.segment_sum(edges, receivers, 20000)[receivers]
    return jax.ops.segment_sum(h[senders] * shares[:, None], receivers, 20000)


def eight_layers(x, w):
    for i in range(8):
        x = nn.relu(x @ w[i])
    return x


def adam(x, w, first, second):
    gradient = jax.grad(lambda w: jnp.sum(jnp.square(x @ w)))(w)
    first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient * gradient
    return w - 0.01 * first / (jnp.sqrt(second) + 1e-8), first, second


def newton_schulz(gradient):
    x = gradient / jnp.linalg.norm(gradient)
    for _ in range(5):
        a = x @ x.T
        x = 3.4 * x + (-4.7 * a + 2 * a @ a) @ x
    return x


both('graph_convolution', lambda x, senders, receivers, w: nn.relu(jax.ops.segment_sum((x @ w)[senders], receivers, 50000)),
     'T[50000,256] s32[500000] s32[500000] T[256,256]')
both('graph_attention', graph_attention, 'T[20000,64] s32[300000] s32[300000] T[64,64] T[64]')
both('eight_layers', eight_layers, 'T[65536,64] T[8,64,64]', ['f32'])
forward('adam', adam, 'T[1024,4096] T[4096,1024] T[4096,1024] T[4096,1024]', ['f32'])
forward('newton_schulz', newton_schulz, 'T[2048,2048]')
