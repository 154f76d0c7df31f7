"""Tests the Python package with several versions of JAX, and writes docs/jax_versions.md.

    scripts/jax_versions.py WHEEL [JAX ...]          # scripts/wheels.sh builds a wheel

Each version gets a virtual environment of its own (target/jax-venvs), with the newest CPython here that pip has that
jaxlib for, and the wheel. Rows of versions that are not run again stay as they are. Needs interpreters of several
versions, `python3.11` and so on, in PATH or from pyenv. `tests/test_documents.py` compares README.md with the table.
"""

from __future__ import annotations

import datetime
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "docs" / "jax_versions.md"
HEAD = """# Versions of JAX that are tested

`scripts/jax_versions.py` installed a wheel beside each, ran a part of the tests of the package on CPU, and wrote this
table: {tests}. All tests run in CI with the newest version.

| jax | jaxlib | CPython | passed | failed | skipped | memplan | on |
|---|---|---|---:|---:|---:|---|---|
"""
# What is run with each: estimates and plans of programs in every form, what `memplan.jit` does and does not rewrite, and
# the README's lines. All tests of the package take ten times as long.
TESTS = ["test_api.py", "test_jit_falls_back.py", "test_questions.py", "test_documents.py::test_five_lines"]
# The newest of each minor version, and the oldest that pyproject.toml admits.
VERSIONS = ["0.8.0", "0.9.2", "0.10.2", "0.11.2", "0.12.0.1"]
# CPythons to try for a version, in this order: the first that pip has a jaxlib for.
PYTHONS = ["3.13", "3.12", "3.11"]
FRAMEWORKS = ["flax", "optax", "equinox", "pytest"]


def interpreter(version: str) -> str | None:
    """An interpreter of that version, from PATH or pyenv."""
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(found[-1]) if found else shutil.which(f"python{version}")


def environment(jax: str, wheel: Path) -> tuple[Path, str]:
    """The Python of a virtual environment with that JAX, and its version."""
    for version in PYTHONS:
        python = interpreter(version)
        if python is None:
            continue
        folder = ROOT / "target" / "jax-venvs" / f"{jax}-{version}"
        subprocess.run([python, "-m", "venv", folder], check=True)
        inside = folder / "bin" / "python"
        pip = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if subprocess.run([*pip, f"jax=={jax}", f"jaxlib=={jax}", *FRAMEWORKS]).returncode == 0:
            subprocess.run([*pip, "--force-reinstall", "--no-deps", wheel], check=True)
            return inside, version
    sys.exit(f"no interpreter here, of {', '.join(PYTHONS)}, for which pip has jax {jax}")


def row(jax: str, wheel: Path) -> str:
    """Runs the tests, and says how they ended."""
    python, version = environment(jax, wheel)
    tests = [python, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", "--tb=short"]
    tests += [ROOT / "python" / "tests" / name for name in TESTS]
    # From another folder, so that the package is the wheel's.
    done = subprocess.run(
        tests, cwd=python.parent, text=True, stdout=subprocess.PIPE, env={**os.environ, "PYTHONSAFEPATH": "1"}
    )
    (python.parents[1] / "tests.txt").write_text(done.stdout)
    closing = done.stdout.splitlines()[-1]
    counts = {what: n for n, what in re.findall(r"(\d+) (passed|failed|error|skipped)", closing)}
    if "error" in counts or "passed" not in counts:
        sys.exit(f"jax {jax}: the tests did not run: {closing}")
    asked = "from importlib.metadata import version; print(version('jaxlib'), version('memplan'))"
    jaxlib, memplan = subprocess.check_output([python, "-c", asked], text=True).split()
    numbers = (counts.get(what, "0") for what in ("passed", "failed", "skipped"))
    today = datetime.date.today().isoformat()
    return f"| {jax} | {jaxlib} | {version} | {' | '.join(numbers)} | {memplan} | {today} |"


def main() -> None:
    """Runs the versions that are asked for, and keeps the rows of the others."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    wheel = Path(sys.argv[1]).resolve()
    lines = TABLE.read_text().splitlines() if TABLE.exists() else []
    known = {line.split("|")[1].strip(): line for line in lines if line.startswith("| 0.")}
    for jax in sys.argv[2:] or VERSIONS:
        known[jax] = row(jax, wheel)
        print(known[jax], flush=True)
        rows = sorted(known, key=lambda version: [int(part) for part in version.split(".")])
        TABLE.write_text(
            HEAD.format(tests=", ".join(f"`{name}`" for name in TESTS))
            + "".join(f"{known[version]}\n" for version in rows)
        )


main()
