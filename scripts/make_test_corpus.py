"""Write the programs of the tests to tests/corpus/NAME/: what JAX hands over, and what XLA's compilers make of it.

    pip install "jax[cuda12]" libtpu
    python scripts/make_test_corpus.py [OUTDIR [NAME...]]

before.hlo.txt, before.hlo.pb    the module as JAX hands it over
BACKEND.hlo.txt                  optimized and scheduled by XLA's compiler for CPU, GPU (H100) or TPU (v5e)
BACKEND.json                     XLA's memory statistics, in bytes
inputs.npz, outputs.npz          p0, p1, ... in the order of the parameters, and the results o0, o1, ... on the CPU

The files are in the repository, so that no test needs JAX. They change with the versions of JAX and libtpu only.
"""

import json
import os
import subprocess
import sys

import xla_compilers

STATISTICS = ["argument", "output", "alias", "temp"]
TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "corpus")


def main():
    if len(sys.argv) > 1 and sys.argv[1] in xla_compilers.BACKENDS:
        compile_all(sys.argv[1], sys.argv[2], sys.argv[3:])
        return
    out, *names = sys.argv[1:] or [TESTS]
    for backend in xla_compilers.BACKENDS:
        subprocess.run([sys.executable, __file__, backend, out, *names], check=True)


def compile_all(backend, out, names):
    """Writes the files of one backend; with the CPU's come those that belong to none."""
    xla_compilers.prepare(backend)
    import jax

    # Names of operations say where they come from; frames of the stack would be most of the text.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    import make_examples
    import test_programs

    place = xla_compilers.sharding(backend)
    for program in make_examples.PROGRAMS + test_programs.PROGRAMS:
        name = program.__name__
        if names and name not in names:
            continue
        function, arguments, options = program()
        function.__name__ = name
        lowered = jax.jit(function, **options).lower(*xla_compilers.placed(arguments, place))
        compiled = lowered.compile()
        folder = os.path.join(out, name)
        os.makedirs(folder, exist_ok=True)
        if backend == "cpu":
            write_source(folder, lowered)
            write_numbers(folder, lowered, compiled, arguments)
        write(folder, f"{backend}.hlo.txt", compiled.as_text())
        memory = compiled.memory_analysis()
        statistics = {f"{what}_size_in_bytes": getattr(memory, f"{what}_size_in_bytes") for what in STATISTICS}
        write(folder, f"{backend}.json", json.dumps(statistics, indent=1) + "\n")
        print(f"{name}: {backend}", flush=True)


def write_source(folder, lowered):
    computation = lowered.compiler_ir("hlo")
    write(folder, "before.hlo.txt", computation.get_hlo_module().to_string())
    with open(os.path.join(folder, "before.hlo.pb"), "wb") as file:
        file.write(computation.as_serialized_hlo_module_proto())


def write_numbers(folder, lowered, compiled, arguments):
    """Runs a program on inputs drawn at random, unless its results depend on where a compiler rounds."""
    import jax
    import numpy

    if "bf16" in lowered.as_text(dialect="hlo"):
        return
    draw = numpy.random.RandomState(0)

    def value(of):
        if of.dtype == numpy.bool_:
            return numpy.asarray(draw.rand(*of.shape) > 0.5)
        if numpy.issubdtype(of.dtype, numpy.integer):
            return numpy.asarray(draw.randint(0, 3, of.shape) if of.shape else 1, of.dtype)
        return numpy.asarray(draw.randn(*of.shape) * 0.3, of.dtype)

    inputs = jax.tree.map(value, arguments)
    save(folder, "inputs.npz", "p", jax.tree.leaves(inputs))
    save(folder, "outputs.npz", "o", jax.tree.leaves(compiled(*inputs)))


def save(folder, name, prefix, arrays):
    import numpy

    assert all(numpy.isfinite(numpy.asarray(array, float)).all() for array in arrays), (folder, name)
    arrays = {f"{prefix}{i}": numpy.asarray(array) for i, array in enumerate(arrays)}
    numpy.savez_compressed(os.path.join(folder, name), **arrays)


def write(folder, name, text):
    here = os.path.dirname(os.path.abspath(__file__))
    assert not any(path in text for path in (here, os.path.expanduser("~"), sys.prefix)), (folder, name)
    with open(os.path.join(folder, name), "w") as file:
        file.write(text)


if __name__ == "__main__":
    main()
