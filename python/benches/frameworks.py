"""Steps of training in frameworks on JAX, by ``memplan.jit`` in four ways, beside the framework's own jit: MiB that
XLA's CPU compiler needs, and whether the loss is the same after three steps.

    python frameworks.py [NAME...]       # those that are installed
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import memplan

WIDTH, LAYERS, ROWS = 64, 8, 2048
X = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)

#: Makes a step, given what says its loss: (step, arguments, jit, options, loss of results). Each step gives first what
#: the next one takes first, or changes its arguments in place.
STEPS: dict[str, Callable[[Any], Any]] = {}


def framework(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    STEPS[make.__name__] = make
    return make


def block(x: Any, a: Any, b: Any) -> Any:
    return x + jnp.tanh(jax.nn.softmax(x @ a) @ b)


def pure(loss: Callable[..., Any], says: Any) -> Callable[..., Any]:
    def step(params: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, x)
        says(value)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value

    return step


def stacked() -> dict[str, Any]:
    r = np.random.default_rng(1)
    draw = lambda *shape: jnp.asarray(0.1 * r.normal(size=shape), jnp.float32)  # noqa: E731
    return {"a": draw(LAYERS, WIDTH, 4 * WIDTH), "b": draw(LAYERS, 4 * WIDTH, WIDTH)}


@framework
def plain_jax(says: Any) -> Any:
    def loss(params: Any, x: Any) -> Any:
        return jnp.mean(lax.scan(lambda x, p: (block(x, p["a"], p["b"]), None), x, params)[0] ** 2)

    return pure(loss, says), (stacked(), X), jax.jit, {"donate_argnums": 0}, lambda results: results[1]


@framework
def optax(says: Any) -> Any:
    import optax

    tx = optax.adamw(1e-2)

    def loss(params: Any, x: Any) -> Any:
        return jnp.mean(lax.scan(lambda x, p: (block(x, p["a"], p["b"]), None), x, params)[0] ** 2)

    def step(state: Any, x: Any) -> Any:
        params, moments = state
        value, gradient = jax.value_and_grad(loss)(params, x)
        says(value)
        updates, moments = tx.update(gradient, moments, params)
        return (optax.apply_updates(params, updates), moments), value

    params = stacked()
    return step, ((params, tx.init(params)), X), jax.jit, {"donate_argnums": 0}, lambda results: results[1]


@framework
def linen(says: Any) -> Any:
    import flax.linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any) -> Any:
            return x + jnp.tanh(nn.Dense(WIDTH)(nn.softmax(nn.Dense(4 * WIDTH)(x)))), None

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            blocks = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=LAYERS)
            return blocks()(x, None)[0]

    network = Network()
    step = pure(lambda params, x: jnp.mean(network.apply(params, x) ** 2), says)
    return step, (network.init(jax.random.key(0), X), X), jax.jit, {"donate_argnums": 0}, lambda results: results[1]


@framework
def maxtext_like(says: Any) -> Any:
    """A decoder as MaxText writes it: `nn.scan` over `nn.remat`, whose policy saves what has MaxText's names."""
    import flax.linen as nn
    from jax.ad_checkpoint import checkpoint_name

    names = ("query_proj", "key_proj", "value_proj", "out_proj", "mlpwi_0", "mlpwi_1")

    class DecoderLayer(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any) -> Any:
            def dense(name: str, width: int, y: Any) -> Any:
                return checkpoint_name(nn.Dense(width, use_bias=False, name=name)(y), name)

            y = nn.RMSNorm()(x)
            q, k, v = (dense(name, WIDTH, y).reshape(-1, 64, WIDTH) for name in names[:3])
            mixed = jnp.einsum("bts,bsd->btd", nn.softmax(jnp.einsum("btd,bsd->bts", q, k) / WIDTH**0.5), v)
            x = x + dense("out_proj", WIDTH, mixed.reshape(x.shape))
            y = nn.RMSNorm()(x)
            return x + dense(
                "mlpwo", WIDTH, nn.silu(dense("mlpwi_0", 4 * WIDTH, y)) * dense("mlpwi_1", 4 * WIDTH, y)
            ), None

    class Decoder(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            policy = jax.checkpoint_policies.save_only_these_names(*names)
            layer = nn.remat(DecoderLayer, prevent_cse=False, policy=policy)
            layers = nn.scan(layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=LAYERS)
            return layers()(x, None)[0]

    network = Decoder()
    step = pure(lambda params, x: jnp.mean(network.apply(params, x) ** 2), says)
    return step, (network.init(jax.random.key(0), X), X), jax.jit, {"donate_argnums": 0}, lambda results: results[1]


@framework
def nnx(says: Any) -> Any:
    import optax
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.a, self.b = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return x + jnp.tanh(self.b(nnx.softmax(self.a(x))))

    @nnx.split_rngs(splits=LAYERS)
    @nnx.vmap(in_axes=(0,), out_axes=0)
    def blocks(rngs: nnx.Rngs) -> Block:
        return Block(rngs)

    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    def forward(x: Any, block: Block) -> Any:
        return block(x)

    def step(model: Any, optimizer: Any, x: Any) -> Any:
        value, gradient = nnx.value_and_grad(lambda model: jnp.mean(forward(x, model) ** 2))(model)
        says(value)
        optimizer.update(model, gradient)
        return value

    model = blocks(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)
    return step, (model, optimizer, X), nnx.jit, {"donate_argnums": (0, 1)}, lambda results: results


@framework
def equinox(says: Any) -> Any:
    import equinox as eqx

    class Block(eqx.Module):
        a: eqx.nn.Linear
        b: eqx.nn.Linear

        def __init__(self, key: Any) -> None:
            first, second = jax.random.split(key)
            self.a, self.b = eqx.nn.Linear(WIDTH, 4 * WIDTH, key=first), eqx.nn.Linear(4 * WIDTH, WIDTH, key=second)

        def __call__(self, x: Any) -> Any:
            return x + jnp.tanh(jax.vmap(self.b)(jax.nn.softmax(jax.vmap(self.a)(x))))

    def step(model: Any, x: Any) -> Any:
        forward = lambda model, x: lax.scan(lambda x, block: (block(x), None), x, model)[0]  # noqa: E731
        value, gradient = eqx.filter_value_and_grad(lambda model: jnp.mean(forward(model, x) ** 2))(model)
        says(value)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, gradient)), value

    model = eqx.filter_vmap(Block)(jax.random.split(jax.random.key(0), LAYERS))
    return step, (model, X), eqx.filter_jit, {}, lambda results: results[1]


