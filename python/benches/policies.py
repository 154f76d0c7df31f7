"""Ten models in four frameworks: bytes as they are written, by ``memplan.policy``, by ``memplan.rewrite`` and by both,
as memplan expects them and as XLA says, which compiles for a GPU without one.

    python policies.py [NAME...]         # a table; in an environment with jax-cuda12-plugin and jax-cuda12-pjrt
    python policies.py --write           # puts it into docs/frameworks.md
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

import tables
import xla_compilers

if __name__ == "__main__":
    xla_compilers.prepare("gpu")

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax

import memplan

WIDTH, LAYERS, LENGTH, BATCH, WORDS = 256, 8, 256, 16, 1024
X = jax.ShapeDtypeStruct((BATCH, LENGTH, WIDTH), jnp.float32)

#: A step, its arguments, the jit of its framework, and options of that.
Model = tuple[Callable[..., Any], tuple[Any, ...], Any, dict[str, Any]]
MODELS: dict[str, Callable[[], Model]] = {}


def model(make: Callable[[], Model]) -> Callable[[], Model]:
    MODELS[make.__name__] = make
    return make


def normalized(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("btd,bsd->bts", q, k) / WIDTH**0.5
    scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e9)
    return jnp.einsum("bts,bsd->btd", jax.nn.softmax(scores), v)


def layer(x: Any, p: Any) -> Any:
    y = normalized(x)
    q = y @ p["q"]
    k = y @ p["k"]
    v = y @ p["v"]
    mixed = attention(q, k, v)
    x = x + mixed @ p["o"]
    hidden = normalized(x) @ p["a"]
    return x + jax.nn.gelu(hidden) @ p["b"]


def shapes(*lead: int) -> dict[str, Any]:
    spec = lambda *shape: jax.ShapeDtypeStruct((*lead, *shape), jnp.float32)  # noqa: E731
    square = {name: spec(WIDTH, WIDTH) for name in "qkvo"}
    return {**square, "a": spec(WIDTH, 4 * WIDTH), "b": spec(4 * WIDTH, WIDTH)}


def sgd(loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(params: Any, *batch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradient), value

    return step


DONATED = {"donate_argnums": 0}


@model
def plain_scanned() -> Model:
    def loss(params: Any, x: Any) -> Any:
        def body(x: Any, p: Any) -> Any:
            return layer(x, p), None

        x, _ = lax.scan(body, x, params)
        return jnp.mean(x**2)

    return sgd(loss), (shapes(LAYERS), X), None, DONATED


@model
def plain_written_out() -> Model:
    def loss(params: Any, x: Any) -> Any:
        for p in params:
            x = layer(x, p)
        return jnp.mean(x**2)

    return sgd(loss), ([shapes() for _ in range(LAYERS)], X), None, DONATED


@model
def plain_lstm() -> Model:
    def cell(state: Any, x: Any, w: Any) -> Any:
        h, c = state
        gates = jnp.concatenate([h, x], -1) @ w
        i, f, g, o = jnp.split(gates, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return h, c

    def loss(w: Any, x: Any) -> Any:
        def body(state: Any, x: Any) -> Any:
            state = cell(state, x, w)
            return state, state[0]

        zeros = jnp.zeros((BATCH * 8, WIDTH))
        _, ys = lax.scan(body, (zeros, zeros), x)
        return jnp.mean(ys**2)

    spec = jax.ShapeDtypeStruct
    args = spec((2 * WIDTH, 4 * WIDTH), jnp.float32), spec((LENGTH, BATCH * 8, WIDTH), jnp.float32)
    return sgd(loss), args, None, DONATED


@model
def plain_network() -> Model:
    def block(x: Any, w: Any) -> Any:
        wide = jax.nn.gelu(x @ w["a"])
        gate = jax.nn.sigmoid(x @ w["c"])
        return normalized(x + (wide * gate) @ w["b"])

    def loss(params: Any, x: Any) -> Any:
        for w in params:
            x = block(x, w)
        return jnp.mean(x**2)

    one = {n: jax.ShapeDtypeStruct((WIDTH, 4 * WIDTH), jnp.float32) for n in "ac"}
    one["b"] = jax.ShapeDtypeStruct((4 * WIDTH, WIDTH), jnp.float32)
    return sgd(loss), ([one] * LAYERS, X), None, DONATED


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x: Any, _: Any = None) -> Any:
        y = nn.LayerNorm()(x)
        q = nn.Dense(WIDTH)(y)
        k = nn.Dense(WIDTH)(y)
        v = nn.Dense(WIDTH)(y)
        mixed = attention(q, k, v)
        x = x + nn.Dense(WIDTH)(mixed)
        hidden = nn.Dense(4 * WIDTH)(nn.LayerNorm()(x))
        return x + nn.Dense(WIDTH)(nn.gelu(hidden)), None


class LinenWrittenOut(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        for _ in range(LAYERS):
            x, _ = LinenBlock()(x)
        return x


class LinenScanned(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        blocks = nn.scan(LinenBlock, variable_axes={"params": 0}, split_rngs={"params": True}, length=LAYERS)
        return blocks()(x, None)[0]


def linen(network: nn.Module) -> Model:
    params = jax.eval_shape(network.init, jax.random.key(0), X)
    tx = optax.sgd(1e-2)

    def step(params: Any, state: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(lambda params: jnp.mean(network.apply(params, x) ** 2))(params)
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    return step, (params, jax.eval_shape(tx.init, params), X), None, {"donate_argnums": (0, 1)}


@model
def linen_written_out() -> Model:
    return linen(LinenWrittenOut())


@model
def linen_scanned() -> Model:
    return linen(LinenScanned())


class NnxBlock(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.q, self.k, self.v, self.o = (nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(4))
        self.a = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.b = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)
        self.first, self.second = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        y = self.first(x)
        q = self.q(y)
        k = self.k(y)
        v = self.v(y)
        mixed = attention(q, k, v)
        x = x + self.o(mixed)
        hidden = self.a(self.second(x))
        return x + self.b(nnx.gelu(hidden))


class NnxWrittenOut(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.blocks = nnx.List([NnxBlock(rngs) for _ in range(LAYERS)])

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x


class NnxScanned(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        @nnx.split_rngs(splits=LAYERS)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def make(rngs: nnx.Rngs) -> NnxBlock:
            return NnxBlock(rngs)

        self.blocks = make(rngs)

    def __call__(self, x: Any) -> Any:
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def forward(x: Any, block: NnxBlock) -> Any:
            return block(x)

        return forward(x, self.blocks)


def with_nnx(network: nnx.Module) -> Model:
    optimizer = nnx.Optimizer(network, optax.sgd(1e-2), wrt=nnx.Param)

    def step(network: Any, optimizer: Any, x: Any) -> Any:
        value, gradient = nnx.value_and_grad(lambda network: jnp.mean(network(x) ** 2))(network)
        optimizer.update(network, gradient)
        return value

    return step, (network, optimizer, X), nnx.jit, {"donate_argnums": (0, 1)}


@model
def nnx_written_out() -> Model:
    return with_nnx(NnxWrittenOut(nnx.Rngs(0)))


@model
def nnx_scanned() -> Model:
    return with_nnx(NnxScanned(nnx.Rngs(0)))


class EquinoxBlock(eqx.Module):
    q: Any
    k: Any
    v: Any
    o: Any
    a: Any
    b: Any

    def __init__(self, key: Any) -> None:
        keys = jax.random.split(key, 6)
        self.q, self.k, self.v, self.o = (0.1 * jax.random.normal(key, (WIDTH, WIDTH)) for key in keys[:4])
        self.a = 0.1 * jax.random.normal(keys[4], (WIDTH, 4 * WIDTH))
        self.b = 0.1 * jax.random.normal(keys[5], (4 * WIDTH, WIDTH))

    def __call__(self, x: Any) -> Any:
        y = normalized(x)
        q = y @ self.q
        k = y @ self.k
        v = y @ self.v
        mixed = attention(q, k, v)
        x = x + mixed @ self.o
        hidden = normalized(x) @ self.a
        return x + jax.nn.gelu(hidden) @ self.b


def with_equinox(network: Any, forward: Callable[..., Any]) -> Model:
    def step(network: Any, x: Any) -> Any:
        value, gradient = eqx.filter_value_and_grad(lambda network: jnp.mean(forward(network, x) ** 2))(network)
        return eqx.apply_updates(network, jax.tree.map(lambda g: -0.01 * g, gradient)), value

    return step, (network, X), None, DONATED


@model
def equinox_written_out() -> Model:
    def forward(network: Any, x: Any) -> Any:
        for block in network:
            x = block(x)
        return x

    return with_equinox([EquinoxBlock(key) for key in jax.random.split(jax.random.key(0), LAYERS)], forward)


@model
def equinox_scanned() -> Model:
    def forward(network: Any, x: Any) -> Any:
        return lax.scan(lambda x, block: (block(x), None), x, network)[0]

    return with_equinox(jax.vmap(EquinoxBlock)(jax.random.split(jax.random.key(0), LAYERS)), forward)


TARGET = "gpu-h100"


def needed_by_xla(module: memplan.Module, place: Any) -> int:
    """Bytes that XLA needs for a program."""
    total: int = xla_compilers.needed(xla_compilers.compiled(module.to_proto(), place))["total"]
    return total


def row(name: str, place: Any) -> list[str]:
    """A model: bytes that memplan says and XLA needs, and milliseconds by the cost model, in four ways."""
    fun, args, using, options = MODELS[name]()
    start = time.process_time()
    found = memplan.policy(fun, *args, target=TARGET, using=using, jit_options=options)
    seconds = time.process_time() - start
    jit = using or jax.jit
    steps = (jit(step, **options) for step in (fun, found.apply(fun)))
    written = [memplan.read(step, *args, target=TARGET) for step in steps]
    rewritten = [memplan.rewrite(module, target=TARGET) for module in written]
    cells = []
    for way in WAYS:
        which, is_rewritten = way in ("policy", "both"), way in ("rewrite", "both")
        price = rewritten[which].after if is_rewritten else rewritten[which].before
        own = needed_by_xla(rewritten[which].module if is_rewritten else written[which], place)
        cells += [f"{price.bytes / 2**20:.1f}", f"{own / 2**20:.1f}", f"{price.seconds * 1e3:.2f}"]
    made = "; ".join(map(str, found.checkpoints))
    return [name, *cells, made, f"{found.host / 2**20:.0f}", f"{seconds:.1f}"]


WAYS = ("as written", "policy", "rewrite", "both")


def main(names: list[str]) -> None:
    writes = "--write" in names
    place = xla_compilers.device("gpu")
    rows = []
    for name in [name for name in names if name != "--write"] or MODELS:
        rows.append(row(name, place))
        print(*rows[-1], sep="\t", flush=True)
    figures = [head for way in WAYS for head in (f"{way}: said", "XLA", "ms")]
    head = ["model", *figures, "policy", "on the host, MiB", "CPU s"]
    table = tables.markdown(head, ["---", *["---:"] * len(figures), "---", "---:", "---:"], rows)
    if not writes:
        print(table)
        return
    page = Path(__file__).parents[2] / "docs" / "frameworks.md"
    begin, end = "<!-- by python/benches/policies.py -->\n", "<!-- end -->"
    page.write_text(tables.put(page.read_text(), begin, end, f"\n{table}\n"))


if __name__ == "__main__":
    main(sys.argv[1:])
