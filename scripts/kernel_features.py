"""The cost model's facts about each instruction of a scheduled module, from examples/kernel_features.rs. Needs cargo."""

import csv
import io
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def rows(target, module, *compiler):
    """A dictionary for each instruction that does something. Raises `CalledProcessError` where memplan refuses the module."""
    command = ["cargo", "run", "--release", "--quiet", "--example", "kernel_features", "--", target, str(module), *compiler]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return list(csv.DictReader(io.StringIO(done.stdout), delimiter="\t"))
