#!/usr/bin/env python3
"""Runs programs on a GPU as JAX hands them over and as `memplan rewrite` does: bytes, seconds, numbers.

    time_on_gpu.py prepare MEMPLAN FOLDER FILE...           makes FOLDER/PROGRAM/VARIANT.hlo.txt.gz, with what memplan expects
    time_on_gpu.py levers MEMPLAN FOLDER FILE...            the same, with each lever alone
    time_on_gpu.py written MEMPLAN FOLDER FILE...           as written alone
    time_on_gpu.py run FOLDER OUT.jsonl [SECONDS]           compiles and runs them with the JAX at hand; stops after SECONDS.
                                                            Run again, it goes on; status 75 asks for that
    time_on_gpu.py expect MEMPLAN FOLDER OUT.jsonl TARGET   sets what memplan expects on another target into what ran
    time_on_gpu.py table OUT.jsonl...                       writes the tables of docs/gpu.md

FILE is HLO text, or PROGRAM=FILE. The variants of a program are `as_written`, `free` (as small as it gets at no more time),
`slower-5` (at 5 % more time), `rewrite` (what the command does without options: at 10 % more), and `only-LEVER` for each lever that
`rewrite` considers. Other files of FOLDER/PROGRAM, programs of the same arguments and results, are run beside them; for each that
is called `hand-NAME`, `as-NAME` is the program as written, rewritten under a limit of what `hand-NAME` is expected to need.

Arguments are random, the same for all variants of a program. The first variant's results are compared with those of the
others, relative to the largest number of each array. Beside OUT.jsonl, OUT.kernels.jsonl.gz has the kernels of each program
as the profiler saw them, and the module that XLA made, for scripts/gpu_kernels.py.
"""

import collections
import concurrent.futures
import functools
import gzip
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

from tables import put

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "gpu.md"
OPTIONS = {"free": ["--max-slowdown", "0%"], "slower-5": ["--max-slowdown", "5%"], "rewrite": []}
FIRST = "as_written"
RUNS = 6
# XLA compiles several programs at once, each on few threads.
COMPILERS = 14
# Programs that are compiled before any of them is timed, and the seconds that they have for it: the rest is for another run.
# What still compiles then makes the others look slow.
WAVE, WAVE_SECONDS = 20, 120
# Seconds for all runs of a program.
PATIENCE = 40


def main():
    match sys.argv[1:]:
        case ["written" | "prepare" | "levers" as verb, memplan, folder, *files] if files:
            for file in files:
                name, _, path = file.rpartition("=")
                program = pathlib.Path(folder) / (name or program_name(path))
                keep_written(program, path)
                if verb != "written":
                    rewritten(memplan, program, verb == "levers")
                expect(memplan, program)
        case ["run", folder, out, *seconds]:
            run(pathlib.Path(folder), out, float(*seconds or ["inf"]))
        case ["expect", memplan, folder, out, target]:
            expect_on(memplan, pathlib.Path(folder), out, target)
        case ["table", *outs] if outs:
            write(outs)
        case _:
            sys.exit(__doc__)


def program_name(path):
    path = pathlib.Path(path)
    name = path.name.split(".")[0]
    return path.parent.name if name == "before" else name


def keep_written(folder, path):
    folder.mkdir(parents=True, exist_ok=True)
    with (gzip.open if path.endswith(".gz") else open)(path, "rt") as file:
        keep(folder, FIRST, file.read())


def rewritten(memplan, folder, with_levers):
    """Keeps what `rewrite` makes of the program as written, each module once."""
    texts, levers = set(), []
    for name, options in OPTIONS.items():
        text, facts = rewrite(memplan, folder, options)
        if name == "rewrite":
            levers = list(dict.fromkeys(step["lever"] for step in facts["steps"] if step["lever"]))
        if facts["after"]["total"] < facts["before"]["total"] and text not in texts:
            texts.add(text)
            keep(folder, name, text, flags=facts.get("flags", {}))
    for lever in levers if with_levers else []:
        text, facts = rewrite(memplan, folder, ["--only", lever, "--max-slowdown", "300%"])
        if facts["after"]["total"] < 0.99 * facts["before"]["total"]:
            keep(folder, f"only-{lever}", text, flags=facts.get("flags", {}))
    for by_hand in sorted(folder.glob("hand-*.hlo.txt.gz")):
        limit = expected(memplan, by_hand)["expected_bytes"]
        text, facts = rewrite(memplan, folder, ["--memory-limit", f"{limit}B"])
        if facts["after"]["total"] <= limit and text not in texts:
            texts.add(text)
            keep(folder, key(by_hand)[1].replace("hand-", "as-"), text, flags=facts.get("flags", {}))


