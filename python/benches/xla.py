"""The programs of the tests, compiled by XLA's GPU or TPU compiler without a device: bytes with ``jax.jit`` and
``memplan.jit``.

    python xla.py gpu|tpu [NAME...]      # JSON, a line each; in an environment with jax[cuda12] and libtpu

The GPU compiler needs a description of the GPU, which lies with the shared files (``MEMPLAN_SHARED``).
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

BACKEND, *NAMES = sys.argv[1:]
if BACKEND == "gpu":
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    os.environ.pop("JAX_PLATFORMS", None)
else:
    os.environ.update(
        JAX_PLATFORMS="cpu",
        TPU_SKIP_MDS_QUERY="1",
        TPU_ACCELERATOR_TYPE="v5litepod-4",
        TPU_WORKER_HOSTNAMES="localhost",
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",
    )

import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

import memplan

PYTHON = Path(__file__).parents[1]
sys.path.insert(0, str(PYTHON / "tests"))
from programs import PROGRAMS


def device() -> Any:
    """A device that need not be here."""
    if BACKEND == "tpu":
        return topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices[0]
    shared = Path(os.environ.get("MEMPLAN_SHARED", PYTHON.parents[1] / "shared"))
    h100 = (shared / "tools" / "h100.target").read_text()
    return topologies.get_topology_desc(
        platform="cuda", topology_name="1x1x1", topology="1x1x1", target_config=h100
    ).devices[0]


def main() -> None:
    warnings.simplefilter("error", memplan.FallbackWarning)
    place = SingleDeviceSharding(device())
    for name in NAMES or PROGRAMS:
        fun, args, options = PROGRAMS[name]()
        specs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), args)
        row: dict[str, Any] = {"program": name, "backend": BACKEND}
        for way, jit in (("before", jax.jit), ("after", memplan.jit)):
            m = jit(fun, **options).lower(*specs).compile().memory_analysis()
            assert m is not None
            row[f"aliased_{way}"] = m.alias_size_in_bytes
            row[way] = m.argument_size_in_bytes + m.output_size_in_bytes - m.alias_size_in_bytes + m.temp_size_in_bytes
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
