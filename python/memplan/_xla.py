"""What memplan asks of JAX beyond its public API: programs from one form to another, and whether JAX is tracing.

This stays private API, of jax and jaxlib, and may change with any version; pyproject.toml says from which version on it
is what it is here, and README.md which versions were tested. All else that the package uses is public.

=============================================================  =========================================================
``jaxlib._jax.mlir.mlir_module_to_xla_computation``            StableHLO to HLO (`from_stablehlo`)
``jaxlib._jax.mlir.hlo_to_stablehlo``                          HLO to StableHLO (`to_stablehlo`)
``XlaComputation`` and ``HloModule``:                          the program within (`from_hlo`); ``jax.stages`` gives the
``as_serialized_hlo_module_proto``                             first (``compiler_ir("hlo")``), the second is XLA's
``Compiled.runtime_executable().hlo_modules()``                what XLA has compiled (`from_compiled`)
``jax._src.core.trace_state_clean``                            whether JAX traces anything (`trace_state_is_clean`)
``jax._src.pjit``: ``jit_p``, ``_pjit_lowering``               calls of jitted functions, and JAX's rule that lowers
                                                               them (`jit_and_its_lowering`)
``jax._src.source_info_util.register_exclusion``               sources without our frames (`hide_frames`)
``jax._src.api.vjp``, ``core.DebugInfo``; tracebacks'          derivatives, and what made an operation (`_policy`)
``raw_frames``, ``code_addr2line``
``jax.interpreters.mlir``: ``register_lowering``,              that rule, with what ``memplan.jit`` adds (`_lowering`)
``merge_mlir_modules``; fields of the lowering context:
``module_context``, ``name_stack``
``jaxlib.mlir``: ``ir``, ``passmanager``                       attributes of parameters, calls, meshes (`_lowering`)
MLIR's passes ``sdy-lift-inlined-meshes`` and                  shardings from the form in which HLO keeps them
``xla-sdy-round-trip-import-shardy-attrs``                     (`_lowering`)
``jaxlib.mlir.dialects.chlo``; ``mhlo.ragged_dot``             products of ragged arrays, as JAX writes them and as
                                                               jaxlib gives them (`_lowering`)
attributes of parameters: ``tf.aliasing_output``,              what is donated, and how it is spread (`_lowering`)
``jax.buffer_donor``, ``sdy.sharding``, ``mhlo.sharding``
=============================================================  =========================================================
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from memplan._memplan import Module

#: First bytes of MLIR bytecode.
MLIR_MAGIC = b"ML\xefR"


def from_stablehlo(program: bytes | str, name: str) -> Module:
    """A program from StableHLO, text or bytecode."""
    from jaxlib import _jax

    computation = _jax.mlir.mlir_module_to_xla_computation(program, use_tuple_args=False, return_tuple=False)
    return from_hlo(computation, name)


def to_stablehlo(module: Module) -> bytes:
    """A program as StableHLO bytecode."""
    from jaxlib import _jax

    bytecode: bytes = _jax.mlir.hlo_to_stablehlo(module.to_proto())
    return bytecode


def from_mlir_module(module: Any, name: str) -> Module:
    """The program of a module of jaxlib's MLIR, as ``compiler_ir()`` gives it."""
    bytecode = io.BytesIO()
    module.operation.write_bytecode(bytecode)
    return from_stablehlo(bytecode.getvalue(), name)


def from_hlo(program: Any, name: str) -> Module:
    """The program of an ``XlaComputation`` or of an ``HloModule``."""
    return Module.parse(program.as_serialized_hlo_module_proto(), name)


def from_lowered(lowered: Any) -> Module:
    """The program of a ``jax.stages.Lowered``, as XLA gets it."""
    return from_hlo(lowered.compiler_ir("hlo"), "<jax.stages.Lowered>")


def from_compiled(compiled: Any) -> Module:
    """The program of a ``jax.stages.Compiled``, as XLA made it: fused and scheduled."""
    return from_hlo(compiled.runtime_executable().hlo_modules()[0], "<jax.stages.Compiled>")


def trace_state_is_clean() -> Callable[[], bool]:
    """A function that says whether JAX traces nothing now: what is called then is called by itself."""
    from jax._src import core

    is_clean: Callable[[], bool] = core.trace_state_clean
    return is_clean


def jit_and_its_lowering() -> tuple[Any, Callable[..., Any]]:
    """The primitive of calls of jitted functions, and the rule by which JAX lowers it."""
    from jax._src import pjit

    return pjit.jit_p, pjit._pjit_lowering


def register_lowering(primitive: Any, rule: Callable[..., Any]) -> None:
    """Lets JAX lower a primitive by a rule, which is called anew for every equation."""
    from jax.interpreters import mlir

    mlir.register_lowering(primitive, rule, cacheable=False)


def hide_frames(folder: str) -> None:
    """Lets JAX leave the files of a folder out when it says which lines made an operation."""
    from jax._src import source_info_util

    source_info_util.register_exclusion(folder)


def replace_vjp(around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces the function by which JAX differentiates in reverse mode, for ``jax.grad`` and ``jax.value_and_grad``
    as well."""
    import jax
    from jax._src import api

    api.vjp = jax.vjp = around(api.vjp)


def line_of(traceback: Any, code: Any, instruction: int) -> int:
    """The line of a function's code at an instruction, as JAX counts instructions in tracebacks."""
    line: int = type(traceback).code_addr2line(code, instruction)
    return line


def debug_info(name: str, arguments: int, results: int) -> dict[str, Any]:
    """What JAX wants to know of a jaxpr that is made by hand, as an argument of it."""
    from jax._src import core

    made = core.DebugInfo(
        name, name, tuple(f"argument {i}" for i in range(arguments)), tuple(f"result {i}" for i in range(results))
    )
    return {"debug_info": made}
