"""The programs of the tests, compiled by XLA's GPU or TPU compiler without a device: bytes with ``jax.jit`` and
``memplan.jit``.

    python xla.py gpu|tpu [NAME...]      # JSON, a line each; in an environment with jax[cuda12] and libtpu
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

PYTHON = Path(__file__).parents[1]
sys.path[:0] = [str(PYTHON / "tests"), str(PYTHON.parent / "scripts")]

import xla_compilers

BACKEND, *NAMES = sys.argv[1:]
xla_compilers.prepare(BACKEND)

import jax
from programs import PROGRAMS

import memplan


def main() -> None:
    warnings.simplefilter("error", memplan.FallbackWarning)
    place = xla_compilers.sharding(BACKEND)
    for name in NAMES or PROGRAMS:
        fun, args, options = PROGRAMS[name]()
        specs = xla_compilers.placed(args, place)
        row: dict[str, Any] = {"program": name, "backend": BACKEND}
        for way, jit in (("before", jax.jit), ("after", memplan.jit)):
            m = jit(fun, **options).lower(*specs).compile().memory_analysis()
            assert m is not None
            row[f"aliased_{way}"] = m.alias_size_in_bytes
            row[way] = m.argument_size_in_bytes + m.output_size_in_bytes - m.alias_size_in_bytes + m.temp_size_in_bytes
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
