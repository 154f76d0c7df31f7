#!/usr/bin/env python3
"""Programs to hold `memplan estimate` against: lowers each to HLO text in a folder. usage: estimate_programs.py FOLDER"""
import os
import sys

os.environ['JAX_PLATFORMS'] = 'cpu'
import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax import lax

WIDTH, HEADS, LAYERS, HIDDEN = 512, 8, 6, 2048
F32, BF16, S32 = jnp.float32, jnp.bfloat16, jnp.int32


# Parts of models.

def normalize(x, gain):
    wide = x.astype(F32)
    mean, variance = wide.mean(-1, keepdims=True), wide.var(-1, keepdims=True)
    return ((wide - mean) * lax.rsqrt(variance + 1e-5)).astype(x.dtype) * gain


def attention(q, k, v, mask=None):
    scores = jnp.einsum('bthd,bshd->bhts', q, k).astype(F32) / q.shape[-1] ** .5
    if mask is not None:
        scores = jnp.where(mask, scores, -1e9)
    return jnp.einsum('bhts,bshd->bthd', jax.nn.softmax(scores, -1).astype(v.dtype), v)


def heads(x):
    return x.reshape(*x.shape[:2], HEADS, WIDTH // HEADS)


def attend(p, x, y, mask=None):
    return attention(heads(x @ p['q']), heads(y @ p['k']), heads(y @ p['v']), mask).reshape(x.shape) @ p['o']


def perceptron(p, x):
    return x + jax.nn.gelu(normalize(x, p['ln2']) @ p['w1']) @ p['w2']


def encode(x, p):
    h = normalize(x, p['ln1'])
    return perceptron(p, x + attend(p, h, h))


def layers(dtype, n=LAYERS, crosses=False):
    of = lambda *extents: Shape((n, *extents), dtype)
    square = {name: of(WIDTH, WIDTH) for name in 'qkvo'}
    p = dict(ln1=of(WIDTH), ln2=of(WIDTH), w1=of(WIDTH, HIDDEN), w2=of(HIDDEN, WIDTH), **square)
    return p | (dict(ln3=of(WIDTH), cross=square) if crosses else {})


def cross_entropy(logits, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits.astype(F32)), labels[..., None], -1).mean()


# Ways of using them.

def training(loss, parameters, batch):
    """A step of Adam, parameters and state given up."""
    def step(p, m, v, t, batch):
        value, g = jax.value_and_grad(loss)(p, batch)
        m = jax.tree.map(lambda m, g: .9 * m + .1 * g.astype(F32), m, g)
        v = jax.tree.map(lambda v, g: .99 * v + .01 * jnp.square(g.astype(F32)), v, g)
        move = lambda p, m, v: (p - 1e-3 * (m / (1 - .9 ** t)) / (jnp.sqrt(v / (1 - .99 ** t)) + 1e-8)).astype(p.dtype)
        return jax.tree.map(move, p, m, v), m, v, t + 1, value
    wide = jax.tree.map(lambda leaf: Shape(leaf.shape, F32), parameters)
    return jax.jit(step, donate_argnums=(0, 1, 2)), (parameters, wide, wide, Shape((), F32), batch)


def descent(loss, parameters, batch):
    step = lambda p, batch: jax.tree.map(lambda p, g: p - .01 * g, p, jax.grad(loss)(p, batch))
    return jax.jit(step, donate_argnums=0), (parameters, batch)


# The models.

def encoder_decoder(dtype, batch=16):
    def loss(p, batch):
        x, y = p['embedding'][batch[0]], p['embedding'][batch[1]]
        x, _ = lax.scan(lambda x, q: (encode(x, q), None), x, p['encoder'])
        mask = jnp.tril(jnp.ones((y.shape[1],) * 2, bool))
        def decode(y, q):
            h = normalize(y, q['ln1'])
            y = y + attend(q, h, h, mask)
            return perceptron(q, y + attend(q['cross'], normalize(y, q['ln3']), x)), None
        y, _ = lax.scan(decode, y, p['decoder'])
        return cross_entropy(y @ p['embedding'].T, batch[1])
    parameters = dict(embedding=Shape((8000, WIDTH), dtype), encoder=layers(dtype), decoder=layers(dtype, crosses=True))
    return loss, parameters, (Shape((batch, 256), S32),) * 2


