#!/usr/bin/env python3
"""Makes tests/hlo/policies: a small language model as written, and under policies of jax.checkpoint, as JAX lowers them.

usage: make_policy_cases.py     with JAX 0.12.0.1 (`scripts/truth/environment.py` prints the python)
"""

import functools
import pathlib
import re

import jax
import jax.numpy as jnp

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "hlo" / "policies"
LAYERS, BATCH, LENGTH, BLOCKS, WIDTH, WORDS = 3, 4, 64, 4, 64, 512
KEEP = jax.checkpoint_policies


def norm(x):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def attention(q, k, v):
    # A mask of constants, in a function that JAX calls.
    scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), jnp.einsum("btd,bsd->bts", q, k), -1e9)
    return jnp.einsum("bts,bsd->btd", jax.nn.softmax(scores, -1), v)


def layer(p, x):
    h = norm(x)
    x = x + attention(h @ p["q"], h @ p["k"], h @ p["v"]) @ p["o"]
    # An addition in silu's own function, on the line of the layer's result.
    return x + (jax.nn.silu(norm(x) @ p["gate"]) * (norm(x) @ p["up"])) @ p["down"]


def layer_norm_last(p, x):
    # As in BERT: the function ends in another one, which it calls twice.
    x = norm(x + attention(x @ p["q"], x @ p["k"], x @ p["v"]) @ p["o"])
    return norm(x + (jax.nn.silu(x @ p["gate"]) * (x @ p["up"])) @ p["down"])


def layer_with_gain(p, x):
    # The derivative of relu reads zeros, and the result of the layer what is made of a weight alone.
    x = norm(x + attention(x @ p["q"], x @ p["k"], x @ p["v"]) @ p["o"])
    return norm(x + jax.nn.relu(x @ p["gate"]) @ p["down"]) * p["gain"]


def layer_in_blocks(p, x):
    # Blocks of queries in a loop, which is checkpointed already.
    h = norm(x)
    k, v = h @ p["k"], h @ p["v"]
    blocks = (h @ p["q"]).reshape(BATCH, BLOCKS, LENGTH // BLOCKS, WIDTH).swapaxes(0, 1)
    of_block = jax.checkpoint(lambda q: jax.nn.softmax(jnp.einsum("btd,bsd->bts", q, k), -1) @ v)
    y = jax.lax.map(of_block, blocks).swapaxes(0, 1).reshape(x.shape)
    return x + y @ p["o"] + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]


def loss(one, p, words):
    # One embedding for both ends crosses all layers.
    x = p["embedding"][words]
    for q in p["layers"]:
        x = one(q, x)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(norm(x) @ p["embedding"].T), words[..., None], -1)
    return -chosen.mean()


def step(one, around, p, words):
    return jax.tree.map(lambda p, g: p - 0.1 * g, p, jax.grad(around(functools.partial(loss, one)))(p, words))


def main():
    shape = lambda *extents: jax.ShapeDtypeStruct(extents, jnp.float32)
    widths = dict(q=WIDTH, k=WIDTH, v=WIDTH, o=WIDTH, gate=4 * WIDTH, up=4 * WIDTH)
    weights = {name: shape(WIDTH, width) for name, width in widths.items()} | dict(down=shape(4 * WIDTH, WIDTH))
    words = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
    no_batch = functools.partial(jax.checkpoint, policy=KEEP.dots_with_no_batch_dims_saveable)
    as_it_is = lambda function: function
    for name, (one, of_loss) in dict(
        written=(layer, as_it_is),
        layer=(jax.checkpoint(layer), as_it_is),
        layer_dots_with_no_batch_dims=(no_batch(layer), as_it_is),
        loss_dots=(layer, functools.partial(jax.checkpoint, policy=KEEP.dots_saveable)),
        loss_dots_with_no_batch_dims=(layer, no_batch),
        written_norm_last=(layer_norm_last, as_it_is),
        layer_norm_last=(jax.checkpoint(layer_norm_last), as_it_is),
        written_with_gain=(layer_with_gain, as_it_is),
        layer_with_gain=(jax.checkpoint(layer_with_gain), as_it_is),
        written_in_blocks=(layer_in_blocks, as_it_is),
        layer_in_blocks=(jax.checkpoint(layer_in_blocks), as_it_is),
    ).items():
        of_layer = weights | (dict(gain=shape(WIDTH)) if name.endswith("gain") else {})
        parameters = dict(embedding=shape(WORDS, WIDTH), layers=[of_layer] * LAYERS)
        traced = jax.jit(functools.partial(step, one, of_loss)).lower(parameters, words)
        # Lines are read of programs as written alone.
        text = traced.as_text("hlo", debug_info=name.startswith("written"))
        (FOLDER / f"{name}.hlo").write_text(re.sub(r'"[^"]*/([^"/]*\.py)"', r'"\1"', text))


if __name__ == "__main__":
    main()
