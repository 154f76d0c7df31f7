"""What a warmed call of ``memplan.jit`` takes beside one of ``jax.jit``, and what building adds to XLA's compile time.

python overhead.py calls
python overhead.py compile [NAME...]       # training steps of the shared corpus, on XLA's CPU compiler
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp

import memplan

#: Training steps of the corpus.
STEPS = (
    "mlp_train",
    "lstm_train",
    "moe_train",
    "gpt2_train_scan",
    "gpt2_train_scan_remat",
    "unet_train",
    "resnet50_train",
    "gpt2_train_unrolled",
)


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


def compile_times(names: list[str]) -> None:
    """CPU seconds of all threads from a function to an executable, and what of that is not XLA's. They depend less than
    time does on what else the machine is busy with."""
    shared = Path(os.environ.get("MEMPLAN_SHARED", Path(__file__).parents[3] / "shared"))
    spec = importlib.util.spec_from_file_location("programs", shared / "tools" / "programs.py")
    assert spec is not None and spec.loader is not None
    programs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(programs)
    print("| program | jax.jit: lower, s | XLA, s | memplan.jit: lower, s | XLA, s | added / XLA |")
    print("|---|---:|---:|---:|---:|---:|")
    for name in names or STEPS:
        fun, args, options = programs.PROGRAMS[name]()
        row = []
        for jit in (jax.jit, memplan.jit):
            start = time.process_time()
            lowered = jit(fun, **options).lower(*args)
            lowered_at = time.process_time()
            lowered.compile()
            row += [lowered_at - start, time.process_time() - lowered_at]
            jax.clear_caches()
        cells = [name, *(f"{seconds:.2f}" for seconds in row), f"{(row[2] - row[0]) / row[1]:+.3f}"]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["compile"]:
        compile_times(sys.argv[2:])
    else:
        calls()
