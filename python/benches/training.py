"""Training with ``jax.jit`` and with ``memplan.jit`` on this machine's CPU: the same losses, in fewer bytes.

    python training.py [NAME...]     # a table
    python training.py --write       # puts it into docs/python.md

Each model trains for some steps on batches that are drawn anew, from the same weights, as written and in a form that
needs at most half of the bytes, or as few as it can. What another order of sums does to the losses is seen where each
batch has its examples in another order, and nothing else is changed. Bytes are those of XLA's CPU compiler.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.append(str(Path(__file__).parents[2] / "scripts"))
sys.path.append(str(Path(__file__).parents[1] / "tests"))

import jax
import jax.numpy as jnp
import numpy as np
import tables
from jax import lax
from programs import adam, conv, cross_entropy, layer, layer_weights, lstm_loss, normalized, weights

import memplan

STEPS, RATE = 200, 0.002
SHARE = 0.5  # of the bytes of the program as written
PAGE = Path(__file__).parents[2] / "docs" / "python.md"

#: A loss, its parameters, and what makes a batch of random numbers.
Model = tuple[Callable[..., Any], Any, Callable[[np.random.Generator], tuple[Any, ...]]]
MODELS: dict[str, Callable[[], Model]] = {}


def model(make: Callable[[], Model]) -> Callable[[], Model]:
    MODELS[make.__name__] = make
    return make


def begin(params: Any) -> tuple[Any, Any, Any, Any]:
    """The state that Adam begins with, in memory of its own, since steps give their arguments up."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return jax.tree.map(jnp.array, (params, zeros, zeros, jnp.float32(0)))


def small(params: Any) -> Any:
    """Weights that a deep network can begin with."""
    return jax.tree.map(lambda w: 0.3 * w, params)


@model
def gpt() -> Model:
    """A decoder, scanned over layers: each token is the sum of the two before it, mostly."""
    words, length = 96, 64
    params = {"layers": layer_weights(32, 4), "embedding": weights(3, words, 32), "place": weights(4, length, 32)}

    def loss(params: Any, tokens: Any) -> Any:
        x = params["embedding"][tokens[:, :-1]] + params["place"]
        x, _ = lax.scan(lambda x, p: (layer(x, p), None), x, params["layers"])
        return cross_entropy(normalized(x) @ params["embedding"].T, tokens[:, 1:])

    def batch(random: np.random.Generator) -> tuple[Any, ...]:
        tokens = random.integers(0, words, (16, length + 1))
        for i in range(2, length + 1):
            follows = (tokens[:, i - 1] + tokens[:, i - 2]) % words
            tokens[:, i] = np.where(random.random(16) < 0.9, follows, tokens[:, i])
        return (tokens,)

    return loss, small(params), batch


@model
def lstm() -> Model:
    """A recurrence over 64 steps: which of four numbers has the largest sum."""
    params = {"x": weights(0, 16, 256), "h": weights(1, 64, 256), "out": weights(2, 64, 4)}
    recurrence = lstm_loss()

    def batch(random: np.random.Generator) -> tuple[Any, ...]:
        xs = random.normal(0, 1, (64, 32, 16)).astype(np.float32)
        return xs, xs.sum(0)[:, :4].argmax(1)

    return recurrence, small(params), batch


@model
def unet() -> Model:
    """A network of convolutions that removes noise."""
    shapes = {"in": (3, 3, 3, 16), "a": (3, 3, 16, 32), "b": (3, 3, 32, 32), "up": (3, 3, 48, 16), "out": (3, 3, 16, 3)}
    params = {name: weights(i, *shape) for i, (name, shape) in enumerate(shapes.items())}

    def loss(params: Any, noisy: Any, clean: Any) -> Any:
        x = jax.nn.silu(conv(noisy, params["in"]))
        y = jax.nn.silu(conv(jax.nn.silu(conv(x, params["a"], 2)), params["b"]))
        y = jnp.repeat(jnp.repeat(y, 2, 1), 2, 2)
        y = jax.nn.silu(conv(jnp.concatenate([x, y], -1), params["up"]))
        return jnp.mean((noisy + conv(y, params["out"]) - clean) ** 2)

    def batch(random: np.random.Generator) -> tuple[Any, ...]:
        coarse = random.normal(0, 1, (8, 8, 8, 3)).astype(np.float32)
        clean = coarse.repeat(4, 1).repeat(4, 2)
        return clean + random.normal(0, 0.5, clean.shape).astype(np.float32), clean

    return loss, small(params), batch


