#!/usr/bin/env python3
"""Programs as people write them, from JAX through memplan: compiled for four targets, proved, run in their arenas.

    people.py [--again] FOLDER [NAME ...]

Every program of the files beside this one is lowered as JAX hands it to CPUs, GPUs and TPUs (`lower.py`, in a virtual
environment of its own made from requirements.txt), compiled for each target, the plan checked from what was emitted,
and the text report made. Small ones are run, optimised, in the arena of each target, and compared with JAX's numbers.
Everything is kept in FOLDER; what is there and right is not made anew, but with --again. The table goes to docs/people.md when
all programs were asked for. MEMPLAN names the binary, MEMPLAN_PEOPLE_VENV the environment.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FILES = ["plain", "models", "science", "unusual", "flax_linen", "flax_nnx", "haiku_programs", "equinox_programs", "keras_programs", "sampling", "solvers", "graphs", "devices"]

# Targets, and the platform that JAX lowers for.
TARGETS = {"cpu": "cpu", "gpu-h100": "gpu", "tpu-v5e": "tpu", "tpu-v6e": "tpu"}

# The largest difference that rounding explains, relative to the largest element of an array: by the type of the result,
# or by a narrower one that the program computes in, since compilers may leave out roundings in between.
TOLERANCES = {"f8": 6e-2, "bf16": 3e-2, "f16": 4e-3, "f32": 1e-4}
NAMES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "complex64": "f32"}

# Programs that amplify rounding may differ by this many times what JAX's own results differ by when its inputs are jostled.
AMPLE = 4

LONGEST = 120


def main():
    arguments = [a for a in sys.argv[1:] if a != "--again"]
    if not arguments:
        sys.exit(__doc__)
    folder, names = pathlib.Path(arguments[0]), arguments[1:]
    python = environment()
    if os.environ.get("MEMPLAN_PEOPLE_LOWER") != "no":
        for file in FILES:
            lower(python, file, folder, names, "--again" in sys.argv)
    rows = []
    for path in sorted(folder.glob("*/about.json")):
        place, about = path.parent, json.loads(path.read_text())
        if "failed" in about or (names and place.name not in names):
            continue
        rows.append((place.name, about, {target: kept(place, about, target, "--again" in sys.argv) for target in TARGETS}))
        report(*rows[-1])
    if not names:
        (ROOT / "docs" / "people.md").write_text(table(rows))


def environment():
    venv = pathlib.Path(os.environ.get("MEMPLAN_PEOPLE_VENV", pathlib.Path.home() / ".cache" / "memplan-people-venv"))
    if not (venv / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([venv / "bin" / "pip", "install", "--quiet", "-r", HERE / "requirements.txt"], check=True)
        (venv / "ready").touch()
    return venv / "bin" / "python"


def lower(python, file, folder, names, again):
    """Lowers what is not there. Names of programs are known from the text, so that nothing is imported for nothing."""
    programs = re.findall(r"^@program.*\ndef (\w+)", (HERE / f"{file}.py").read_text(), re.M)
    wanted = [p for p in programs if (not names or p in names) and (again or not (folder / p / "about.json").exists())]
    if wanted:
        subprocess.run([python, HERE / "lower.py", file, folder, *wanted], cwd=HERE)


def memplan(*arguments):
    binary = os.environ.get("MEMPLAN", ROOT / "target" / "release" / "memplan")
    start = time.time()
    try:
        run = subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(arguments, -1, "", f"more than {LONGEST} s"), LONGEST
    return run, time.time() - start


def kept(place, about, target, again):
    """What was found before, unless something was wrong."""
    path = place / f"{target}.result.json"
    if path.exists() and not again:
        result = json.loads(path.read_text())
        if not result.get("wrong"):
            return result
    result = examine(place, about, target)
    path.write_text(json.dumps(result))
    return result


def examine(place, about, target):
    """What became of a program on a target: `wrong` says what, if anything."""
    # Some libraries ask for the machine that is there, and cannot be lowered for another.
    module = place / f"{'cpu' if TARGETS[target] in about['not lowered'] else TARGETS[target]}.hlo.pb"
    with tempfile.TemporaryDirectory() as made:
        plan, hlo = f"{made}/plan.json", f"{made}/out.hlo"
        run, seconds = memplan("compile", module, "--target", target, "--format", "json", "-o", plan, "--emit", f"hlo={hlo}")
        if run.returncode not in (0, 3):
            return {"wrong": f"compile: {last_line(run)}"}
        totals = json.loads(pathlib.Path(plan).read_text())["totals"]
        result = {"total": totals["total"], "temp": totals["temp"], "seconds": round(seconds, 1)}
        run, _ = memplan("opt", module)
        result["instructions"] = run.stdout.count(" = ")
        narrow = [tolerance for name, tolerance in TOLERANCES.items() if re.search(rf"\b{name}\w*\[", run.stdout)]
        run, _ = memplan("check", hlo, plan)
        if run.returncode:
            return result | {"wrong": f"check: {last_line(run)}"}
        run, _ = memplan("compile", module, "--target", target, "-o", place / f"{target}.report.txt")
        if run.returncode not in (0, 3):
            return result | {"wrong": f"report: {last_line(run)}"}
        if about["runs"]:
            # The numbers are JAX's on a CPU, so the program is the one made for a CPU.
            module, outputs = place / "cpu.hlo.pb", f"{made}/outputs.npz"
            run, _ = memplan("run", module, "--inputs", place / "inputs.npz", "--outputs", outputs, "--target", target, "--arena", "--optimize")
            if run.returncode:
                return result | {"wrong": f"run: {last_line(run)}"}
            result["error"], result["wrong"] = compare(place, outputs, about, max(narrow, default=0.0))
    return result


def last_line(run):
    lines = [line for line in run.stderr.splitlines() if line.strip()]
    first = next((line for line in lines if line.startswith(("error", "thread"))), lines[-1] if lines else "")
    return f"exit {run.returncode}: {first[:300]}"


def compare(place, got, about, tolerance):
    """The largest difference, relative to the largest element of its array, and what is wrong."""
    import numpy as np

    def read(path):
        arrays = np.load(path)
        for i, dtype in enumerate(about["dtypes"]):
            array = arrays[f"o{i}"]
            if dtype == "bfloat16":
                array = (array.astype(np.uint32) << 16).view(np.float32)
            yield array.astype({"complex64": np.complex128}.get(dtype, np.float64)) if dtype in NAMES else array

    def difference(a, b):
        """Relative to the largest element; infinite where what is not finite differs, or what is not rounded."""
        finite = np.isfinite(a)
        if a.dtype.kind in "iub":
            return 0.0 if np.array_equal(a, b) else np.inf
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            return np.inf
        scale = max(np.max(np.abs(a[finite]), initial=0.0), 1e-3)
        return float(np.max(np.abs(a[finite] - b[finite]), initial=0.0) / scale)

    expected, got = list(read(place / "outputs.npz")), list(read(got))
    jostled = [list(read(path)) for path in sorted(place.glob("spread*.npz"))]
    worst = 0.0
    for i, (dtype, a, b) in enumerate(zip(about["dtypes"], expected, got)):
        if a.shape != b.shape:
            return worst, f"o{i}: {b.shape} instead of {a.shape}"
        allowed = max(TOLERANCES[NAMES[dtype]], tolerance) if dtype in NAMES else 0.0
        allowed = max([allowed, *(AMPLE * difference(a, other[i]) for other in jostled)])
        off = difference(a, b)
        if off > allowed:
            return worst, f"o{i}: {dtype}{list(a.shape)} off by {off:.1e} where {allowed:.1e} is rounding"
        worst = max(worst, off if np.isfinite(off) else 0.0)
    return worst, None


def report(name, about, results):
    for target, result in results.items():
        if result.get("wrong"):
            print(f"{name} {target}: {result['wrong']}", flush=True)
        if result.get("seconds", 0) > 20:
            print(f"{name} {target}: {result['seconds']} s", flush=True)
    print(f"{name}: {' '.join(cell(result) for result in results.values())}", flush=True)


def cell(result):
    return "**wrong**" if result.get("wrong") else f"{result['total'] / 1e6:.3f}"


def table(rows):
    made = [result for _, _, results in rows for result in results.values()]
    proved = sum(not result.get("wrong") for result in made)
    arenas = [result for result in made if "error" in result]
    agree = sum(not result.get("wrong") for result in arenas)
    lines = [
        "# Programs as people write them",
        "",
        f"`scripts/people/people.py` made this: JAX lowered {len(rows)} programs for each platform, memplan compiled them for four targets and "
        "checked the emitted plans, and the small ones were run in the arena of each target and compared with JAX's results.",
        f"{proved} of {len(made)} compilations are proved; {agree} of {len(arenas)} arenas agree with JAX.",
        "",
        "Totals are in MB (10^6 bytes), with padding. The difference is the largest of all targets, relative to the largest element of its array.",
        "A dash means that the program is too large to run, or needs several devices.",
        "",
        "| program | library | instructions | " + " | ".join(TARGETS) + " | difference |",
        "|---|---|---:|" + "---:|" * len(TARGETS) + "---:|",
    ]
    for name, about, results in sorted(rows, key=lambda row: (row[1]["library"], row[0])):
        errors = [result["error"] for result in results.values() if "error" in result]
        instructions = max(result.get("instructions", 0) for result in results.values())
        cells = [name, about["library"], str(instructions), *map(cell, results.values()), f"{max(errors):.0e}" if errors else "–"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
