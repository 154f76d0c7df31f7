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
``jax.interpreters.mlir``: ``register_lowering``,              the primitive of ``memplan.jit``, lowered (`_jit`,
``lower_fun``, ``merge_mlir_modules``; fields of the           `_lowering`)
lowering context: ``module_context``, ``avals_out``
``jax.interpreters.ad`` and ``batching``: tables of rules      derivatives and batches of that primitive (`_jit`)
``jax.interpreters.partial_eval.dce_jaxpr``                    what a program does not need (`_jit`)
``jaxlib.mlir``: ``ir``, ``passmanager``, ``dialects.func``    attributes of parameters, calls, meshes (`_lowering`)
MLIR's passes ``sdy-lift-inlined-meshes`` and                  shardings from the form in which HLO keeps them
``xla-sdy-round-trip-import-shardy-attrs``                     (`_lowering`)
attributes of parameters: ``tf.aliasing_output``,              what is donated, and how it is spread (`_lowering`)
``jax.buffer_donor``, ``sdy.sharding``, ``mhlo.sharding``
=============================================================  =========================================================

``jax.extend.core`` (``Primitive``, ``ClosedJaxpr``, ``Literal``, ``jaxpr_as_fun``) is public, but without a promise.
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
