"""XLA's GPU and TPU compilers, without a device: `pytest -m xla`, by hand."""

import json
import subprocess
import sys

import pytest
from conftest import REPOSITORY


@pytest.mark.xla
@pytest.mark.parametrize("backend", ["gpu", "tpu"])
def test_programs_need_no_more(backend: str) -> None:
    script = REPOSITORY / "python" / "benches" / "xla.py"
    output = subprocess.run([sys.executable, script, backend], check=True, stdout=subprocess.PIPE, text=True).stdout
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert len(rows) >= 20
    for row in rows:
        print(row)
        assert row["aliased_after"] == row["aliased_before"], row
        assert row["after"] <= 1.05 * row["before"] + (64 << 10), row
