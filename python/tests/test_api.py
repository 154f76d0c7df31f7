"""Questions about programs, with programs in every form."""

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import REPOSITORY
from programs import PROGRAMS, saves, weights

import memplan

HLO = REPOSITORY / "examples" / "mlp_training_step.hlo.txt"


X, W = weights(0, 2048, 8), weights(1, 64, 8)


def test_programs_in_every_form(tmp_path: Path) -> None:
    lowered = jax.jit(saves).lower(X, W)
    text = lowered.compiler_ir("hlo").as_hlo_text()
    proto = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    bytecode = jax.export.export(jax.jit(saves), platforms=["cpu"])(X, W).mlir_module_serialized
    files = {"a.hlo": text.encode(), "b.pb": proto, "c.mlirbc": bytecode, "d.gz": gzip.compress(proto)}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    forms = [text, text.encode(), proto, bytecode, lowered, lowered.as_text(), jax.jit(saves).trace(X, W)]
    forms += [str(tmp_path / "a.hlo"), *sorted(tmp_path.iterdir())]
    totals = {memplan.estimate(form, target="cpu").total for form in forms}
    with_arguments = [(saves, X, W), (jax.jit(saves), X, W), (saves, jax.ShapeDtypeStruct(X.shape, X.dtype), W)]
    totals |= {memplan.estimate(*form, target="cpu").total for form in with_arguments}
    assert len(totals) == 1
    # What XLA made is another program: fused and scheduled.
    assert memplan.plan(lowered.compile(), target="cpu").total > 0
    assert memplan.read(lowered).name == memplan.read(text).name == "jit_saves"
    with pytest.raises(TypeError):
        memplan.read(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="only functions"):
        memplan.estimate(text, X)


def test_estimate() -> None:
    fun, args, options = PROGRAMS["transformer_scanned"]()
    specs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), args)
    found = memplan.estimate(jax.jit(fun, **options), *specs, target="gpu-h100")
    t = found.totals
    assert found.total == t.arguments + t.outputs - t.aliased + t.temp > 0 and t.aliased > 0
    assert found.compiler == "xla-gpu" and found.target == "gpu-h100" and found.seconds > 0
    assert found.curve.dtype == np.uint64 and found.curve[found.peak.time] == found.peak.bytes == found.curve.max()
    sizes = [holder.bytes for holder in found.holders]
    assert sizes == sorted(sizes, reverse=True) and sum(sizes) == pytest.approx(found.peak.bytes, rel=0.05)
    assert any(holder.source and "programs.py:" in holder.source for holder in found.holders)
    assert "expected of xla-gpu" in str(found) and "live at the peak" in str(found)
    assert "transformer" not in repr(found) and "GiB" not in found._repr_html_()
    assert "<svg" in found._repr_html_() and "programs.py:" in found._repr_html_()
    for target, compiler in (("tpu-v5e", "xla-tpu"), ("cpu", "xla-cpu"), ("gpu-mi300x", "xla-gpu")):
        assert memplan.estimate(fun, *args, target=target).compiler == compiler
    assert memplan.estimate(fun, *args).target == "cpu"
    with pytest.raises(memplan.InputError, match="ipu-gc200"):
        memplan.estimate(fun, *args, target="ipu-gc200")


def test_estimate_is_close_to_xla() -> None:
    """Not a test of the estimate, which has its own, but of what is asked."""
    fun, args, options = PROGRAMS["mlp_adam"]()
    m = jax.jit(fun, **options).lower(*args).compile().memory_analysis()
    assert m is not None
    xla = m.argument_size_in_bytes + m.output_size_in_bytes - m.alias_size_in_bytes + m.temp_size_in_bytes
    assert memplan.estimate(jax.jit(fun, **options), *args, target="cpu").total == pytest.approx(xla, rel=0.2)


def test_what_jit_makes_can_be_estimated() -> None:
    before = memplan.estimate(jax.jit(saves), X, W, target="cpu").total
    assert memplan.estimate(memplan.jit(saves), X, W, target="cpu").total < before


