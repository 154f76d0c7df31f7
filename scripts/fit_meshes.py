#!/usr/bin/env python3
"""Carries out what `memplan fit` says of a training step of 7B parameters over many devices, and asks XLA: docs/fit.md.

    python3 scripts/fit_meshes.py lower FOLDER              FOLDER/NAME.hlo.txt, as JAX hands them over: one program for all devices
    python3 scripts/fit_meshes.py fit tpu|gpu NAME FOLDER   the meshes of `fit`, and how long it took; FOLDER/NAME.BACKEND.json
    python3 scripts/fit_meshes.py ask tpu|gpu NAME FOLDER [N]   beside XLA's bytes of one device, for the answer and N other meshes

A python with jax; for TPUs with libtpu, for GPUs with jax[cuda12]. No device is needed. NAME is `scanned` (layers in a `scan`,
with `jax.checkpoint`) or `written` (all 32 layers written out, no checkpoints). What XLA makes of a mesh is written to
FOLDER/NAME.BACKEND.MESH.txt, and the program with the shardings to FOLDER/NAME.BACKEND.MESH.hlo.txt, for `memplan estimate --beside`.
"""

import json
import os
import subprocess
import sys
import time

import xla_compilers

MEMPLAN = os.environ.get("MEMPLAN", "target/release/memplan")
DEVICES = {"tpu": 256, "gpu": 64}
TARGETS = {"tpu": "tpu-v5e", "gpu": "gpu-h100"}
TOPOLOGY = "v5e:16x16"
WIDTH, INNER, HEADS, LAYERS, WORDS = 4096, 11008, 32, 32, 32000
EXAMPLES, LENGTH = 256, 2048
HELP = __doc__


