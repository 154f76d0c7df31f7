#!/usr/bin/env python3
"""Puts the programs of StableHLO's own tests before memplan, and compares numbers with those that the tests expect.

    stablehlo_programs.py STABLEHLO FOLDER [--jobs 2] [--only TEXT] [--again] [--table]

STABLEHLO is a checkout or a git directory of openxla/stablehlo. The programs of `stablehlo/testdata` and
`stablehlo/tests/interpret` become HLO by jaxlib (0.10.2), in FOLDER, which must lie outside the repository: what a test
makes its inputs with becomes parameters, and what it expects becomes results beside those that it finds. Each program
then goes through `plan`, through `compile` for cpu, gpu-h100 and tpu-v5e, of which `check` proves the plan and `plan` takes
the module that was emitted, and through `run --arena` and `run --arena --optimize`. Results must be within 3 units in the
last place of what the test expects, or of what XLA computes on the CPU.

FOLDER/results.jsonl has a line for each program; what is there for this binary is not run again, unless --again says so.
--table prints the table of what is there. MEMPLAN names the binary, target/release/memplan if not.
"""
import argparse
import collections
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent
MEMPLAN = os.environ.get("MEMPLAN", str(ROOT / "target/release/memplan"))
TARGETS = ["cpu", "gpu-h100", "tpu-v5e"]
BELOW = ["stablehlo/testdata", "stablehlo/tests/interpret"]
ULPS = 3
# What extents are that a program leaves open.
EXTENT = 5
# Notes on results that are right, and not within ULPS of what the test expects.
AS_XLA = "as XLA, not as the test"
BY_LARGEST = "within 3 units of the largest number"
# Seconds for one command. The programs are small.
LONGEST = 120


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stablehlo", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(args.folder)
    if ROOT in [args.folder.resolve(), *args.folder.resolve().parents]:
        sys.exit("FOLDER must lie outside the repository")
    args.folder.mkdir(parents=True, exist_ok=True)
    results = args.folder / "results.jsonl"
    known = read_results(results)
    if not args.table:
        binary = hashlib.sha256(pathlib.Path(MEMPLAN).read_bytes()).hexdigest()[:16]
        missing = [
            (name, text)
            for name, text in programs(args.stablehlo)
            if args.only in name and (args.again or known.get(name, {}).get("binary") != binary)
        ]
        print(f"{len(missing)} programs to do", flush=True)
        known |= try_all(missing, args.folder, results, binary, args.jobs)
    bad = table([known[name] for name in sorted(known) if args.only in name])
    sys.exit(bool(bad))


# Programs


def programs(stablehlo):
    """(name, text) of every program, in order. Files of several programs have a line of `// -----` between them."""
    for path, text in sources(stablehlo):
        parts = re.split(r"^// -----.*$", text, flags=re.M)
        stem = path.removeprefix("stablehlo/").removesuffix(".mlir").replace("/", ".")
        for number, part in enumerate(parts):
            if "func.func" in part:
                yield (stem if len(parts) == 1 else f"{stem}.{number}"), part


