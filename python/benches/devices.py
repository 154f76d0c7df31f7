"""Training steps on 8 CPU devices of this machine with ``jax.jit`` and ``memplan.jit``: losses and memory.

    python devices.py                    # every program in both ways, each in a process of its own; a table
    python devices.py --write            # puts the table into docs/devices.md
    python devices.py experts memplan    # one of them, as JSON

Resident is the most memory that the process holds during the steps, less what it holds before them, with the arguments.
All 8 devices share that memory. XLA's temporaries are those of one device.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 " + os.environ.get("XLA_FLAGS", "")
ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "python" / "tests"), str(ROOT / "scripts")]

import tables
from steps import status

PAGE = ROOT / "docs" / "devices.md"
BEGIN = "<!-- really run: python/benches/devices.py -->\n"
WAYS = {"jit": "`jax.jit`", "memplan": "`memplan.jit`"}
STEPS = 3


def sizes() -> dict[str, Any]:
    from mesh_programs import Size

    return {
        "transformer": Size(layers=6, width=128, wide=512, tokens=256),
        "experts": Size(layers=6, width=128, wide=512, tokens=1024),
        "pipeline": Size(wide=512, tokens=1024),
    }


def measure(name: str, way: str) -> dict[str, Any]:
    import jax
    import mesh_programs

    import memplan

    mesh = mesh_programs.mesh_of(8)
    step, arrays, specs = getattr(mesh_programs, name)(mesh, sizes()[name])
    params, *batch = mesh_programs.placed(mesh, arrays, specs)
    jit = memplan.jit if way == "memplan" else jax.jit
    compiled = jit(step, donate_argnums=0).lower(params, *batch).compile()
    del arrays
    jax.block_until_ready((params, batch))
    # The high-water mark of the process, from here on.
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    held = status("VmRSS")
    losses = []
    for _ in range(STEPS):
        params, value = jax.block_until_ready(compiled(params, *batch))
        losses.append(float(value))
    memory = compiled.memory_analysis()
    return {"resident": status("VmHWM") - held, "xla": memory.temp_size_in_bytes, "losses": losses}


def table() -> str:
    rows = []
    for name in sizes():
        for way, title in WAYS.items():
            output = subprocess.run([sys.executable, __file__, name, way], check=True, capture_output=True, text=True)
            row = json.loads(output.stdout.splitlines()[-1])
            sizes_of = [f"{row['resident'] / 2**20:,.0f}", f"{row['xla'] / 2**20:.1f}"]
            rows.append([name, title, *sizes_of, ", ".join(f"{loss:.6f}" for loss in row["losses"])])
    columns = ["resident, MiB", "XLA's temporaries of one device, MiB", f"losses of {STEPS} steps"]
    return tables.markdown(["step of training", "compiled by", *columns], ["---", "---", "---:", "---:", "---"], rows)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--write"]:
            PAGE.write_text(tables.put(PAGE.read_text(), BEGIN, "<!-- end -->", table()))
        case [name, way]:
            print(json.dumps(measure(name, way)))
        case _:
            print(table(), end="")
