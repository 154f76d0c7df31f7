"""Write the cases of `memplan diff` to tests/hlo/diff/: one small training step, each time with one thing changed.

    pip install jax
    python scripts/make_diff_cases.py [OUTDIR]

step.hlo          three layers over a scan, batch 8, parameters and momentum donated
batch.hlo         batch 16
remat.hlo         the body of the scan under jax.checkpoint
kept.hlo          nothing donated
bfloat16.hlo      activations in bfloat16
renamed.hlo       other names of functions and arguments, batch 16
"""

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import jax.numpy as jnp

jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "hlo", "diff")
LAYERS, WIDTH, LENGTH = 3, 32, 16


def layer(x, w):
    hidden = jax.nn.gelu(x @ w["up"])
    return x + hidden @ w["down"]


def loss(params, tokens, body, dtype):
    x = params["embedding"][tokens].astype(dtype)
    x, _ = jax.lax.scan(lambda x, w: (body(x, jax.tree.map(lambda a: a.astype(dtype), w)), None), x, params["layers"])
    return jnp.mean((x.astype(jnp.float32) - 1.0) ** 2)


def step(params, momentum, tokens, body=layer, dtype=jnp.float32):
    grads = jax.grad(loss)(params, tokens, body, dtype)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum


def remat(params, momentum, tokens):
    return step(params, momentum, tokens, jax.checkpoint(layer))


def bfloat16(params, momentum, tokens):
    return step(params, momentum, tokens, dtype=jnp.bfloat16)


def renamed(weights, velocity, words):
    def block(state, w):
        return state + jax.nn.gelu(state @ w["up"]) @ w["down"]

    return step(weights, velocity, words, block)


CASES = {
    "step": (step, 8, (0, 1)),
    "batch": (step, 16, (0, 1)),
    "remat": (remat, 8, (0, 1)),
    "kept": (step, 8, ()),
    "bfloat16": (bfloat16, 8, (0, 1)),
    "renamed": (renamed, 16, (0, 1)),
}


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else TESTS
    os.makedirs(out, exist_ok=True)
    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    params = {
        "embedding": array(64, WIDTH),
        "layers": {"up": array(LAYERS, WIDTH, 4 * WIDTH), "down": array(LAYERS, 4 * WIDTH, WIDTH)},
    }
    for name, (function, batch, donated) in CASES.items():
        tokens = jax.ShapeDtypeStruct((batch, LENGTH), jnp.int32)
        lowered = jax.jit(function, donate_argnums=donated).lower(params, params, tokens)
        with open(os.path.join(out, f"{name}.hlo"), "w", encoding="utf-8") as file:
            file.write(lowered.as_text(dialect="hlo", debug_info=True))


if __name__ == "__main__":
    main()