def sources(stablehlo):
    if (stablehlo / "stablehlo").is_dir():
        for below in BELOW:
            for path in sorted((stablehlo / below).rglob("*.mlir")):
                yield str(path.relative_to(stablehlo)), path.read_text()
        return
    git = ["git", "--git-dir", str(stablehlo)]
    listed = subprocess.run([*git, "ls-tree", "-r", "HEAD", *BELOW], capture_output=True, text=True, check=True)
    rows = [row.split("\t") for row in listed.stdout.splitlines() if row.endswith(".mlir")]
    cat = subprocess.Popen([*git, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for meta, path in rows:
        cat.stdin.write(f"{meta.split()[2]}\n".encode())
        cat.stdin.flush()
        size = int(cat.stdout.readline().split()[2])
        yield path, cat.stdout.read(size + 1)[:-1].decode()
    cat.stdin.close()
    cat.wait()


# What needs jaxlib, in a process of its own: XLA ends its process on some programs.


def work(folder):
    """Answers each `[verb, name, text]` on standard input with a line on standard output."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ.update(JAX_PLATFORMS="cpu", JAX_ENABLE_X64="1")
    for line in sys.stdin:
        verb, name, text = json.loads(line)
        try:
            answer = convert(name, text, folder) if verb == "convert" else run_with_xla(name, text, folder)
        except Exception as error:  # XLA's and MLIR's errors have no type of their own.
            answer = {"reason": reason(str(error))}
        print(json.dumps(answer), file=out, flush=True)


def convert(name, text, folder):
    """Writes NAME.hlo, NAME.stablehlo, NAME.in.npz and NAME.expected.npz; says what the program is like."""
    import numpy as np
    from jaxlib import _jax

    given, expected = values_of(text)
    code, devices, kinds = program_of(text)
    if not kinds:
        given = random_inputs(code)
        expected = execute(code, given)
    module = _jax.mlir.mlir_module_to_xla_computation(code, use_tuple_args=False, return_tuple=True)
    hlo = module.as_hlo_text(print_large_constants=True)
    replicas, partitions = devices
    if replicas * partitions > 1:
        counts = f", replica_count={replicas}, num_partitions={partitions}"
        hlo = re.sub(r"^(HloModule [^,\n]*)", r"\1" + counts, hlo, count=1)
        given, expected = (by_array(values, replicas * partitions) for values in (given, expected))
    (folder / f"{name}.hlo").write_text(hlo)
    (folder / f"{name}.stablehlo").write_bytes(code)
    np.savez(folder / f"{name}.in.npz", **{f"p{k}": stored(a) for k, a in enumerate(given)})
    np.savez(folder / f"{name}.expected.npz", **{f"o{k}": stored(a) for k, a in enumerate(expected)})
    return {
        "types": [a.dtype.name for a in expected],
        "given": [a.dtype.name for a in given],
        "exact": [kind == "check.expect_eq" for kind in kinds][: len(expected)] or [False] * len(expected),
        "devices": replicas * partitions,
    }


def by_array(values, n_devices):
    """One array with a part for each device, from the arrays of one device after another."""
    import numpy as np

    n = len(values) // n_devices
    return [np.stack(values[k::n]) for k in range(n)]


def run_with_xla(name, given, folder):
    """Writes NAME.xla.npz."""
    import numpy as np

    stored_inputs = np.load(folder / f"{name}.in.npz")
    inputs = [unstored(stored_inputs[f"p{k}"], dtype) for k, dtype in enumerate(given)]
    results = execute((folder / f"{name}.stablehlo").read_bytes(), inputs)
    np.savez(folder / f"{name}.xla.npz", **{f"o{k}": stored(a) for k, a in enumerate(results)})
    return {}


def values_of(text):
    """What the program is given and what the test expects, as arrays."""
    with parsed(text) as (module, main, parallel, checks):
        given = parallel.operands if parallel else [r for op in calls_of_inputs(main) for r in op.results]
        given, expected = list(given), [check.operands[1] for check in checks]
        n_given = len(given)
        if parallel:
            # What a device gets from the others comes first; tests name the results in any order.
            by_result = {str(check.operands[0].get_name()): check.operands[1] for check in checks}
            names = [str(result.get_name()) for result in parallel.results]
            if sorted(by_result) != sorted(names):
                raise ValueError("a test of several devices says nothing of some results")
            expected = [by_result[name] for name in names]
        return_only(main, given + expected)
        values = execute(bytecode(module), []) if given or expected else []
        return values[:n_given], values[n_given:]


def program_of(text):
    """The program as StableHLO, its numbers of replicas and partitions, and how each result is compared."""
    from jaxlib.mlir import ir

    with parsed(text) as (module, main, parallel, checks):
        kinds = [ir.StringAttr(check.attributes["call_target_name"]).value for check in checks]
        if parallel:
            grid = [[str(p) for p in ir.ArrayAttr(row)] for row in ir.ArrayAttr(parallel.attributes["programs"])]
            names = {name for row in grid for name in row}
            if len(names) > 1:
                raise ValueError("devices run several programs")
            main.erase()
            program = next(f for f in module.body.operations if "@" + name_of(f) in names)
            rename(program, "main")
            return bytecode(module), (len(grid), len(grid[0])), kinds[:1] * len(kinds)
        found = [check.operands[0] for check in checks]
        if not found:
            return program_of_extents(module, main)
        parameters_for_inputs(main)
        return_only(main, found)
        return bytecode(module), (1, 1), kinds


def program_of_extents(module, main):
    """As `program_of`, for a program that is only compiled in StableHLO's tests: unknown extents, and the scalars before
    the arrays that are extents, become EXTENT."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    block = main.regions[0].blocks[0]
    scalar = ir.RankedTensorType.get([], ir.IntegerType.get_signless(64))
    if not block.arguments:
        raise ValueError("the test compares nothing")
    while len(block.arguments) and block.arguments[0].type == scalar and "?" in str(main.attributes["function_type"]):
        with ir.InsertionPoint.at_block_begin(block):
            extent = stablehlo.constant(ir.DenseElementsAttr.get_splat(scalar, ir.IntegerAttr.get(scalar.element_type, EXTENT)))
        block.arguments[0].replace_all_uses_with(extent)
        block.erase_argument(0)
    for argument in block.arguments:
        shape = argument.type
        sizes = [EXTENT if shape.is_dynamic_dim(d) else shape.get_dim_size(d) for d in range(shape.rank)]
        fixed = ir.RankedTensorType.get(sizes, shape.element_type)
        if fixed != shape:
            # As JAX does it: refinement carries the shape on, through calls too.
            uses = list(argument.uses)
            with ir.InsertionPoint.at_block_begin(block):
                open_ended = stablehlo.convert(shape, argument)
            for use in uses:
                use.owner.operands[use.operand_number] = open_ended
            argument.set_type(fixed)
    returned = list(block.operations)[-1].operation.operands
    types = [argument.type for argument in block.arguments], [value.type for value in returned]
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))
    return bytecode(module), (1, 1), []


