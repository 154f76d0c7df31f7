"""Programs for the tests beside those of the examples: larger steps, and loops that write in place."""

import jax
import jax.numpy as jnp
from jax import lax
from make_examples import S32, shape


def transformer_training_step():
    """Four layers under a scan, with gradients; parameters are donated."""
    layers, width, words = 4, 16, 32

    def normalized(x):
        return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)

    def layer(x, w):
        q, k, v = jnp.split(normalized(x) @ w["qkv"], 3, axis=-1)
        scores = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k) / width**0.5)
        x = x + jnp.einsum("bqk,bkd->bqd", scores, v) @ w["out"]
        return x + jnp.tanh(normalized(x) @ w["up"]) @ w["down"], None

    def loss(params, tokens):
        x = lax.scan(layer, params["embedding"][tokens[:, :-1]], params["layers"])[0]
        logits = jax.nn.log_softmax(x @ params["embedding"].T)
        return -jnp.mean(jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1))

    def step(params, tokens):
        value, gradients = jax.value_and_grad(loss)(params, tokens)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    weights = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 32), "down": (32, width)}
    params = {
        "embedding": shape(words, width),
        "layers": {name: shape(layers, *extents) for name, extents in weights.items()},
    }
    return step, (params, shape(2, 9, dtype=S32)), {"donate_argnums": 0}


def convolution_training_step():
    """Convolutions with batch normalization and a residual connection, gradient descent; the weights are donated."""

    def convolved(x, kernel, stride=1):
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=numbers)

    def normalized(x, scale):
        mean, variance = jnp.mean(x, axis=(0, 1, 2)), jnp.var(x, axis=(0, 1, 2))
        return jax.nn.relu((x - mean) * lax.rsqrt(variance + 1e-5) * scale)

    def loss(params, x, y):
        x = normalized(convolved(x, params["in"], 2), params["scale"])
        x = x + normalized(convolved(x, params["middle"]), params["scale"])
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        logits = jnp.mean(x, axis=(1, 2)) @ params["out"]
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * jax.nn.one_hot(y, 10), axis=-1))

    def step(params, x, y):
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    params = {"in": shape(3, 3, 3, 8), "middle": shape(3, 3, 8, 8), "scale": shape(8), "out": shape(8, 10)}
    return step, (params, shape(4, 16, 16, 3), shape(4, dtype=S32)), {"donate_argnums": 0}


def half_precision_training_step():
    """Two layers in bfloat16, weights and momenta in f32 and donated."""

    def loss(params, x, y):
        half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        hidden = jnp.tanh(x.astype(jnp.bfloat16) @ half["w1"])
        return jnp.mean(((hidden @ half["w2"]).astype(jnp.float32) - y) ** 2)

    def step(params, momenta, x, y):
        gradients = jax.grad(loss)(params, x, y)
        momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, gradients)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, momenta), momenta

    params = {"w1": shape(128, 256), "w2": shape(256, 128)}
    return step, (params, params, shape(64, 128), shape(64, 128)), {"donate_argnums": (0, 1)}


def elimination():
    """Gaussian elimination: a loop over the rows of a donated matrix, each of which is written in place."""

    def run(matrix):
        def column(i, matrix):
            row = matrix[i] / (matrix[i, i] + 4.0)
            factors = jnp.where(jnp.arange(matrix.shape[0]) > i, matrix[:, i], 0.0)
            return (matrix - factors[:, None] * row).at[i].set(row)

        return lax.fori_loop(0, matrix.shape[0], column, matrix)

    return run, (shape(16, 24),), {"donate_argnums": 0}


PROGRAMS = [transformer_training_step, convolution_training_step, half_precision_training_step, elimination]
