"""XLA's compilers for CPU, GPU (an H100) and TPU (a v5e by default), none of which needs the device.

Needs jax[cuda12] and libtpu. The environment decides which compiler a process can load, so `prepare` comes before the
first import of JAX, and one process asks one compiler.
"""

import os

BACKENDS = ["cpu", "gpu", "tpu"]

# What XLA's GPU compiler asks of a device, as NVIDIA documents it for the H100 with SXM.
H100 = """
gpu_device_info {
  cuda_compute_capability { major: 9 }
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  registers_per_block_limit: 65536
  registers_per_core_limit: 65536
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  l2_cache_size: 52428800
  memory_bandwidth: 3352320000000
  device_memory_size: 84978434048
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
runtime_version { major: 12 minor: 9 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def prepare(backend):
    """Sets what JAX reads from the environment when it is imported."""
    if backend == "gpu":
        os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    if backend == "tpu":
        os.environ.update(
            TPU_SKIP_MDS_QUERY="1",
            TPU_ACCELERATOR_TYPE="v5litepod-4",
            TPU_WORKER_HOSTNAMES="localhost",
            ALLOW_MULTIPLE_LIBTPU_LOAD="1",
        )
    # With an empty list JAX takes what there is; no other compiler may look for its device.
    os.environ["JAX_PLATFORMS"] = "" if backend == "gpu" else "cpu"


def device(backend, tpu="v5e:2x2"):
    """A GPU or TPU that need not be here."""
    from jax.experimental import topologies

    if backend == "gpu":
        topology = topologies.get_topology_desc(
            platform="cuda", topology_name="1x1x1", topology="1x1x1", target_config=H100
        )
    else:
        topology = topologies.get_topology_desc(platform="tpu", topology_name=tpu)
    return topology.devices[0]


def sharding(backend, tpu="v5e:2x2"):
    """Where arguments are said to be, so that the backend's compiler is used; None for the CPU."""
    from jax.sharding import SingleDeviceSharding

    return None if backend == "cpu" else SingleDeviceSharding(device(backend, tpu))


def placed(arguments, sharding):
    """The shapes of arguments, on the device of a sharding."""
    import jax

    if sharding is None:
        return arguments
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding), arguments)


def compiled(module, device, flags=None):
    """What the compiler of a device makes of a module, given as an HloModuleProto; flags are options of XLA by name."""
    import numpy
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jaxlib import _jax, xla_client
    from jaxlib.mlir import ir

    with mlir.make_ir_context():
        program = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(module))
        _without_tilings(program.operation)
        # The CPU is here; others need not be.
        is_here = device.platform == "cpu"
        options = compiler.get_compile_options(
            num_replicas=1,
            num_partitions=1,
            device_assignment=None if is_here else numpy.array([[device.id]]),
            env_options_overrides=flags or None,
        )
        compile_it = device.client.compile_and_load if is_here else device.client.compile
        return compile_it(program, xla_client.DeviceList((device,)), options)


def _without_tilings(operation):
    """jaxlib 0.12 writes empty tilings on custom calls with layouts, which its GPU plugin does not know."""
    for inner in (o.operation for region in operation.regions for block in region for o in block.operations):
        if inner.name == "stablehlo.custom_call" and "result_tilings" in inner.attributes:
            del inner.attributes["result_tilings"]
        _without_tilings(inner)


def needed(executable):
    """Bytes by kind, as jaxlib counts them; `total` is argument + output - alias + temp."""
    said = executable.get_compiled_memory_stats()
    kinds = ["argument", "output", "alias", "temp", "host_argument", "host_output", "host_temp"]
    found = {kind: getattr(said, f"{kind}_size_in_bytes") for kind in kinds}
    return {"total": found["argument"] + found["output"] - found["alias"] + found["temp"], **found}
