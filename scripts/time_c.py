"""The table of seconds in docs/small_devices.md: C that memplan writes beside XLA's CPU compiler, one thread each.

    cargo build --release
    pip install "jax[cpu]" tflite tflite-micro flatbuffers
    python scripts/time_c.py [--write] [--only NAME] [target/release/memplan] [MODULE.hlo.txt...]

Programs are those of tests/corpus, examples/small and scripts/make_small_models.py, and further modules as given. C is
compiled by `gcc -std=c99 -O3 -march=native`. All run on one core, in turns, and the least time of some runs counts.
XLA's is without the transfer of arguments. TFLite Micro runs the same layers from a `.tflite` file with its reference
kernels, where there is one (scripts/small_models_tflite.py).

*Promised* are the bytes that the header says: arena, copies and stack. *Resident* are the bytes of these
that a run has touched (arena and stack are painted before it), and of the variables of the object file.
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
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import make_small_models
import numpy as np
import small_models_tflite
import tables

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(ROOT, "docs", "small_devices.md")
SCRIPTS = os.path.dirname(os.path.abspath(__file__))
GCC = ["gcc", "-std=c99", "-O3", "-march=native", "-I", SCRIPTS]
HEAD = [
    "program",
    "C, µs",
    "XLA, µs",
    "C / XLA",
    "TFLite Micro, µs",
    "arena",
    "promised",
    "resident",
]
ROUNDS, LEAST = 5, 0.1
# Networks for microcontrollers.
NETWORKS = {"image_classifier", "keyword_spotting", *make_small_models.MODELS}
ALLOWED = 4096

TYPES = {
    "f32": np.float32,
    "f64": np.float64,
    "s8": np.int8,
    "u8": np.uint8,
    "s16": np.int16,
    "s32": np.int32,
    "u32": np.uint32,
    "s64": np.int64,
    "u64": np.uint64,
    "pred": np.bool_,
    "bf16": np.uint16,
    "f16": np.float16,
}

# Runs the program on a stack and in an arena that are painted, and says how much of either was touched.
HARNESS = """
#include "painted_stack.h"
#include <stdio.h>
#include "net.h"

unsigned char painted_arena[net_ARENA_BYTES + 64] __attribute__((aligned(64)));
static const void *arguments[net_ARGUMENTS + 1];
static void *results[net_RESULTS + 1];

static void *run(void *unused)
{
    net_run(arguments, results);
    return unused;
}