class parsed:
    """A module with its main function, the call of programs on several devices, and the comparisons."""

    def __init__(self, text):
        self.text = text

    def __enter__(self):
        from jax._src.interpreters import mlir
        from jaxlib.mlir import ir

        context = mlir.make_ir_context()
        context.allow_unregistered_dialects = True
        self.location = ir.Location.unknown(context)
        self.context = context
        context.__enter__()
        self.location.__enter__()
        module = ir.Module.parse(readable(self.text) if isinstance(self.text, str) else self.text)
        inner = [op for op in module.body.operations if op.operation.name == "builtin.module"]
        if inner:
            module = ir.Module.parse(str(inner[0]))
        functions = list(module.body.operations)
        main = next((f for f in functions if name_of(f) == "main"), functions[0] if len(functions) == 1 else None)
        if main is None:
            raise ValueError("no function is the main one")
        rename(main, "main")
        operations = [op.operation for op in main.regions[0].blocks[0].operations]
        target = lambda op: str(op.attributes["call_target_name"]) if "call_target_name" in op.attributes else ""
        checks = [op for op in operations if target(op).startswith('"check.')]
        parallel = next((op for op in operations if op.name == "interpreter.run_parallel"), None)
        return module, main, parallel, checks

    def __exit__(self, *error):
        self.location.__exit__(*error)
        self.context.__exit__(*error)


def readable(text):
    """The text with comparisons of the dialect `check`, which jaxlib does not know, as custom calls, as in testdata."""
    number = 0

    def custom_call(match):
        nonlocal number
        number += 1
        kind, found, rest = match.group(1), match.group(2), match.group(3)
        value, _, shape = rest.rpartition(" : ")
        target = "check.expect_eq" if kind.startswith("expect_eq") else "check.expect_close"
        if value.startswith("%"):
            expected, define = value.split(",")[0], ""
            shape = shape.split(",")[0].strip("()")
        else:
            expected = f"%expected_{number}"
            define = f"{expected} = stablehlo.constant {value} : {shape}\n"
        call = f"stablehlo.custom_call @{target}({found}, {expected}) {{has_side_effect = true}}"
        return f"{define}{call} : ({shape}, {shape}) -> ()"

    generic = r'"check\.(expect_\w+_const)"\((%[\w#]+)\) <\{value = (.*)\}> : \(.*\) -> \(\)'
    text = re.sub(generic, r"check.\1 \2, \3", text)
    text = re.sub(r"//.*", "", text) if "check.expect_eq_const" in text or "check.expect_almost" in text else text
    return re.sub(r"(?<!@)check\.(expect_(?:almost_)?(?:eq|close)(?:_const)?) (%[\w#]+),\s*((?:dense<[^>]*>[^\n]*)|[^\n]*)", custom_call, text)