def accumulated():
    loss, parameters, (tokens, _) = encoder_decoder(F32, 4)
    def step(p, batches):
        add = lambda sum, batch: (jax.tree.map(jnp.add, sum, jax.grad(loss)(p, batch)), None)
        sum, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, p), batches)
        return jax.tree.map(lambda p, g: p - .1 * g, p, sum)
    return jax.jit(step, donate_argnums=0), (parameters, (Shape((4, *tokens.shape), S32),) * 2)


def vision_transformer():
    def loss(p, batch):
        x = batch[0].reshape(-1, 14, 16, 14, 16, 3).transpose(0, 1, 3, 2, 4, 5).reshape(-1, 196, 768)
        x = x @ p['patch'] + p['position']
        for i in range(LAYERS):
            x = encode(x, jax.tree.map(lambda leaf: leaf[i], p['layers']))
        return cross_entropy(x.mean(1) @ p['head'], batch[1])
    of = lambda *extents: Shape(extents, F32)
    parameters = dict(patch=of(768, WIDTH), position=of(196, WIDTH), layers=layers(F32), head=of(WIDTH, 1000))
    return loss, parameters, (of(32, 224, 224, 3), Shape((32,), S32))


def state_space():
    n = 16
    def loss(p, x):
        def layer(x, q):
            u, gate = jnp.split(x @ q['in'], 2, -1)
            rate = jax.nn.softplus(u @ q['rate'])
            decay = jnp.exp(rate[..., None] * -jnp.exp(q['decay']))
            drive, read = (rate * u)[..., None] * (u @ q['write'])[:, :, None, :], u @ q['read']
            def step(h, t):
                h = t[0] * h + t[1]
                return h, (h * t[2][:, None, :]).sum(-1)
            rows = [leaf.swapaxes(0, 1) for leaf in (decay, drive, read)]
            _, y = lax.scan(step, jnp.zeros((x.shape[0], WIDTH, n)), rows)
            return x + (y.swapaxes(0, 1) * jax.nn.silu(gate)) @ q['out'], None
        return (lax.scan(layer, x, p)[0] ** 2).mean()
    of = lambda *extents: Shape((4, *extents), F32)
    narrow = {name: of(WIDTH, n) for name in ('decay', 'write', 'read')}
    return loss, {'in': of(WIDTH, 2 * WIDTH), 'rate': of(WIDTH, WIDTH), 'out': of(WIDTH, WIDTH)} | narrow, of(256, WIDTH)


