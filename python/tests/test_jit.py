"""``memplan.jit`` against ``jax.jit`` on XLA's CPU: results, memory, donation."""

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import shared_folder
from programs import PROGRAMS

import memplan

#: Rounding of sums in another order, relative to the largest element of an array.
ROUNDING = {"float64": 1e-9, "float32": 2e-4, "bfloat16": 5e-2, "float16": 5e-3}

#: Of what ``jax.jit`` needs. XLA fuses a program otherwise when it has other operations.
MOST_MEMORY, SMALL = 1.05, 64 << 10


def total(compiled: Any) -> int:
    m = compiled.memory_analysis()
    return m.argument_size_in_bytes + m.output_size_in_bytes - m.alias_size_in_bytes + m.temp_size_in_bytes


def assert_close(found: Any, wanted: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        a, b = np.asarray(a.astype(float) if a.dtype == jnp.bfloat16 else a), np.asarray(b)
        close = ROUNDING.get(str(b.dtype), 0)
        largest = float(np.max(np.abs(b.astype(np.complex128)), initial=0)) if close else 0
        np.testing.assert_allclose(a.astype(b.dtype), b, rtol=close, atol=close * largest)


def copies(args: Any) -> Any:
    return jax.tree.map(jnp.copy, args)


def compare(fun: Any, args: Any, options: dict[str, Any]) -> tuple[int, int]:
    """Bytes before and after, if everything else is as it should be."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", memplan.FallbackWarning)
        ours = memplan.jit(fun, **options).lower(*args).compile()
    plain = jax.jit(fun, **options).lower(*args).compile()
    assert_close(ours(*copies(args)), plain(*copies(args)))
    was, now = plain.memory_analysis(), ours.memory_analysis()
    assert now.alias_size_in_bytes == was.alias_size_in_bytes
    assert now.argument_size_in_bytes == was.argument_size_in_bytes
    assert now.output_size_in_bytes == was.output_size_in_bytes
    assert total(ours) <= MOST_MEMORY * total(plain) + SMALL
    return total(plain), total(ours)


#: Programs that keep much for later, and need not.
SAVED = ("transformer_scanned", "lstm", "encoder_decoder")


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    before, after = compare(*PROGRAMS[name]())
    assert after < 0.8 * before or name not in SAVED


def numerics() -> list[str]:
    folder = shared_folder()
    return sorted(path.name for path in (folder / "numerics").iterdir()) if folder else []


@pytest.mark.parametrize("name", numerics() or [pytest.param("", marks=pytest.mark.skip(reason="no shared files"))])
def test_shared_program(name: str, shared: Path) -> None:
    """Programs whose results were recorded."""
    spec = importlib.util.spec_from_file_location("shared_programs", shared / "tools" / "programs.py")
    assert spec is not None and spec.loader is not None
    programs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(programs)
    fun, specs, options = programs.PROGRAMS[name]()
    leaves, tree = jax.tree.flatten(specs)
    with np.load(shared / "numerics" / name / "inputs.npz") as inputs:
        args = jax.tree.unflatten(tree, [jnp.asarray(inputs[f"p{i}"]).astype(s.dtype) for i, s in enumerate(leaves)])
    results = jax.tree.leaves(memplan.jit(fun, **options)(*copies(args)))
    with np.load(shared / "numerics" / name / "outputs.npz") as outputs:
        assert_close(results, [jnp.asarray(outputs[f"o{i}"]) for i in range(len(results))])
