"""Results as notebooks draw them: a table, and the load over the program as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from memplan._results import Fit, Packing, Plan, Proof, Rewritten

#: Size of the picture, in points.
WIDTH, HEIGHT = 720, 160

#: Letters that stay on one line, as figures do; longer texts break anywhere, so that a table is as wide as its cell.
UNBROKEN = 14

#: Intervals that the picture of a packing shows, the largest of them: a browser draws so many at once.
MOST_INTERVALS = 2000


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
    title, (heads, *rows), rest = result._native.lines()
    verdicts = [
        _verdict(name, usable, needed) for _, name, usable, needed in result._native.spaces if usable is not None
    ]
    seconds = result._native.seconds
    time = [f"one run takes {_duration(seconds)} by the cost model"] if seconds else []
    return (
        f"<h4>{escape(result.module.name)} on {escape(result.target)}</h4>"
        + _table(("", "bytes"), totals)
        + "".join(f"<p>{escape(line)}</p>" for line in (*verdicts, *time))
        + _curve(result)
        + f"<p>{escape(title)}</p>"
        + _table(heads, rows)
        + (f"<p>{escape(rest)}</p>" if rest else "")
    )


def _verdict(name: str, usable: int, needed: int) -> str:
    """Whether a memory suffices, as reports say it."""
    from memplan._results import readable

    room = usable - needed
    rest = f"fits, {readable(room)} to spare" if room >= 0 else f"does NOT fit, {readable(-room)} too much"
    return f"{readable(needed)} of {readable(usable)} of {name}: {rest}"


def _duration(seconds: float) -> str:
    """As reports have it."""
    units = ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (1e-6, 1e6, "µs"), (0.0, 1e9, "ns"))
    factor, unit = next((factor, unit) for least, factor, unit in units if seconds >= least)
    return f"{seconds * factor:.3f} {unit}"


def rewritten(result: Rewritten) -> str:
    """What each rewrite brings."""
    from memplan._results import readable

    rows = [("as it was", readable(result.before.bytes), f"{1e3 * result.before.seconds:.3f} ms", "")]
    for step in result.steps:
        name = step.name if step.is_kept else f"not kept: {step.name}"
        rows.append((name, readable(step.bytes), f"{1e3 * step.seconds:.3f} ms", step.description))
    return _table(("", "memory", "time", ""), rows)


def fit(result: Fit) -> str:
    """Whether it fits, by how much, and the estimate."""
    from memplan._results import readable

    said = "fits" if result.fits else "does not fit"
    room = result.limit - result.needed
    rest = f"{readable(room)} to spare" if room >= 0 else f"{readable(-room)} too much"
    sizes = f"{readable(result.needed)} of {readable(result.limit)}"
    return f"<p><b>{said}</b>: {sizes} of {escape(result.estimate.target)}, {rest}</p>" + plan(result.estimate)


def proof(result: Proof) -> str:
    """What was looked at, and what was not."""
    looked_at = [
        ("computations", f"{result.computations:,}"),
        ("instructions", f"{result.instructions:,}"),
        ("reads that find their value", f"{result.reads:,}"),
        ("writes", f"{result.writes:,}"),
    ]
    spaces = ", ".join(map(str, result.on_trust))
    on_trust = f"<p>not verified: that the arena of memory {spaces} is as small as possible</p>" if spaces else ""
    return "<p><b>plan verified</b></p>" + _table(("", ""), looked_at) + on_trust


def packing(result: Packing) -> str:
    """Figures, and a picture of addresses against time."""
    from memplan._results import readable

    height = readable(result.height) + (", the least there is" if result.optimal else "")
    figures = [
        ("status", result.status),
        ("height", height),
        ("no packing is lower than", readable(result.lower_bound)),
        ("intervals", f"{len(result.offsets):,}"),
        ("search", f"{result.nodes:,} nodes, {result.seconds:.3f} s"),
    ]
    return _table(("", ""), figures) + _intervals(result)


def _intervals(result: Packing) -> str:
    """The largest intervals, each a rectangle: time from left to right, addresses upwards."""
    if len(result.offsets) == 0 or result.height == 0:
        return ""
    lower, upper, size, offset = (
        column.astype(np.float64) for column in (result.lower, result.upper, result.size, result.offsets)
    )
    shown = np.argsort(-(upper - lower) * size, kind="stable")[:MOST_INTERVALS]
    begin = lower.min()
    per_instant, per_byte = WIDTH / max(upper.max() - begin, 1), HEIGHT / result.height
    rectangles = "".join(
        f'<rect x="{(lower[i] - begin) * per_instant:.1f}" y="{HEIGHT - (offset[i] + size[i]) * per_byte:.1f}"'
        f' width="{(upper[i] - lower[i]) * per_instant:.1f}" height="{size[i] * per_byte:.1f}"/>'
        for i in shown
    )
    left_out = len(offset) - len(shown)
    return _picture(
        "addresses over time", f'<g fill="#4c78a8" stroke="#fff" stroke-width="0.3">{rectangles}</g>'
    ) + (f"<p>without the {left_out:,} smallest</p>" if left_out else "")


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that breaks long texts, and scrolls where even so it is wider than the cell."""

    def row(tag: str, cells: Sequence[str]) -> str:
        def style(cell: str) -> str:
            wrap = "white-space: nowrap" if len(cell) <= UNBROKEN else "overflow-wrap: anywhere; min-width: 7em"
            return f"text-align: left; vertical-align: top; {wrap}"

        return "<tr>" + "".join(f'<{tag} style="{style(cell)}">{escape(cell)}</{tag}>' for cell in cells) + "</tr>"

    lines = row("th", header) + "".join(row("td", cells) for cells in rows)
    return f'<div style="max-width: 100%; overflow-x: auto"><table>{lines}</table></div>'


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
    return _picture(
        "bytes live over the program",
        f'<path d="M0 {HEIGHT} {steps} V{HEIGHT} Z" fill="#4c78a8"/>'
        f'<path d="M{peak:.1f} 0 V{HEIGHT}" stroke="#e45756"/>',
    )


def _picture(of: str, shapes: str) -> str:
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" style="width: 100%; max-width: {WIDTH}px" preserveAspectRatio="none"'
    return f'<svg {size} height="{HEIGHT}" role="img" aria-label="{of}">{shapes}</svg>'