def name_of(function):
    from jaxlib.mlir import ir

    return ir.StringAttr(function.attributes["sym_name"]).value if "sym_name" in function.attributes else ""


def rename(function, name):
    from jaxlib.mlir import ir

    function.attributes["sym_name"] = ir.StringAttr.get(name)
    for attribute in ("sym_visibility", "res_attrs", "arg_attrs"):
        if attribute in function.attributes:
            del function.attributes[attribute]


def calls_of_inputs(main):
    from jaxlib.mlir import ir

    operations = [op.operation for op in main.regions[0].blocks[0].operations]
    return [op for op in operations if op.name == "func.call" and ir.FlatSymbolRefAttr(op.attributes["callee"]).value == "inputs"]


def parameters_for_inputs(main):
    """Makes parameters of what `@inputs` gives."""
    from jaxlib.mlir import ir

    block = main.regions[0].blocks[0]
    for call in calls_of_inputs(main):
        for result in list(call.results):
            result.replace_all_uses_with(block.add_argument(result.type, ir.Location.unknown()))
    parameters = [argument.type for argument in block.arguments]
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(parameters, []))


def return_only(main, values):
    """Makes the main function return values, and leaves out what none of them needs."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func

    block = main.regions[0].blocks[0]
    operations = [op.operation for op in block.operations]
    operations.pop().erase()
    with ir.InsertionPoint(block):
        func.ReturnOp(values)
    for op in reversed(operations):
        if not any(True for result in op.results for _ in result.uses):
            op.erase()
    types = [argument.type for argument in block.arguments], [value.type for value in values]
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))


def bytecode(module):
    """The module, its shapes made static where they are not."""
    from jax._src.interpreters import mlir
    from jaxlib import _jax
    from jaxlib.mlir import ir

    if "?" in str(module.operation.get_asm(large_elements_limit=4)):
        code = mlir.module_to_bytecode(module)
        module = ir.Module.parse(_jax.mlir.refine_polymorphic_shapes(code, True, True))
    return mlir.module_to_bytecode(module)


def random_inputs(code):
    """Small numbers, the same in every run, for the parameters of a program."""
    import ml_dtypes
    import numpy as np
    from jaxlib.mlir import ir

    names = {"i1": "bool_", "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}
    names |= {"complex<f32>": "complex64", "complex<f64>": "complex128"}
    names |= {f"{u}i{n}": f"{'u' * bool(u)}int{n}" for u in ("", "u") for n in (4, 8, 16, 32, 64)}
    with parsed(code) as (module, main, _, _):
        shapes = [ir.RankedTensorType(argument.type) for argument in main.regions[0].blocks[0].arguments]
        kinds = [(names[str(shape.element_type)], shape.shape) for shape in shapes]
    draw = np.random.RandomState(0)
    dtype = lambda name: np.dtype(getattr(np, name, None) or getattr(ml_dtypes, name))
    return [draw.randint(0, 4, shape).astype(dtype(name)) for name, shape in kinds]


def execute(code, inputs):
    """What XLA computes on the CPU."""
    import jax
    import numpy as np
    from jax._src import compiler
    from jax._src.lib import xla_client

    backend = jax.local_devices()[0].client
    options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
    devices = xla_client.DeviceList(tuple(backend.local_devices()[:1]))
    executable = backend.compile_and_load(code, devices, options)
    results = executable.execute_sharded([jax.device_put(a) for a in inputs])
    return [np.asarray(r[0]) for r in results.disassemble_into_single_device_arrays()]


def stored(a):
    """An array of a type that NumPy's files know."""
    import numpy as np

    if a.dtype.name in ("int4", "int2"):
        return a.astype(np.int8)
    if a.dtype.name in ("uint4", "uint2"):
        return a.astype(np.uint8)
    if a.dtype.isbuiltin == 1:
        return a
    return a.view(np.uint16 if a.dtype.itemsize == 2 else np.uint8)


def unstored(a, dtype):
    import ml_dtypes
    import numpy as np

    if not hasattr(ml_dtypes, dtype):
        return a
    dtype = np.dtype(getattr(ml_dtypes, dtype))
    return a.astype(dtype) if "int" in dtype.name else a.view(dtype)