def decoding(scans):
    n, batch, length = 8, 8, 1024
    def run(p, caches, tokens):
        def step(i, state):
            caches, tokens = state
            def layer(x, given):
                q, (keys, values) = given
                h = normalize(x, q['ln1'])
                keys = lax.dynamic_update_slice(keys, heads(h @ q['k']), (0, i, 0, 0))
                values = lax.dynamic_update_slice(values, heads(h @ q['v']), (0, i, 0, 0))
                mixed = attention(heads(h @ q['q']), keys, values, jnp.arange(length) <= i)
                return perceptron(q, x + mixed.reshape(x.shape) @ q['o']), (keys, values)
            x = p['embedding'][lax.dynamic_slice(tokens, (0, i), (batch, 1))]
            if scans:
                x, caches = lax.scan(layer, x, (p['layers'], caches))
            else:
                caches = list(caches)
                for l in range(n):
                    x, caches[l] = layer(x, (jax.tree.map(lambda leaf: leaf[l], p['layers']), caches[l]))
            token = jnp.argmax((x @ p['embedding'].T)[:, 0], -1).astype(S32)[:, None]
            return caches, lax.dynamic_update_slice(tokens, token, (0, i + 1))
        return lax.fori_loop(0, length - 1, step, (caches, tokens))
    cache = (batch, length, HEADS, WIDTH // HEADS)
    caches = (Shape((n, *cache), BF16),) * 2 if scans else [(Shape(cache, BF16),) * 2] * n
    parameters = dict(embedding=Shape((32000, WIDTH), BF16), layers=layers(BF16, n))
    return jax.jit(run, donate_argnums=1), (parameters, caches, Shape((batch, length), S32))


def autoencoder():
    def convolve(x, kernel, stride=1):
        return lax.conv_general_dilated(x, kernel, (stride,) * 2, 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC'))
    def loss(p, x):
        y = x
        for kernel in p['down']:
            y = jax.nn.relu(convolve(y, kernel, 2))
        for kernel in p['up']:
            y = jax.nn.relu(convolve(jnp.repeat(jnp.repeat(y, 2, 1), 2, 2), kernel))
        return ((convolve(y, p['out']) - x) ** 2).mean()
    of = lambda i, o: Shape((3, 3, i, o), F32)
    parameters = dict(down=[of(3, 32), of(32, 64), of(64, 128)], up=[of(128, 64), of(64, 32), of(32, 32)], out=of(32, 3))
    return loss, parameters, Shape((32, 128, 128, 3), F32)


def gated_recurrence():
    def loss(p, x):
        def step(h, x):
            gate = lambda a, b: jax.nn.sigmoid(x @ p[a] + h @ p[b])
            update, reset = gate('xz', 'hz'), gate('xr', 'hr')
            h = (1 - update) * jnp.tanh(x @ p['xn'] + (reset * h) @ p['hn']) + update * h
            return h, h
        return ((lax.scan(step, jnp.zeros((128, WIDTH)), x)[1] @ p['out']) ** 2).mean()
    names = ('xz', 'hz', 'xr', 'hr', 'xn', 'hn', 'out')
    return loss, {name: Shape((WIDTH, WIDTH), F32) for name in names}, Shape((64, 128, WIDTH), F32)


def mixer():
    def loss(p, x):
        for i in range(4):
            q = jax.tree.map(lambda leaf: leaf[i], p['layers'])
            h = normalize(x, q['ln1']).swapaxes(1, 2)
            x = perceptron(q, x + (jax.nn.gelu(h @ q['a']) @ q['b']).swapaxes(1, 2))
        return (x @ p['head']).var()
    of = lambda *extents: Shape((4, *extents), F32)
    mixing = dict(ln1=of(WIDTH), ln2=of(WIDTH), a=of(196, 256), b=of(256, 196), w1=of(WIDTH, HIDDEN), w2=of(HIDDEN, WIDTH))
    return loss, dict(layers=mixing, head=Shape((WIDTH, 1000), F32)), Shape((32, 196, WIDTH), F32)


def bodies():
    def step(state, _):
        x, v = state
        apart = x[:, None] - x[None]
        v = v + .01 * (apart / ((apart ** 2).sum(-1) + .1)[..., None] ** 2).sum(1)
        return (x + .01 * v, v), x
    return jax.jit(lambda x, v: lax.scan(step, (x, v), None, length=100)), (Shape((1024, 3), F32),) * 2


def beam_search():
    batch, beams, words, length = 16, 8, 32000, 64
    def search(state, weights):
        def step(i, given):
            sequences, scores, state = given
            all_scores = scores[..., None] + jax.nn.log_softmax(jnp.tanh(state) @ weights)
            scores, best = lax.top_k(all_scores.reshape(batch, beams * words), beams)
            pick = lambda leaf: jnp.take_along_axis(leaf, (best // words)[..., None], 1)
            word = best % words
            return pick(sequences).at[:, :, i].set(word), scores, pick(state) + word[..., None] * 1e-3
        begin = jnp.zeros((batch, beams, length), S32), jnp.zeros((batch, beams)), state
        return lax.fori_loop(0, length, step, begin)
    return jax.jit(search), (Shape((batch, beams, 256), F32), Shape((256, words), F32))


def graph_network():
    nodes, edges, width = 4096, 32768, 64
    def loss(p, batch):
        x, sources, targets = batch
        for q in p['layers']:
            messages = jax.nn.relu(jnp.concatenate([x[sources], x[targets]], -1) @ q['message'])
            x = x + jax.ops.segment_sum(messages, targets, nodes) @ q['update']
        return ((x @ p['head']) ** 2).mean()
    of = lambda *extents: Shape(extents, F32)
    layer = dict(message=of(2 * width, width), update=of(width, width))
    return loss, dict(layers=[layer] * 3, head=of(width, 8)), (of(nodes, width), *(Shape((edges,), S32),) * 2)


def gaussian_regression():
    def predict(x, y, at, scale):
        kernel = lambda a, b: jnp.exp(-(((a[:, None] - b[None]) / scale) ** 2).sum(-1))
        factor = jnp.linalg.cholesky(kernel(x, x) + .1 * jnp.eye(len(x)))
        across = kernel(at, x)
        solved = jax.scipy.linalg.solve_triangular(factor, across.T, lower=True)
        return across @ jax.scipy.linalg.cho_solve((factor, True), y), 1 - (solved ** 2).sum(0)
    of = lambda *extents: Shape(extents, F32)
    return jax.jit(predict), (of(1024, 8), of(1024), of(512, 8), of(8))


def separable_convolutions():
    def convolve(x, kernel, groups=1):
        dimensions = ('NHWC', 'HWIO', 'NHWC')
        return lax.conv_general_dilated(x, kernel, (1, 1), 'SAME', dimension_numbers=dimensions, feature_group_count=groups)
    def loss(p, x):
        for q in p['layers']:
            y = convolve(convolve(x, q['each'], x.shape[-1]), q['across'])
            y = (y - y.mean((0, 1, 2))) * lax.rsqrt(y.var((0, 1, 2)) + 1e-5)
            x = x + jax.nn.relu(y * q['gain'])
        return (x.mean((1, 2)) @ p['head']).var()
    of = lambda *extents: Shape(extents, F32)
    layer = dict(each=of(3, 3, 1, 64), across=of(1, 1, 64, 64), gain=of(64))
    return loss, dict(layers=[layer] * 3, head=of(64, 10)), of(16, 32, 32, 64)


def policy_gradient():
    def loss(p, start):
        def step(state, noise):
            hidden = jnp.tanh(state @ p['in'])
            action = jnp.tanh(hidden @ p['out']) + .1 * noise
            state = state + .05 * jnp.sin(state + action @ p['moves'])
            return state, (state ** 2).sum(-1)
        noise = jax.random.normal(jax.random.key(0), (128, start.shape[0], 8))
        return lax.scan(step, start, noise)[1].mean()
    of = lambda *extents: Shape(extents, F32)
    return loss, {'in': of(32, 128), 'out': of(128, 8), 'moves': of(8, 32)}, of(256, 32)


PROGRAMS = {
    'accumulated_gradients': accumulated,
    'autoencoder': lambda: training(*autoencoder()),
    'beam_search': beam_search,
    'bodies_rollout': bodies,
    'decode_layers': lambda: decoding(False),
    'decode_scan': lambda: decoding(True),
    'encoder_decoder_bf16': lambda: training(*encoder_decoder(BF16)),
    'encoder_decoder_f32': lambda: training(*encoder_decoder(F32)),
    'gated_recurrence': lambda: training(*gated_recurrence()),
    'gaussian_regression': gaussian_regression,
    'graph_network': lambda: training(*graph_network()),
    'mixer': lambda: training(*mixer()),
    'policy_gradient': lambda: training(*policy_gradient()),
    'separable_convolutions': lambda: training(*separable_convolutions()),
    'state_space': lambda: descent(*state_space()),
    'vision_transformer': lambda: training(*vision_transformer()),
}


def main():
    folder = sys.argv[1]
    for name, make in PROGRAMS.items():
        function, arguments = make()
        with open(f'{folder}/{name}.hlo.txt', 'w') as out:
            out.write(function.lower(*arguments).as_text('hlo'))


if __name__ == '__main__':
    main()
