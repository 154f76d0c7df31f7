#!/usr/bin/env python3
"""Plans what XLA's CPU compiler makes of HLO modules, and compiles the modules: whatever is refused is a defect of memplan.

    plan_xla_tests.py MODULES SCHEDULES [--plan N] [--compile N]

MODULES is a folder of HLO texts (`xla_test_modules.py` makes one). A sample of N of them is compiled by XLA for the CPU, as
far as XLA takes them; its schedules and what it says of its memory are kept in SCHEDULES. `plan` must take each schedule,
`check` prove the plan, and temp be at most XLA's. Another sample of N, of those that memplan reads and verifies, is
compiled for cpu, gpu-h100 and tpu-v5e, and checked. Samples are drawn by the names of files, so they are the same in
every run. Needs `pip install jax` for the schedules; MEMPLAN names the binary, target/release/memplan if not.
"""

import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGETS = ["cpu", "gpu-h100", "tpu-v5e"]

# Seconds for one module. XLA's tests are small.
LONGEST = 60


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", type=pathlib.Path)
    parser.add_argument("schedules", type=pathlib.Path)
    parser.add_argument("--plan", type=int, default=1000)
    parser.add_argument("--compile", type=int, default=2000)
    arguments = parser.parse_args()
    files = sorted(arguments.modules.glob("*.hlo"), key=lambda path: hashlib.sha256(path.name.encode()).digest())
    bad = plan_schedules(files, arguments.schedules, arguments.plan) + compile_modules(files[::-1], arguments.compile)
    sys.exit(bool(bad))


def plan_schedules(files, folder, n):
    """Plans n schedules; returns how many were refused or need more than XLA."""
    folder.mkdir(parents=True, exist_ok=True)
    refused, above, planned, ours, theirs = 0, 0, 0, 0, 0
    for schedule in schedules(files, folder, n):
        limit = json.loads(schedule.with_suffix(".json").read_text())["temp"]
        totals, why = proved("plan", schedule, "cpu")
        planned += 1
        if why:
            refused += 1
            print(f"plan {schedule.name}: {why}", flush=True)
            continue
        ours, theirs = ours + totals["temp"], theirs + limit
        if totals["temp"] > limit:
            above += 1
            print(f"plan {schedule.name}: temp {totals['temp']}, XLA's {limit}", flush=True)
    print(f"{planned} schedules of XLA: {refused} refused, {above} above XLA's temp; {ours} bytes of temp, XLA {theirs}", flush=True)
    return refused + above


def compile_modules(files, n):
    """Compiles n modules for each target; returns how often that was refused."""
    taken, refused = 0, 0
    for file in files:
        if taken == n:
            break
        if memplan("opt", file).returncode:
            continue
        taken += 1
        for target in TARGETS:
            _, why = proved("compile", file, target)
            if why:
                refused += 1
                print(f"compile {file.name} for {target}: {why}", flush=True)
    print(f"{taken} modules for {len(TARGETS)} targets: {refused} refused", flush=True)
    return refused


def proved(verb, module, target):
    """The totals of a plan that `check` has proved, or why there is none. Status 3: it is right, but does not fit the machine."""
    with tempfile.TemporaryDirectory() as made:
        plan, hlo = f"{made}/plan.json", f"{made}/out.hlo"
        run = memplan(verb, module, "--target", target, "--format", "json", "-o", plan, "--emit", f"hlo={hlo}")
        if run.returncode not in (0, 3):
            return None, f"status {run.returncode}: {run.stderr.strip()[:300]}"
        check = memplan("check", hlo, plan)
        if check.returncode not in (0, 3):
            return None, f"check, status {check.returncode}: {check.stderr.strip()[:300]}"
        return json.loads(pathlib.Path(plan).read_text())["totals"], None


def memplan(*arguments):
    binary = os.environ.get("MEMPLAN", ROOT / "target" / "release" / "memplan")
    try:
        return subprocess.run([binary, *arguments], capture_output=True, text=True, errors="replace", timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(arguments, -1, "", f"more than {LONGEST} s")


def schedules(files, folder, n):
    """The schedules of the first n modules that XLA compiles, as they come."""
    made, waiting = 0, list(files)
    while waiting and made < n:
        # XLA ends its process on some modules: the worker says which it is at, and the next worker goes on after that.
        worker = subprocess.Popen([sys.executable, __file__, "--worker", folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        while waiting and made < n:
            file = waiting.pop(0)
            schedule = folder / file.name
            if not schedule.with_suffix(".json").exists():
                try:
                    worker.stdin.write(f"{file}\n")
                    worker.stdin.flush()
                except BrokenPipeError:
                    pass
                if not worker.stdout.readline():
                    schedule.with_suffix(".json").write_text(json.dumps({"error": "XLA ended its process"}))
                    break
            if "temp" in json.loads(schedule.with_suffix(".json").read_text()):
                made += 1
                yield schedule
        worker.kill()
        worker.wait()


def work(folder):
    """Compiles the modules that standard input names, a line for each when it is done."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    import signal

    import jax
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jaxlib import _hlo, _jax
    from jaxlib.mlir import ir

    device = jax.devices("cpu")[0]
    for line in sys.stdin:
        file = pathlib.Path(line.strip())
        schedule = folder / file.name
        # What hangs ends the process, which the parent takes as it takes what crashes.
        signal.alarm(LONGEST)
        try:
            proto = _hlo.hlo_module_from_text(file.read_text()).as_serialized_hlo_module_proto()
            with mlir.make_ir_context():
                module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(proto))
                options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
                made = device.client.compile_and_load(module, xla_client.DeviceList((device,)), options)
            stats = made.get_compiled_memory_stats()
            schedule.write_text(made.hlo_modules()[0].to_string())
            about = {"temp": stats.temp_size_in_bytes}
        except Exception as error:
            about = {"error": str(error)[:300]}
        schedule.with_suffix(".json").write_text(json.dumps(about))
        print(flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(pathlib.Path(sys.argv[2]))
    else:
        main()
