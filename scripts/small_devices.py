"""What quantised networks need on a microcontroller, beside what the greedy planner of TFLite Micro would need: the
table of docs/small_devices.md.

    cargo build --release
    pip install numpy
    python scripts/small_devices.py [target/release/memplan]        writes the table anew
    python scripts/small_devices.py [target/release/memplan] --check  says whether it is as it would be written

Each example is compiled with its weights in flash, run inside its arena with random inputs, its numbers compared bit for
bit with those of separate buffers, and its C header compiled where there is an `arm-none-eabi-gcc`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import tables

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.join(HERE, "..", "examples", "small")
PAGE = os.path.join(HERE, "..", "docs", "small_devices.md")
TARGETS = ["mcu-cortex-m7", "mcu-nrf52840"]
# Which arguments are weights; those of the other example are constants, which need no pin.
PINS = {"image_classifier": ["--pin", "p[*=flash"]}
HEAD = ["network", "on", "SRAM", "of", "flash", "of", "arena", "no less than", "greedy by size", "as given", "as given, greedy"]


def main():
    arguments = [a for a in sys.argv[1:] if a != "--check"]
    memplan = os.path.abspath(arguments[0] if arguments else os.path.join(HERE, "../target/release/memplan"))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for file in sorted(os.listdir(EXAMPLES)):
            name, path = file.split(".")[0], os.path.join(EXAMPLES, file)
            given = laid_out(memplan, "plan", path, "mcu-cortex-m7", name, folder)
            for target in TARGETS:
                compiled = laid_out(memplan, "compile", path, target, name, folder)
                rows.append([name.replace("_", " "), target, *figures(compiled), *figures(given)[4::2]])
            run(memplan, path, name, folder)
            compile_header(os.path.join(folder, "program.h"), name)
    write(rows, "--check" in sys.argv)


def laid_out(memplan, verb, path, target, name, folder):
    """The layout of a program; status 3 says that it does not fit, which the table says too."""
    layout, header = os.path.join(folder, "layout.json"), os.path.join(folder, "program.h")
    command = [memplan, verb, path, "--target", target, *PINS.get(name, [])]
    command += ["--emit", f"layout={layout}", "--emit", f"c-header={header}", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 3), done.stderr
    return json.load(open(layout))


def figures(layout):
    """SRAM, what there is, flash, what there is; the arena, its lower bound, and what the greedy planner would take."""
    spaces = {space["id"]: space for space in layout["spaces"]}
    of = lambda id: [spaces[id]["used"], spaces[id]["capacity"]] if id in spaces else [0, 0]
    temps = [b for b in layout["buffers"] if b["space"] == 0 and layout["allocations"][b["allocation"]]["kind"] == "temp"]
    tensors = [(b["size"], b["live"]["from"], b["live"]["to"]) for b in temps]
    return [*of(0), *of(1), spaces[0]["temp"], most_at_once(tensors), greedy_by_size(tensors)]


def greedy_by_size(tensors, alignment=16):
    """The arena of TFLite Micro's GreedyMemoryPlanner: the largest tensor first, each at the lowest offset where it meets
    none of those that are placed and live at the same time."""
    placed, height = [], 0
    for size, start, end in sorted(tensors, key=lambda tensor: -tensor[0]):
        size = -(-size // alignment) * alignment
        offset = 0
        for other, first, last, width in sorted(placed):
            if first < end and start < last:
                if other - offset >= size:
                    break
                offset = max(offset, other + width)
        placed.append((offset, start, end, size))
        height = max(height, offset + size)
    return height


def most_at_once(tensors):
    """No planner of these tensors, each with bytes of its own, needs less."""
    times = sorted({start for _, start, _ in tensors})
    return max((sum(size for size, start, end in tensors if start <= t < end) for t in times), default=0)


def run(memplan, path, name, folder):
    """Runs the compiled program inside its arena, beside separate buffers."""
    inputs, random = os.path.join(folder, "inputs.npz"), np.random.default_rng(0)
    layout = json.load(open(os.path.join(folder, "layout.json")))
    arrays = {}
    for i, parameter in enumerate(layout["parameters"]):
        element, extents = re.match(r"(\w+)\[([\d,]*)\]", parameter["shape"]).groups()
        extents = [int(extent) for extent in extents.split(",") if extent]
        whole = {"s8": np.int8, "s32": np.int32}.get(element)
        small = random.integers(-64, 64, extents)
        arrays[f"p{i}"] = small.astype(whole) if whole else np.full(extents, 2.0**-9, np.float32)
    np.savez(inputs, **arrays)
    target = ["--target", "mcu-cortex-m7", "--optimize", "--arena", *PINS.get(name, [])]
    done = subprocess.run([memplan, "run", path, "--inputs", inputs, *target], capture_output=True, text=True)
    # The kernels of the evaluator may need working memory that those of a device do not: status 3 is no difference.
    assert done.returncode in (0, 3), done.stderr
    print(f"{name} computes the same numbers inside its arena")


def compile_header(header, name):
    compiler = shutil.which("arm-none-eabi-gcc")
    if not compiler:
        print(f"skipped: no arm-none-eabi-gcc to compile the header of {name} (Debian: gcc-arm-none-eabi)")
        return
    flags = ["-std=c99", "-mcpu=cortex-m7", "-mthumb", "-ffreestanding", "-Wall", "-Wextra", "-Werror", "-c", "-o", os.devnull]
    source = f'#include "{header}"\nMEMPLAN_ASSERT(sizeof(memplan_size) == 4, tables_have_32_bits);\n'
    subprocess.run([compiler, *flags, "-x", "c", "-"], input=source, text=True, check=True)
    print(f"arm-none-eabi-gcc takes the header of {name}")


def write(rows, check):
    """Puts the table between its marks, or says whether it is there."""
    table = tables.markdown(HEAD, ["---"] * 2 + ["---:"] * (len(HEAD) - 2), rows)
    page = open(PAGE).read()
    new = tables.put(page, "<!-- table: scripts/small_devices.py -->\n", "<!-- end -->", f"\n{table}\n")
    if check:
        sys.exit(0 if new == page else f"{PAGE} is not what this would write")
    open(PAGE, "w").write(new)
    print(table, end="")


if __name__ == "__main__":
    main()
