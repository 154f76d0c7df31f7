"""The table of models in docs/small_devices.md: bytes of known networks on a Cortex-M7, whole and in bands of rows,
beside TFLite Micro's planner; each network as C, compiled, run and compared.

    cargo build --release
    pip install "jax[cpu]" tflite tflite-micro flatbuffers onnx emx-onnx-cgen
    apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm clang
    python scripts/small_models.py [--only NAME] [target/release/memplan]     writes the table, or prints a row of it

The target is mcu-cortex-m7 with another capacity of SRAM: 1 GiB, where every network fits as it is, and 4 KiB, where
none does, so that `compile` says how little it can need. Every C file is compiled with `arm-none-eabi-gcc -std=c99
-Wall -Wextra -Wconversion -Werror -Os` and run on the board of examples/microcontroller under QEMU, and compiled by gcc
and clang with sanitizers and run here. All results are those of the evaluator, bit for bit, but for networks with
floating-point numbers whose sums have another order (FLOATING).
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import make_small_models
import numpy as np
import tables
from small_devices import greedy_by_size, most_at_once

HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = os.path.join(HERE, "..", "docs", "small_devices.md")
BOARD = os.path.join(HERE, "..", "examples", "microcontroller")
WARNINGS = ["-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
CPU = ["-mcpu=cortex-m7", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16"]
TYPES = {"s8": np.int8, "s32": np.int32, "f32": np.float32}
FLOATING = {"transformer", "gru"}
HEAD = [
    "network",
    "SRAM",
    "in bands",
    "operations",
    "arena",
    "in bands",
    "no less than",
    "greedy by size",
    "TFLite Micro",
    "emx-onnx-cgen",
    "flash: weights",
    "code",
    "code in bands",
    "stack",
]


def main():
    arguments = sys.argv[1:]
    only = [arguments.pop(arguments.index("--only") + 1)] if "--only" in arguments else []
    arguments = [it for it in arguments if it != "--only"]
    memplan = os.path.abspath(arguments[0] if arguments else os.path.join(HERE, "../target/release/memplan"))
    rows = []
    for name in only or make_small_models.MODELS:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(row_of(memplan, name, folder))
            print(rows[-1], flush=True)
    if not only:
        write(rows)


def row_of(memplan, name, folder):
    # Others who run networks here need no other formats.
    import small_models_onnx
    import small_models_tflite

    make_small_models.write(folder, name)
    program = os.path.join(folder, f"{name}.hlo.txt")
    whole = compiled(memplan, program, name, 1 << 30, folder)
    bands = compiled(memplan, program, name, 4 << 10, folder)
    if bands["sram"] >= whole["sram"]:
        bands = whole
    tensors = whole["tensors"]
    micro = "-"
    if name not in make_small_models.NOT_OF_LAYERS:
        micro = small_models_tflite.arena_of(small_models_tflite.model_of(name))[0]
    emx = sum(small_models_onnx.bytes_of(name)) if name not in make_small_models.NOT_OF_LAYERS else "-"
    inputs, expected = evaluated(memplan, program, folder)
    codes, stacks = [], []
    for version in [whole, bands] if bands is not whole else [whole]:
        compare(name, on_host(version, inputs, folder, "gcc"), expected)
        compare(name, on_host(version, inputs, folder, "clang"), expected)
        results, stack, code, _ = on_board(version, inputs, folder)
        compare(name, results, expected)
        codes.append(code)
        stacks.append(stack)
    share = bands["operations"] / whole["operations"]
    return [
        name.replace("_", " "),
        whole["sram"],
        bands["sram"] if bands is not whole else "-",
        f"{share:.2f}",
        whole["arena"],
        bands["arena"] if bands is not whole else "-",
        most_at_once(tensors),
        greedy_by_size(tensors),
        micro,
        emx,
        whole["flash"],
        codes[0],
        codes[1] if len(codes) > 1 else "-",
        max(stacks),
    ]


def compiled(memplan, program, name, capacity, folder, options=("--pin", "p[*=flash")):
    """Bytes of a compiled network, and its C, for a Cortex-M7 with this capacity of SRAM."""
    target = subprocess.run([memplan, "targets", "mcu-cortex-m7"], capture_output=True, text=True, check=True).stdout
    target = re.sub(r"(?m)^capacity = 262144\b", f"capacity = {capacity}", target)
    target = re.sub(r"(?m)^capacity = 2097152\b", "capacity = 4194304", target)
    out = tempfile.mkdtemp(dir=folder)
    file = os.path.join(out, "target.toml")
    open(file, "w").write(target)
    files = {
        kind: os.path.join(out, path)
        for kind, path in [("layout", "layout.json"), ("plan", "plan.json"), ("c", "net.c")]
    }
    command = [memplan, "compile", program, "--target", file, *options]
    for kind, path in files.items():
        command += ["--emit", f"{kind}={path}"]
    done = subprocess.run(command, capture_output=True, text=True)
    # Status 3 says that it does not fit, which is the point.
    assert done.returncode in (0, 3), done.stderr
    layout, plan = json.load(open(files["layout"])), json.load(open(files["plan"]))
    spaces = {space["id"]: space for space in layout["spaces"]}
    temps = [
        b for b in layout["buffers"] if b["space"] == 0 and layout["allocations"][b["allocation"]]["kind"] == "temp"
    ]
    return {
        "folder": out,
        "sram": spaces[0]["used"],
        "arena": spaces[0]["temp"],
        "flash": spaces[1]["used"],
        "operations": plan["cost"]["matrix_operations"] + plan["cost"]["vector_operations"],
        "tensors": [(b["size"], b["live"]["from"], b["live"]["to"]) for b in temps],
    }


def evaluated(memplan, program, folder, model=make_small_models.model):
    """Random arguments, and the results of the evaluator."""
    head = open(program).readline()
    parameters = re.search(r"entry_computation_layout=\{\((.*?)\)->", head).group(1)
    parameters = re.findall(r"(\w+)\[([\d,]*)\]", re.sub(r"/\*.*?\*/", "", parameters))
    # Weights and scales as the network has them, in the order in which JAX flattens them; the image is random.
    random = np.random.default_rng(0)
    name = os.path.basename(program).split(".")[0]
    _, (image, weights) = model(name)
    arrays = [random.integers(-128, 128, image.shape).astype(np.int8)]
    arrays += [weights[layer][part] for layer in sorted(weights) for part in sorted(weights[layer])]
    kept = [(TYPES[kind], tuple(int(d) for d in extents.split(",") if d)) for kind, extents in parameters]
    assert [(a.dtype, a.shape) for a in arrays] == [(np.dtype(kind), extents) for kind, extents in kept], name
    inputs, outputs = os.path.join(folder, "in.npz"), os.path.join(folder, "out.npz")
    np.savez(inputs, **{f"p{i}": array for i, array in enumerate(arrays)})
    subprocess.run([memplan, "run", program, "--inputs", inputs, "--outputs", outputs], check=True, capture_output=True)
    return arrays, np.load(outputs)["o0"]


def compare(name, found, expected):
    found = np.frombuffer(found, expected.dtype).reshape(expected.shape)
    # A sum in another order may round another way, and weigh as much as one step of int8 does.
    same = np.abs(found.astype(int) - expected).max() <= 2048 if name in FLOATING else (found == expected).all()
    assert same, (name, found, expected)


def on_host(version, inputs, folder, compiler, headers=(), archives=()):
    """The results of the C when sanitizers watch it; with other headers and archives, if it needs them."""
    out = version["folder"]
    with open(os.path.join(out, "in.bin"), "wb") as file:
        for array in inputs:
            file.write(np.ascontiguousarray(array).tobytes())
    reads = "\n".join(f"    a[{i}] = take(file, {array.nbytes});" for i, array in enumerate(inputs))
    source = f"""#include "net.h"
