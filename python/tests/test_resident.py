"""Programs that live together, beside what XLA says of each when it compiles it."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import memplan

WEIGHTS = jax.ShapeDtypeStruct((256, 1024), jnp.float32)


def prefill(weights: Any, prompt: Any) -> Any:
    hidden = jnp.tanh(prompt @ weights)
    return hidden, jnp.sin(hidden) @ weights.T


def decode(weights: Any, cache: Any, token: Any) -> Any:
    new = jnp.tanh(token @ weights)
    scores = jax.nn.softmax(new @ cache.T)
    return jax.lax.dynamic_update_slice(cache, new, (0, 0)), scores @ cache


def calls(rows: int) -> list[Any]:
    spec = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)  # noqa: E731
    step = jax.jit(decode, donate_argnums=1)
    return [(prefill, WEIGHTS, spec(rows, 256)), (step, WEIGHTS, spec(rows, 1024), spec(1, 256))]


def test_what_is_said_is_what_two_compilations_need() -> None:
    found = memplan.resident(*calls(2048), target="cpu", memory_limit="64MiB")
    beyond, arguments = [], 0
    for fun, *args in calls(2048):
        m = (fun if hasattr(fun, "lower") else jax.jit(fun)).lower(*args).compile().memory_analysis()
        beyond.append(m.output_size_in_bytes - m.alias_size_in_bytes + m.temp_size_in_bytes)
        arguments += m.argument_size_in_bytes
    # The weights are there once.
    arguments -= 256 * 1024 * 4
    assert found.arguments == arguments
    assert found.peak == pytest.approx(arguments + max(beyond), rel=0.05)
    assert found.left == (64 << 20) - found.peak
    assert "left for a cache" in str(found) and "`jit_decode`" in str(found)


def test_equal_arguments_of_different_objects_are_not_shared() -> None:
    (fun, *args), second = calls(64)
    other = (second[0], jax.ShapeDtypeStruct(WEIGHTS.shape, WEIGHTS.dtype), *second[2:])
    apart = memplan.resident((fun, *args), other, target="cpu")
    assert apart.arguments - memplan.resident((fun, *args), second, target="cpu").arguments == 256 * 1024 * 4


def test_the_largest_batch_that_fits() -> None:
    rows, found = memplan.largest(calls, target="cpu", memory_limit="64MiB")
    assert found.left is not None and found.left >= 0
    more = memplan.resident(*calls(rows + 1), target="cpu", memory_limit="64MiB").left
    assert more is not None and more < 0
    half, _ = memplan.largest(calls, target="cpu", memory_limit="64MiB", pool_share=0.5)
    assert 0.4 * rows < half < 0.55 * rows
    with pytest.raises(memplan.DoesNotFit, match="do not fit with 1"):
        memplan.largest(calls, target="cpu", memory_limit="64KiB")
