"""Write real programs to examples/*.hlo.txt, as JAX hands them to XLA: small ones, and a training step of GPT-2.

    pip install "jax[cpu]"
    python scripts/make_examples.py [OUTDIR]

The files are in the repository, so that nothing here needs JAX. They change with JAX's version only.
"""

import gzip
import os
import re
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
import jax
import jax.numpy as jnp
from jax import lax

# No path of this machine in what is written.
jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")

F32, S32 = jnp.float32, jnp.int32


def shape(*extents, dtype=F32):
    return jax.ShapeDtypeStruct(extents, dtype)


def mlp_training_step():
    """Two layers, gradient descent; the weights are donated."""

    def loss(params, x, y):
        hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
        logits = hidden @ params["w2"] + params["b2"]
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * jax.nn.one_hot(y, 10), axis=-1))

    def step(params, x, y):
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    params = {"w1": shape(64, 128), "b1": shape(128), "w2": shape(128, 10), "b2": shape(10)}
    return step, (params, shape(32, 64), shape(32, dtype=S32)), {"donate_argnums": 0}


def convolutions():
    """Three convolutions with bias, activation and pooling."""

    def net(kernels, x):
        for kernel in kernels:
            x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = lax.reduce_window(jax.nn.relu(x), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return jnp.mean(x, axis=(1, 2))

    return net, ([shape(3, 3, 3, 8), shape(3, 3, 8, 16), shape(3, 3, 16, 16)], shape(2, 32, 32, 3)), {}


def attention():
    """Causal attention with several heads."""

    def attend(q, k, v):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
        mask = jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool))
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v)

    return attend, (shape(2, 32, 4, 16),) * 3, {}


