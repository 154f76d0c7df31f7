#!/usr/bin/env python3
"""Runs programs on a GPU as JAX hands them over and as `memplan rewrite` does: bytes, seconds, numbers.

    time_on_gpu.py prepare MEMPLAN FOLDER FILE...           makes FOLDER/PROGRAM/VARIANT.hlo.txt.gz, with what memplan expects
    time_on_gpu.py levers MEMPLAN FOLDER FILE...            the same, with each lever alone
    time_on_gpu.py run FOLDER OUT.jsonl [SECONDS]           compiles and runs them with the JAX at hand; stops after SECONDS
    time_on_gpu.py table OUT.jsonl...                       writes the tables of docs/gpu.md

FILE is HLO text, or PROGRAM=FILE. The variants of a program are `as_written`, `free` (as small as it gets at no more time),
`rewrite` (what the command does without options), and `only-LEVER` for each lever that `rewrite` considers. Other files of
FOLDER/PROGRAM, programs of the same arguments and results, are run beside them.

Arguments are random, the same for all variants of a program. The first variant's results are compared with those of the
others, relative to the largest number of each array.
"""

import concurrent.futures
import gzip
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "gpu.md"
OPTIONS = {"free": ["--max-slowdown", "0%"], "rewrite": []}
FIRST = "as_written"
RUNS = 7
# XLA compiles several programs at once, each on few threads.
COMPILERS = 6


def main():
    match sys.argv[1:]:
        case ["prepare" | "levers" as verb, memplan, folder, *files] if files:
            for file in files:
                name, _, path = file.rpartition("=")
                prepare(memplan, pathlib.Path(folder) / (name or program_name(path)), path, verb == "levers")
        case ["run", folder, out, *seconds]:
            run(pathlib.Path(folder), out, float(*seconds or ["inf"]))
        case ["table", *outs] if outs:
            write(outs)
        case _:
            sys.exit(__doc__)


def program_name(path):
    path = pathlib.Path(path)
    name = path.name.split(".")[0]
    return path.parent.name if name == "before" else name


def prepare(memplan, folder, path, with_levers):
    folder.mkdir(parents=True, exist_ok=True)
    read = gzip.open if path.endswith(".gz") else open
    with read(path, "rt") as file:
        keep(folder, FIRST, file.read())
    original = folder / f"{FIRST}.hlo.txt.gz"
    options = dict(OPTIONS)
    with tempfile.TemporaryDirectory() as temporary:
        made, report = os.path.join(temporary, "made.hlo.txt"), os.path.join(temporary, "report.json")
        for name in options:
            rewrite(memplan, original, made, report, options[name])
            facts = json.load(open(report))
            if name == "rewrite":
                levers = list(dict.fromkeys(step["lever"] for step in facts["steps"] if step["lever"]))
            if facts["after"]["total"] < facts["before"]["total"]:
                keep(folder, name, open(made).read(), flags=facts.get("flags", {}))
        for lever in levers if with_levers else []:
            rewrite(memplan, original, made, report, ["--only", lever, "--max-slowdown", "300%"])
            facts = json.load(open(report))
            if facts["after"]["total"] < 0.99 * facts["before"]["total"]:
                keep(folder, f"only-{lever}", open(made).read(), flags=facts.get("flags", {}))
    for file in sorted(folder.glob("*.hlo.txt.gz")):
        facts = facts_of(file)
        known = json.loads(facts.read_text()) if facts.exists() else {}
        facts.write_text(json.dumps(known | expected(memplan, file)) + "\n")
    print(folder, len(list(folder.glob("*.hlo.txt.gz"))), flush=True)


def keep(folder, variant, text, **facts):
    with gzip.open(folder / f"{variant}.hlo.txt.gz", "wt") as file:
        file.write(text)
    (folder / f"{variant}.json").write_text(json.dumps(facts))


def rewrite(memplan, original, made, report, options):
    command = [memplan, "rewrite", original, "--compiler", "xla-gpu", "-o", made, "--report", report, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 3):
        sys.exit(done.stderr)


