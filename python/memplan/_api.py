"""Questions about programs: what they need, whether they fit, where everything lives."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, overload

import numpy as np
from numpy.typing import ArrayLike

from memplan import _memplan
from memplan._programs import Program, read
from memplan._results import Estimate, Fit, Packing, Plan, Proof, Rewritten
from memplan._targets import at_hand, bytes_of, compiler_for


def estimate(program: Program, *args: Any, target: str | None = None, **kwargs: Any) -> Estimate:
    """What XLA will need for a program on a machine, which need not be here.

    ``program`` is whatever ``memplan.read`` takes: a function with its arguments, a stage of JAX, HLO or StableHLO, a
    path. ``target`` is a name from ``memplan targets`` or a TOML file; by default, the device at hand. Arguments may be
    spread over devices that are not here: ``jax.ShapeDtypeStruct``s with shardings on a ``jax.sharding.AbstractMesh``.
    Bytes are then those of one of ``devices``.
    """
    machine = target or at_hand()
    compiler = compiler_for(machine)
    return Estimate(_memplan.estimate(read(program, *args, target=machine, **kwargs), compiler, machine), compiler)


def fits(
    program: Program,
    *args: Any,
    target: str | None = None,
    memory_limit: int | str | None = None,
    **kwargs: Any,
) -> Fit:
    """Whether a program fits a machine when XLA compiles it: true or false, and printed, a story.

    ``memory_limit`` (bytes, or a text as ``"16GiB"``) is by default what the machine has.
    """
    limit = bytes_of(memory_limit)
    found = estimate(program, *args, target=target, **kwargs)
    if limit is None:
        _, _, limit = _memplan.target(found.target if target is None else target)
    if limit is None:
        raise _memplan.InputError(f"how much memory `{found.target}` has is not known: say memory_limit=...")
    return Fit(found.total <= limit, found.total, limit, found)


def plan(
    program: Program,
    *args: Any,
    target: str | None = None,
    schedule: Literal["keep", "memory"] = "keep",
    **kwargs: Any,
) -> Plan:
    """An address for every buffer of a program as it stands, proved right.

    A program that has a schedule keeps it, unless ``schedule`` is ``"memory"``: then one is made that needs little.
    """
    if schedule not in ("keep", "memory"):
        raise _memplan.InputError(f"`{schedule}` is no schedule; there are keep, memory")
    machine = target or at_hand()
    return Plan(_memplan.plan(read(program, *args, target=machine, **kwargs), machine, schedule == "keep"))


def compile(
    program: Program,
    *args: Any,
    target: str | None = None,
    memory_limit: int | str | None = None,
    objective: str | None = None,
    **kwargs: Any,
) -> Plan:
    """A program optimized, fused, scheduled, planned and proved for a machine.

    ``objective`` is ``"balanced"`` (the fewest bytes of the programs that are no slower than the fastest),
    ``"memory"`` or ``"time"``. With ``memory_limit``, it is the fastest program that fits. Raises
    ``memplan.DoesNotFit`` where none does, or where the program needs more than the machine has.
    """
    limit = bytes_of(memory_limit)
    machine = target or at_hand()
    module = read(program, *args, target=machine, **kwargs)
    return Plan(_memplan.compile(module, machine, limit, objective))


def rewrite(
    program: Program,
    *args: Any,
    target: str | None = None,
    memory_limit: int | str | None = None,
    max_slowdown: float | None = None,
    only: Sequence[str] = (),
    without: Sequence[str] = (),
    **kwargs: Any,
) -> Rewritten:
    """A program rewritten so that XLA needs less memory for it: same parameters, results and numbers.

    Numbers are the same up to the order of sums. Without a limit it is the smallest program that takes at most
    ``max_slowdown`` more time by the cost model, by default a tenth (``0.1``); with ``memory_limit`` it is the fastest
    one that fits. ``only`` and ``without`` name levers, as ``memplan rewrite --help`` lists them.
    """
    limit = bytes_of(memory_limit)
    machine = target or at_hand()
    module = read(program, *args, target=machine, **kwargs)
    found = _memplan.rewrite(module, compiler_for(machine), machine, limit, max_slowdown, only, without)
    return Rewritten(found, module)


#: A plan, as `check` takes it.
PlanLike: TypeAlias = "Plan | str | os.PathLike[str]"


@overload
def check(program: Program, /, *args: Any, plan: PlanLike, target: str | None = None, **kwargs: Any) -> Proof: ...
@overload
def check(program: Program, plan: PlanLike, /, *, target: str | None = None) -> Proof: ...
@overload
def check(program: Program, /, *args: Any, target: str | None = None, **kwargs: Any) -> Proof: ...
def check(
    program: Program, /, *args: Any, plan: PlanLike | None = None, target: str | None = None, **kwargs: Any
) -> Proof:
    """Proves a plan right for a program, by code that shares nothing with the planner.

    ``plan``, which may also be the last of the arguments, is a ``memplan.Plan``, a plan file as text, or a path to one.
    Where the plan is for the program in the order and with the copies that ``memplan.plan`` gives it, it is proved for
    that. ``target`` is needed only where the plan is for a machine that is not built in. Raises ``memplan.Refuted``
    where the plan is wrong, or for another program.
    """
    if plan is None:
        if not args:
            raise TypeError("check() needs a plan: memplan.check(program, *args, plan)")
        *args, plan = args  # type: ignore[assignment]
    if isinstance(plan, Plan):
        text = plan.to_json()
    elif isinstance(plan, str) and plan.lstrip().startswith("{"):
        text = plan
    else:
        text = _plan_file(plan)
    machine = target or (plan.target if isinstance(plan, Plan) else None)
    return Proof(*_memplan.check(read(program, *args, target=machine, **kwargs), text, target))


def _plan_file(path: Any) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"a plan is no {type(path).__name__}")
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _memplan.InputError(f"cannot read `{os.fspath(path)}`: {error}") from error


def pack(
    lower: ArrayLike,
    upper: ArrayLike,
    size: ArrayLike,
    *,
    alignment: ArrayLike | None = None,
    fixed: ArrayLike | None = None,
    capacity: int | str | None = None,
    seconds: float | None = None,
    steps: int | None = None,
) -> Packing:
    """Gives intervals offsets, such that those that are live at one time share no byte.

    Interval ``i`` needs ``size[i]`` bytes during ``[lower[i], upper[i])``, at a multiple of ``alignment[i]``; where
    ``fixed[i]`` is not negative, it stays at that offset. With a ``capacity`` the question is whether it fits; without,
    the lowest height that is found is the answer. The search takes ``steps`` (250,000 by default, some seconds), and
    its answer is the same on every machine; with ``seconds``, it takes as many steps as there are in that time.
    """
    begins, ends, sizes = (_column(column, np.uint64) for column in (lower, upper, size))
    alignments = None if alignment is None else np.broadcast_to(_column(alignment, np.uint64), begins.shape)
    offsets = None if fixed is None else _column(fixed, np.int64)
    answer = _memplan.pack(begins, ends, sizes, alignments, offsets, bytes_of(capacity), seconds, steps)
    return Packing(*cast(Any, (*answer, begins, ends, sizes)))


def _column(values: ArrayLike, kind: type) -> Any:
    """Whole numbers, unchanged."""
    given: Any = np.asarray(values)
    column: Any = given.astype(kind, copy=False)
    if not np.array_equal(column, given) or (kind is np.uint64 and np.any(given < 0)):
        raise _memplan.InputError("sizes, times and offsets are whole numbers, from 0 to 2^64")
    return column
