"""``memplan.jit`` of programs for several devices: what each needs, results, donation and shardings of results."""

import functools
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from programs import saves, weights
from test_jit import assert_close

import memplan


@pytest.fixture(params=["shardy", "gspmd"])
def partitioner(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both ways in which JAX says how values are spread."""
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", request.param == "shardy")
    yield request.param
    jax.config.update("jax_use_shardy_partitioner", before)


def mesh_of(n_devices: int, axis: AxisType = AxisType.Auto) -> jax.sharding.Mesh:
    return jax.make_mesh((n_devices,), ("d",), axis_types=(axis,), devices=jax.devices()[:n_devices])


def step(w: Any, x: Any, is_explicit: bool = False) -> Any:
    """A step of training that gathers the parameters of a layer when it comes to it."""

    def loss(w: Any) -> Any:
        def layer(h: Any, w: Any) -> Any:
            w = jax.reshard(w, P(None, None)) if is_explicit else w
            return jax.nn.softmax(jnp.tanh(jnp.sin(h @ w) * 2)), None

        return jnp.mean(lax.scan(layer, x, w)[0] ** 2)

    value, gradient = jax.value_and_grad(loss)(w)
    return w - 0.1 * gradient, value


#: How parameters and the batch are spread.
WAYS = {
    "replicated": (P(), P()),
    "batch": (P(), P("d")),
    "parameters": (P(None, "d"), P("d")),
}


def compare(fun: Any, args: Any, **options: Any) -> tuple[int, int]:
    """Bytes of temporaries on one device before and after, if everything else is as it should be."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", memplan.FallbackWarning)
        ours = memplan.jit(fun, **options).lower(*args).compile()
    plain = jax.jit(fun, **options).lower(*args).compile()
    found, wanted = ours(*jax.tree.map(jnp.copy, args)), plain(*jax.tree.map(jnp.copy, args))
    assert_close(found, wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert a.sharding == b.sharding
    was, now = plain.memory_analysis(), ours.memory_analysis()
    assert now.alias_size_in_bytes == was.alias_size_in_bytes
    assert now.argument_size_in_bytes == was.argument_size_in_bytes
    assert now.output_size_in_bytes == was.output_size_in_bytes
    return was.temp_size_in_bytes, now.temp_size_in_bytes


def spread(mesh: jax.sharding.Mesh, way: str) -> tuple[Any, Any]:
    of_parameters, of_batch = (NamedSharding(mesh, spec) for spec in WAYS[way])
    return jax.device_put(weights(0, 8, 64, 64), of_parameters), jax.device_put(weights(1, 2048, 64), of_batch)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n_devices", [2, 4])
def test_training_step(n_devices: int, way: str, partitioner: str) -> None:
    before, after = compare(step, spread(mesh_of(n_devices), way), donate_argnums=0)
    assert after < 0.7 * before


@pytest.mark.parametrize("way", WAYS)
def test_explicit_axes(way: str) -> None:
    mesh = mesh_of(4, AxisType.Explicit)
    with jax.set_mesh(mesh):
        before, after = compare(functools.partial(step, is_explicit=True), spread(mesh, way), donate_argnums=0)
    assert after < 0.7 * before


def test_shardings_of_arguments_and_results() -> None:
    mesh = mesh_of(2)
    rows, whole = NamedSharding(mesh, P("d")), NamedSharding(mesh, P())
    options: dict[str, Any] = {"in_shardings": (whole, rows), "out_shardings": (rows, whole)}
    compare(lambda w, x: (x + 1, saves(x, w)), (weights(0, 64, 64), weights(1, 2048, 64)), **options)


def test_shardings_within(partitioner: str) -> None:
    mesh = mesh_of(4)

    def loss(w: Any, x: Any) -> Any:
        def layer(h: Any, w: Any) -> Any:
            h = jnp.tanh(lax.with_sharding_constraint(h, NamedSharding(mesh, P("d"))) @ w)
            return lax.with_sharding_constraint(jnp.sin(h) ** 2, NamedSharding(mesh, P("d"))), None

        return lax.scan(layer, x, w)[0].sum()

    before, after = compare(jax.grad(loss), spread(mesh, "batch"))
    assert after < 0.8 * before


def test_what_is_reported_is_of_one_device() -> None:
    reports: list[memplan.Rewritten] = []
    for n_devices in (1, 4):
        memplan.jit(step, report=reports.append).lower(*spread(mesh_of(n_devices), "batch"))
    of_one, of_four = (report.before.bytes for report in reports)
    assert 0.25 * of_one < of_four < 0.3 * of_one


def test_parts_for_each_device(partitioner: str) -> None:
    mesh = mesh_of(2)
    part = jax.shard_map(lambda x: lax.psum(jnp.sin(x), "d"), mesh=mesh, in_specs=P("d"), out_specs=P())
    x = jax.device_put(weights(0, 512, 64), NamedSharding(mesh, P("d")))
    if partitioner == "gspmd":
        with pytest.warns(memplan.FallbackWarning, match="shard_map"):
            found = memplan.jit(part)(x)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error", memplan.FallbackWarning)
            found = memplan.jit(part)(x)
    assert_close(found, jax.jit(part)(x))
