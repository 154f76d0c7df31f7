"""Programs for several devices: ``memplan.jit`` on 8 CPU devices, really run, and estimates for others."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from mesh_programs import Parts, Size, experts, mesh_of, pipeline, placed, trained, transformer
from test_jit import assert_close

import memplan


@pytest.mark.parametrize("program", [transformer, experts, pipeline])
def test_steps_really_run_with_the_same_losses(program: Callable[[Any, Size], Parts]) -> None:
    mesh = mesh_of(8)
    step, arrays, specs = program(mesh, Size())
    losses: list[list[Any]] = []
    bytes_of_one = []
    for jit in (jax.jit, memplan.jit):
        params, *data = placed(mesh, arrays, specs)
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
    # What is gathered and summed is in VMEM: libtpu 0.0.52 needs 2.58 MiB of main memory (v5e:16x16).
    assert found.total == pytest.approx(2.58 * 2**20, rel=0.1)
