#!/usr/bin/env python3
"""What XLA's own compilers need for programs, as JAX hands them over and as `memplan rewrite` does: docs/rewrite.md.

    rewritten_with_xla.py XLA_COMPILE OUT COMPILER[,COMPILER...] FOLDER [PROGRAM...]

XLA_COMPILE is a script that takes `gpu`, `cpu` or `tpu`, `--text DIR`, and HLO texts, compiles each with XLA, and prints a JSON line with
`file`, `total` (argument + output - alias + temp, in bytes), `seconds` or `error`; DIR/PROGRAM.NAME.BACKEND.txt is the
compiled module, which for TPU carries libtpu's estimated cycles. FOLDER holds a folder for each program,
with `before.hlo.txt`, or `cpu.hlo.pb`, `gpu.hlo.pb`, `tpu.hlo.pb` as scripts/people makes them. A compiler is `gpu`,
`cpu` or `tpu`. The command is found in target/release, or named by the environment variable MEMPLAN.

Rows are kept in OUT.jsonl, so that a run that was stopped goes on where it was; OUT is written in the end. A program
that XLA refuses as it was, on one device, is left out and named.
"""

import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

MEMPLAN = os.environ.get("MEMPLAN", "target/release/memplan")
# Programs that are compiled by one process: a crash of XLA takes no more than these along.
BATCH = 6


def main():
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    tool, out, compilers, folder, *names = sys.argv[1:]
    programs = [p for p in sorted(pathlib.Path(folder).iterdir()) if p.is_dir() and (not names or p.name in names)]
    kept = pathlib.Path(out + ".jsonl")
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    done = {(row["program"], row["compiler"]) for row in rows}
    for compiler in compilers.split(","):
        todo = [p for p in programs if (p.name, compiler) not in done and source(p, compiler)]
        for i in range(0, len(todo), BATCH):
            for row in measure(tool, compiler, todo[i : i + BATCH]):
                rows.append(row)
                print(json.dumps(row), flush=True)
                with kept.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    pathlib.Path(out).write_text(report(rows))


def source(program, compiler):
    """The module that JAX hands to a compiler."""
    paths = [program / "before.hlo.txt", program / f"{compiler}.hlo.pb"]
    return next((path for path in paths if path.exists()), None)


def measure(tool, compiler, programs):
    """Rows of programs: bytes of XLA before and after, and what memplan expected."""
    with tempfile.TemporaryDirectory() as folder:
        rows = {}
        for program in programs:
            row = rows[program.name] = {"program": program.name, "compiler": compiler}
            texts = pathlib.Path(folder) / program.name
            texts.mkdir()
            module = source(program, compiler)
            if refused := command("opt", module, "-o", texts / "before.txt"):
                row["error"] = "opt: " + refused
                continue
            if refused := command("rewrite", module, "--compiler", f"xla-{compiler}", "-o", texts / "after.txt"):
                row["error"] = "rewrite: " + refused
                continue
            for which in ("before", "after"):
                row["expected_" + which] = expected(texts / f"{which}.txt", compiler)
        files = [f"{folder}/{name}/{which}.txt" for name in rows if "error" not in rows[name] for which in ("before", "after")]
        run = subprocess.run([sys.executable, tool, compiler, "--text", f"{folder}/text", *files], capture_output=True, text=True)
        answers = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
        for answer in answers:
            path = pathlib.Path(answer["file"])
            row = rows[path.parent.name]
            row[path.stem] = answer.get("total", answer.get("error"))
            compiled = pathlib.Path(f"{folder}/text/{path.parent.name}.{path.name}.{compiler}.txt")
            if compiler == "tpu" and compiled.exists():
                row["cycles_" + path.stem] = cycles(compiled.read_text())
        return list(rows.values())


def command(*arguments):
    run = subprocess.run([MEMPLAN, *map(str, arguments)], capture_output=True, text=True)
    return run.returncode and run.stderr.strip()[-200:]


def expected(text, compiler):
    run = subprocess.run(
        [MEMPLAN, "estimate", text, "--compiler", f"xla-{compiler}", "--format", "json"], capture_output=True, text=True
    )
    estimate = json.loads(run.stdout)
    return {"total": estimate["total"], "seconds": estimate["seconds"]}