int main(void)
{
    static const size_t argument_bytes[] = {ARGUMENT_BYTES 0}, result_bytes[] = {RESULT_BYTES 0};
    FILE *file = fopen("in.bin", "rb");
    size_t i, touched = 0, on_stack;
    for (i = 0; i < net_ARGUMENTS; ++i) {
        void *bytes = malloc(argument_bytes[i] + 1);
        if (fread(bytes, 1, argument_bytes[i], file) != argument_bytes[i]) {
            return 9;
        }
        arguments[i] = bytes;
    }
    for (i = 0; i < net_RESULTS; ++i) {
        results[i] = calloc(1, result_bytes[i] + 1);
    }
    memset(painted_arena, 0x5a, sizeof painted_arena);
    on_stack = stack_bytes(run);
    for (i = 0; i < sizeof painted_arena; ++i) {
        touched = painted_arena[i] != 0x5a ? i + 1 : touched;
    }
    printf("%zu %zu\\n", touched, on_stack);
    return 0;
}
"""


def main():
    arguments = sys.argv[1:]
    is_written = "--write" in arguments
    only = arguments[arguments.index("--only") + 1] if "--only" in arguments else None
    arguments = [it for it in arguments if it not in ("--write", "--only", only)]
    memplan = os.path.abspath(arguments[0] if arguments else os.path.join(ROOT, "target/release/memplan"))
    rows = []
    with tempfile.TemporaryDirectory() as models:
        for name in make_small_models.MODELS if only is None else {only} & set(make_small_models.MODELS):
            make_small_models.write(models, name)
        for path in programs(models, arguments[1:]):
            name = os.path.basename(os.path.dirname(path) if path.endswith("before.hlo.txt") else path).split(".")[0]
            if only in (None, name):
                rows.append(row_of(memplan, name, path))
                print(*rows[-1], flush=True)
    text = table(rows)
    if is_written:
        page = tables.put(open(PAGE).read(), "<!-- table: scripts/time_c.py -->\n", "<!-- end of seconds -->", f"\n{text}\n")
        open(PAGE, "w").write(page)
    print(text, end="")


def programs(models, given):
    corpus, small = (
        os.path.join(ROOT, "tests/corpus"),
        os.path.join(ROOT, "examples/small"),
    )
    paths = [os.path.join(corpus, name, "before.hlo.txt") for name in sorted(os.listdir(corpus))]
    paths += [os.path.join(small, name) for name in sorted(os.listdir(small)) if name.endswith(".hlo.txt")]
    made = [os.path.join(models, f"{name}.hlo.txt") for name in make_small_models.MODELS]
    return paths + [path for path in made if os.path.exists(path)] + list(given)


def row_of(memplan, name, path):
    with tempfile.TemporaryDirectory() as folder:
        command = [
            memplan,
            "compile",
            path,
            "--target",
            "cpu",
            "--emit",
            f"c={folder}/net.c",
        ]
        command += ["--format", "json", "-o", os.devnull]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return [name, done.stderr.strip().splitlines()[0].removeprefix("error: ")]
        subprocess.run(
            [*GCC, "-shared", "-fPIC", "net.c", "-o", "net.so", "-lm"],
            cwd=folder,
            check=True,
        )
        c, xla, micro = run_of_c(path, folder), run_of_xla(path), run_of_micro(name)
        times = [best([run for run in (c, xla, micro) if run]) for _ in range(ROUNDS)]
        times = [min(column) for column in zip(*times, strict=True)]
        arena, promised, resident = bytes_of(path, folder)
        assert resident <= promised + ALLOWED, (name, promised, resident)
    shown = [f"{seconds * 1e6:,.1f}" for seconds in times]
    shown.insert(2, f"{times[0] / times[1]:.2f}")
    return [name, *shown, *([] if micro else ["-"]), arena, promised, resident]


def best(runs):
    """The least time of some runs of each, in turns."""
    times = []
    for run in runs:
        of_run, end = [], time.perf_counter() + LEAST
        while not of_run or time.perf_counter() < end:
            of_run.append(run())
        times.append(min(of_run))
    return times


def run_of_c(path, folder):
    parameters, results = interface(path)
    arguments = inputs(parameters)
    outputs = [np.zeros(dims, TYPES[kind]) for kind, dims in results]
    library = ctypes.CDLL(f"{folder}/net.so")
    a = (ctypes.c_void_p * (len(arguments) + 1))(*[x.ctypes.data for x in arguments])
    r = (ctypes.c_void_p * (len(outputs) + 1))(*[x.ctypes.data for x in outputs])

    def run(keep=(arguments, outputs)):
        begin = time.perf_counter()
        library.net_run(a, r)
        return time.perf_counter() - begin

    return run


def run_of_xla(path):
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
    arguments = [
        x.view(jax.numpy.bfloat16) if kind == "bf16" else x
        for x, (kind, _) in zip(inputs(parameters), parameters, strict=True)
    ]

    def run():
        # Donated arguments are gone after a run.
        arrays = [jax.device_put(x) for x in arguments]
        for array in arrays:
            array.block_until_ready()
        begin = time.perf_counter()
        for array in program.execute(arrays):
            array.block_until_ready()
        return time.perf_counter() - begin

    return run


def run_of_micro(name):
    """TFLite Micro with its reference kernels, of networks that there is a `.tflite` file of."""
    if name not in make_small_models.MODELS or name in make_small_models.NOT_OF_LAYERS:
        return None
    from tflite_micro.python.tflite_micro import runtime

    interpreter = runtime.Interpreter.from_bytes(small_models_tflite.model_of(name), arena_size=8 << 20)
    shape = interpreter.get_input_details(0)["shape"]
    interpreter.set_input(np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8), 0)

    def run():
        begin = time.perf_counter()
        interpreter.invoke()
        return time.perf_counter() - begin

    return run


def bytes_of(path, folder):
    """Bytes of the arena, promised, and really touched."""
    parameters, results = interface(path)
    with open(f"{folder}/in.bin", "wb") as file:
        for array in inputs(parameters):
            file.write(np.ascontiguousarray(array).tobytes())
    open(f"{folder}/host.c", "w").write(HARNESS)
    open(f"{folder}/arena.h", "w").write("extern unsigned char painted_arena[];\n#define net_ARENA painted_arena\n")
    sizes = [
        f"-D{kind}_BYTES=" + "".join(f"{np.dtype(TYPES[t]).itemsize * math.prod(dims)}u," for t, dims in ports)
        for kind, ports in (("ARGUMENT", parameters), ("RESULT", results))
    ]
    subprocess.run([*GCC, "-include", "arena.h", "-c", "net.c"], cwd=folder, check=True)
    # Static, since what links a function at its first call needs stack.
    subprocess.run(
        [*GCC, *sizes, "-static", "host.c", "net.o", "-o", "host", "-lm", "-lpthread"],
        cwd=folder,
        check=True,
    )
    done = subprocess.run(["./host"], cwd=folder, check=True, capture_output=True, text=True)
    touched, stack = map(int, done.stdout.split())
    # Room for results that the caller leaves out is not touched where there are none.
    symbols = subprocess.run(["nm", "-S", "net.o"], cwd=folder, check=True, capture_output=True, text=True).stdout
    symbols = re.findall(r"^\w+ (\w+) [bBdD] (?!unwanted$)", symbols, re.M)
    static = sum(int(size, 16) for size in symbols)
    said = dict(re.findall(r"#define net_(\w+)_BYTES (\d+)", open(f"{folder}/net.h").read()))
    promised = sum(int(said.get(kind, 0)) for kind in ("ARENA", "COPY", "STACK"))
    return int(said["ARENA"]), promised, touched + stack + static


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


def mean(ratios):
    """The geometric mean of ratios of two decimals."""
    return math.exp(sum(math.log(max(it, 0.005)) for it in ratios) / len(ratios))


def table(rows):
    measured = [row for row in rows if len(row) == len(HEAD)]
    ratios = [float(row[3]) for row in measured]
    named = [[row[0].replace("_", " "), *row[1:], *[""] * (len(HEAD) - len(row))] for row in rows]
    text = tables.markdown(HEAD, ["---"] + ["---:"] * (len(HEAD) - 1), named)
    if ratios:
        text += f"\nGeometric mean of C / XLA over these {len(ratios)} programs: {mean(ratios):.2f}; "
        text += f"the highest is {max(ratios):.2f}.\n"
    others = [float(row[3]) for row in measured if row[0] not in NETWORKS]
    if others and others != ratios:
        text += f"Without the networks for microcontrollers, {len(others)} programs: {mean(others):.2f}.\n"
    return text


if __name__ == "__main__":
    main()