def expected(memplan, file):
    """What memplan expects of a program on XLA's GPU compiler: its total in bytes, and the seconds of a run."""
    command = [memplan, "estimate", file, "--compiler", "xla-gpu", "--format", "json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    return {"expected_bytes": found["totals"]["total"], "expected_seconds": found["seconds"]}


def run(folder, out, limit):
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", ".92")
    import jax

    device = jax.devices()[0]
    started = time.time()
    files = [file for program in sorted(folder.iterdir()) if program.is_dir() for file in variants(program)]
    with concurrent.futures.ThreadPoolExecutor(COMPILERS) as pool:
        compiled = {file: pool.submit(compile_file, file, device) for file in files}
        # Nothing is timed while XLA tries kernels on the same device.
        concurrent.futures.wait(compiled.values(), timeout=limit * 0.65)
        pool.shutdown(wait=limit == float("inf"), cancel_futures=True)
        print(f"compiled after {time.time() - started:.0f} s", flush=True)
        references = {}
        for file, future in compiled.items():
            program, variant = file.parent.name, file.name.removesuffix(".hlo.txt.gz")
            row = {"program": program, "variant": variant, "jax": jax.__version__, "device": device.device_kind}
            row |= json.loads(facts_of(file).read_text())
            try:
                if not future.done() or future.cancelled():
                    raise TimeoutError("not compiled in time")
                executable, facts = future.result()
                row |= facts
                references[program] = measure(executable, row, references.get(program))
            except Exception as error:  # what XLA refuses is a row too
                row["error"] = str(error)[:300]
            with open(out, "a") as results:
                results.write(json.dumps(row) + "\n")
            print(program, variant, *(row.get(k, "") for k in ["total", "seconds", "difference", "error"]), flush=True)
            for other in [p for p in references if p != program]:
                del references[other]
        # A compilation that goes on has nobody to wait for it.
        os._exit(0)


def facts_of(file):
    return file.with_name(file.name.replace(".hlo.txt.gz", ".json"))


def variants(folder):
    """A program's files, as written first."""
    return sorted(folder.glob("*.hlo.txt.gz"), key=lambda file: (not file.name.startswith(FIRST), file.name))


def compile_file(file, device):
    import numpy as np
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jaxlib import _hlo, _jax
    from jaxlib.mlir import ir

    text = gzip.open(file, "rt").read()
    flags = json.loads(facts_of(file).read_text()).get("flags") or None
    started = time.time()
    with mlir.make_ir_context():
        proto = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
        module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(proto))
        without_tilings(module.operation)
        devices = np.array([[device.id]])
        options = compiler.get_compile_options(num_replicas=1, num_partitions=1, device_assignment=devices, env_options_overrides=flags)
        executable = device.client.compile_and_load(module, xla_client.DeviceList((device,)), options)
    stats = executable.get_compiled_memory_stats()
    size = {k: getattr(stats, f"{k}_size_in_bytes") for k in ["argument", "output", "alias", "temp", "host_temp"]}
    total = size["argument"] + size["output"] - size["alias"] + size["temp"]
    return executable, size | {"total": total, "compile_seconds": round(time.time() - started, 1)}


def without_tilings(operation):
    """jaxlib writes empty tilings on custom calls with layouts, which its GPU plugin does not know."""
    for inner in (o.operation for region in operation.regions for block in region for o in block.operations):
        if inner.name == "stablehlo.custom_call" and "result_tilings" in inner.attributes:
            del inner.attributes["result_tilings"]
        without_tilings(inner)


