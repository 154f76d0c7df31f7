"""Training steps on this machine's CPU with ``jax.jit``, ``jax.checkpoint`` and ``memplan.jit``: seconds and memory.

    python steps.py                    # every model in every way, each in a process of its own; a table
    python steps.py lstm memplan       # one of them, as JSON

Memory is what the process holds at most while it steps, beyond what it holds with its arguments and before it compiles,
so that it is temporaries and results; and what XLA says of the program.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

WAYS = {"jit": "`jax.jit`", "checkpoint": "and `jax.checkpoint`", "memplan": "`memplan.jit`"}
STEPS = 5


def models() -> dict[str, Callable[[Callable[..., Any]], tuple[Any, tuple[Any, ...]]]]:
    """Each takes a transformation of its layer, and gives a loss and its arguments: parameters, then a batch."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
    from programs import cross_entropy, lstm_loss
    from programs import normalized as norm

    def weights(seed: int, *shape: int) -> Any:
        return jnp.asarray(np.random.default_rng(seed).normal(0, 0.02, shape), jnp.float32)

    def block(width: int, *lead: int) -> dict[str, Any]:
        square = {n: weights(ord(n), *lead, width, width) for n in "qkvo"}
        return {**square, "a": weights(1, *lead, width, 4 * width), "b": weights(2, *lead, 4 * width, width)}

    def attend(x: Any, memory: Any, p: Any, heads: int, causal: bool) -> Any:
        split = lambda y: y.reshape(*y.shape[:2], heads, -1)  # noqa: E731
        q, k, v = split(x @ p["q"]), split(memory @ p["k"]), split(memory @ p["v"])
        s = jnp.einsum("bthd,bshd->bhts", q, k) / np.sqrt(q.shape[-1])
        if causal:
            s = jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), s, -1e9)
        return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(s), v).reshape(x.shape) @ p["o"]

    def layer(x: Any, p: Any, causal: bool = True) -> Any:
        x = x + attend(norm(x), norm(x), p, 4, causal)
        return x + jax.nn.gelu(norm(x) @ p["a"]) @ p["b"]

    def gpt2(keep: Any) -> Any:
        params = {"layers": block(128, 6), "embedding": weights(3, 4096, 128)}
        one = keep(lambda x, p: (layer(x, p), None))

        def loss(params: Any, tokens: Any) -> Any:
            x, _ = lax.scan(one, params["embedding"][tokens[:, :-1]], params["layers"])
            return cross_entropy(norm(x) @ params["embedding"].T, tokens[:, 1:])

        return loss, (params, jnp.asarray(np.random.default_rng(0).integers(0, 4096, (4, 257))))

    def lstm(keep: Any) -> Any:
        params = {"x": weights(0, 64, 1024), "h": weights(1, 256, 1024), "out": weights(2, 256, 32)}
        return lstm_loss(keep), (params, weights(3, 256, 128, 64), jnp.arange(128) % 32)

    def encoder_decoder(keep: Any) -> Any:
        params = {name: block(128, 3) for name in ("encoder", "decoder", "cross")}
        params["out"] = weights(4, 128, 2048)
        encode = keep(lambda x, p: (layer(x, p, causal=False), None))

        def loss(params: Any, source: Any, target: Any, labels: Any) -> Any:
            memory, _ = lax.scan(encode, source, params["encoder"])
            decode = keep(lambda x, p: (layer(x + attend(norm(x), memory, p[1], 4, False), p[0]), None))
            x, _ = lax.scan(decode, target, (params["decoder"], params["cross"]))
            return cross_entropy(norm(x) @ params["out"], labels)

        labels = jnp.asarray(np.random.default_rng(0).integers(0, 2048, (4, 192)))
        return loss, (params, weights(5, 4, 256, 128), weights(6, 4, 192, 128), labels)

    return {"gpt2-like": gpt2, "lstm": lstm, "encoder-decoder": encoder_decoder}


def measure(name: str, way: str) -> dict[str, Any]:
    import jax

    import memplan

    loss, (params, *batch) = models()[name](jax.checkpoint if way == "checkpoint" else lambda f: f)

    def step(params: Any, momentum: Any, *batch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, *batch)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum, value

    jit = memplan.jit if way == "memplan" else jax.jit
    momentum = jax.tree.map(jax.numpy.zeros_like, params)
    start = time.perf_counter()
    compiled = jit(step, donate_argnums=(0, 1)).lower(params, momentum, *batch).compile()
    building = time.perf_counter() - start
    jax.block_until_ready((params, momentum, batch))
    # The high-water mark of the process, from here on.
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    held = status("VmRSS")
    seconds = []
    for _ in range(STEPS):
        start = time.perf_counter()
        params, momentum, value = jax.block_until_ready(compiled(params, momentum, *batch))
        seconds.append(time.perf_counter() - start)
    memory = compiled.memory_analysis()
    return {
        "resident": status("VmHWM") - held,
        "xla": memory.temp_size_in_bytes,
        "seconds": min(seconds),
        "building": building,
        "loss": float(value),
    }


def status(field: str) -> int:
    """Bytes, of this process."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(field))
    return int(line.split()[1]) << 10


def table() -> None:
    columns = ("resident, MiB", "XLA's temporaries, MiB", "s / step", "s to build", f"loss after {STEPS}")
    print("| step of training | compiled by | " + " | ".join(columns) + " |\n|---|---|---:|---:|---:|---:|---:|")
    for name in models():
        for way, title in WAYS.items():
            output = subprocess.run([sys.executable, __file__, name, way], check=True, capture_output=True, text=True)
            row = json.loads(output.stdout.splitlines()[-1])
            print(
                f"| {name} | {title} | {row['resident'] / 2**20:.0f} | {row['xla'] / 2**20:.0f} |"
                f" {row['seconds']:.3f} | {row['building']:.1f} | {row['loss']:.6f} |",
                flush=True,
            )


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measure(sys.argv[1], sys.argv[2])))
    else:
        table()
