#!/usr/bin/env python3
"""Carries advice of `memplan fit` out in JAX, and sets what XLA says of the result beside what was promised.

    python3 scripts/fit_in_jax.py BACKEND PROGRAMS.py CORPUS NAME SHARE...       BACKEND: gpu | tpu

PROGRAMS.py has PROGRAMS, name -> () -> (function, arguments, options), with a `train_step(loss)` that differentiates the
loss; CORPUS/NAME/before.hlo.txt is the program as JAX hands it over. For each limit, a share of what XLA needs for the
program as it is, the changes of the best set are made: a policy of jax.checkpoint around the loss, a smaller batch, donated
arguments; what `memplan rewrite` does is done by it. What cannot be carried out by a script is named. One process asks
one compiler. Needs a python with jax and its compilers for CPU, GPU or TPU.
"""

import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile

import xla_compilers

backend, programs, corpus, name, *shares = sys.argv[1:]
xla_compilers.prepare(backend)
import jax

MEMPLAN = os.environ.get("MEMPLAN", "target/release/memplan")
TARGET = {"gpu": "gpu-h100", "tpu": "tpu-v5e"}[backend]
SHARDING = xla_compilers.sharding(backend)
spec = importlib.util.spec_from_file_location("programs_", programs)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
train_step = module.train_step


def bytes_of(compiled):
    said = compiled.memory_analysis() if hasattr(compiled, "memory_analysis") else compiled
    size = lambda kind: getattr(said, f"{kind}_size_in_bytes")
    return size("argument") + size("output") - size("alias") + size("temp")


def fit(limit):
    command = [MEMPLAN, "-q", "fit", f"{corpus}/{name}/before.hlo.txt", "--target", TARGET]
    command += ["--memory-limit", f"{limit}B", "--format", "json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True).stdout)


def smaller(arguments, batch, to):
    """Arguments whose data has `to` examples: dimensions of the batch's extent, of what is no weight or moment."""
    weights = 4 if "train" in name else 1
    data = lambda a: jax.ShapeDtypeStruct(tuple(to if n == batch else n for n in a.shape), a.dtype)
    return arguments[:weights] + tuple(jax.tree.map(data, a) for a in arguments[weights:])


def in_parts(parts):
    """A `train_step` whose gradients are summed over parts of the batch."""

    def step_of(loss):
        def summed(params, *batch):
            cut = jax.tree.map(lambda a: a.reshape(parts, -1, *a.shape[1:]), batch)
            zero = (jax.numpy.zeros(()), jax.tree.map(jax.numpy.zeros_like, params))
            add = lambda sum, part: (jax.tree.map(jax.numpy.add, sum, jax.value_and_grad(loss)(params, *part)), None)
            return jax.lax.scan(add, zero, cut)[0]

        def step(params, m, v, n, *batch):
            value, gradients = summed(params, *batch)
            return *module.adam(params, gradients, m, v, n), value

        return step

    return step_of


def rewritten(limit):
    """What XLA makes of the program that `memplan rewrite` hands back."""
    from jaxlib import _hlo

    with tempfile.NamedTemporaryFile(suffix=".hlo") as out:
        command = [MEMPLAN, "-q", "rewrite", f"{corpus}/{name}/before.hlo.txt", "--target", TARGET]
        command += ["--compiler", f"xla-{backend}", "--memory-limit", f"{limit}B", "-o", out.name]
        subprocess.run(command, capture_output=True)
        with open(out.name) as file:
            proto = _hlo.hlo_module_from_text(file.read()).as_serialized_hlo_module_proto()
    return xla_compilers.compiled(proto, next(iter(SHARDING.device_set))).get_compiled_memory_stats()


def with_changes(changes, batch, limit):
    """XLA's program with the changes, or why there is none."""
    module.train_step, to = train_step, batch
    for function, original in ORIGINALS.items():
        setattr(module, function, original)
    for change in changes:
        checkpoint = re.match(r"(\w+) = jax\.checkpoint\(\w+(?:, policy=jax\.checkpoint_policies\.(dots\w+))?\)$", change["apply"])
        fewer = re.match(r"batch (\d+) instead", change["what"])
        parts = re.match(r"batch \d+ as (\d+) micro", change["what"])
        if "memplan rewrite" in change["apply"] and len(changes) == 1:
            return rewritten(limit), None
        if checkpoint:
            function, saved = checkpoint.groups()
            saved = saved and getattr(jax.checkpoint_policies, saved)
            if function == "loss":
                module.train_step = lambda loss, saved=saved: train_step(jax.checkpoint(loss, policy=saved))
            else:
                original = ORIGINALS.setdefault(function, getattr(module, function))
                again = lambda *args, original=original, saved=saved, **named: jax.checkpoint(
                    functools.partial(original, **named), policy=saved
                )(*args)
                setattr(module, function, again)
        elif parts and "train" in name:
            module.train_step = in_parts(int(parts.group(1)))
        elif fewer:
            to = int(fewer.group(1))
        else:
            return None, f"not carried out by a script: {change['what']}"
    function, arguments, options = module.PROGRAMS[name]()
    arguments = xla_compilers.placed(smaller(tuple(arguments), batch, to), SHARDING)
    return jax.jit(function, **options).lower(*arguments).compile(), None


ORIGINALS = {}
print("| program | target | change | promised | XLA's own | off by |\n|---|---|---|---:|---:|---:|")
function, arguments, options = module.PROGRAMS[name]()
before = bytes_of(jax.jit(function, **options).lower(*xla_compilers.placed(arguments, SHARDING)).compile())


def row(what, promised, compiled):
    said = bytes_of(compiled)
    cells = [what, f"{promised / 2**20:.0f} MiB", f"{said / 2**20:.0f} MiB", f"{100 * (promised / said - 1):+.1f} %"]
    print(f"| {name} | {TARGET} | {' | '.join(cells)} |", flush=True)


tried = set()
for share in map(float, shares):
    found = fit(int(share * before))
    batch = found["batch"]["extent"]
    sets = [found["best"]["changes"]]
    if os.environ.get("ALL_POLICIES"):
        sets += [[change] for change in found["changes"] if "jax.checkpoint(" in change["apply"]]
    for changes in sets:
        what = "; ".join(change["what"] for change in changes)
        if what in tried or not changes:
            continue
        tried.add(what)
        compiled, why = with_changes(changes, batch, int(share * before))
        if compiled:
            row(what, changes[-1]["total"], compiled)
        else:
            print(f"| {name} | {TARGET} | {what} | {changes[-1]['total'] / 2**20:.0f} MiB | {why} | |", flush=True)
