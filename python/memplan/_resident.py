"""Programs that live together on one device: what they need, and what is left beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from memplan import _memplan
from memplan._api import estimate
from memplan._memplan import InputError
from memplan._results import Estimate, readable
from memplan._targets import at_hand, bytes_of

#: A program with its arguments: a function, or what a jit gave.
Call = tuple[Any, ...]


@dataclass(frozen=True)
class Resident:
    """Programs that share a device, one of which runs at a time."""

    #: What each needs alone.
    estimates: tuple[Estimate, ...] = field(repr=False)
    #: Bytes of all arguments, those that programs share counted once.
    arguments: int
    #: What each needs beyond all arguments while it runs: results that are not in donated arguments, and temporaries.
    beyond: tuple[int, ...]
    #: Of the temporaries, what addresses cost beyond the bytes that are live, in the program that needs most.
    fragmentation: int
    #: Bytes that may be used.
    limit: int | None

    @property
    def peak(self) -> int:
        """Most bytes that are needed at one time."""
        return self.arguments + max(self.beyond, default=0)

    @property
    def left(self) -> int | None:
        """Bytes for a cache beside the programs; negative where they do not fit."""
        return None if self.limit is None else self.limit - self.peak

    def __str__(self) -> str:
        lines = [f"arguments     {readable(self.arguments)}, of all programs"]
        for found, more in zip(self.estimates, self.beyond, strict=True):
            alone = f"({readable(found.total)} alone)"
            lines.append(f"{readable(more):>13} beyond them while `{found.module.name}` runs {alone}")
        lines.append(f"peak          {readable(self.peak)}, of that {readable(self.fragmentation)} fragmentation")
        if self.limit is not None and self.left is not None:
            lines.append(f"limit         {readable(self.limit)}")
            short = f"{readable(-self.left)} too much" if self.left < 0 else f"{readable(self.left)} left for a cache"
            lines.append(f"              {short}")
        return "\n".join(lines)


def resident(
    *programs: Call,
    target: str | None = None,
    memory_limit: int | str | None = None,
    pool_share: float | None = None,
) -> Resident:
    """What programs need that live together: a step and its evaluation, or prefill and decode with a cache.

    Each program is a tuple of a function (or what a jit gave) and its arguments. An array that several of them have as
    an argument, the same object, is there once. One program runs at a time; the arguments of all are there always, and
    so are its results unless they are in donated arguments. ``memory_limit`` is by default what the machine has, or
    ``pool_share`` of it, as ``XLA_CLIENT_MEM_FRACTION`` gives to JAX's pool.
    """
    machine = target or at_hand()
    limit = bytes_of(memory_limit)
    if limit is None:
        _, _, limit = _memplan.target(machine)
    if limit is not None and pool_share is not None:
        limit = int(limit * pool_share)
    found = tuple(estimate(call[0], *call[1:], target=machine) for call in programs)
    shared = _bytes_had_before(programs)
    totals = [one.totals for one in found]
    beyond = tuple(t.outputs - t.aliased + t.temp for t in totals)
    most = max(range(len(found)), key=lambda i: beyond[i], default=None)
    return Resident(
        found,
        sum(t.arguments for t in totals) - shared,
        beyond,
        0 if most is None else totals[most].fragmentation,
        limit,
    )


def _bytes_had_before(programs: Sequence[Call]) -> int:
    """Bytes of arguments that an earlier program has as well."""
    import jax

    seen: set[int] = set()
    total = 0
    for _, *args in programs:
        own: set[int] = set()
        for leaf in jax.tree.leaves(args):
            if hasattr(leaf, "dtype") and id(leaf) in seen | own:
                total += leaf.size * leaf.dtype.itemsize if id(leaf) not in own else 0
            own.add(id(leaf))
        seen |= own
    return total


def largest(make: Callable[[int], Sequence[Call]], *, most: int = 1 << 20, **options: Any) -> tuple[int, Resident]:
    """The largest number, of a batch or of a context, with which programs fit together, and what they need then.

    ``make`` gives the programs for a number, which take more memory the larger it is; ``options`` are those of
    ``memplan.resident``. Raises ``memplan.DoesNotFit`` where they do not fit with one.
    """
    known: dict[int, Resident] = {}

    def fits(number: int) -> bool:
        known[number] = resident(*make(number), **options)
        if known[number].left is None:
            raise InputError("how much memory there is is not known: say memory_limit=...")
        return (known[number].left or 0) >= 0

    if not fits(1):
        raise _memplan.DoesNotFit(f"the programs do not fit with 1\n{known[1]}")
    low, high = 1, 2
    while high <= most and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low, known[low]
