#!/usr/bin/env python3
"""Checks our HLO text against XLA's own parser.

    check_with_xla.py FOLDER [PRINTED]

For every *.hlo.txt and *.hlo below FOLDER, the text itself and what memplan prints for it must serialise to the same
HloModuleProto once jaxlib has read them. PRINTED is a folder with our texts by the same names; without it they are
made with `memplan opt`, found in target/ or named by the environment variable MEMPLAN.

Texts that XLA refuses or crashes on are counted apart: there is nothing to compare with. Needs `pip install jaxlib`.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

from jaxlib import _hlo

from own_process import in_child


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    files = sorted(p for p in folder.rglob("*") if p.name.endswith((".hlo.txt", ".hlo")))
    if not files:
        sys.exit(f"no HLO text below {folder}")
    counts = {"same": 0, "different": 0, "we refuse": 0, "XLA refuses ours": 0, "XLA refuses both": 0}
    with tempfile.TemporaryDirectory() as made:
        printed = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else None
        for path in files:
            ours = (printed or pathlib.Path(made)) / path.relative_to(folder)
            if printed is None:
                ours.parent.mkdir(parents=True, exist_ok=True)
                run = subprocess.run([memplan(), "opt", path, "-o", ours], capture_output=True, text=True)
                if run.returncode != 0:
                    print(f"{path}: {run.stderr.strip()}")
            verdict, why = compare(path, ours)
            counts[verdict] += 1
            if verdict != "same":
                print(f"{path}: {verdict}{': ' + why if why else ''}")
    print(f"{len(files)} texts: " + ", ".join(f"{n} {what}" for what, n in counts.items() if n))
    bad = counts["different"] + counts["we refuse"] + counts["XLA refuses ours"]
    sys.exit(1 if bad else 0)


def memplan():
    if "MEMPLAN" in os.environ:
        return os.environ["MEMPLAN"]
    root = pathlib.Path(__file__).resolve().parent.parent
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    for profile in ("release", "debug"):
        if (target / profile / "memplan").exists():
            return target / profile / "memplan"
    sys.exit("no memplan binary: run `cargo build --release -p memplan-cli`, or name one in MEMPLAN")


def compare(path, ours):
    """One verdict, with XLA's words where it refuses."""
    theirs, error = serialise(path)
    if not ours.exists():
        return ("XLA refuses both", error) if not theirs else ("we refuse", "")
    mine, my_error = serialise(ours)
    if not theirs:
        return "XLA refuses both", error
    if not mine:
        return "XLA refuses ours", my_error
    return ("same" if mine == theirs else "different"), ""


def serialise(path):
    """The HloModuleProto of a text, or nothing and why not.

    In a child process: XLA's parser ends its process on some texts, numbers the modules of a process, and fills elided
    constants from a counter that goes on from module to module.
    """
    def proto():
        return _hlo.hlo_module_from_text(path.read_text()).as_serialized_hlo_module_proto()

    return in_child(proto, quiet=True)


if __name__ == "__main__":
    main()
