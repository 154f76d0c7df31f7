#!/usr/bin/env python3
"""Compares what memplan reads of StableHLO with what jaxlib makes of the same program.

    compare_stablehlo.py STABLEHLO FOLDER [--only TEXT]

STABLEHLO is a checkout or a git directory of openxla/stablehlo. Programs are those of its tests (`stablehlo_programs.py`), as
they are written, and what JAX lowers the programs of `stablehlo_of_jax.py` to; each as text and as portable bytecode.
FOLDER, outside of the repository, keeps the files. The comparison is `crates/stablehlo/examples/same_modules.rs`, which
SAME_MODULES names (target/release/examples/same_modules if not). Prints how many of how many are the same.
"""
import argparse
import collections
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SAME = os.environ.get("SAME_MODULES", str(ROOT / "target/release/examples/same_modules"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stablehlo", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(args.folder)
    from stablehlo_programs import programs

    for part in ("tests", "jax"):
        (args.folder / part).mkdir(parents=True, exist_ok=True)
    names = []
    for name, text in programs(args.stablehlo):
        if args.only in name:
            names.append(name)
            path = args.folder / "tests" / f"{name}.mlir"
            if not path.exists():
                path.write_text(text)
    lowered = args.folder / "tests"
    convert([lowered / name for name in names])
    jax = args.folder / "jax"
    if not any(jax.glob("*.mlir")):
        subprocess.run([sys.executable, str(ROOT / "scripts/stablehlo_of_jax.py"), str(jax)], check=True)
    pairs = []
    for name in names:
        if (lowered / f"{name}.hlo.pb").exists():
            for form in ("mlir", "bc"):
                if (lowered / f"{name}.{form}").exists():
                    pairs.append((f"tests, {form}", lowered / f"{name}.{form}", lowered / f"{name}.hlo.pb"))
    for path in sorted(jax.glob("*.mlir")):
        pairs.append(("JAX, text", path, path.with_suffix(".hlo.pb")))
        pairs.append(("JAX, bytecode", path.with_suffix(".bc"), path.with_suffix(".export.hlo.pb")))
    report(pairs)


def convert(paths):
    """Writes NAME.hlo.pb and NAME.bc for each NAME.mlir. XLA ends its process on some programs; those have none."""
    missing = [p for p in paths if not p.with_name(p.name + ".done").exists()]
    while missing:
        command = [sys.executable, __file__, "--worker", ".", str(missing[0].parent)]
        names = "\n".join(p.name for p in missing) + "\n"
        subprocess.run(command, input=names, text=True, stderr=subprocess.DEVNULL)
        left = [p for p in missing if not p.with_name(p.name + ".done").exists()]
        if left:
            # The first that is not done is the one that ended the process.
            left[0].with_name(left[0].name + ".done").write_text("XLA ends its process")
        missing = left[1:]


def work(folder):
    os.environ.update(JAX_PLATFORMS="cpu")
    from jax._src.interpreters import mlir
    from jaxlib import _jax
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo
    from stablehlo_programs import readable

    for name in sys.stdin.read().split("\n"):
        if not name:
            continue
        path = folder / f"{name}.mlir"
        done = folder / f"{name}.done"
        try:
            text = readable(path.read_text())
            path.write_text(text)
            computation = _jax.mlir.mlir_module_to_xla_computation(text, use_tuple_args=False, return_tuple=False)
            (folder / f"{name}.hlo.pb").write_bytes(computation.as_serialized_hlo_module_proto())
            with mlir.make_ir_context():
                module = ir.Module.parse(text)
                version = stablehlo.get_current_version()
                (folder / f"{name}.bc").write_bytes(stablehlo.serialize_portable_artifact(module, version))
            done.write_text("")
        except Exception as error:  # XLA's and MLIR's errors have no type of their own.
            done.write_text(str(error)[:2000])


def report(pairs):
    counts, reasons = collections.Counter(), collections.Counter()
    for start in range(0, len(pairs), 500):
        part = pairs[start : start + 500]
        files = [str(file) for _, program, hlo in part for file in (program, hlo)]
        lines = subprocess.run([SAME, *files], capture_output=True, text=True, check=True).stdout.splitlines()
        for (group, program, _), line in zip(part, lines, strict=True):
            verdict = line.split("\t")[1]
            counts[group, verdict.split(":")[0]] += 1
            if not verdict.startswith("same"):
                print(f"{program.name}: {verdict}")
                reasons[verdict] += 1
    print()
    for (group, verdict), count in sorted(counts.items()):
        print(f"{group}\t{verdict}\t{count}")


if __name__ == "__main__":
    main()
