"""What a program becomes when JAX lowers it: its operations, rewritten by memplan if they are the whole of it."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from memplan import _memplan, _targets, _xla
from memplan._results import Rewritten, readable

if TYPE_CHECKING:
    import jax

#: Packages that stand between the caller of a function and its lowering.
_NOT_OF_USERS = {"memplan", "jax", "jaxlib", "contextlib", "functools"}

#: What is said of parameters that the caller gives up.
_DONATED = {"tf.aliasing_output", "jax.buffer_donor"}

#: What is said of parameters that are spread over devices: by Shardy, and by GSPMD.
_SHARDING = {"sdy.sharding", "mhlo.sharding"}

#: MLIR's passes that read shardings where HLO keeps them.
_SHARDINGS = "xla-sdy-round-trip-import-shardy-attrs,sdy-lift-inlined-meshes"


class FallbackWarning(UserWarning):
    """A program runs as it was written, and why."""


class LimitWarning(UserWarning):
    """A program is expected to need more than its limit, with everything done that helps."""


@dataclasses.dataclass(frozen=True)
class Wish:
    """What ``memplan.jit`` is asked for."""

    memory_limit: int | None = None
    max_slowdown: float | None = None
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    must_rewrite: bool = False


class Job:
    """What is asked for of one function, and what was said about it."""

    def __init__(self, name: str, wish: Wish, report: Callable[[Rewritten], object] | None) -> None:
        self.name = name
        self.wish = wish
        self.report = report
        self._warned: set[str] = set()

    def fall_back(self, why: str) -> None:
        """Says, once, why the program runs as it was written, or refuses to run it."""
        message = f"memplan.jit runs `{self.name}` as it is written: {why}"
        if self.wish.must_rewrite:
            raise FallbackWarning(message)
        self._warn(message, FallbackWarning)

    def tell(self, rewritten: Rewritten) -> None:
        """Says what was done, to those who asked, and what was asked for and cannot be done."""
        if self.report is not None:
            self.report(rewritten)
        needed = rewritten.after.bytes
        asked = self.wish.memory_limit
        if asked is not None and needed > asked:
            limit = f"more than its limit of {readable(asked)}"
            self._warn(f"memplan.jit expects `{self.name}` to need {readable(needed)}, {limit}", LimitWarning)

    def _warn(self, message: str, category: type[UserWarning]) -> None:
        """Warns once, of the line that calls the function."""
        if message in self._warned:
            return
        self._warned.add(message)
        level, frame = 1, sys._getframe()
        while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _NOT_OF_USERS:
            level, frame = level + 1, frame.f_back
        warnings.warn(message, category, stacklevel=level)

    def __repr__(self) -> str:
        return f"memplan.jit({self.name})"


def lower(context: Any, *args: Any, jaxpr: Any, job: Job) -> Any:
    """The operations of a program, rewritten if they are the whole of it."""
    from jax.extend.core import jaxpr_as_fun
    from jax.interpreters import mlir

    results = None
    try:
        rewritten = _rewritten(context, args, jaxpr, job)
        if rewritten is not None and rewritten.is_changed:
            results = _call(context, args, _xla.to_stablehlo(rewritten.module), job.name)
    except FallbackWarning:
        raise
    except Exception as error:
        job.fall_back(f"{type(error).__name__}: {error}")
    else:
        if rewritten is not None:
            job.tell(rewritten)
    if results is not None:
        return results
    return mlir.lower_fun(jaxpr_as_fun(jaxpr), multiple_results=True)(context, *args)


def _rewritten(context: Any, args: Sequence[Any], jaxpr: Any, job: Job) -> Rewritten | None:
    """The program alone, rewritten; None where it cannot be, or is part of another program."""
    import jax
    from jax.extend.core import jaxpr_as_fun

    main = _main_function()
    if main is None:
        return None
    platforms = context.module_context.platforms
    if len(platforms) != 1 or platforms[0] not in _targets.COMPILERS:
        job.fall_back(f"it is lowered for {', '.join(platforms)}, of which memplan knows no compiler")
        return None

    if not all(isinstance(extent, int) for aval in jaxpr.in_avals for extent in getattr(aval, "shape", ())):
        job.fall_back("its shapes are symbolic")
        return None

    def as_written(*values: Any) -> Any:
        return jaxpr_as_fun(jaxpr)(*values)

    as_written.__name__ = as_written.__qualname__ = job.name
    said = _said_of_operands(main, args)
    donated = tuple(i for i, said_of_one in enumerate(said) if not _DONATED.isdisjoint(said_of_one))
    alone = jax.jit(as_written, donate_argnums=donated, keep_unused=True)
    lowered = alone.trace(*map(_spec, jaxpr.in_avals)).lower(lowering_platforms=tuple(platforms))
    _shard(lowered.compiler_ir("stablehlo"), said)
    module = _xla.from_lowered(lowered)
    if module.has_parts_of_one_device():
        job.fall_back("parts of it are written for each of several devices (shard_map)")
        return None
    contacts = module.host_contacts()
    if contacts:
        job.fall_back("it talks to the host while it runs (" + ", ".join(contacts) + ")")
        return None
    compiler = _targets.with_version(_targets.COMPILERS[platforms[0]])
    wish = job.wish
    native = _memplan.rewrite(
        module, compiler, _target(context), wish.memory_limit, wish.max_slowdown, wish.only, wish.without
    )
    return Rewritten(native)


def _main_function() -> Any:
    """The function that the operations of a whole program go to, if that is where operations go now."""
    from jax.interpreters import mlir

    function = mlir.ir.InsertionPoint.current.block.owner
    name = function.attributes["sym_name"].value if "sym_name" in function.attributes else None
    return function if name == "main" else None


def _spec(aval: Any) -> jax.ShapeDtypeStruct:
    """An argument like that which a type describes. Types name shardings where axes of meshes are explicit."""
    import jax

    sharding = None if aval.sharding.mesh.empty else aval.sharding
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type, sharding=sharding)


def _said_of_operands(main: Any, args: Sequence[Any]) -> list[dict[str, Any]]:
    """What the function of a program says of its parameters, for each operand; nothing of those that are none."""
    said = dict(zip(main.regions[0].blocks[0].arguments, _said_of_parameters(main), strict=True))
    return [said.get(value, {}) for value in args]


def _said_of_parameters(function: Any) -> list[dict[str, Any]]:
    """The attributes of each parameter of a function."""
    from jaxlib.mlir import ir

    # jaxlib's bindings do not find optional properties of operations by name; what is printed has them.
    text = function.operation.get_asm(print_generic_op_form=True, skip_regions=True)
    properties = ir.DictAttr(ir.Attribute.parse(text[text.index("<{") + 1 : text.rindex("}>") + 1], function.context))
    if "arg_attrs" not in properties:
        return [{} for _ in function.type.inputs]
    return [{said.name: said.attr for said in ir.DictAttr(one)} for one in ir.ArrayAttr(properties["arg_attrs"])]


def _shard(module: Any, said: Sequence[dict[str, Any]]) -> None:
    """Spreads the parameters of a program over devices as is said of each."""
    from jaxlib.mlir import ir, passmanager

    shardings = [{name: str(one[name]) for name in _SHARDING & one.keys()} for one in said]
    if not any(shardings):
        return
    main = ir.SymbolTable(module.operation)["main"]
    with module.context:
        parsed = [{name: ir.Attribute.parse(text) for name, text in one.items()} for one in shardings]
        own = _said_of_parameters(main)
        main.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get(a | b) for a, b in zip(own, parsed, strict=True)])
        passmanager.PassManager.parse("builtin.module(sdy-lift-inlined-meshes)").run(module.operation)


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
    _drop_empty_tilings(module.operation)
    main = mlir.ir.SymbolTable(module.operation)["main"]
    wanted, results = [value.type for value in args], list(main.type.results)
    if list(main.type.inputs) != wanted or len(results) != len(context.avals_out):
        raise TypeError(f"the rewritten program takes {list(main.type.inputs)}, and {wanted} are given")
    # What is donated, and where it lies, is said of the parameters of the program that calls it.
    nothing = mlir.ir.DictAttr.get({}, module.context)
    main.arg_attrs = mlir.ir.ArrayAttr.get([nothing] * len(wanted), module.context)
    main.attributes["res_attrs"] = mlir.ir.ArrayAttr.get([nothing] * len(results), module.context)
    module_context = context.module_context
    callee = mlir.merge_mlir_modules(module_context.module, name, module, dst_symtab=module_context.symbol_table)
    return list(func.CallOp(results, mlir.ir.FlatSymbolRefAttr.get(callee), args).results)


def _drop_empty_tilings(operation: Any) -> None:
    """Drops an attribute that jaxlib writes on calls whose layouts are given, and that XLA's plugins may not know."""
    for inner in (one.operation for region in operation.regions for block in region for one in block.operations):
        if inner.name == "stablehlo.custom_call" and "result_tilings" in inner.attributes:
            # Tiled arrays come from XLA alone: here, all of them are empty.
            del inner.attributes["result_tilings"]
        _drop_empty_tilings(inner)