@model
def vit() -> Model:
    """A transformer over patches, written out layer by layer: which quarter of a picture is brightest."""
    params = {"layers": [layer_weights(32) for _ in range(4)], "patch": weights(7, 48, 32), "place": weights(8, 64, 32)}
    params["out"] = weights(9, 32, 4)

    def loss(params: Any, pictures: Any, labels: Any) -> Any:
        b = pictures.shape[0]
        x = pictures.reshape(b, 8, 4, 8, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(b, 64, 48)
        x = x @ params["patch"] + params["place"]
        for p in params["layers"]:
            x = layer(x, p, mask=False)
        return cross_entropy(normalized(x).mean(1) @ params["out"], labels)

    def batch(random: np.random.Generator) -> tuple[Any, ...]:
        pictures = random.normal(0, 1, (16, 32, 32, 3)).astype(np.float32)
        labels = pictures.reshape(16, 2, 16, 2, 16, 3).sum((2, 4, 5)).reshape(16, 4).argmax(1)
        return pictures, labels

    return loss, small(params), batch


@model
def moe() -> Model:
    """Mixtures of experts, two of eight for each row, which imitate a fixed network."""
    of_layer = lambda i: {"router": weights(i, 32, 8), "a": weights(i + 9, 8, 32, 64), "b": weights(i + 19, 8, 64, 32)}  # noqa: E731
    params = [of_layer(i) for i in range(3)]
    teacher = weights(90, 32, 32)

    def experts(x: Any, p: Any) -> Any:
        gate, chosen = lax.top_k(jax.nn.softmax(x @ p["router"]), 2)
        mask = jax.nn.one_hot(chosen, 8) * gate[..., None]
        h = jax.nn.gelu(jnp.einsum("td,edf->tef", x, p["a"]))
        return jnp.einsum("tef,efd,tke->td", h, p["b"], mask)

    def loss(params: Any, x: Any) -> Any:
        y = x
        for p in params:
            y = y + experts(normalized(y), p)
        return jnp.mean((y - jnp.tanh(x @ teacher)) ** 2)

    def batch(random: np.random.Generator) -> tuple[Any, ...]:
        return (random.normal(0, 1, (256, 32)).astype(np.float32),)

    return loss, small(params), batch


def in_another_order(batch: tuple[Any, ...], axes: list[int]) -> tuple[Any, ...]:
    return tuple(np.flip(array, axis) for array, axis in zip(batch, axes, strict=True))


def losses(compiled: Any, params: Any, batches: list[tuple[Any, ...]]) -> np.ndarray:
    state = begin(params)
    found = []
    for batch in batches:
        *state, loss = compiled(*state, *batch)
        found.append(float(loss))
    return np.array(found)


def needed(compiled: Any) -> int:
    """Arguments, results and temporaries, in bytes."""
    said = compiled.memory_analysis()
    return int(
        said.argument_size_in_bytes + said.output_size_in_bytes - said.alias_size_in_bytes + said.temp_size_in_bytes
    )


def row(name: str) -> list[str]:
    loss, params, make = MODELS[name]()
    random = np.random.default_rng(0)
    batches = [make(random) for _ in range(STEPS)]
    examples = batches[0][-1].shape[0]
    axes = [array.shape.index(examples) for array in batches[0]]
    reordered = [in_another_order(batch, axes) for batch in batches]
    arguments = (*begin(params), *batches[0])
    options: dict[str, Any] = {"donate_argnums": (0, 1, 2)}
    as_written = jax.jit(adam(loss, RATE), **options).lower(*arguments).compile()
    limit = int(SHARE * needed(as_written))
    levers: list[str] = []

    def report(said: memplan.Rewritten) -> None:
        levers.extend(step.name for step in said.steps if step.is_kept)

    with warnings.catch_warnings():
        # Where half is too little, it is as small as it gets.
        warnings.simplefilter("ignore", memplan.LimitWarning)
        rewritten = (
            memplan.jit(adam(loss, RATE), memory_limit=limit, report=report, **options).lower(*arguments).compile()
        )
    meant = losses(as_written, params, batches)
    others = losses(rewritten, params, batches), losses(as_written, params, reordered)
    apart = [np.abs(found - meant) / np.abs(meant) for found in others]
    before, after = needed(as_written), needed(rewritten)
    return [
        name,
        f"{before / 1e6:.2f}",
        f"{after / 1e6:.2f}",
        f"{after / before:.2f}",
        f"{meant[0]:.4f}",
        f"{meant[-1]:.4f}",
        *(f"{difference.max():.0e}" for difference in apart),
        ", ".join(levers) or "nothing",
    ]


def main() -> None:
    names = [name for name in sys.argv[1:] if not name.startswith("--")] or list(MODELS)
    rows = []
    for name in names:
        rows.append(row(name))
        print(*rows[-1], sep="\t", flush=True)
    head = ["model", "`jax.jit`, MB", "`memplan.jit`, MB", "", "first loss", f"loss after {STEPS}"]
    head += ["largest difference of losses", "examples reordered", "levers"]
    table = tables.markdown(head, ["---"] + ["---:"] * 7 + ["---"], rows)
    if "--write" in sys.argv:
        mark = "<!-- {} of python/benches/training.py -->".format
        PAGE.write_text(tables.put(PAGE.read_text(), mark("begin"), mark("end"), f"\n\n{table}\n"))
    else:
        print(table)


if __name__ == "__main__":
    main()
