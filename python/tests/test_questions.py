"""The rows of docs/questions.md that the Python package answers."""

import os
import re
import subprocess
import sys
from importlib.metadata import version

import pytest
from conftest import REPOSITORY

ROWS = re.findall(r"`python (\S+)`\]\((\S+)\)", (REPOSITORY / "docs" / "questions.md").read_text())


@pytest.mark.parametrize(("script", "answer"), ROWS)
def test_answer(script: str, answer: str) -> None:
    """With the version of JAX that the file names, the answer is the same; with others, it answers.

    After a change: MEMPLAN_UPDATE=1 pytest tests/test_questions.py
    """
    if script.endswith("checkpoint.py") and tuple(map(int, version("jax").split(".")[:2])) < (0, 10):
        pytest.skip("memplan.policy needs jax 0.10")
    done = subprocess.run([sys.executable, REPOSITORY / script], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    found = f"With jax {version('jax')}:\n\n{done.stdout}"
    path = REPOSITORY / "docs" / answer
    if "MEMPLAN_UPDATE" in os.environ:
        path.write_text(found)
    said = path.read_text()
    if said.splitlines()[0] == found.splitlines()[0]:
        assert said == found
    else:
        assert done.stdout.count("\n") > said.count("\n") / 2


def test_there_are_rows() -> None:
    assert len(ROWS) >= 2
