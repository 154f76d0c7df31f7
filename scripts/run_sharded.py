#!/usr/bin/env python3
"""Runs the programs of scripts/sharded_programs.py, small, on all devices: partitioned by memplan in its evaluator, and by JAX.

    python3 scripts/run_sharded.py [NAME...]        (a python with jax)

`memplan run` makes the program of one device, runs it on all of them, each with its part of the inputs, and puts the results
together. JAX runs the program as it is written on 8 CPU devices, `shard_map` and all. Every element is to differ by no more than
TOLERANCE of the largest one of its array, since sums are over devices in another order. Status 1 where one differs.
"""

import os
import subprocess
import sys
import tempfile

names = sys.argv[1:]
sys.argv.append("--small")
import sharded_programs

# After the settings of devices that the programs make.
PROGRAMS = sharded_programs.PROGRAMS
import jax
import numpy as np

MEMPLAN = os.environ.get("MEMPLAN", "target/release/memplan")
TOLERANCE = 1e-4


def inputs(arguments):
    """Numbers that do not overflow; integers are places in tables, all of which have more rows."""
    random = np.random.default_rng(1)
    one = lambda a: (
        random.integers(0, 4, a.shape) if np.issubdtype(a.dtype, np.integer) else random.normal(size=a.shape)
    )
    return [np.asarray(one(a), a.dtype) for a in arguments]


def by_memplan(lowered, given, folder):
    with open(f"{folder}/m.hlo.txt", "w", encoding="utf-8") as file:
        file.write(lowered.as_text(dialect="hlo"))
    np.savez(f"{folder}/in.npz", **{f"p{i}": array for i, array in enumerate(given)})
    command = [MEMPLAN, "-q", "run", f"{folder}/m.hlo.txt", "--inputs", f"{folder}/in.npz"]
    run = subprocess.run([*command, "--outputs", f"{folder}/out.npz"], capture_output=True, text=True, check=False)
    if run.returncode:
        return None, run.stderr.strip()
    found = np.load(f"{folder}/out.npz")
    return [found[f"o{i}"] for i in range(len(found.files))], ""


def by_jax(lowered, given):
    compiled = lowered.compile()
    shardings = jax.tree.leaves(compiled.input_shardings)
    placed = [jax.device_put(array, sharding) for array, sharding in zip(given, shardings)]
    arguments = jax.tree.unflatten(lowered.in_tree, placed)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(compiled(*arguments[0], **arguments[1]))]


def difference(found, expected):
    """The largest difference of an element, as a share of the largest element of its array."""
    if [a.shape for a in found] != [a.shape for a in expected]:
        return np.inf
    scale = lambda a: max(np.abs(a).max(initial=0.0), 1e-30)
    return max(float(np.abs(a - b).max(initial=0.0) / scale(b)) for a, b in zip(found, expected))


failed = 0
names = names or sorted(PROGRAMS)
for name in names:
    lowered = PROGRAMS[name]()
    given = inputs(jax.tree.leaves(lowered.in_avals))
    with tempfile.TemporaryDirectory() as folder:
        found, why = by_memplan(lowered, given, folder)
    off = difference(found, by_jax(lowered, given)) if found is not None else np.inf
    failed += not off <= TOLERANCE
    print(f"{name}: {why or f'{off:.1e}'}{'' if off <= TOLERANCE else '  DIFFERS'}", flush=True)
print(f"{len(names) - failed} of {len(names)} give the same")
sys.exit(failed > 0)
