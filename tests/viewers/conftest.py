"""The programs that viewers are shown, planned and compiled by the command."""

import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MEMPLAN = pathlib.Path(os.environ.get("MEMPLAN", ROOT / "target" / "debug" / "memplan"))
SHARED = pathlib.Path(os.environ.get("MEMPLAN_SHARED", ROOT.parent / "shared"))

# What to do with a program of a corpus: the verb, which of its files, the target.
WAYS = [("plan", "gpu.hlo.txt", "gpu-h100"), ("compile", "before.hlo.txt", "gpu-h100"), ("compile", "before.hlo.txt", "tpu-v5e")]


def corpus():
    """Folders with a program each: the repository's own, and the larger corpus where it is."""
    folders = [ROOT / "tests" / "corpus"] + ([SHARED / "corpus"] if (SHARED / "corpus").is_dir() else [])
    return sorted(program for folder in folders for program in folder.iterdir() if program.is_dir())


def cases():
    return [(program / file, verb, target) for program in corpus() for verb, file, target in WAYS if (program / file).is_file()]


def case_id(case):
    path, verb, target = case
    return f"{path.parent.name}-{verb}-{target}"


@pytest.fixture
def memplan(tmp_path):
    """Runs the command in an empty folder and gives its plan; `emits` are files to write there."""

    def run(path, verb, target, *emits, flags=()):
        args = [str(MEMPLAN), verb, str(path), "--target", target, "-o", "plan.json", "--format", "json", *flags]
        for emit in emits:
            args += ["--emit", emit]
        subprocess.run(args, cwd=tmp_path, check=True, timeout=600)
        return json.loads((tmp_path / "plan.json").read_text())

    return run
