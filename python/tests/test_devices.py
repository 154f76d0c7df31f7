"""Programs for several devices: ``memplan.jit`` on 8 CPU devices, really run, and estimates for others."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from programs import weights
from test_jit import assert_close

import memplan

LAYERS, WIDTH, WIDE, TOKENS = 4, 16, 64, 128

Parts = tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]


def mesh_of(n_devices: int) -> jax.sharding.Mesh:
    return jax.make_mesh((n_devices,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[:n_devices])


def trained(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A step of gradient descent."""

    def step(params: Any, *data: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, *data)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value

    return step


def transformer(mesh: Any) -> Parts:
    """Attention and a perceptron in each layer; parameters fully sharded, gathered layer by layer."""
    keep = NamedSharding(mesh, P("d"))

    def loss(params: Any, x: Any) -> Any:
        def layer(x: Any, p: Any) -> Any:
            x = lax.with_sharding_constraint(x, keep)
            q, k, v = (x @ p[name] for name in "qkv")
            x = x + jax.nn.softmax(q @ k.swapaxes(1, 2) / WIDTH**0.5) @ v
            return lax.with_sharding_constraint(x + jnp.tanh(x @ p["up"]) @ p["down"], keep), None

        return jnp.mean(lax.scan(layer, x, params)[0] ** 2)

    shapes = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "up": (WIDTH, WIDE), "down": (WIDE, WIDTH)}
    params = {name: weights(i, LAYERS, *shape) * 0.1 for i, (name, shape) in enumerate(shapes.items())}
    specs = {name: P(None, "d") for name in shapes}
    return trained(loss), (params, weights(9, 16, TOKENS, WIDTH)), (specs, P("d"))


def experts(mesh: Any) -> Parts:
    """Tokens are exchanged with the devices of their experts, in a `shard_map`."""
    n = mesh.devices.size

    def of_one(params: Any, x: Any) -> Any:
        def layer(x: Any, p: Any) -> Any:
            sent = lax.all_to_all(x.reshape(n, -1, WIDTH), "d", 0, 0)
            got = jnp.tanh(jnp.sin(sent @ p["up"][0]) * 2) @ p["down"][0]
            return x + lax.all_to_all(got, "d", 0, 0).reshape(x.shape), None

        return lax.pmean(jnp.mean(lax.scan(layer, x, params)[0] ** 2), "d")

    specs = {"up": P(None, "d"), "down": P(None, "d")}
    loss = jax.shard_map(of_one, mesh=mesh, in_specs=(specs, P("d")), out_specs=P())
    params = {"up": weights(0, LAYERS, n, WIDTH, WIDE) * 0.1, "down": weights(1, LAYERS, n, WIDE, WIDTH) * 0.1}
    return trained(loss), (params, weights(2, 8 * TOKENS, WIDTH)), (specs, P("d"))


def pipeline(mesh: Any) -> Parts:
    """Each device has a stage, and hands what it computed to the next, in a `shard_map`."""
    n = mesh.devices.size

    def of_one(w: Any, x: Any) -> Any:
        stage = lax.axis_index("d")

        def tick(held: Any, t: Any) -> Any:
            h = jnp.where(stage == 0, x[jnp.minimum(t, n - 1)], held)
            h = jnp.tanh(jnp.sin(h @ w[0]) * 2)
            return lax.ppermute(h, "d", [(i, (i + 1) % n) for i in range(n)]), jnp.mean(h**2)

        first = lax.pcast(jnp.zeros_like(x[0]), ("d",), to="varying")
        _, means = lax.scan(tick, first, jnp.arange(2 * n))
        return lax.psum(jnp.where(stage == n - 1, means[n - 1 :].mean(), 0.0), "d")

    loss = jax.shard_map(of_one, mesh=mesh, in_specs=(P("d"), P()), out_specs=P())
    return trained(loss), (weights(0, n, WIDE, WIDE) * WIDE**-0.5, weights(1, n, TOKENS, WIDE)), (P("d"), P())


@pytest.mark.parametrize("program", [transformer, experts, pipeline])
def test_steps_really_run_with_the_same_losses(program: Callable[[Any], Parts]) -> None:
    mesh = mesh_of(8)
    step, arrays, specs = program(mesh)
    place = functools.partial(jax.tree.map, lambda array, spec: jax.device_put(array, NamedSharding(mesh, spec)))
    losses: list[list[Any]] = []
    bytes_of_one = []
    for jit in (jax.jit, memplan.jit):
        params, *data = place(arrays, specs)
        with warnings.catch_warnings():
            warnings.simplefilter("error", memplan.FallbackWarning)
            compiled = jit(step, donate_argnums=0).lower(params, *data).compile()
        bytes_of_one.append(compiled.memory_analysis().temp_size_in_bytes)
        losses.append([])
        for _ in range(3):
            params, value = compiled(params, *data)
            losses[-1].append(value)
    assert_close(losses[1], losses[0])
    assert losses[0][2] < losses[0][0]
    assert bytes_of_one[1] <= bytes_of_one[0]


def test_estimates_are_of_one_of_256_chips_that_are_not_here() -> None:
    mesh = AbstractMesh((8, 32), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)

    def of(*shape: int, spec: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))

    def loss(w: Any, x: Any) -> Any:
        return jnp.mean(jnp.tanh(x @ w) ** 2)

    step = jax.jit(trained(loss), donate_argnums=0)
    weights, batch = of(4096, 4096, spec=P("fsdp")), of(8192, 4096, spec=P(("data", "fsdp")))
    found = memplan.estimate(step, weights, batch, target="tpu-v5e")
    assert found.devices == 256
    assert found.totals.arguments == 4 * (4096 * 4096 // 32 + 8192 * 4096 // 256)
    # The weight that is gathered, and its gradient before it is scattered, are the largest.
    assert 64 << 20 < found.total < 256 << 20