@framework
def haiku(says: Any) -> Any:
    import haiku as hk

    def forward(x: Any) -> Any:
        stack = hk.experimental.layer_stack(LAYERS)
        layer = lambda x: x + jnp.tanh(hk.Linear(WIDTH)(jax.nn.softmax(hk.Linear(4 * WIDTH)(x))))  # noqa: E731
        return stack(layer)(x)

    network = hk.without_apply_rng(hk.transform(forward))
    step = pure(lambda params, x: jnp.mean(network.apply(params, x) ** 2), says)
    return step, (network.init(jax.random.key(0), X), X), jax.jit, {"donate_argnums": 0}, lambda results: results[1]


@framework
def keras(says: Any) -> Any:
    import keras

    keras.utils.set_random_seed(0)
    layers = [keras.layers.LSTM(WIDTH, return_sequences=True) for _ in range(2)]
    model = keras.Sequential([keras.layers.Input((ROWS // 16, WIDTH)), *layers])
    fixed = [variable.value for variable in model.non_trainable_variables]

    def loss(params: Any, x: Any) -> Any:
        results, _ = model.stateless_call(params, fixed, x.reshape(16, ROWS // 16, WIDTH), training=True)
        return jnp.mean(results**2)

    params = [jnp.array(variable.value) for variable in model.trainable_variables]
    return pure(loss, says), (params, X), jax.jit, {"donate_argnums": 0}, lambda results: results[1]


def nothing(_: Any) -> None:
    """Says nothing."""


def prints(value: Any) -> None:
    """Says the loss while the program runs."""
    jax.debug.print("loss {}", value)


def measured(make: Any, wrap: Any, says: Any) -> tuple[float, float]:
    """MiB that XLA needs, and the loss after three steps."""
    step, args, jit, options, loss_of = make(says)
    compiled = wrap(step, jit, options)
    lowered = compiled.lower(*args)
    m = getattr(lowered, "lowered", lowered).compile().memory_analysis()
    total = m.argument_size_in_bytes + m.output_size_in_bytes - m.alias_size_in_bytes + m.temp_size_in_bytes
    loss = 0.0
    for _ in range(3):
        results = compiled(*args)
        loss = float(loss_of(results))
        args = (results[0], *args[1:]) if isinstance(results, tuple) else args
    return total / 2**20, loss


def ours(step: Any, jit: Any, options: Any, **more: Any) -> Any:
    return memplan.jit(step, using=None if jit is jax.jit else jit, **options, **more)


def within(step: Any, jit: Any, options: Any) -> Any:
    inner = ours(step, jit, {})
    return jit(functools.wraps(step)(lambda *args: inner(*args)), **options)


def main(names: list[str]) -> None:
    warnings.simplefilter("error", memplan.FallbackWarning)
    warnings.simplefilter("ignore", memplan.LimitWarning)
    ways = ("its own jit", "`memplan.jit`", "inside of its jit", "with a print", "half the memory")
    print(f"| framework | {' | '.join(ways)} | losses differ by |\n|---|{'---:|' * (len(ways) + 1)}")
    for name in names or STEPS:
        make = STEPS[name]
        try:
            make(nothing)
        except ImportError:
            print(f"| {name} | not installed |" + " |" * len(ways))
            continue
        plain = measured(make, lambda step, jit, options: jit(step, **options), nothing)
        limited = functools.partial(ours, memory_limit=int(plain[0] * 2**19))
        rows = [plain, *(measured(make, *way) for way in ((ours, nothing), (within, nothing), (ours, prints)))]
        rows.append(measured(make, limited, nothing))
        apart = max(abs(loss - plain[1]) / abs(plain[1]) for _, loss in rows)
        print(f"| {name} | {' | '.join(f'{size:.2f}' for size, _ in rows)} | {apart:.1e} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
