"""Signs of life for work that takes more than a second: on a terminal and in a notebook, nowhere else."""

from __future__ import annotations

import sys
from typing import Any


class Progress:
    """One line that says what is done and for how long. The extension module makes it after a second."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._handle = _notebook_handle()
        self._is_terminal = self._handle is None and sys.stderr is not None and sys.stderr.isatty()
        self._shown = ""

    def tick(self, seconds: float) -> None:
        """Says how long it has taken so far."""
        text = f"memplan: {self._what} … {seconds:.0f} s"
        if text == self._shown:
            return
        self._shown = text
        if self._handle is not None:
            self._handle.update({"text/plain": text}, raw=True)
        elif self._is_terminal:
            sys.stderr.write(f"\r{text}")
            sys.stderr.flush()

    def done(self) -> None:
        """Removes the line."""
        if self._handle is not None:
            self._handle.update({"text/plain": ""}, raw=True)
        elif self._is_terminal:
            sys.stderr.write("\r" + " " * len(self._shown) + "\r")
            sys.stderr.flush()


def _notebook_handle() -> Any:
    """Where a notebook shows a line that changes; None outside of one."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or type(shell).__name__ != "ZMQInteractiveShell":
        return None
    from IPython.display import display

    return display({"text/plain": ""}, raw=True, display_id=True)
