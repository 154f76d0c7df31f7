"""The README's five lines and the examples do what they say."""

import re
import subprocess
import sys
from pathlib import Path

import jaxlib
import pytest
from conftest import REPOSITORY

PYTHON = REPOSITORY / "python"


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