#include <stdio.h>
#include <stdlib.h>
static void *take(FILE *file, size_t n)
{{
    void *bytes = malloc(n);
    if (bytes == NULL || fread(bytes, 1, n, file) != n) {{
        exit(9);
    }}
    return bytes;
}}
int main(void)
{{
    static unsigned char result[RESULT];
    const void *a[{len(inputs)}];
    void *r[1];
    FILE *file = fopen("in.bin", "rb");
{reads}
    r[0] = result;
    net_run(a, r);
    fwrite(result, 1, sizeof result, stdout);
    return 0;
}}
"""
    open(os.path.join(out, "host.c"), "w").write(source)
    flags = [*WARNINGS, "-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover", f"-DRESULT={result_bytes(out)}"]
    subprocess.run([compiler, *flags, *headers, "net.c", "host.c", *archives, "-o", "host", "-lm"], cwd=out, check=True)
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    return subprocess.run(["./host"], cwd=out, check=True, capture_output=True, env=environment).stdout


def result_bytes(out):
    """The bytes of the only result."""
    layout = json.load(open(os.path.join(out, "layout.json")))
    element, extents = re.search(r"(\w+)\[([\d,]*)\]", layout["results"][0]["shape"]).groups()
    return int(np.prod([int(d) for d in extents.split(",") if d])) * np.dtype(TYPES[element]).itemsize


def on_board(version, inputs, folder, headers=(), archives=()):
    """The results under QEMU, bytes of the stack, bytes of code, and instructions, 0 if they are more than the timer
    counts. Arguments are in flash, but for the image."""
    out = version["folder"]
    for file in ["board.c", "board.h", "arena.h", "mps2.ld"]:
        shutil.copy(os.path.join(BOARD, file), out)
    symbols = []
    for i, array in enumerate(inputs):
        np.ascontiguousarray(array).tofile(os.path.join(out, f"a{i}.bin"))
        symbols.append(f'.balign 16\n.global a{i}\na{i}: .incbin "a{i}.bin"\n')
    open(os.path.join(out, "arguments.s"), "w").write(".section .rodata\n" + "".join(symbols))
    names = [f"a{i}" for i in range(len(inputs))]
    source = f"""#include "arena.h"
