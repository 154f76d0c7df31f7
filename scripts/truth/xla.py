"""Asks one of XLA's compilers what one program needs, in a process that ends with it."""

import gzip
import hashlib
import os
import pathlib
import resource
import sys
import time

import jax

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import xla_compilers
from cycles import cycles

# Columns of bytes, as jaxlib counts them. `total` is argument + output - alias + temp.
BYTES = ['argument', 'output', 'alias', 'temp', 'host_argument', 'host_output', 'host_temp', 'generated_code']


def prepare(backend, dump=None):
    """What has to happen before the first array: this process becomes one of a backend."""
    xla_compilers.prepare(backend)
    jax.config.update('jax_platforms', os.environ['JAX_PLATFORMS'] or None)
    jax.config.update('jax_hlo_source_file_canonicalization_regex', '.*/')  # no path of this machine in a module
    if dump:
        os.environ['XLA_FLAGS'] = f'--xla_dump_to={dump} --xla_dump_hlo_as_text'
    return xla_compilers.sharding(backend)


def lower(program, place, path):
    """Writes the module of a program as JAX hands it over, unless it is there; returns what JAX compiles, and a fingerprint."""
    jax.clear_caches()  # Names within a module tell what was traced before.
    lowered = program.function.lower(*xla_compilers.placed(program.arguments, place))
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(lowered.as_text('hlo', debug_info=True).encode(), mtime=0))
    return lowered, hashlib.sha256(lowered.as_text('hlo').encode()).hexdigest()[:12]


def ask(program, backend, module, scheduled, dump=None):
    """A row: what the compiler says that a program needs, and what it took; and lines of cycles, of libtpu.

    `module` and `scheduled` are where to write what JAX handed over and what the compiler made of it.
    """
    lowered, fingerprint = lower(program, prepare(backend, dump), module)
    row = dict(module=fingerprint)
    start, used = time.time(), processor_seconds()
    try:
        compiled = lowered.compile()
    except Exception as error:  # XLA's errors have no type of their own.
        return row | dict(error=' '.join(str(error).split())[:200]), []
    row |= dict(seconds=f'{time.time() - start:.1f}', processor_seconds=f'{processor_seconds() - used:.1f}')
    said = compiled.memory_analysis()
    row |= {name: getattr(said, f'{name}_size_in_bytes') for name in BYTES}
    row['total'] = row['argument'] + row['output'] - row['alias'] + row['temp']
    text = compiled.as_text()
    path = pathlib.Path(scheduled)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    found = cycles(text) if backend == 'tpu' else []
    if found:
        row['cycles'] = round(sum(of.runs * of.cycles for of in found))
    return row, found


def processor_seconds():
    """Of this process and of what it started: XLA's GPU compiler runs ptxas."""
    return sum(of.ru_utime + of.ru_stime for of in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
