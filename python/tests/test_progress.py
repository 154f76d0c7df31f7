"""Signs of life: after a second, on a terminal or in a notebook."""

import io
import sys
import types
from typing import Any

import numpy as np
import pytest

import memplan


def long_work() -> None:
    random = np.random.default_rng(0)
    lower = random.integers(0, 1 << 12, 5000)
    columns = lower, lower + random.integers(1, 500, 5000), random.integers(1, 1 << 20, 5000)
    memplan.pack(*columns, seconds=1.5)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_line_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    long_work()
    shown = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "memplan: packing … 1 s" in shown and shown.endswith("\r")
    memplan.pack([0], [1], [1])
    assert sys.stderr.getvalue() == shown  # type: ignore[attr-defined]


def test_a_notebook_gets_a_line_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, data: dict[str, str], raw: bool) -> None:
            shown.append(data["text/plain"])

    def display(data: Any, raw: bool, display_id: bool) -> Handle:
        return Handle()

    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    long_work()
    assert shown[0] == "memplan: packing … 1 s" and shown[-1] == ""


def test_elsewhere_there_is_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    long_work()
    assert capfd.readouterr() == ("", "")
