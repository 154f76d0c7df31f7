#!/usr/bin/env python3
"""Sets what `memplan fit` says of one of eight devices beside what XLA needs for the program that JAX partitions for them.

    python3 scripts/check_sharding.py cpu|tpu PROGRAMS.py CORPUS NAME...        (a python with jax, for TPUs with libtpu)

Each mesh of `fit` is carried out with the specs that it gives. XLA compiles for eight CPU devices, or for a v5e with eight chips
that need not be there; its figures are those of one. Status 1 if any is off by more than 15 %.
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
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

spec = importlib.util.spec_from_file_location("programs_", programs)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
MEMPLAN = os.environ.get("MEMPLAN", "target/release/memplan")
devices = jax.devices() if backend == "cpu" else topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4").devices
MOST = 0.15


def partitioned(name, advice):
    """Bytes of one device, by XLA, with the mesh and the specs of `fit`."""
    function, arguments, options = module.PROGRAMS[name]()
    axes = {axis["name"]: axis["devices"] for axis in advice["axes"]}
    mesh = Mesh(np.array(devices).reshape(tuple(axes.values())), tuple(axes))
    specs = iter(PartitionSpec(*map(tuple, argument["spec"])) for argument in advice["arguments"])
    place = lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=NamedSharding(mesh, next(specs)))
    placed = jax.tree.map(place, tuple(arguments))
    state = jax.tree.map(lambda a: a.sharding, placed[:4])
    results = (*state, NamedSharding(mesh, PartitionSpec()))
    said = jax.jit(function, out_shardings=results, **options).lower(*placed).compile().memory_analysis()
    size = lambda kind: getattr(said, f"{kind}_size_in_bytes")
    return size("argument") + size("output") - size("alias") + size("temp")


def meshes(name):
    """What `fit` says of meshes of eight devices."""
    command = [MEMPLAN, "-q", "fit", f"{corpus}/{name}/before.hlo.txt", "--target", {"cpu": "cpu", "tpu": "tpu-v5e"}[backend]]
    command += ["--devices", str(DEVICES), "--memory-limit", "1000GiB", "--format", "json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)["changes"]


failed = False
print("| program | over 8 devices | predicted | XLA's own | off by |\n|---|---|---:|---:|---:|")
for name in names:
    for change in meshes(name):
        said, own = partitioned(name, change["mesh"]), change["total"]
        off = own / said - 1
        failed |= abs(off) > MOST
        way = ", ".join(f"{axis['name']} {axis['devices']}" for axis in change["mesh"]["axes"])
        print(f"| {name} | {way} | {own / 2**20:.1f} MiB | {said / 2**20:.1f} MiB | {100 * off:+.1f} % |", flush=True)
sys.exit(failed)