def test_plan_and_check() -> None:
    plan = memplan.plan(HLO, target="gpu-h100")
    b = plan.buffers
    assert len({len(column) for column in b}) == 1 and all(column.dtype == np.uint64 for column in b)
    assert (b.start < b.end).all() and b.end.max() <= len(plan.curve)
    sizes = np.array([allocation.size for allocation in plan.allocations], np.uint64)
    assert (b.offset + b.size <= sizes[b.allocation]).all()
    load = np.zeros(len(plan.curve) + 1, np.int64)
    np.add.at(load, b.start, b.size.astype(np.int64))
    np.subtract.at(load, b.end, b.size.astype(np.int64))
    np.testing.assert_array_equal(np.cumsum(load)[:-1], plan.curve)
    records = plan.to_records()
    assert [r["offset"] for r in records] == b.offset.tolist()
    assert {"instruction", "shape", "operation", "source", "kind", "size", "start", "end"} <= set(records[0])
    assert json.loads(plan.to_json())["totals"]["total"] == plan.total == plan.totals.total
    proof = memplan.check(plan.module, plan)
    assert proof.reads > 0 and proof == memplan.check(plan.module.to_text(), plan.to_json())
    assert proof.on_trust == []
    wrong = json.loads(plan.to_json())
    temp = next(a["index"] for a in wrong["allocations"] if a["kind"] == "temp")
    for value in wrong["values"]:
        if value["allocation"] == temp:
            value["offset"] = 0
    with pytest.raises(memplan.Refuted):
        memplan.check(plan.module, json.dumps(wrong))
    with pytest.raises(memplan.Refuted, match="fingerprint"):
        memplan.check(HLO.read_text(), plan)
    with pytest.raises(memplan.InputError, match="not a plan"):
        memplan.check(plan.module, "{}")
    assert memplan.plan(HLO, target="gpu-h100", schedule="memory").total <= plan.total


def test_compile() -> None:
    plan = memplan.compile(HLO, target="tpu-v5e")
    assert plan.total < memplan.plan(HLO, target="tpu-v5e").total
    assert {space.name for space in plan.spaces} >= {"hbm"}
    with pytest.raises(memplan.DoesNotFit, match="too much"):
        memplan.compile(HLO, target="tpu-v5e", memory_limit="1kB")


def test_fits() -> None:
    fit = memplan.fits(saves, X, W, target="gpu-h100")
    assert fit and "to spare" in str(fit)
    fit = memplan.fits(saves, X, W, target="gpu-h100", memory_limit="64 KiB")
    assert not fit and fit.needed > fit.limit == 65536
    assert "too much" in str(fit) and "programs.py:" in str(fit)
    big = jax.ShapeDtypeStruct((1 << 20, 1 << 15), jnp.float32)
    assert not memplan.fits(lambda x: x @ x.T, big, target="gpu-h100")


def test_rewrite() -> None:
    rewritten = memplan.rewrite(saves, X, W, target="gpu-h100", memory_limit="1kB")
    assert rewritten.after.bytes < rewritten.before.bytes and rewritten.steps[0].is_kept
    assert memplan.read(rewritten.module.to_proto()).to_text() == rewritten.module.to_text()
    assert not memplan.rewrite(lambda x: x + 1, X, target="cpu").is_changed


def test_errors_point_into_the_text() -> None:
    with pytest.raises(memplan.InputError) as caught:
        memplan.plan("HloModule m\nENTRY main {\n  ROOT p = f32[4] paramter(0)\n}\n")
    assert "<text>:3:" in str(caught.value) and "^" in str(caught.value) and "paramter" in str(caught.value)
    assert isinstance(caught.value, memplan.Error)
    for program, words in (
        ("/no/such/file", "cannot read"),
        (b"\x01\x02\x03", "neither HLO text nor"),
        ("module @m { func.func @main() { stablehlo.nothing } }", "stablehlo"),
        ("HloModule m\nENTRY main {\n  p = f32[4] parameter(0)\n  ROOT n = f32[5] negate(p)\n}", "not a valid module"),
    ):
        with pytest.raises(memplan.InputError, match=words):
            memplan.plan(program)
    with pytest.raises(memplan.InputError, match="no-such"):
        memplan.plan(HLO, target="no-such")
    with pytest.raises(memplan.InputError, match="QB"):
        memplan.compile(HLO, target="cpu", memory_limit="3QB")


