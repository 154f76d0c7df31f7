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
def command(tmp_path):
    """Runs the command in an empty folder; `emits` are files to write there."""

    def run(*args, emits=(), statuses=(0,)):
        flags = [part for emit in emits for part in ("--emit", emit)]
        done = subprocess.run([str(MEMPLAN), "-q", *map(str, args), *flags], cwd=tmp_path, timeout=600)
        assert done.returncode in statuses

    return run


@pytest.fixture
def memplan(command, tmp_path):
    """Runs a verb that plans, and gives its plan."""

    def run(path, verb, target, *emits, flags=(), statuses=(0,)):
        command(verb, path, "--target", target, "-o", "plan.json", "--format", "json", *flags, emits=emits, statuses=statuses)
        return json.loads((tmp_path / "plan.json").read_text())

    return run


@pytest.fixture
def text_of():
    """Runs the command, and gives the report that a wide terminal would show."""

    def run(*args):
        return subprocess.run([str(MEMPLAN), "-q", *map(str, args)], check=True, capture_output=True, text=True, timeout=600).stdout

    return run
