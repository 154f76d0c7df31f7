"""What holds the peak of a list of arrays with lifetimes, and what one arena for all of them would need."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from memplan._api import pack
from memplan._memplan import InputError
from memplan._results import Packing, readable


class Life(NamedTuple):
    """An array, live in the instants ``[start, end)``."""

    bytes: int
    start: int
    end: int
    #: What makes it, and the line of the program.
    operation: str
    source: str


@dataclass(frozen=True)
class Lives:
    """Arrays with lifetimes: who holds the peak, and what a static plan needs."""

    #: Where they come from.
    name: str
    lives: Sequence[Life] = field(repr=False)
    #: Bytes that are there all the time, and not in ``lives``.
    always: int
    #: Bytes that were reserved by whoever allocated them, where that is known.
    reserved: int | None
    #: Most bytes live at one instant, with ``always``, and that instant.
    peak: int
    peak_time: int
    #: An address for each array in one arena.
    packing: Packing = field(repr=False)

    @property
    def holders(self) -> list[Life]:
        """What is live at the peak, the largest first."""
        live = (life for life in self.lives if life.start <= self.peak_time < life.end)
        return sorted(live, key=lambda life: (-life.bytes, life.start))

    @property
    def planned(self) -> int:
        """Bytes that one arena with all arrays needs, with ``always``."""
        return self.always + self.packing.height

    def __str__(self) -> str:
        lines = [f"{self.name}: {readable(self.peak)} live at most, {len(self.lives)} arrays"]
        if self.reserved is not None:
            lines.append(f"reserved    {readable(self.reserved)}")
        lines.append(f"planned     {readable(self.planned)}, each array at an address of one arena")
        lines.append("largest at the peak:")
        for life in self.holders[:10]:
            lines.append(f"{readable(life.bytes):>14}  {life.operation} {life.source}".rstrip())
        return "\n".join(lines)


def of_lives(name: str, lives: Sequence[Life], always: int = 0, reserved: int | None = None) -> Lives:
    """The peak of arrays, and an arena for them."""
    kept = [life for life in lives if life.bytes > 0 and life.start < life.end]
    events = sorted([(life.start, life.bytes) for life in kept] + [(life.end, -life.bytes) for life in kept])
    now = most = at = 0
    for i, (time, change) in enumerate(events):
        now += change
        is_last_of_its_time = i + 1 == len(events) or events[i + 1][0] != time
        if is_last_of_its_time and now > most:
            most, at = now, time
    columns = [np.array([life[i] for life in kept], np.uint64) for i in (1, 2, 0)]
    return Lives(name, tuple(kept), always, reserved, always + most, at, pack(*columns))


class _Data(pickle.Unpickler):
    """Reads lists, dictionaries, texts and numbers, and nothing that runs."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}, which data needs not")


def snapshot(path: str | os.PathLike[str], device: int | None = None) -> Lives:
    """Who holds the peak of a process of PyTorch, and what a static plan of its arrays would need.

    ``path`` is what ``torch.cuda.memory._dump_snapshot`` wrote, with the history that ``_record_memory_history`` keeps.
    The pickle is read as data: whatever would run code is refused. ``device`` is by default the one of most events.
    """
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            data = _Data(file).load()
        traces, segments = data["device_traces"], data.get("segments", [])
        if device is None:
            device = max(range(len(traces)), key=lambda i: len(traces[i]))
        events = traces[device]
        own = [segment for segment in segments if segment.get("device", device) == device]
        return of_lives(name, *_lives_of(events, own), sum(int(s["total_size"]) for s in own) if own else None)
    except OSError as error:
        raise InputError(f"cannot read `{name}`: {error.strerror}") from error
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise InputError(f"`{name}` is no memory snapshot of PyTorch: {error}") from error


def _lives_of(events: Sequence[Any], segments: Sequence[Any]) -> tuple[list[Life], int]:
    """Lifetimes by the history; and bytes of what was there before it and is still there."""
    open_: dict[int, Life] = {}
    lives = []
    seen = set()
    for time, event in enumerate(events):
        address, size = event["addr"], int(event["size"])
        if event["action"] == "alloc":
            seen.add(address)
            operation, source = _who(event.get("frames", ()))
            open_[address] = Life(size, time, len(events), operation, source)
        elif event["action"] == "free_completed":
            if address in open_:
                lives.append(open_.pop(address)._replace(end=time))
            elif address not in seen:
                lives.append(Life(size, 0, time, "allocated before the history begins", ""))
    always = 0
    for segment in segments:
        for block in segment.get("blocks", ()):
            if block["state"] == "active_allocated" and block.get("address") not in open_ and not block.get("frames"):
                always += int(block["size"])
    return lives + list(open_.values()), always


def _who(frames: Sequence[Any]) -> tuple[str, str]:
    """The innermost function of Python that is not of PyTorch, and its line."""
    for frame in frames:
        file = str(frame.get("filename", ""))
        if file.endswith(".py") and f"{os.sep}torch{os.sep}" not in file:
            return str(frame.get("name", "")), f"{os.path.basename(file)}:{frame.get('line', 0)}"
    return (str(frames[0].get("name", "")) if frames else "", "")
