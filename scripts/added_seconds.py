"""What `memplan.jit` adds to the seconds that XLA compiles for, for every program of a corpus.

    python scripts/added_seconds.py [--backend gpu] [--write] [MODULE...]

Modules are those of tests/corpus, or those named: HLO text or HloModuleProto, as JAX hands them over. Each becomes the
body of a function, which `jax.jit` and `memplan.jit` lower, as they would a function of Python. Seconds are CPU seconds
of all threads, the least of some rounds, and depend less than time does on what else the machine is busy with.
`--write` puts the table into docs/python.md: that of tests/corpus, or behind it that of other modules.

Needs jax, and jax[cuda12] for XLA's GPU compiler, which needs no device here; memplan is installed from python/.
"""

import argparse
import os
import re
import sys
import time

import tables
import xla_compilers

REPOSITORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
CORPUS = os.path.join(REPOSITORY, "tests", "corpus")
PAGE = os.path.join(REPOSITORY, "docs", "python.md")

#: A module is measured this often, but not again after so many seconds.
ROUNDS, ENOUGH = 3, 8.0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--write", action="store_true", help="put the table into docs/python.md")
    parser.add_argument("modules", nargs="*")
    asked = parser.parse_args()
    own = [os.path.join(CORPUS, name, "before.hlo.pb") for name in sorted(os.listdir(CORPUS))]
    xla_compilers.prepare(asked.backend)
    place = xla_compilers.sharding(asked.backend)
    measured(own[0], place)  # What is done once in a process.
    rows = []
    for path in asked.modules or own:
        rows.append(row(name_of(path), *measured(path, place)))
        print(*rows[-1], sep="\t", flush=True)
    head = ["program", "instructions", "XLA, s", "added, s", "added / XLA", "XLA, rewritten, s"]
    table = tables.markdown(head, ["---"] + ["---:"] * 5, rows)
    if asked.write:
        with open(PAGE) as file:
            page = file.read()
        which = f"{asked.backend}, {'other modules' if asked.modules else 'tests/corpus'}"
        begin, end = (f"<!-- {edge} of scripts/added_seconds.py, {which} -->" for edge in ("begin", "end"))
        with open(PAGE, "w") as file:
            file.write(tables.put(page, begin, end, f"\n\n{table}\n"))
    else:
        print(table)


def name_of(path):
    """The folder of a module that is named as those of a corpus are, or the name of the file."""
    folder, file = os.path.split(path)
    return os.path.basename(folder) if file.startswith("before.") else file


def row(name, instructions, xla, added, rewritten):
    """A line of the table."""
    return [name, instructions, f"{xla:.3f}", f"{added:.3f}", f"{added / xla:.3f}", f"{rewritten:.3f}"]


def measured(path, place):
    """Instructions of a module, XLA's seconds for it, those that memplan adds, and XLA's for what it makes of it."""
    import jax
    import memplan

    module = memplan.read(path)
    function, arguments, donated = function_of(module)
    arguments = xla_compilers.placed(arguments, place)
    least, spent = {}, time.process_time()
    for _ in range(ROUNDS):
        for jit in (jax.jit, memplan.jit):
            jax.clear_caches()
            start = time.process_time()
            lowered = jit(function, donate_argnums=donated).lower(*arguments)
            lowered_at = time.process_time()
            lowered.compile()
            took = lowered_at - start, time.process_time() - lowered_at
            least[jit] = tuple(map(min, least.get(jit, took), took))
        if time.process_time() - spent > ENOUGH:
            break
    (lower, xla), (our_lower, rewritten) = least[jax.jit], least[memplan.jit]
    return len(module), xla, max(our_lower - lower, 0.0), rewritten


def function_of(module):
    """A function that JAX lowers to a call of this module, its arguments, and the numbers of those that it gives up."""
    import jax
    from jax.extend import core
    from jax.interpreters import mlir
    from jaxlib import _jax, xla_client
    from jaxlib.mlir.dialects import func

    proto = module.to_proto()
    stablehlo = _jax.mlir.hlo_to_stablehlo(proto)
    shape = xla_client.XlaComputation(proto).program_shape()
    results = shape.result_shape()
    results = results.tuple_shapes() if results.is_tuple() else [results]
    of_type = [jax.core.ShapedArray(one.dimensions(), one.numpy_dtype()) for one in results]

    def lower(context, *operands):
        """Calls the module's function."""
        inner = mlir.ir.Module.parse(stablehlo)
        main = mlir.ir.SymbolTable(inner.operation)["main"]
        types = list(main.type.results)
        # The function is called by another, of which JAX says what is donated.
        for attributes, values in (("arg_attrs", operands), ("res_attrs", of_type)):
            main.attributes[attributes] = mlir.ir.ArrayAttr.get([mlir.ir.DictAttr.get({})] * len(values))
        around = context.module_context
        name = mlir.merge_mlir_modules(around.module, "module", inner, dst_symtab=around.symbol_table)
        return func.CallOp(types, mlir.ir.FlatSymbolRefAttr.get(name), list(operands)).results

    called = core.Primitive("module")
    called.multiple_results = True
    called.def_abstract_eval(lambda *_: of_type)
    mlir.register_lowering(called, lower)
    arguments = [jax.ShapeDtypeStruct(one.dimensions(), one.numpy_dtype()) for one in shape.parameter_shapes()]
    return lambda *operands: called.bind(*operands), arguments, donated(module)


def donated(module):
    """The numbers of the parameters that hold a result in the end."""
    header = module.to_text().partition("\n")[0]
    _, found, aliases = header.partition("input_output_alias={")
    aliases = aliases.partition(" }")[0] if found else ""
    return tuple(sorted({int(number) for number in re.findall(r"\}: \((\d+),", aliases)}))


if __name__ == "__main__":
    main()
