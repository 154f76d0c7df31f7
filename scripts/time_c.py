"""Seconds of emitted C beside XLA's CPU compiler, one thread each, and the evaluator: a table.

usage: time_c.py MEMPLAN [MODULE.hlo.txt...]     (default: the small programs of tests/corpus and examples/small)
Needs numpy and jaxlib, and gcc. C is compiled with `gcc -std=c99 -O3 -march=native`.
"""
import ctypes
import math
import os
import re
import subprocess
import sys
import tempfile
import time

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import numpy as np

TYPES = {
    "f32": np.float32, "f64": np.float64, "s8": np.int8, "u8": np.uint8, "s16": np.int16, "s32": np.int32,
    "u32": np.uint32, "s64": np.int64, "u64": np.uint64, "pred": np.bool_, "bf16": np.uint16, "f16": np.float16,
}


def leaves(shapes):
    shapes = re.sub(r"/\*.*?\*/", "", shapes)
    return [(kind, [int(d) for d in dims.split(",") if d]) for kind, dims in re.findall(r"(\w+)\[([\d,]*)\]", shapes)]


def interface(path):
    """Shapes of the parameters and results."""
    with open(path) as file:
        head = file.readline()
    parameters, results = re.search(r"entry_computation_layout=\{\((.*?)\)->(.*?)\}(?:, [a-z_]+=|\n)", head).groups()
    return leaves(parameters), leaves(results)


def inputs(parameters):
    rng = np.random.default_rng(0)
    arrays = []
    for kind, dims in parameters:
        t = TYPES[kind]
        if kind in ("f32", "f64", "f16"):
            arrays.append(np.abs(rng.normal(0, 0.1, dims)).astype(t))
        elif kind == "bf16":
            arrays.append((np.abs(rng.normal(0, 0.1, dims)).astype(np.float32).view(np.uint32) >> 16).astype(t))
        else:
            arrays.append(rng.integers(0, 2, dims).astype(t))
    return arrays


def best(run, least=0.2):
    """The least time of some runs."""
    run()
    times = []
    end = time.perf_counter() + least
    while time.perf_counter() < end or len(times) < 3:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


def seconds_of_c(memplan, path, folder):
    done = subprocess.run(
        [memplan, "compile", path, "--target", "cpu", "--emit", f"c={folder}/net.c", "--format", "json", "-o", "/dev/null"],
        capture_output=True, text=True)
    if done.returncode:
        return None, done.stderr.strip().splitlines()[0]
    subprocess.run(
        ["gcc", "-std=c99", "-O3", "-march=native", "-shared", "-fPIC", f"{folder}/net.c", "-o", f"{folder}/net.so", "-lm"],
        check=True)
    parameters, results = interface(path)
    arguments = inputs(parameters)
    outputs = [np.zeros(dims, TYPES[kind]) for kind, dims in results]
    library = ctypes.CDLL(f"{folder}/net.so")
    a = (ctypes.c_void_p * (len(arguments) + 1))(*[x.ctypes.data for x in arguments])
    r = (ctypes.c_void_p * (len(outputs) + 1))(*[x.ctypes.data for x in outputs])
    return best(lambda: library.net_run(a, r)), None


def seconds_of_xla(path):
    import jax
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jaxlib import _hlo, _jax
    from jaxlib.mlir import ir
    device = jax.devices("cpu")[0]
    with open(path) as file, mlir.make_ir_context():
        proto = _hlo.hlo_module_from_text(file.read()).as_serialized_hlo_module_proto()
        module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(proto))
        options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
        program = device.client.compile_and_load(module, xla_client.DeviceList((device,)), options)
    parameters, _ = interface(path)
    arguments = inputs(parameters)
    bf16 = jax.numpy.bfloat16
    arguments = [x.view(bf16) if kind == "bf16" else x for x, (kind, _) in zip(arguments, parameters)]

    def run():
        # Donated arguments are gone after a run.
        arrays = [jax.device_put(x) for x in arguments]
        [x.block_until_ready() for x in arrays]
        begin = time.perf_counter()
        [x.block_until_ready() for x in program.execute(arrays)]
        return time.perf_counter() - begin

    run()
    return min(run() for _ in range(20))


def main():
    memplan, *paths = sys.argv[1:]
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not paths:
        corpus = sorted(os.listdir(f"{root}/tests/corpus"))
        paths = [f"{root}/tests/corpus/{name}/before.hlo.txt" for name in corpus]
        paths += [f"{root}/examples/small/{name}" for name in sorted(os.listdir(f"{root}/examples/small")) if name.endswith(".hlo.txt")]
    ratios = []
    print(f"{'program':32} {'C, µs':>10} {'XLA, µs':>10} {'ratio':>7}")
    for path in paths:
        name = os.path.basename(os.path.dirname(path)) if path.endswith("before.hlo.txt") else os.path.basename(path).split(".")[0]
        with tempfile.TemporaryDirectory() as folder:
            c, reason = seconds_of_c(memplan, path, folder)
        if c is None:
            print(f"{name:32} {reason}")
            continue
        try:
            xla = seconds_of_xla(path)
        except Exception as error:
            print(f"{name:32} {c * 1e6:10.1f}  XLA: {str(error).splitlines()[0][:80]}")
            continue
        ratios.append(c / xla)
        print(f"{name:32} {c * 1e6:10.1f} {xla * 1e6:10.1f} {c / xla:7.2f}", flush=True)
    if ratios:
        print(f"geometric mean of {len(ratios)}: {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}")


main()
