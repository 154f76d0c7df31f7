"""Results as notebooks draw them: a table, and the load over the program as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from memplan._results import Plan, Rewritten

#: Size of the picture, in points.
WIDTH, HEIGHT = 720, 160

#: Arrays at the peak that are listed.
MOST_HOLDERS = 12


def plan(result: Plan) -> str:
    """Totals, the load over the program, and who holds the peak."""
    from memplan._results import readable

    t = result.totals
    totals = [
        (name, readable(count))
        for name, count in (
            ("arguments", t.arguments),
            ("outputs", t.outputs),
            ("aliased", t.aliased),
            ("constants", t.constants),
            ("temp", t.temp),
            ("total", result.total),
        )
    ]
    holders = [
        (readable(h.bytes), h.shape, h.instruction, h.operation, h.source or "", h.kept_by)
        for h in result.holders[:MOST_HOLDERS]
    ]
    return (
        f"<h4>{escape(result.module.name)} on {escape(result.target)}</h4>"
        + _table(("", "bytes"), totals)
        + _curve(result)
        + f"<p>live at the peak: {readable(result.peak.bytes)} while {escape(result.peak.instruction)} runs</p>"
        + _table(("size", "shape", "instruction", "operation", "source", "kept by"), holders)
    )


def rewritten(result: Rewritten) -> str:
    """What each rewrite brings."""
    from memplan._results import readable

    rows = [("as it was", readable(result.before.bytes), f"{1e3 * result.before.seconds:.3f} ms", "")]
    for step in result.steps:
        name = step.name if step.is_kept else f"not worth it: {step.name}"
        rows.append((name, readable(step.bytes), f"{1e3 * step.seconds:.3f} ms", step.description))
    return _table(("", "memory", "time", ""), rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def row(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{row('th', header)}{''.join(row('td', cells) for cells in rows)}</table>"


def _curve(result: Plan) -> str:
    """The load over the program: each column the most bytes live in its part."""
    curve = result.curve
    if len(curve) == 0:
        return ""
    starts = np.unique(np.linspace(0, len(curve), min(WIDTH, len(curve)), endpoint=False).astype(np.intp))
    tops = np.maximum.reduceat(curve, starts) / max(int(curve.max()), 1)
    x, y = starts * (WIDTH / len(curve)), HEIGHT * (1 - tops)
    steps = " ".join(f"V{top:.1f} H{end:.1f}" for top, end in zip(y, [*x[1:], WIDTH], strict=True))
    peak = (result.peak.time + 0.5) * WIDTH / len(curve)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img"'
        f' aria-label="bytes live over the program">'
        f'<path d="M0 {HEIGHT} {steps} V{HEIGHT} Z" fill="#4c78a8"/>'
        f'<path d="M{peak:.1f} 0 V{HEIGHT}" stroke="#e45756"/></svg>'
    )