def cycles(text):
    """libtpu's estimated cycles of one run; a loop runs as often as the constant in its condition says,
    and of branches the mean counts."""
    inside, name, entry = {}, None, None
    for line in text.splitlines():
        if begin := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*$", line):
            name = begin[2]
            inside[name] = []
            entry = name if begin[1] else entry
        elif name:
            inside[name].append(line)

    def of(computation):
        total = 0
        for line in inside.get(computation, ()):
            # Instructions that libtpu has no figure for carry the largest number there is.
            if (found := re.search(r'"estimated_cycles":"(\d+)"', line)) and int(found[1]) < 1e15:
                total += int(found[1])
            if loop := re.search(r" while\(.*?condition=%?([\w.\-]+), body=%?([\w.\-]+)", line):
                bounds = re.findall(r"s32\[\]\S* constant\((\d+)\)", "".join(inside[loop[1]]))
                total += of(loop[2]) * max(map(int, bounds), default=10)
            elif branches := re.search(r" conditional\(.*?branch_computations=\{(.*?)\}", line):
                names = [name.strip().lstrip("%") for name in branches[1].split(",")]
                total += sum(map(of, names)) / len(names)
            elif call := re.search(r" call\(.*?to_apply=%?([\w.\-]+)", line):
                total += of(call[1])
        return total

    return of(entry)


def report(rows):
    """The document."""
    text = "# Programs rewritten for XLA\n\n"
    text += "`scripts/rewritten_with_xla.py` made this. Bytes are the figures of XLA's compilers in jaxlib (argument + output - alias + temp),\n"
    text += "for an H100, a v5e and the CPU; MB are 10^6 bytes. *Expected* is the ratio that `memplan estimate` predicts; *time* is the ratio of\n"
    text += "the cost model's seconds; *cycles* is the ratio of the cycles that libtpu estimates.\n\n"
    text += "Rewrites do not change results, except as XLA's compilers themselves change them: the algebra of constants, and the order\n"
    text += "in which a reduction combines its elements, which HLO leaves open. If a loop stacks rows and a reduction sums the stack after the loop, the rewritten loop sums the rows in the order of its steps;\n"
    text += "blocks of rows are summed block by block, and parts of the batch part by part. A loop carries sums narrower than f32 in f32 from step to step, so they are\n"
    text += "rounded no more often than XLA rounds them. But gradients of weights in up to eight parts are added in their own type, as devices that share a\n"
    text += "batch add theirs: in `bf16`, their error is about twice one rounding. A value that is computed again, or once for all steps, is computed by the\n"
    text += "same operations.\n"
    for compiler in dict.fromkeys(row["compiler"] for row in rows):
        mine = [row for row in rows if row["compiler"] == compiler]
        whole = [row for row in mine if isinstance(row.get("before"), int)]
        ratios = [row["after"] / row["before"] for row in whole if isinstance(row.get("after"), int)]
        if not ratios:
            continue
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        text += f"\n## xla-{compiler}\n\n{len(ratios)} programs, geometric mean {mean:.3f}, worst {max(ratios):.3f}.\n\n"
        text += "| program | before, MB | after, MB | ratio | expected | time | cycles |\n|---|---:|---:|---:|---:|---:|---:|\n"
        for row in whole:
            before, after = row["expected_before"], row["expected_after"]
            if not isinstance(row.get("after"), int):
                text += f"| {row['program']} | {row['before'] / 1e6:.3f} | refused: {row.get('after')} | | | | |\n"
                continue
            cells = [f"{row['before'] / 1e6:.3f}", f"{row['after'] / 1e6:.3f}", f"{row['after'] / row['before']:.3f}"]
            cells.append(f"{after['total'] / max(before['total'], 1):.3f}")
            cells.append(f"{after['seconds'] / before['seconds']:.2f}" if before["seconds"] else "")
            cells.append(f"{row['cycles_after'] / row['cycles_before']:.2f}" if row.get("cycles_before") else "")
            text += f"| {row['program']} | " + " | ".join(cells) + " |\n"
        left = [f"{row['program']} ({row.get('error') or row.get('before') or 'XLA crashed'})" for row in mine if row not in whole]
        if left:
            text += "\nLeft out: " + "; ".join(" ".join(name.split())[:120] for name in left) + ".\n"
    return text


if __name__ == "__main__":
    main()
