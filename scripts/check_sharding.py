#!/usr/bin/env python3
"""Sets what `memplan fit` says of one of eight devices beside what XLA needs for the program that JAX partitions for them.

    python3 scripts/check_sharding.py cpu|tpu PROGRAMS.py CORPUS NAME...        (a python with jax, for TPUs with libtpu)

Data parallel: data along the batch, state on every device. Fully sharded: besides, each array of the state along its largest dimension that eight
divides. XLA compiles for eight CPU devices, or for a v5e with eight chips that need
not be there; its figures are those of one. Status 1 if any is off by more than 15 %.
"""

import importlib.util
import json
import os
import subprocess
import sys

import xla_compilers

backend, programs, corpus, *names = sys.argv[1:]
DEVICES = 8
xla_compilers.prepare(backend)
if backend == "cpu":
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES} " + os.environ.get("XLA_FLAGS", "")
else:
    os.environ["TPU_ACCELERATOR_TYPE"] = f"v5litepod-{DEVICES}"
import jax
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

spec = importlib.util.spec_from_file_location("programs_", programs)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
MEMPLAN = os.environ.get("MEMPLAN", "target/release/memplan")
devices = jax.devices() if backend == "cpu" else topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4").devices
MESH = Mesh(devices, ("x",))
MOST = 0.15


def along(array, dimension):
    axes = [None] * len(array.shape)
    if dimension is not None:
        axes[dimension] = "x"
    return NamedSharding(MESH, PartitionSpec(*axes))


def of_state(array):
    """The largest dimension that the devices divide."""
    fitting = [d for d, n in enumerate(array.shape) if n % DEVICES == 0]
    return along(array, max(fitting, key=lambda d: (array.shape[d], -d), default=None))


def partitioned(name, is_sharded):
    function, arguments, options = module.PROGRAMS[name]()
    state = lambda a: of_state(a) if is_sharded else along(a, None)
    batch = lambda a: along(a, 0)
    shardings = tuple(jax.tree.map(batch if i >= 4 else state, a) for i, a in enumerate(arguments))
    placed = jax.tree.map(lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), tuple(arguments), shardings)
    results = shardings[:4] + (NamedSharding(MESH, PartitionSpec()),)
    said = jax.jit(function, out_shardings=results, **options).lower(*placed).compile().memory_analysis()
    size = lambda kind: getattr(said, f"{kind}_size_in_bytes")
    return size("argument") + size("output") - size("alias") + size("temp")


def predicted(name, is_sharded):
    command = [MEMPLAN, "-q", "fit", f"{corpus}/{name}/before.hlo.txt", "--target", {"cpu": "cpu", "tpu": "tpu-v5e"}[backend]]
    command += ["--devices", str(DEVICES), "--memory-limit", "1000GiB", "--format", "json"]
    changes = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)["changes"]
    shards = [change for change in changes if change["lever"] == "shard"]
    return next(c["total"] for c in shards if ("fully sharded" in c["what"]) == is_sharded and "batch" in c["what"])


failed = False
print("| program | over 8 devices | predicted | XLA's own | off by |\n|---|---|---:|---:|---:|")
for name in names:
    for is_sharded in (False, True):
        said, own = partitioned(name, is_sharded), predicted(name, is_sharded)
        off = own / said - 1
        failed |= abs(off) > MOST
        way = "fully sharded" if is_sharded else "batch"
        print(f"| {name} | {way} | {own / 2**20:.1f} MiB | {said / 2**20:.1f} MiB | {100 * off:+.1f} % |", flush=True)
sys.exit(failed)
