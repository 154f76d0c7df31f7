"""What a warmed call of ``memplan.jit`` takes beside one of ``jax.jit``. ``scripts/added_seconds.py`` has what building
adds to XLA's compile time.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp

import memplan


def calls() -> None:
    """Microseconds of a call: the median of many rounds, in turns."""

    def step(params: Any, x: Any) -> Any:
        return jax.tree.map(lambda p: p + x, params)

    print("| arguments | jax.jit, µs | memplan.jit, µs |\n|---:|---:|---:|")
    for count in (1, 10, 100):
        args = ([jnp.ones(8)] * count, jnp.float32(1))
        functions = [jax.jit(step), memplan.jit(step)]
        times: list[list[float]] = [[], []]
        for _ in range(200):
            for found, function in zip(times, functions, strict=True):
                jax.block_until_ready(function(*args))
                start = time.perf_counter()
                for _ in range(20):
                    result = function(*args)
                found.append((time.perf_counter() - start) / 20)
                jax.block_until_ready(result)
        print(f"| {count + 1} | " + " | ".join(f"{1e6 * statistics.median(t):.1f}" for t in times) + " |")


if __name__ == "__main__":
    calls()
