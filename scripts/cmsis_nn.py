"""The table of calls of CMSIS-NN in docs/small_devices.md: known networks with the library's arithmetic, as C that calls
its kernels, and as C alone.

    cargo build --release
    pip install "jax[cpu]"
    apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm
    python scripts/cmsis_nn.py CMSIS_NN [--only NAME] [target/release/memplan]    writes the table, or prints a row of it

CMSIS_NN is a checkout of github.com/ARM-software/CMSIS-NN, of which nothing is in this repository. Its integer kernels
are compiled for the host and for a Cortex-M7. Every network is run on both, with and without the library, and all
results are those of the evaluator, bit for bit. QEMU counts instructions, not cycles, up to 671 million of them.
"""

import glob
import os
import re
import subprocess
import sys
import tempfile

import make_cmsis_models
import make_small_models
import tables
from small_models import CPU, HERE, PAGE, compare, compiled, evaluated, on_board, on_host

HEAD = ["network", "calls", "of", "kernels", "stack", "loops alone", "instructions", "loops alone"]


def main():
    arguments = sys.argv[1:]
    only = [arguments.pop(arguments.index("--only") + 1)] if "--only" in arguments else []
    library, *rest = [it for it in arguments if it != "--only"]
    memplan = os.path.abspath(rest[0] if rest else os.path.join(HERE, "../target/release/memplan"))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        headers = ["-isystem", os.path.abspath(os.path.join(library, "Include"))]
        host = archive(library, folder, "host", ["gcc", "-O2"], "ar")
        board = archive(library, folder, "board", ["arm-none-eabi-gcc", *CPU, "-O3"], "arm-none-eabi-ar")
        for name in only or make_cmsis_models.MODELS:
            rows.append(row_of(memplan, name, headers, host, board))
            print(rows[-1], flush=True)
    if not only:
        write(rows)


def archive(library, folder, name, compiler, archiver):
    """The library's kernels of integers, compiled."""
    out = os.path.join(folder, name)
    os.mkdir(out)
    sources = glob.glob(os.path.join(os.path.abspath(library), "Source", "*", "*.c"))
    sources = [it for it in sources if not re.search(r"_f(16|32)\.c$", it)]
    include = os.path.abspath(os.path.join(library, "Include"))
    subprocess.run([*compiler, "-w", "-I", include, "-c", *sources], cwd=out, check=True)
    objects = [os.path.basename(it)[:-2] + ".o" for it in sources]
    subprocess.run([archiver, "rcs", "kernels.a", *objects], cwd=out, check=True)
    return os.path.join(out, "kernels.a")


def row_of(memplan, name, headers, host, board):
    with tempfile.TemporaryDirectory() as folder:
        make_small_models.write(folder, name, make_cmsis_models.model)
        program = os.path.join(folder, f"{name}.hlo.txt")
        inputs, expected = evaluated(memplan, program, folder, make_cmsis_models.model)
        options = ("--pin", "weights[*=flash")
        alone = compiled(memplan, program, name, 1 << 30, folder, options)
        calling = compiled(memplan, program, name, 1 << 30, folder, (*options, "--cmsis-nn"))
        compare(name, on_host(calling, inputs, folder, "gcc", headers, [host]), expected)
        found, stack, _, instructions = on_board(calling, inputs, folder, headers, [board])
        compare(name, found, expected)
        found, stack_alone, _, instructions_alone = on_board(alone, inputs, folder)
        compare(name, found, expected)
        header = open(os.path.join(calling["folder"], "net.h")).read()
        of, calls = re.search(r"Of (\d+) calls of kernels, (\d+) are of CMSIS-NN", header).groups()
        text = open(os.path.join(calling["folder"], "net.c")).read()
        kernels = sorted(set(re.findall(r"check_status\(arm_(\w+?)(?:_wrapper)?_s8\(", text)))
    row = [name.replace("_", " "), int(calls), int(of), ", ".join(kernels)]
    return [*row, stack, stack_alone, instructions or "-", instructions_alone or "-"]


def write(rows):
    table = tables.markdown(HEAD, ["---", "---:", "---:", "---"] + ["---:"] * (len(HEAD) - 4), rows)
    page = tables.put(open(PAGE).read(), "<!-- table: scripts/cmsis_nn.py -->\n", "<!-- end of calls -->", f"\n{table}\n")
    open(PAGE, "w").write(page)
    print(table, end="")


if __name__ == "__main__":
    main()
