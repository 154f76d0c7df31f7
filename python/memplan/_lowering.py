"""What a program becomes when JAX lowers it: its operations, rewritten by memplan if they are the whole of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from memplan import _memplan, _targets, _xla
from memplan._results import Rewritten

#: MLIR's passes that read shardings where HLO keeps them.
_SHARDINGS = "xla-sdy-round-trip-import-shardy-attrs,sdy-lift-inlined-meshes"


class FallbackWarning(UserWarning):
    """A program runs as it was written, and why."""


class Job:
    """What is asked for of one function, and what was said about it."""

    def __init__(self, name: str, memory_limit: int | None, report: Callable[[Rewritten], object] | None) -> None:
        self.name = name
        self.memory_limit = memory_limit
        self.report = report
        self._warned: set[str] = set()

    def fall_back(self, why: str) -> None:
        """Says, once, why the program runs as it was written."""
        if why not in self._warned:
            self._warned.add(why)
            warnings.warn(f"memplan.jit runs `{self.name}` as it is written: {why}", FallbackWarning, stacklevel=2)

    def __repr__(self) -> str:
        return f"memplan.jit({self.name})"


def lower(context: Any, *args: Any, jaxpr: Any, job: Job) -> Any:
    """The operations of a program, rewritten if they are the whole of it."""
    from jax.extend.core import jaxpr_as_fun
    from jax.interpreters import mlir

    try:
        program = _rewritten(context, args, jaxpr, job)
        if program is not None:
            return _call(context, args, program, job.name)
    except Exception as error:
        job.fall_back(f"{type(error).__name__}: {error}")
    return mlir.lower_fun(jaxpr_as_fun(jaxpr), multiple_results=True)(context, *args)


def _rewritten(context: Any, args: Sequence[Any], jaxpr: Any, job: Job) -> bytes | None:
    """The rewritten program, as StableHLO; None where nothing pays, or it is part of another program."""
    import jax
    from jax.extend.core import jaxpr_as_fun

    main = _main_function()
    if main is None:
        return None
    n_devices = getattr(context.module_context.axis_context, "num_devices", 1)
    if n_devices != 1:
        job.fall_back(f"it is for {n_devices} devices, and memplan rewrites programs of one")
        return None
    platforms = context.module_context.platforms
    if len(platforms) != 1 or platforms[0] not in _targets.COMPILERS:
        job.fall_back(f"it is lowered for {', '.join(platforms)}, of which memplan knows no compiler")
        return None

    def as_written(*values: Any) -> Any:
        return jaxpr_as_fun(jaxpr)(*values)

    as_written.__name__ = as_written.__qualname__ = job.name
    specs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type) for aval in jaxpr.in_avals]
    alone = jax.jit(as_written, donate_argnums=_donated(main, args), keep_unused=True)
    module = _xla.from_lowered(alone.trace(*specs).lower(lowering_platforms=tuple(platforms)))
    contacts = module.host_contacts()
    if contacts:
        job.fall_back("it talks to the host while it runs (" + ", ".join(contacts) + ")")
        return None
    native = _memplan.rewrite(module, _targets.COMPILERS[platforms[0]], _target(context), job.memory_limit)
    rewritten = Rewritten(native)
    if job.report is not None:
        job.report(rewritten)
    return _xla.to_stablehlo(rewritten.module) if rewritten.is_changed else None


def _main_function() -> Any:
    """The function that the operations of a whole program go to, if that is where operations go now."""
    from jax.interpreters import mlir

    function = mlir.ir.InsertionPoint.current.block.owner
    name = function.attributes["sym_name"].value if "sym_name" in function.attributes else None
    return function if name == "main" else None


def _donated(main: Any, args: Sequence[Any]) -> tuple[int, ...]:
    """Which arguments of a program the caller gives up, as the parameters of its function say."""
    if "arg_attrs" not in main.attributes:
        return ()
    given_up = {
        parameter
        for parameter, said in zip(main.regions[0].blocks[0].arguments, main.attributes["arg_attrs"], strict=True)
        if "tf.aliasing_output" in said or "jax.buffer_donor" in said
    }
    return tuple(i for i, value in enumerate(args) if value in given_up)


def _target(context: Any) -> str | None:
    """The target that describes the device at hand; None for the usual one of the compiler."""
    backend = context.module_context.backend
    if backend is None or backend.platform not in context.module_context.platforms[0]:
        return None
    # Of devices that programs are compiled for without having them, none is local.
    return _targets.of_device((backend.local_devices() or backend.devices())[0])


def _call(context: Any, args: Sequence[Any], program: bytes, name: str) -> list[Any]:
    """Calls a program, given as StableHLO, with the operands of the primitive."""
    from jax.interpreters import mlir
    from jaxlib.mlir import passmanager
    from jaxlib.mlir.dialects import func

    module = mlir.ir.Module.parse(program)
    if "mhlo.frontend_attributes" in module.operation.attributes:
        # HLO keeps meshes and shardings, which arrays of random keys have on one device as well, as text.
        passmanager.PassManager.parse(f"builtin.module({_SHARDINGS})").run(module.operation)
    main = mlir.ir.SymbolTable(module.operation)["main"]
    wanted, results = [value.type for value in args], list(main.type.results)
    if list(main.type.inputs) != wanted or len(results) != len(context.avals_out):
        raise TypeError(f"the rewritten program takes {list(main.type.inputs)}, and {wanted} are given")
    for attribute in ("arg_attrs", "res_attrs"):
        # What is donated, and where it lies, is said of the parameters of the program that calls it.
        if attribute in main.attributes:
            del main.attributes[attribute]
    module_context = context.module_context
    callee = mlir.merge_mlir_modules(module_context.module, name, module, dst_symtab=module_context.symbol_table)
    return list(func.CallOp(results, mlir.ir.FlatSymbolRefAttr.get(callee), args).results)
