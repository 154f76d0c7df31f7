"""JAX programs of many kinds, each small enough to run here and large enough that something can be saved.

Each entry of ``PROGRAMS`` makes a function, its arguments (arrays), and options of ``jax.jit``.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Case = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
PROGRAMS: dict[str, Callable[[], Case]] = {}


def program(make: Callable[[], Case]) -> Callable[[], Case]:
    PROGRAMS[make.__name__] = make
    return make


def weights(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(0, 0.2, shape), jnp.float32)


def saves(x: Any, w: Any) -> Any:
    """A program of which something can be saved: the gradient of a loop, which keeps every step."""

    def loss(w: Any) -> Any:
        h, _ = lax.scan(lambda h, _: (jnp.sin(jax.nn.softmax(h @ w.T) @ w), None), x, None, length=32)
        return jnp.sum(h**2)

    return jax.grad(loss)(w).sum(1)


def sgd(loss: Callable[..., Any], rate: float = 0.01) -> Callable[..., Any]:
    def step(params: Any, *batch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - rate * g, params, gradient), value

    return step


def adam(loss: Callable[..., Any], rate: float = 0.01) -> Callable[..., Any]:
    def step(params: Any, m: Any, v: Any, n: Any, *batch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, *batch)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, gradient)
        v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, v, gradient)
        n = n + 1
        update = lambda p, m, v: p - rate * m / (1 - 0.9**n) / (jnp.sqrt(v / (1 - 0.99**n)) + 1e-6)  # noqa: E731
        return jax.tree.map(update, params, m, v), m, v, n, value

    return step


def adam_state(params: Any) -> tuple[Any, Any, Any, Any]:
    zeros = jax.tree.map(jnp.zeros_like, params)
    return params, zeros, jax.tree.map(jnp.ones_like, params), jnp.float32(1)


def cross_entropy(logits: Any, labels: Any) -> Any:
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1))


@program
def mlp_adam() -> Case:
    params = [weights(i, a, b) for i, (a, b) in enumerate([(64, 256), (256, 256), (256, 10)])]

    def loss(params: Any, x: Any, y: Any) -> Any:
        for w in params[:-1]:
            x = jax.nn.gelu(x @ w)
        return cross_entropy(x @ params[-1], y)

    return adam(loss), (*adam_state(params), weights(9, 512, 64), jnp.arange(512) % 10), {"donate_argnums": (0, 1, 2)}


def normalized(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def layer(x: Any, p: Any, mask: bool = True) -> Any:
    length, width = x.shape[-2:]
    y = normalized(x)
    q, k, v = (y @ p[n] for n in "qkv")
    scores = jnp.einsum("btd,bsd->bts", q, k) / np.sqrt(width)
    if mask:
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    x = x + jnp.einsum("bts,bsd->btd", jax.nn.softmax(scores), v) @ p["o"]
    return x + jax.nn.gelu(normalized(x) @ p["a"]) @ p["b"]


def layer_weights(width: int, *lead: int) -> dict[str, jax.Array]:
    square = {n: weights(ord(n), *lead, width, width) for n in "qkvo"}
    return {**square, "a": weights(1, *lead, width, 4 * width), "b": weights(2, *lead, 4 * width, width)}


@program
def transformer_scanned() -> Case:
    params = {"layers": layer_weights(32, 6), "embedding": weights(3, 96, 32)}

    def loss(params: Any, tokens: Any) -> Any:
        x, _ = lax.scan(lambda x, p: (layer(x, p), None), params["embedding"][tokens[:, :-1]], params["layers"])
        return cross_entropy(x @ params["embedding"].T, tokens[:, 1:])

    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 96, (4, 129)))
    return adam(loss), (*adam_state(params), tokens), {"donate_argnums": (0, 1, 2)}


@program
def transformer_unrolled() -> Case:
    params = [layer_weights(32) for _ in range(3)]

    def loss(params: Any, x: Any, y: Any) -> Any:
        for p in params:
            x = layer(x, p)
        return jnp.mean((x - y) ** 2)

    return sgd(loss), (params, weights(5, 4, 128, 32), weights(6, 4, 128, 32)), {"donate_argnums": 0}


@program
def encoder_decoder() -> Case:
    params = {"encoder": layer_weights(32, 3), "decoder": layer_weights(32, 3), "cross": weights(4, 3, 32, 32)}

    def loss(params: Any, source: Any, target: Any) -> Any:
        x, _ = lax.scan(lambda x, p: (layer(x, p, mask=False), None), source, params["encoder"])
        memory = normalized(x)

        def decode(x: Any, p: Any) -> Any:
            x = layer(x, p[0])
            scores = jnp.einsum("btd,bsd->bts", normalized(x) @ p[1], memory) / np.sqrt(32)
            return x + jnp.einsum("bts,bsd->btd", jax.nn.softmax(scores), memory), None

        x, _ = lax.scan(decode, target, (params["decoder"], params["cross"]))
        return jnp.mean((x - target) ** 2)

    return sgd(loss), (params, weights(5, 2, 128, 32), weights(6, 2, 96, 32)), {"donate_argnums": 0}


def lstm_loss(keep: Callable[..., Any] = lambda cell: cell) -> Callable[..., Any]:
    """The loss of an LSTM, whose cell is transformed."""

    def loss(params: Any, xs: Any, labels: Any) -> Any:
        def cell(carry: Any, x: Any) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(x @ params["x"] + h @ params["h"], 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

        start = jnp.zeros((xs.shape[1], params["h"].shape[0]))
        (h, _), _ = lax.scan(keep(cell), (start, start), xs)
        return cross_entropy(h @ params["out"], labels)

    return loss


@program
def lstm() -> Case:
    params = {"x": weights(0, 16, 256), "h": weights(1, 64, 256), "out": weights(2, 64, 8)}
    return sgd(lstm_loss()), (params, weights(3, 64, 32, 16), jnp.arange(32) % 8), {"donate_argnums": 0}


@program
def gru_checkpointed() -> Case:
    params = {"x": weights(0, 8, 96), "h": weights(1, 32, 96)}

    def loss(params: Any, xs: Any) -> Any:
        @jax.checkpoint
        def cell(h: Any, x: Any) -> Any:
            a, b = x @ params["x"], h @ params["h"]
            z, r = jax.nn.sigmoid(a[:, :32] + b[:, :32]), jax.nn.sigmoid(a[:, 32:64] + b[:, 32:64])
            return (1 - z) * h + z * jnp.tanh(a[:, 64:] + r * b[:, 64:]), None

        return jnp.mean(lax.scan(cell, jnp.zeros((16, 32)), xs)[0] ** 2)

    return sgd(loss), (params, weights(3, 48, 16, 8)), {"donate_argnums": 0}


def conv(x: Any, w: Any, stride: int = 1) -> Any:
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@program
def residual_network() -> Case:
    params = {"stem": weights(0, 3, 3, 3, 16), "blocks": weights(1, 3, 2, 3, 3, 16, 16), "head": weights(2, 16, 10)}

    def loss(params: Any, x: Any, y: Any) -> Any:
        x = conv(x, params["stem"])
        for block in params["blocks"]:
            h = jax.nn.relu(conv(jax.nn.relu(x), block[0]))
            x = x + conv(h, block[1])
        return cross_entropy(x.mean((1, 2)) @ params["head"], y)

    return sgd(loss), (params, weights(3, 8, 24, 24, 3), jnp.arange(8)), {"donate_argnums": 0}


@program
def u_network() -> Case:
    params = {"in": weights(0, 3, 3, 3, 8), "down": weights(1, 3, 3, 8, 16), "up": weights(2, 3, 3, 24, 3)}

    def infer(params: Any, x: Any) -> Any:
        a = jax.nn.silu(conv(x, params["in"]))
        b = jax.nn.silu(conv(a, params["down"], 2))
        b = jax.image.resize(b, (*a.shape[:3], 16), "nearest")
        return conv(jnp.concatenate([a, b], -1), params["up"])

    return infer, (params, weights(3, 4, 32, 32, 3)), {}


@program
def mixture_of_experts() -> Case:
    params = {"router": weights(0, 16, 4), "a": weights(1, 4, 16, 64), "b": weights(2, 4, 64, 16)}

    def loss(params: Any, x: Any) -> Any:
        gate, chosen = lax.top_k(jax.nn.softmax(x @ params["router"]), 2)
        mask = jax.nn.one_hot(chosen, 4) * gate[..., None]
        h = jax.nn.gelu(jnp.einsum("td,edf->tef", x, params["a"]))
        return jnp.mean(jnp.einsum("tef,efd,tke->td", h, params["b"], mask) ** 2)

    return jax.grad(loss), (params, weights(3, 256, 16)), {}


@program
def key_value_decode() -> Case:
    params = layer_weights(32)

    def decode(params: Any, keys: Any, values: Any, x: Any) -> Any:
        def one(position: Any, state: Any) -> Any:
            keys, values, x = state
            keys = lax.dynamic_update_slice(keys, (x @ params["k"])[:, None], (0, position, 0))
            values = lax.dynamic_update_slice(values, (x @ params["v"])[:, None], (0, position, 0))
            scores = jnp.einsum("bd,bsd->bs", x @ params["q"], keys)
            scores = jnp.where(jnp.arange(64) <= position, scores, -1e9)
            return keys, values, jnp.einsum("bs,bsd->bd", jax.nn.softmax(scores), values)

        return lax.fori_loop(0, 16, one, (keys, values, x))

    caches = jnp.zeros((8, 64, 32)), jnp.zeros((8, 64, 32))
    return decode, (params, *caches, weights(7, 8, 32)), {"donate_argnums": (1, 2)}


@program
def k_means() -> Case:
    def cluster(x: Any, centers: Any) -> Any:
        def step(centers: Any, _: Any) -> Any:
            distances = jnp.sum((x[:, None] - centers[None]) ** 2, -1)
            nearest = jax.nn.one_hot(jnp.argmin(distances, 1), centers.shape[0])
            return (nearest.T @ x) / (nearest.sum(0)[:, None] + 1e-6), distances.min(1).sum()

        return lax.scan(step, centers, None, length=5)

    return cluster, (weights(0, 2048, 16), weights(1, 32, 16)), {"donate_argnums": 1}


@program
def conjugate_gradients() -> Case:
    def solve(matrix: Any, b: Any) -> Any:
        def body(state: Any) -> Any:
            x, r, p, rr, i = state
            ap = matrix @ p
            a = rr / (p @ ap)
            r = r - a * ap
            new = r @ r
            return x + a * p, r, r + new / rr * p, new, i + 1

        start = (jnp.zeros_like(b), b, b, b @ b, 0)
        return lax.while_loop(lambda s: (s[3] > 1e-6) & (s[4] < 20), body, start)[0]

    half = weights(0, 128, 128)
    return solve, (half @ half.T + 128 * jnp.eye(128), weights(1, 128)), {}


@program
def cholesky_regression() -> Case:
    def fit(x: Any, y: Any) -> Any:
        factor = jnp.linalg.cholesky(x.T @ x + 0.1 * jnp.eye(x.shape[1]))
        half = jax.scipy.linalg.solve_triangular(factor, x.T @ y, lower=True)
        return jax.scipy.linalg.solve_triangular(factor.T, half, lower=False)

    return fit, (weights(0, 512, 32), weights(1, 512)), {}


@program
def spectral_filter() -> Case:
    def smooth(x: Any) -> Any:
        k = jnp.fft.rfftfreq(x.shape[-1])
        return jnp.fft.irfft2(jnp.fft.rfft2(x) * jnp.exp(-k * k * 50.0), s=x.shape[-2:]), jnp.sort(x.reshape(-1))[::16]

    return smooth, (weights(0, 4, 64, 64),), {}


@program
def branches() -> Case:
    def choose(x: Any, w: Any, i: Any) -> Any:
        y = lax.switch(i, [lambda x: jnp.tanh(x @ w), lambda x: jax.nn.relu(x @ w.T), lambda x: jnp.sin(x)], x)
        return lax.cond(y.sum() > 0, lambda y: jnp.cumsum(y, 0), lambda y: jnp.sort(y, 0), y)

    return choose, (weights(0, 128, 128), weights(1, 128, 128), jnp.int32(1)), {}


@program
def dropout_network() -> Case:
    params = [weights(i, 64, 64) for i in range(4)]

    def loss(params: Any, key: Any, x: Any) -> Any:
        for w in params:
            key, use = jax.random.split(key)
            x = jnp.tanh(x @ w) * jax.random.bernoulli(use, 0.9, x.shape) / 0.9
        return jnp.mean(x**2)

    return sgd(loss), (params, jax.random.key(0), weights(9, 256, 64)), {"donate_argnums": 0}


@program
def variational_autoencoder() -> Case:
    params = {"e": weights(0, 64, 32), "d": weights(1, 16, 64)}

    def loss(params: Any, key: Any, x: Any) -> Any:
        mean, log_variance = jnp.split(x @ params["e"], 2, -1)
        z = mean + jnp.exp(0.5 * log_variance) * jax.random.normal(key, mean.shape)
        kl = -0.5 * jnp.mean(1 + log_variance - mean**2 - jnp.exp(log_variance))
        return jnp.mean((jax.nn.sigmoid(z @ params["d"]) - x) ** 2) + kl

    return sgd(loss), (params, jax.random.PRNGKey(3), weights(9, 512, 64)), {"donate_argnums": 0}


@program
def graph_network() -> Case:
    random = np.random.default_rng(0)
    senders, receivers = (jnp.asarray(random.integers(0, 128, 1024)) for _ in range(2))

    def loss(params: Any, nodes: Any) -> Any:
        for w in params:
            messages = jax.nn.relu(jnp.concatenate([nodes[senders], nodes[receivers]], -1) @ w)
            nodes = nodes + jax.ops.segment_sum(messages, receivers, 128) / 8
        return jnp.mean(nodes**2)

    return sgd(loss), ([weights(i, 32, 16) for i in range(3)], weights(9, 128, 16)), {"donate_argnums": 0}


@program
def runge_kutta() -> Case:
    def integrate(w: Any, y: Any) -> Any:
        f = lambda y: jnp.tanh(y @ w)  # noqa: E731

        def step(y: Any, _: Any) -> Any:
            a = f(y)
            b = f(y + 0.05 * a)
            c = f(y + 0.05 * b)
            d = f(y + 0.1 * c)
            return y + 0.1 / 6 * (a + 2 * b + 2 * c + d), None

        return lax.scan(step, y, None, length=20)[0]

    return jax.grad(lambda w, y: jnp.sum(integrate(w, y) ** 2)), (weights(0, 16, 16), weights(1, 128, 16)), {}


@program
def hessian_vector() -> Case:
    def loss(w: Any, x: Any) -> Any:
        return jnp.mean(jnp.tanh(jnp.tanh(x @ w) @ w) ** 2)

    def product(w: Any, v: Any, x: Any) -> Any:
        return jax.jvp(jax.grad(partial(loss, x=x)), (w,), (v,))[1]

    return product, (weights(0, 64, 64), weights(1, 64, 64), weights(2, 256, 64)), {}


@program
def quantized_matmul() -> Case:
    def infer(x: Any, w: Any, scale: Any) -> Any:
        q = jnp.clip(jnp.round(x * 16), -127, 127).astype(jnp.int8)
        return lax.dot_general(q, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32) * (scale / 16)

    w = jnp.asarray(np.random.default_rng(0).integers(-100, 100, (64, 32)), jnp.int8)
    return infer, (weights(0, 128, 64), w, jnp.float32(0.01)), {}


@program
def half_precision() -> Case:
    params = [weights(i, 64, 64).astype(jnp.bfloat16) for i in range(3)]

    def loss(params: Any, x: Any) -> Any:
        for w in params:
            x = jax.nn.gelu(x @ w)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    return sgd(loss), (params, weights(9, 256, 64).astype(jnp.bfloat16)), {"donate_argnums": 0}


@program
def blocked_attention() -> Case:
    def attend(q: Any, k: Any, v: Any) -> Any:
        def step(carry: Any, block: Any) -> Any:
            m, total, out = carry
            s = jnp.einsum("btd,bsd->bts", q, block[0])
            new = jnp.maximum(m, s.max(-1))
            p, a = jnp.exp(s - new[..., None]), jnp.exp(m - new)
            out = out * a[..., None] + jnp.einsum("bts,bsd->btd", p, block[1])
            return (new, total * a + p.sum(-1), out), None

        blocks = tuple(x.reshape(2, 4, 32, 16).swapaxes(0, 1) for x in (k, v))
        start = jnp.full((2, 128), -1e30), jnp.zeros((2, 128)), jnp.zeros((2, 128, 16))
        (_, total, out), _ = lax.scan(step, start, blocks)
        return out / total[..., None]

    return attend, tuple(weights(i, 2, 128, 16) for i in range(3)), {}


@program
def ensemble() -> Case:
    def predict(params: Any, x: Any) -> Any:
        return jax.vmap(lambda a, b: jnp.tanh(x @ a) @ b)(*params).std(0)

    return predict, ((weights(0, 8, 16, 64), weights(1, 8, 64, 4)), weights(2, 256, 16)), {}


@program
def pairwise_kernel() -> Case:
    def energy(x: Any) -> Any:
        squared = jnp.sum((x[:, None] - x[None]) ** 2, -1)
        return jnp.sum(jnp.exp(-squared) * (1 - jnp.eye(len(x))))

    return jax.grad(energy), (weights(0, 384, 8),), {"donate_argnums": 0}