def model(is_scanned, keep=lambda x: x):
    """A step of Adam for a Llama of 7B; `keep` is applied to what passes from layer to layer."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    f32, bf16 = jnp.float32, jnp.bfloat16
    shape = lambda *extents: jax.ShapeDtypeStruct(extents, f32)
    block = {name: (WIDTH, WIDTH) for name in ("q", "k", "v", "o")}
    block |= {
        "gate": (WIDTH, INNER),
        "up": (WIDTH, INNER),
        "down": (INNER, WIDTH),
        "before": (WIDTH,),
        "between": (WIDTH,),
    }
    if is_scanned:
        layers = {name: shape(LAYERS, *extents) for name, extents in block.items()}
    else:
        layers = [{name: shape(*extents) for name, extents in block.items()} for _ in range(LAYERS)]
    ends = {"embed": shape(WORDS, WIDTH), "norm": shape(WIDTH), "head": shape(WIDTH, WORDS)}
    params = ends | {"layers": layers}

    def norm(x, scale):
        wide = x.astype(f32)
        return (wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5) * scale).astype(bf16)

    def rotated(x):
        half = x.shape[-1] // 2
        at = jnp.arange(x.shape[1])[:, None] * (10000.0 ** (-jnp.arange(half) / half))[None, :]
        cos, sin = jnp.cos(at)[None, :, None, :], jnp.sin(at)[None, :, None, :]
        a, b = x[..., :half].astype(f32), x[..., half:].astype(f32)
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1).astype(bf16)

    def layer(x, p):
        p = {name: weight.astype(bf16) if weight.ndim == 2 else weight for name, weight in p.items()}
        b, t, _ = x.shape
        heads = lambda y: y.reshape(b, t, HEADS, WIDTH // HEADS)
        y = norm(x, p["before"])
        q, k, v = rotated(heads(y @ p["q"])), rotated(heads(y @ p["k"])), heads(y @ p["v"])
        scores = jnp.einsum("bthc,bshc->bhts", q, k, preferred_element_type=f32) / (WIDTH // HEADS) ** 0.5
        scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e30)
        mixed = jnp.einsum("bhts,bshc->bthc", jax.nn.softmax(scores).astype(bf16), v)
        x = keep(x + mixed.reshape(b, t, WIDTH) @ p["o"])
        y = norm(x, p["between"])
        return keep(x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"])

    def loss(params, tokens):
        x = keep(params["embed"].astype(bf16)[tokens])
        if is_scanned:
            x = lax.scan(lambda x, p: (jax.checkpoint(layer)(x, p), None), x, params["layers"])[0]
        else:
            for p in params["layers"]:
                x = layer(x, p)
        logits = (norm(x, params["norm"]) @ params["head"].astype(bf16)).astype(f32)
        one = jax.nn.log_softmax(logits[:, :-1])
        return -jnp.take_along_axis(one, tokens[:, 1:, None], -1).mean()

    def step(params, m, v, tokens):
        value, grads = jax.value_and_grad(loss)(params, tokens)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
        v = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, v, grads)
        params = jax.tree.map(lambda p, m, v: p - 1e-4 * m / (jnp.sqrt(v) + 1e-8), params, m, v)
        return params, m, v, value

    return step, (params, params, params, jax.ShapeDtypeStruct((EXAMPLES, LENGTH), jnp.int32))


def lower(folder):
    xla_compilers.prepare("cpu")
    import jax

    for name in ("scanned", "written"):
        step, arguments = model(name == "scanned")
        lowered = jax.jit(step, donate_argnums=(0, 1, 2)).lower(*arguments)
        with open(f"{folder}/{name}.hlo.txt", "w", encoding="utf-8") as file:
            file.write(lowered.as_text(dialect="hlo", debug_info=True))


def fit(backend, name, folder):
    """The meshes of `fit`, the fewest bytes first, and its answer."""
    command = [MEMPLAN, "-q", "fit", f"{folder}/{name}.hlo.txt", "--target", TARGETS[backend], "--format", "json"]
    before = os.times()
    start = time.time()
    run = subprocess.run([*command, "--devices", str(DEVICES[backend])], capture_output=True, text=True, check=False)
    if run.returncode not in (0, 3):
        sys.exit(run.stderr)
    after = os.times()
    took = after.children_user + after.children_system - before.children_user - before.children_system
    found = json.loads(run.stdout)
    with open(f"{folder}/{name}.{backend}.json", "w", encoding="utf-8") as file:
        json.dump(found, file)
    print(f"fit took {time.time() - start:.1f} s, of the processors {took:.1f} s")
    best = found["best"]
    print(
        f"answer: {' ; '.join(c['what'] for c in best['changes'])}: {best['total'] / 1e6:,.0f} MB, fits: {best['fits']}"
    )
    for change in found["changes"]:
        print(f"{change['what']}: {change['total'] / 1e6:,.0f} MB, {change['seconds']:.2f} s")


def ask(backend, name, folder, others):
    """The answer's mesh and some others in JAX, and what XLA needs on one device."""
    with open(f"{folder}/{name}.{backend}.json", encoding="utf-8") as file:
        found = json.load(file)
    changes = [c for c in found["best"]["changes"] if c.get("mesh")]
    changes += [c for c in found["changes"] if c["mesh"] != changes[0]["mesh"]][:others]
    xla_compilers.prepare(backend)
    if backend == "tpu":
        os.environ["TPU_ACCELERATOR_TYPE"] = f"v5litepod-{DEVICES[backend]}"
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh

    if backend == "tpu":
        devices = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGY).devices
    else:
        grid = f"1x1x{DEVICES[backend]}"
        topology = topologies.get_topology_desc(
            platform="cuda", topology_name=grid, topology=grid, target_config=xla_compilers.H100
        )
        devices = topology.devices
    devices = devices[: DEVICES[backend]]
    print("| program | devices | mesh | predicted | XLA's own | off by |\n|---|---|---|---:|---:|---:|")
    for change in changes:
        axes = {axis["name"]: axis["devices"] for axis in change["mesh"]["axes"]}
        mesh = Mesh(np.array(devices).reshape(tuple(axes.values())), tuple(axes))
        stem = f"{folder}/{name}.{backend}." + "_".join(f"{axis}{extent}" for axis, extent in axes.items())
        own, total = change["total"], needed(name, mesh, change["mesh"], stem)
        mesh_text = ", ".join(f"{axis} {extent}" for axis, extent in axes.items())
        row = f"{name} | {len(devices)} {backend} | {mesh_text} | {own / 1e6:,.0f} MB | {total / 1e6:,.0f} MB"
        print(f"| {row} | {100 * (own / total - 1):+.1f} % |", flush=True)


def needed(name, mesh, advice, stem):
    """XLA's bytes of one device with a mesh and the specs of `fit`; writes the program, and what XLA made of it."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    examples = NamedSharding(mesh, PartitionSpec(tuple(advice["examples"])))
    step, arguments = model(name == "scanned", lambda x: jax.lax.with_sharding_constraint(x, examples))
    specs = iter(PartitionSpec(*map(tuple, argument["spec"])) for argument in advice["arguments"])
    place = lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=NamedSharding(mesh, next(specs)))
    placed = jax.tree.map(place, arguments)
    results = (*jax.tree.map(lambda a: a.sharding, placed[:3]), NamedSharding(mesh, PartitionSpec()))
    lowered = jax.jit(step, donate_argnums=(0, 1, 2), out_shardings=results).lower(*placed)
    with open(f"{stem}.hlo.txt", "w", encoding="utf-8") as file:
        file.write(lowered.as_text(dialect="hlo", debug_info=True))
    compiled = lowered.compile()
    with open(f"{stem}.txt", "w", encoding="utf-8") as file:
        file.write(compiled.as_text())
    said = compiled.memory_analysis()
    size = lambda kind: getattr(said, f"{kind}_size_in_bytes")
    return size("argument") + size("output") - size("alias") + size("temp")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["lower", folder]:
            os.makedirs(folder, exist_ok=True)
            lower(folder)
        case ["fit", backend, name, folder]:
            fit(backend, name, folder)
        case ["ask", backend, name, folder, *others]:
            ask(backend, name, folder, int(others[0]) if others else 1)
        case _:
            sys.exit(HELP)