def expect(memplan, folder):
    for file in sorted(folder.glob("*.hlo.txt.gz")):
        facts = facts_of(file)
        known = json.loads(facts.read_text()) if facts.exists() else {}
        facts.write_text(json.dumps(known | expected(memplan, file)) + "\n")
    print(folder, len(list(folder.glob("*.hlo.txt.gz"))), flush=True)


def keep(folder, variant, text, **facts):
    with gzip.open(folder / f"{variant}.hlo.txt.gz", "wt") as file:
        file.write(text)
    (folder / f"{variant}.json").write_text(json.dumps(facts))


def rewrite(memplan, folder, options):
    """The text of the program as written, rewritten, and the report."""
    original = folder / f"{FIRST}.hlo.txt.gz"
    with tempfile.TemporaryDirectory() as temporary:
        made, report = os.path.join(temporary, "made.hlo.txt"), os.path.join(temporary, "report.json")
        command = [memplan, "rewrite", original, "--compiler", "xla-gpu", "-o", made, "--report", report, *options]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode not in (0, 3):
            sys.exit(done.stderr)
        return open(made).read(), json.load(open(report))


def expect_on(memplan, folder, out, target):
    rows = [json.loads(line) for line in open(out)]
    for row in rows:
        row |= expected(memplan, folder / row["program"] / f"{row['variant']}.hlo.txt.gz", "--target", target)
    pathlib.Path(out).write_text("".join(json.dumps(row) + "\n" for row in rows))


def expected(memplan, file, *options):
    """What memplan expects of a program on XLA's GPU compiler: its total in bytes, and the seconds of a run."""
    command = [memplan, "estimate", file, "--compiler", "xla-gpu", "--format", "json", *options]
    found = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    return {"expected_bytes": found["totals"]["total"], "expected_seconds": found["seconds"]}


def run(folder, out, limit):
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", ".92")
    import jax

    device = jax.devices()[0]
    started = time.time()
    done = {(row["program"], row["variant"]) for row in map(json.loads, open(out))} if os.path.exists(out) else set()
    programs = [[file for file in variants(program) if key(file) not in done] for program in by_size(folder)]
    with concurrent.futures.ThreadPoolExecutor(COMPILERS) as pool:
        for wave in waves(programs):
            compiled = {file: pool.submit(compile_file, file, device) for file in wave}
            # Nothing is timed while XLA tries kernels on the same device.
            concurrent.futures.wait(compiled.values(), timeout=min(WAVE_SECONDS, max(0, started + limit - time.time())))
            print(f"{len(wave)} compiled after {time.time() - started:.0f} s", flush=True)
            references = {}
            for file, future in compiled.items():
                if not future.done():
                    continue
                program, variant = key(file)
                row = {"program": program, "variant": variant, "jax": jax.__version__, "device": device.device_kind}
                row |= json.loads(facts_of(file).read_text())
                give_up = threading.Timer(PATIENCE, hangs, (out, row))
                give_up.start()
                try:
                    executable, facts = future.result()
                    row |= facts
                    references = {program: measure(executable, row, references.get(program))}
                    append(gzip.open(out.replace(".jsonl", ".kernels.jsonl.gz"), "at"), kernels_of(executable, row))
                except Exception as error:  # what XLA refuses is a row too
                    row["error"] = str(error)[:300]
                give_up.cancel()
                compiled[file] = executable = None
                append(open(out, "a"), row)
                print(program, variant, *(row.get(k, "") for k in ["total", "seconds", "difference", "error"]), flush=True)
    os._exit(0)


def key(file):
    return file.parent.name, file.name.removesuffix(".hlo.txt.gz")


def by_size(folder):
    """The folders of programs, the smallest first, which compile in seconds."""
    size = lambda program: sum(file.stat().st_size for file in variants(program))
    return sorted((program for program in folder.iterdir() if program.is_dir()), key=lambda program: (size(program), program.name))


def waves(programs):
    """Files that are compiled together; those of a program are."""
    wave = []
    for program in programs:
        wave += program
        if len(wave) >= WAVE:
            yield wave
            wave = []
    yield wave


def append(file, row):
    with file:
        file.write(json.dumps(row) + "\n")