#include "board.h"
#include "net.h"
#include <string.h>
struct guarded_arena guarded_arena;
static volatile uint32_t *const system_timer = (volatile uint32_t *)0xe000e010;
extern const unsigned char {", ".join(f"{name}[]" for name in names)};
int main(void)
{{
    static unsigned char result[RESULT];
    const void *a[] = {{{", ".join(names)}}};
    void *r[1];
    size_t i, used = 0;
    uint32_t ticks;
    r[0] = result;
    memset(&guarded_arena, 0x5a, sizeof guarded_arena);
    system_timer[1] = system_timer[2] = 0xffffff;
    system_timer[0] = 5;
    net_run(a, r);
    ticks = 0xffffff - system_timer[2];
    ticks = system_timer[0] >> 16 != 0 ? 0 : ticks;
    for (i = 0; i < sizeof guarded_arena.bytes; ++i) {{
        used = guarded_arena.bytes[i] != 0x5a ? i + 1 : used;
    }}
    for (i = 0; i < sizeof guarded_arena.before; ++i) {{
        if (guarded_arena.before[i] != 0x5a || guarded_arena.after[i] != 0x5a) {{
            return 1;
        }}
    }}
    board_number((long)board_stack_used());
    board_text("\\n");
    board_number((long)used);
    board_text("\\n");
    board_number((long)ticks);
    board_text("\\n");
    board_bytes(result, sizeof result);
    return 0;
}}
"""
    open(os.path.join(out, "board_main.c"), "w").write(source)
    gcc = ["arm-none-eabi-gcc", *CPU, *WARNINGS, "-Os", "-ffunction-sections", "-fdata-sections", "-I", "."]
    subprocess.run([*gcc, *headers, "-include", "arena.h", "-c", "net.c", "-o", "net.o"], cwd=out, check=True)
    link = [
        f"-DRESULT={result_bytes(out)}",
        "-nostartfiles",
        "--specs=nosys.specs",
        "-Wl,--gc-sections",
        "-T",
        "mps2.ld",
    ]
    subprocess.run(
        [*gcc, *link, "board_main.c", "board.c", "arguments.s", "net.o", *archives, "-lm", "-o", "image.elf"],
        cwd=out,
        check=True,
    )
    sizes = subprocess.run(["arm-none-eabi-size", "net.o"], cwd=out, check=True, capture_output=True, text=True).stdout
    code = int(sizes.splitlines()[1].split()[0])
    qemu = ["qemu-system-arm", "-M", "mps2-an500", "-nographic", "-semihosting-config", "enable=on,target=native"]
    # An instruction takes a nanosecond, and a tick of the timer 40.
    command = [*qemu, "-icount", "shift=0", "-kernel", "image.elf"]
    done = subprocess.run(command, cwd=out, check=True, capture_output=True, text=True)
    stack, used, ticks, *lines = (done.stdout + done.stderr).split("\n")
    assert int(used) <= version["arena"], (used, version)
    promised = re.search(r"define net_STACK_BYTES (\d+)", open(os.path.join(out, "net.h")).read()).group(1)
    assert int(stack) <= int(promised), (stack, promised)
    return bytes.fromhex("".join(lines)), int(stack), code, 40 * int(ticks)


def write(rows):
    table = tables.markdown(HEAD, ["---"] + ["---:"] * (len(HEAD) - 1), rows)
    page = tables.put(open(PAGE).read(), "<!-- table: scripts/small_models.py -->\n", "<!-- end of models -->", f"\n{table}\n")
    open(PAGE, "w").write(page)
    print(table, end="")


if __name__ == "__main__":
    main()
