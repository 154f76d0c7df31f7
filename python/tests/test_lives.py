"""Memory snapshots of PyTorch, read without PyTorch and without running anything."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import memplan


def frames(line: int) -> list[dict[str, Any]]:
    python = {"filename": "/home/me/train.py", "name": "forward", "line": line}
    torch = {"filename": "/site-packages/torch/nn/modules/linear.py", "name": "forward", "line": 1}
    return [{"filename": "??", "name": "at::native::mm", "line": 0}, torch, python]


def event(action: str, address: int, size: int, line: int = 1) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "frames": frames(line), "stream": 0}


#: 100 and 200 bytes are live together, then 200 and 400: PyTorch's addresses leave a hole of 100.
EVENTS = [
    event("alloc", 0, 100, 3),
    event("alloc", 100, 200, 4),
    event("free_requested", 0, 100),
    event("free_completed", 0, 100),
    event("alloc", 300, 400, 5),
    event("free_completed", 100, 200),
    event("free_completed", 300, 400),
]
SEGMENTS = [{"device": 0, "address": 0, "total_size": 1024, "blocks": []}]


def written(tmp_path: Path, data: Any) -> Path:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(data))
    return path


def test_who_holds_the_peak_and_what_a_plan_needs(tmp_path: Path) -> None:
    path = written(tmp_path, {"segments": SEGMENTS, "device_traces": [[], EVENTS[:0], EVENTS][-1:]})
    found = memplan.snapshot(path)
    assert (found.peak, found.planned, found.reserved) == (600, 600, 1024)
    assert [(life.bytes, life.source) for life in found.holders] == [(400, "train.py:5"), (200, "train.py:4")]
    assert "reserved    1.00 KiB" in str(found) and "train.py:5" in str(found)


def test_what_was_there_before_the_history(tmp_path: Path) -> None:
    block = {"state": "active_allocated", "address": 900, "size": 50, "frames": []}
    segments = [{**SEGMENTS[0], "blocks": [block]}]
    found = memplan.snapshot(written(tmp_path, {"segments": segments, "device_traces": [EVENTS]}))
    assert (found.always, found.peak) == (50, 650)


class Runs:
    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def test_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, {"segments": [], "device_traces": [[Runs()]]})
    with pytest.raises(memplan.InputError, match=r"no memory snapshot of PyTorch: it names posix\.mkdir"):
        memplan.snapshot(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("data", [[], {}, {"device_traces": []}, {"device_traces": [[{"action": "alloc"}]]}, 3])
def test_other_files(tmp_path: Path, data: Any) -> None:
    with pytest.raises(memplan.InputError, match="no memory snapshot"):
        memplan.snapshot(written(tmp_path, data))
    with pytest.raises(memplan.InputError, match="cannot read"):
        memplan.snapshot(tmp_path / "nothing")
