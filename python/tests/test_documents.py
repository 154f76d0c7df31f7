"""The README's five lines and the examples do what they say."""

import re
import subprocess
import sys
from pathlib import Path

import jaxlib
import pytest
from conftest import REPOSITORY

PYTHON = REPOSITORY / "python"


def test_versions_of_jax() -> None:
    """README.md names the versions in the table of what was tested, and all of it passed."""
    table = (REPOSITORY / "docs" / "jax_versions.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| 0.")]
    assert all(int(passed) > 30 and failed == "0" for _, _, _, passed, failed, *_ in rows)
    said = re.search(r"tested with jax (.*?) \(\[", (PYTHON / "README.md").read_text())
    assert said and re.findall(r"[\d.]+\d", said[1]) == [version for version, *_ in rows]
    # Each minor version since the oldest that pip may choose.
    minors = [int(version.split(".")[1]) for version, *_ in rows]
    lowest = re.search(r"jax>=0\.(\d+)", (PYTHON / "pyproject.toml").read_text())
    assert lowest and set(minors) == set(range(int(lowest[1]), max(minors) + 1))


def run(file: Path) -> str:
    return subprocess.run([sys.executable, file], check=True, capture_output=True, text=True).stdout


def test_five_lines(tmp_path: Path) -> None:
    readme = (PYTHON / "README.md").read_text()
    program = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    said = re.search(r"jaxlib (\S+):\n\n```\n(.*?)```", readme, re.DOTALL)
    assert program and said
    file = tmp_path / "readme.py"
    file.write_text(program[1])
    found = run(file).replace(f"{tmp_path}/", "")
    *_, before, after = found.split()
    assert int(after) < int(before) / 4
    if jaxlib.__version__ == said[1]:
        assert found == said[2]


@pytest.mark.parametrize("name", sorted(path.name for path in (PYTHON / "examples").glob("*.py")))
def test_example(name: str) -> None:
    lines = run(PYTHON / "examples" / name).splitlines()
    first, *_, last = (float(line.split("loss ")[1]) for line in lines if line.startswith("step "))
    assert last < first