def test_pack() -> None:
    packing = memplan.pack([0, 1, 0], [2, 3, 1], [96, 32, 32], alignment=[64, 1, 1])
    assert packing.status == "packed" and packing.height == packing.lower_bound == 128 and packing.optimal
    assert packing.offsets.tolist()[1] == packing.offsets.tolist()[2] == 96
    assert memplan.pack([0, 0], [1, 1], [8, 8], fixed=[8, -1]).offsets.tolist() == [8, 0]
    assert memplan.pack([0, 0], [1, 1], [8, 8], alignment=16).height == 24
    assert memplan.pack([0, 0], [1, 1], [8, 8], capacity=15).status == "infeasible"
    assert len(memplan.pack([], [], []).offsets) == 0
    assert json.loads(packing.to_json())["height"] == 128
    for columns in (([0], [1], [1, 2]), ([0], [0], [1]), ([-1], [1], [1]), ([0.5], [1], [1])):
        with pytest.raises(memplan.InputError):
            memplan.pack(*columns)


def test_pack_many() -> None:
    random = np.random.default_rng(0)
    lower = random.integers(0, 1 << 20, 1_000_000)
    upper = lower + random.integers(1, 64, lower.shape)
    size = random.integers(1, 1 << 16, lower.shape) * 64
    packing = memplan.pack(lower, upper, size, seconds=0.1)
    assert packing.height >= packing.lower_bound > 0
    # No two that are live at one time share a byte: at some instants, all those that are.
    for time_ in random.integers(0, 1 << 20, 50):
        live = np.flatnonzero((lower <= time_) & (time_ < upper))
        order = live[np.argsort(packing.offsets[live])]
        ends = packing.offsets[order] + size[order].astype(np.uint64)
        assert (ends[:-1] <= packing.offsets[order][1:]).all()


def test_threads_run_at_the_same_time() -> None:
    """The interpreter goes on while Rust works."""
    random = np.random.default_rng(0)
    lower = random.integers(0, 1 << 12, 5000)
    columns = (lower, lower + random.integers(1, 500, lower.shape), random.integers(1, 1 << 20, lower.shape))
    thread = threading.Thread(target=lambda: memplan.pack(*columns, seconds=1.0))
    thread.start()
    steps = 0
    while thread.is_alive():
        time.sleep(0.01)
        steps += 1
    assert steps > 5


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_control_c_stops_long_work() -> None:
    # What a shell starts in the background ignores Ctrl-C, and so does what that starts.
    program = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
import numpy as np, memplan
random = np.random.default_rng(0)
lower = random.integers(0, 1 << 12, 5000)
print("ready", flush=True)
try:
    memplan.pack(lower, lower + random.integers(1, 500, 5000), random.integers(1, 1 << 20, 5000), seconds=60)
except KeyboardInterrupt:
    print("interrupted")
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[0] == "interrupted\n"
    assert time.monotonic() - start < 20


def test_command() -> None:
    def memplan_command(*args: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "memplan", *args]
        return subprocess.run(line, capture_output=True, text=True, cwd=REPOSITORY)

    assert memplan_command("--version").stdout == f"memplan {memplan.__version__}\n"
    assert memplan.__version__ == "0.1.0"
    assert memplan_command("plan", os.fspath(HLO)).returncode == 0
    missing = memplan_command("plan", "/no/such/file")
    assert missing.returncode == 1 and "cannot read" in missing.stderr
    assert memplan_command("plam").returncode == 2
    assert memplan_command("compile", os.fspath(HLO), "--target", "cpu", "--memory-limit", "1B").returncode == 3


def test_without_jax() -> None:
    """Nothing but numpy is needed for HLO."""
    program = f"""
import sys
sys.modules["jax"] = sys.modules["jaxlib"] = None
import memplan
assert memplan.plan({os.fspath(HLO)!r}, target="cpu").total > 0
try:
    memplan.plan("module @m {{ func.func @main() {{ stablehlo.constant }} }}", target="cpu")
except memplan.InputError as error:
    assert "jaxlib" in str(error)
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=REPOSITORY)