def lstm():
    """A recurrent network: a scan over time."""

    def run(weights, xs):
        def cell(state, x):
            h, c = state
            i, f, g, o = jnp.split(x @ weights["x"] + h @ weights["h"] + weights["b"], 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((xs.shape[1], 32))
        return lax.scan(cell, (zeros, zeros), xs)

    return run, ({"x": shape(16, 128), "h": shape(32, 128), "b": shape(128)}, shape(12, 4, 16)), {}


def kmeans():
    """Lloyd's algorithm: a loop until the centers stay."""

    def run(points, centers):
        def step(state):
            old, new, i = state
            distances = jnp.sum((points[:, None] - new[None]) ** 2, axis=-1)
            member = jax.nn.one_hot(jnp.argmin(distances, axis=1), new.shape[0])
            counts = jnp.maximum(jnp.sum(member, axis=0), 1.0)
            return new, member.T @ points / counts[:, None], i + 1

        def go_on(state):
            old, new, i = state
            return (i < 20) & (jnp.max(jnp.abs(old - new)) > 1e-4)

        return lax.while_loop(go_on, step, (centers + 1.0, centers, 0))[1]

    return run, (shape(128, 8), shape(4, 8)), {}


def decode_with_cache():
    """Four tokens of a decoder; the cache of keys and values is donated and written in place."""

    def run(weights, cache, x, position):
        def one(state, _):
            (keys, values), x, position = state
            q, k, v = jnp.split(x @ weights["qkv"], 3, axis=-1)
            keys = lax.dynamic_update_slice(keys, k[:, None], (0, position, 0))
            values = lax.dynamic_update_slice(values, v[:, None], (0, position, 0))
            scores = jnp.einsum("bd,btd->bt", q, keys) / 4.0
            scores = jnp.where(jnp.arange(keys.shape[1]) <= position, scores, -1e9)
            x = x + jnp.einsum("bt,btd->bd", jax.nn.softmax(scores), values) @ weights["out"]
            return ((keys, values), x, position + 1), None

        return lax.scan(one, (cache, x, position), None, length=4)[0]

    cache = (shape(2, 64, 16), shape(2, 64, 16))
    weights = {"qkv": shape(16, 48), "out": shape(16, 16)}
    return run, (weights, cache, shape(2, 16), shape(dtype=S32)), {"donate_argnums": 1}


def experts():
    """A mixture of experts: top-k, gather and scatter."""

    def run(router, experts, x):
        gates, chosen = lax.top_k(jax.nn.softmax(x @ router), 2)
        picked = jnp.einsum("td,tkdf->tkf", x, experts[chosen])
        mixed = jnp.sum(picked * gates[..., None], axis=1)
        load = jnp.zeros((router.shape[1],)).at[chosen.reshape(-1)].add(1.0)
        return mixed, load

    return run, (shape(16, 4), shape(4, 16, 16), shape(32, 16)), {}


def spectrum():
    """A Fourier transform, and the strongest frequencies by sorting."""

    def run(signal):
        power = jnp.abs(jnp.fft.rfft(signal)) ** 2
        order = jnp.argsort(-power, axis=-1)
        return jnp.take_along_axis(power, order, axis=-1)[:, :8], order[:, :8]

    return run, (shape(4, 128),), {}


def branches():
    """A conditional and a switch."""

    def run(x, w, flag, i):
        y = lax.cond(flag, lambda x: jnp.tanh(x @ w), lambda x: x @ w.T, x)
        return lax.switch(i, [jnp.sin, lambda y: y * y + 1.0, lambda y: jnp.cumsum(y, axis=0)], y)

    return run, (shape(16, 16), shape(16, 16), shape(dtype=jnp.bool_), shape(dtype=S32)), {}


def gpt_training_step():
    """GPT-2 small: twelve layers in a scan, eight sequences of 1,024 tokens, Adam; weights and moments are donated."""
    layers, width, heads, vocabulary, tokens = 12, 768, 12, 50_257, (8, 1024)

    def norm(x, scale):
        x = x - jnp.mean(x, axis=-1, keepdims=True)
        return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * scale

    def attend(x, weights):
        q, k, v = jnp.split(x @ weights["qkv"], 3, axis=-1)
        q, k, v = (a.reshape(*a.shape[:2], heads, width // heads) for a in (q, k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (width // heads) ** 0.5
        mask = jnp.tril(jnp.ones(scores.shape[2:], bool))
        attention = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        return jnp.einsum("bhqk,bkhd->bqhd", attention, v).reshape(x.shape) @ weights["out"]

    def block(x, weights):
        x = x + attend(norm(x, weights["norm1"]), weights)
        return x + jax.nn.gelu(norm(x, weights["norm2"]) @ weights["up"]) @ weights["down"], None

    def loss(params, inputs, targets):
        x = params["embedding"][inputs] + params["positions"]
        x, _ = lax.scan(block, x, params["layers"])
        logits = norm(x, params["norm"]) @ params["embedding"].T
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1))

    def adam(p, g, m, v):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        return p - 1e-4 * m / (jnp.sqrt(v) + 1e-8), m, v

    def step(state, inputs, targets):
        params, m, v = state
        value, gradients = jax.value_and_grad(loss)(params, inputs, targets)
        updated = jax.tree.map(adam, params, gradients, m, v)
        return jax.tree.transpose(jax.tree.structure(params), jax.tree.structure((0, 0, 0)), updated), value

    matrices = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
    stacked = {name: shape(layers, *extents) for name, extents in matrices.items()}
    stacked |= {"norm1": shape(layers, width), "norm2": shape(layers, width)}
    params = {"embedding": shape(vocabulary, width), "positions": shape(tokens[1], width), "norm": shape(width)}
    params["layers"] = stacked
    ids = shape(*tokens, dtype=S32)
    return step, ((params, params, params), ids, ids), {"donate_argnums": 0}


PROGRAMS = [
    gpt_training_step,
    mlp_training_step,
    convolutions,
    attention,
    lstm,
    kmeans,
    decode_with_cache,
    experts,
    spectrum,
    branches,
]


def main():
    default = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples")
    out = sys.argv[1] if len(sys.argv) > 1 else default
    for program in PROGRAMS:
        function, arguments, options = program()
        # The large one has source lines, and is compressed.
        is_large = program is gpt_training_step
        text = jax.jit(function, **options).lower(*arguments).as_text(dialect="hlo", debug_info=is_large)
        # The module is named after the function, which is called the same in most programs.
        text = re.sub(r"^HloModule \S+?,", f"HloModule {program.__name__},", text, count=1)
        assert os.path.expanduser("~") not in text, program.__name__
        path = os.path.join(out, f"{program.__name__}.hlo.txt")
        if is_large:
            with open(path + ".gz", "wb") as file:
                file.write(gzip.compress(text.encode(), mtime=0))
        else:
            assert len(text) < 60_000, program.__name__
            with open(path, "w") as file:
                file.write(text)


if __name__ == "__main__":
    main()