def measure(executable, row, reference):
    """Adds seconds of a run, and the difference from the results of the reference; returns the reference."""
    import jax

    shapes = argument_shapes(executable)
    positive = reference is not None and reference["positive"]
    seconds = []
    for i in range(RUNS):
        arguments = jax.block_until_ready(random_arguments(shapes, positive))
        started = time.time()
        results = jax.block_until_ready(executable.execute(arguments))
        seconds.append(time.time() - started)
        if i == 0 and reference is None and any(not is_finite(r) for r in results):
            positive = True  # square roots of state that must not be negative
        del arguments
        if sum(seconds) > 15 and i >= 2:
            break
    row["seconds"] = min(seconds[1:])
    row["all_seconds"] = [round(s, 5) for s in seconds]
    if reference is None:
        return {"results": results, "positive": positive}
    different = [relative(a, b) for a, b in zip(reference["results"], results)]
    row["difference"] = max(different, default=0.0)
    return reference


def argument_shapes(executable):
    """The types and extents of a program's arguments, as the compiled module says."""
    head = executable.hlo_modules()[0].to_string().split("\n", 1)[0]
    layout = re.search(r"entry_computation_layout=\{\((.*)\)->", head)[1]
    return re.findall(r"([a-z]+\d*[a-z0-9]*)\[([\d,]*)\]", re.sub(r"/\*.*?\*/", "", layout))


TYPES = {"pred": "bool_", "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "s8": "int8", "s32": "int32", "u32": "uint32", "u8": "uint8", "s64": "int64"}


def random_arguments(shapes, positive):
    import jax
    import jax.numpy as jnp

    arguments = []
    for i, (kind, extents) in enumerate(shapes):
        shape, dtype, key = tuple(int(e) for e in extents.split(",") if e), getattr(jnp, TYPES[kind]), jax.random.key(i)
        if kind == "pred":
            made = jnp.zeros(shape, bool)
        elif kind[0] in "su":
            made = jax.random.randint(key, shape, 0, 100, jnp.int32).astype(dtype)
        else:
            made = jax.random.normal(key, shape, jnp.bfloat16).astype(dtype) * dtype(0.02)
            # State under a square root is positive; sums over what hardly differs do not grow.
            made = dtype(0.02) + dtype(0.1) * made if positive else made
        arguments.append(made)
    return arguments


def is_finite(array):
    import jax.numpy as jnp

    return not jnp.issubdtype(array.dtype, jnp.inexact) or bool(jnp.isfinite(array).all())


def relative(a, b):
    import jax.numpy as jnp

    if not a.size or not jnp.issubdtype(a.dtype, jnp.number):
        return 0.0
    a, b = a.ravel(), b.ravel()
    largest = float(jnp.abs(a).max())
    # In parts, so that no array is there twice in a wider type.
    part = 1 << 26
    most = max(float(jnp.abs(a[i : i + part].astype(jnp.float32) - b[i : i + part].astype(jnp.float32)).max()) for i in range(0, a.size, part))
    return most / largest if largest else most


def write(outs):
    """Writes a table for each file of results into the page, between marks with the file's name."""
    page = PAGE.read_text()
    for out in outs:
        begin, end = f"<!-- {pathlib.Path(out).name} -->\n", "<!-- end -->"
        before, _, rest = page.partition(begin)
        if not rest:
            sys.exit(f"{PAGE} has no line {begin}")
        rows = [json.loads(line) for line in open(out)]
        page = before + begin + table(rows) + "\n" + end + rest.partition(end)[2]
    PAGE.write_text(page)


def table(rows):
    first = {row["program"]: row for row in rows if row["variant"] == FIRST and "seconds" in row}
    lines = [
        "| program | variant | GB | of as written | expected | ms | of as written | expected | difference |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        base = first.get(row["program"])
        if not base or "seconds" not in row:
            continue
        difference = row.get("difference")
        cells = [
            row["program"],
            row["variant"],
            f"{row['total'] / 1e9:.2f}",
            ratio(row, base, "total"),
            ratio(row, base, "expected_bytes"),
            f"{row['seconds'] * 1e3:.1f}",
            ratio(row, base, "seconds"),
            ratio(row, base, "expected_seconds"),
            "" if difference is None else f"{difference:.0e}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def ratio(row, base, name):
    return f"{row[name] / base[name]:.2f}" if row.get(name) and base.get(name) else ""


if __name__ == "__main__":
    main()