# Trials


def try_all(missing, folder, results, binary, jobs):
    """What came of each program; written as it comes."""
    known, lock = {}, threading.Lock()
    workers = threading.local()
    scratch = folder / "programs"
    scratch.mkdir(exist_ok=True)
    with open(results, "a") as out, concurrent.futures.ThreadPoolExecutor(jobs) as pool:

        def one(item):
            name, text = item
            if not hasattr(workers, "own"):
                workers.own = Worker(scratch)
            answer = {"name": name, "binary": binary, **trial(name, text, scratch, workers.own)}
            with lock:
                known[name] = answer
                out.write(json.dumps(answer) + "\n")
                out.flush()
                if answer["bad"]:
                    print(f"{name}: {'; '.join(answer['bad'])}", flush=True)

        list(pool.map(one, missing))
    return known


class Worker:
    """A process with jaxlib, begun anew when it ends."""

    def __init__(self, folder):
        self.folder, self.process = folder, None

    def ask(self, verb, name, text):
        if self.process is None:
            command = [sys.executable, __file__, "--worker", ".", str(self.folder)]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        try:
            self.process.stdin.write(json.dumps([verb, name, text]) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            return json.loads(line)
        self.process.wait()
        self.process = None
        return {"reason": "XLA ends its process"}


def trial(name, text, folder, worker):
    """What came of one program: why it was left out, or what is bad."""
    made = worker.ask("convert", name, text)
    if "reason" in made:
        return {"reason": made["reason"], "bad": [], "note": ""}
    bad = []
    module = folder / f"{name}.hlo"
    with tempfile.TemporaryDirectory() as t:
        tell(bad, "plan", module, "--target", "cpu")
        for target in TARGETS:
            emit = ["--emit", f"hlo={t}/m.hlo", "--emit", f"plan={t}/m.json"]
            if tell(bad, "compile", module, "--target", target, *emit):
                tell(bad, "check", f"{t}/m.hlo", f"{t}/m.json", of=target)
                tell(bad, "plan", f"{t}/m.hlo", "--target", target, of="emitted")
        notes = []
        for extra in (["--arena"], ["--arena", "--optimize"]):
            inputs = ["--inputs", folder / f"{name}.in.npz", "--outputs", f"{t}/o.npz"]
            if tell(bad, "run", module, *inputs, *extra):
                where, note = compare(name, made, folder, f"{t}/o.npz", worker)
                notes.append(note)
                bad += [f"run {' '.join(extra)}: {where}"] if where else []
    return {"reason": "", "bad": bad, "note": max(notes, default="")}


def tell(bad, verb, *args, of=""):
    """Whether a command succeeds; else what it says is bad."""
    try:
        run = subprocess.run([MEMPLAN, verb, *map(str, args)], capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        bad.append(f"{verb} {of}: more than {LONGEST} s")
        return False
    if run.returncode:
        options = " ".join(str(a) for a in args[1:] if str(a).startswith("--") or str(a) in TARGETS)
        said = [line for line in run.stderr.splitlines() if line.startswith(("error", "thread"))] or run.stderr.splitlines()
        bad.append(f"{verb} {of or options}: {run.returncode}: {' '.join(said[:2])[:300]}")
    return run.returncode == 0


def distance(f, e):
    """Units in the last place between numbers of one type; NaNs are equal."""
    import numpy as np

    if f.dtype.kind in "biu" or "int" in f.dtype.name:
        return np.where((f != e).reshape(-1), np.inf, 0)
    is_nan = [np.isnan(a.astype(np.float64)).reshape(-1) for a in (f, e)]
    width = f.dtype.itemsize * 8

    def place(a):
        bits = np.ascontiguousarray(a).view(f"u{a.dtype.itemsize}").reshape(-1)
        magnitude = (bits & ~np.array(1 << (width - 1), bits.dtype)).astype(np.float64 if width < 64 else object)
        return np.where(bits >> (width - 1), -magnitude, magnitude)

    apart = np.abs(place(f) - place(e)).astype(np.float64)
    return np.where(is_nan[0] & is_nan[1], 0, np.where(is_nan[0] | is_nan[1], np.inf, apart))


def distance_by_largest(f, e):
    """Units in the last place of the largest finite number: what rounding in another order may cost."""
    import ml_dtypes
    import numpy as np

    if f.dtype.kind in "biu" or "int" in f.dtype.name or not f.size:
        return distance(f, e)
    f, e, mantissa = (*(a.astype(np.float64).reshape(-1) for a in (f, e)), ml_dtypes.finfo(f.dtype).nmant)
    largest = np.abs(e[np.isfinite(e)]).max(initial=0) or 1
    same = (f == e) | np.isnan(f) & np.isnan(e)
    with np.errstate(invalid="ignore"):
        apart = np.abs(f - e) / 2.0 ** (np.floor(np.log2(largest)) - mantissa)
    return np.where(same, 0, np.where(np.isnan(apart), np.inf, apart))


def compare(name, made, folder, outputs, worker):
    """(what differs, a note): results against those of the test, then against those of XLA."""
    import numpy as np

    found, expected = np.load(outputs), np.load(folder / f"{name}.expected.npz")
    where = difference(found, expected, made)
    if not where:
        return "", ""
    if made["devices"] > 1:
        return f"{where} of the test", ""
    answer = worker.ask("run", name, made["given"])
    if "reason" in answer:
        return f"{where} of the test; XLA refuses: {answer['reason']}", ""
    xla = np.load(folder / f"{name}.xla.npz")
    if not difference(found, xla, made):
        return "", f"{AS_XLA}: {where}"
    if not all(difference(found, other, made, distance_by_largest) for other in (expected, xla)):
        return "", f"{BY_LARGEST}: {where}"
    return f"{where} of the test", ""


def difference(found, expected, made, distance=distance):
    """Where the first result is that differs by more than is allowed; empty if none does."""
    import numpy as np

    for k, dtype in enumerate(made["types"]):
        f, e = found[f"o{k}"], expected[f"o{k}"]
        if f.shape != e.shape:
            return f"o{k} has shape {f.shape} instead of {e.shape}"
        f, e = unstored(f, dtype), unstored(e, dtype)
        if dtype.startswith("complex"):
            half = np.float32 if dtype == "complex64" else np.float64
            f, e = (np.ascontiguousarray(a).view(half) for a in (f, e))
        apart = distance(f, e)
        limit = 0 if made["exact"][k] or "int" in dtype or dtype == "bool" else ULPS
        if apart.size and apart.max() > limit:
            at = int(apart.argmax())
            return f"o{k} is {f.reshape(-1)[at]} instead of {e.reshape(-1)[at]}, {apart.max():.0f} units"
    return ""


# The table


def read_results(path):
    if not path.exists():
        return {}
    return {row["name"]: row for row in map(json.loads, path.read_text().splitlines())}


def reason(error):
    """The line of an error that says why, without what only this program has."""
    lines = [line.strip() for line in error.splitlines() if "error:" in line] or error.strip().splitlines() or ["?"]
    line = re.sub(r'^.*?error: (?:"[^"]*": |loc\([^)]*\): )?', "", lines[0])
    line = re.sub(r"tensor<[^ ]*>|'%[^']*'|%\w+|\d+", "_", line)
    return line[:110]


def table(rows):
    """Prints what came of the programs, and returns how many went wrong."""
    reasons = collections.Counter(row["reason"] for row in rows if row["reason"])
    bad = [row for row in rows if row["bad"]]
    notes = collections.Counter(row["note"].split(":")[0] for row in rows if row["note"] and not row["bad"])
    tried = len(rows) - sum(reasons.values())
    print(f"{len(rows)} programs: {tried} tried, {len(bad)} wrong")
    for note, n in sorted(notes.items()):
        print(f"  {n:5} {note}")
    print(f"{sum(reasons.values())} are no HLO:")
    for why, n in reasons.most_common():
        print(f"  {n:5} {why}")
    kinds = collections.Counter(re.sub(r"\d+(\.\d+)?(e[+-]\d+)?|`[^`]*`", "_", b)[:150] for row in bad for b in row["bad"])
    for kind, n in kinds.most_common():
        print(f"  {n:5} {kind}")
    return len(bad)


if __name__ == "__main__":
    main()