def hangs(out, row):
    """Loops that end when data says so may never end for random data."""
    append(open(out, "a"), row | {"error": f"not done after {PATIENCE} s"})
    os._exit(75)


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
    # Kernels are tried, but what they compute while they are is not compared.
    flags = {"xla_gpu_autotune_level": 2} | json.loads(facts_of(file).read_text()).get("flags", {})
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

    shapes, donates = argument_shapes(executable), "input_output_alias" in head(executable)
    positive = reference is not None and reference["positive"]
    seconds, arguments = [], None
    for i in range(RUNS):
        if arguments is None or donates:
            arguments = None
            arguments = jax.block_until_ready(random_arguments(shapes, positive))
        started = time.time()
        results = jax.block_until_ready(executable.execute(arguments))
        seconds.append(time.time() - started)
        if i == 0 and reference is None and any(not is_finite(r) for r in results):
            positive, arguments = True, None  # square roots of state that must not be negative
        if sum(seconds) > 5 and i >= 2:
            break
    row["seconds"] = min(seconds[1:])
    row["all_seconds"] = [round(s, 5) for s in seconds]
    if reference is None:
        return {"results": results, "positive": positive}
    different = [relative(a, b) for a, b in zip(reference["results"], results)]
    row["difference"] = max(different, default=0.0)
    return reference


def kernels_of(executable, row):
    """The kernels of one run: of which instruction each is, how often it ran, and its nanoseconds on the device in all."""
    import jax

    arguments = jax.block_until_ready(random_arguments(argument_shapes(executable), True))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(executable.execute(arguments))
        (file,) = pathlib.Path(folder).rglob("*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(file))
    found, begin, end = collections.defaultdict(lambda: [0, 0]), float("inf"), 0
    for plane in data.planes:
        for line in plane.lines if plane.name.startswith("/device:GPU") else []:
            for event in line.events if line.name.startswith("Stream") else []:
                stats = {name: value for name, value in event.stats}
                kernel = found[f"{stats.get('hlo_op', '')}\t{event.name}"]
                kernel[0] += 1
                kernel[1] += round(event.duration_ns)
                begin, end = min(begin, event.start_ns), max(end, event.start_ns + event.duration_ns)
    same = ["program", "variant", "jax", "device", "total", "seconds"]
    return {k: row[k] for k in same} | {"span_seconds": (end - begin) * 1e-9, "kernels": found, "module": executable.hlo_modules()[0].to_string()}


def head(executable):
    return executable.hlo_modules()[0].to_string().split("\n", 1)[0]


def argument_shapes(executable):
    """The types and extents of a program's arguments, as the compiled module says."""
    layout = re.search(r"entry_computation_layout=\{\((.*)\)->", head(executable))[1]
    return re.findall(r"([a-z]+\d*[a-z0-9]*)\[([\d,]*)\]", re.sub(r"/\*.*?\*/", "", layout))


TYPES = {"pred": "bool_", "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "s8": "int8", "s32": "int32", "u32": "uint32", "u8": "uint8", "s64": "int64"}


def random_arguments(shapes, positive):
    """Made on the host, since a GPU compiles a program for each shape that it is to fill."""
    import jax
    import numpy as np

    made = []
    for i, (kind, extents) in enumerate(shapes):
        numbers = pool(kind, positive)
        made.append(np.resize(numbers[1009 * i % len(numbers) :], tuple(int(e) for e in extents.split(",") if e)))
    return jax.device_put(made)


@functools.cache
def pool(kind, positive):
    """Numbers that arguments repeat, as many as no row has."""
    import jax.numpy as jnp
    import numpy as np

    random, dtype = np.random.default_rng(0), getattr(jnp, TYPES[kind])
    if kind == "pred":
        return np.zeros(4_000_037, bool)
    if kind[0] in "su":
        return random.integers(0, 100, 4_000_037).astype(dtype)
    made = 0.02 * random.standard_normal(4_000_037, np.float32)
    # State under a square root is positive; sums over what hardly differs do not grow.
    return (0.02 + 0.1 * made if positive else made).astype(dtype)


def is_finite(array):
    import jax.numpy as jnp
    import numpy as np

    # Small arrays tell, and come to the host quickly.
    return array.nbytes > 1 << 22 or not jnp.issubdtype(array.dtype, jnp.inexact) or bool(np.isfinite(np.asarray(array, np.float32)).all())


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
        rows = [json.loads(line) for line in open(out)]
        page = put(page, f"<!-- {pathlib.Path(out).name} -->\n", "<!-- end -->", table(rows) + "\n")
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
