"""Questions about programs, with programs in every form."""

import copy
import gzip
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from html import unescape
from pathlib import Path
from typing import Any

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
    exported = jax.export.export(jax.jit(saves), platforms=["cpu"])(X, W)
    compressed = [gzip.compress(lowered.as_text().encode())]
    others = [exported, lowered.compiler_ir(), lowered.compiler_ir("hlo"), *compressed]
    totals |= {memplan.estimate(form, target="cpu").total for form in others}
    assert len(totals) == 1
    # What XLA made is another program: fused and scheduled.
    assert memplan.plan(lowered.compile(), target="cpu").total > 0
    assert memplan.read(lowered).name == memplan.read(text).name == "jit_saves"
    with pytest.raises(TypeError):
        memplan.read(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="only functions"):
        memplan.estimate(text, X)


def test_hlo_and_stablehlo_are_told_apart_by_what_they_are() -> None:
    def f(params: Any, x: Any) -> Any:
        for p in params:
            x = jnp.tanh(x @ p["kernel"] + p["bias"])
        return x.sum()

    params = [{"kernel": jnp.ones((4, 4)), "bias": jnp.ones(4)} for _ in range(60)]
    text = jax.jit(f).lower(params, jnp.ones((2, 4))).as_text(debug_info=True)
    # Names of arguments come first, in more than a page.
    assert text.startswith("#loc") and "func.func" not in text[:4096]
    wanted = memplan.plan(f, params, jnp.ones((2, 4)), target="cpu").total
    assert memplan.plan(text, target="cpu").total == wanted
    assert memplan.plan(f"\n// a comment\n\n{text}", target="cpu").total == wanted
    metadata = 'metadata={op_name="func.func/stablehlo.add vhlo."}'
    hlo = f"HloModule m\nENTRY e {{\n  ROOT p = f32[4] parameter(0), {metadata}\n}}\n"
    assert memplan.plan(f"// stablehlo.add\n{hlo}", target="cpu").total == 32


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
    assert "transformer" not in repr(found) and found._repr_html_().count("GiB") == 2, "of the limit alone"
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
    # The program before it was put in order.
    assert memplan.check(HLO.read_text(), plan).reads == proof.reads
    with pytest.raises(memplan.Refuted, match="fingerprint"):
        memplan.check("HloModule m\nENTRY e {\n  ROOT p = f32[4] parameter(0)\n}\n", plan)
    with pytest.raises(memplan.InputError, match="not a plan"):
        memplan.check(plan.module, "{}")
    assert memplan.plan(HLO, target="gpu-h100", schedule="memory").total <= plan.total


def test_check_of_a_function_with_its_arguments(tmp_path: Path) -> None:
    plan = memplan.plan(saves, X, W, target="cpu")
    (tmp_path / "plan.json").write_text(plan.to_json())
    proofs = [
        memplan.check(saves, X, W, plan),
        memplan.check(saves, X, W, plan=plan.to_json()),
        memplan.check(saves, X, w=W, plan=tmp_path / "plan.json"),
    ]
    assert proofs[0] == proofs[1] == proofs[2] and proofs[0].reads > 0
    with pytest.raises(memplan.Refuted, match="fingerprint"):
        memplan.check(saves, X[:64], W, plan)
    with pytest.raises(TypeError, match="needs a plan"):
        memplan.check(saves)
    with pytest.raises(TypeError, match="a plan is no"):
        memplan.check(saves, X, W)
    with pytest.raises(memplan.InputError, match="cannot read"):
        memplan.check(saves, X, W, "/no/such/plan")


def test_a_schedule_is_one_of_two() -> None:
    with pytest.raises(memplan.InputError, match="`mem` is no schedule; there are keep, memory"):
        memplan.plan(HLO, target="cpu", schedule="mem")  # type: ignore[arg-type]


def test_answers_can_be_pickled_and_copied() -> None:
    plan = memplan.plan(HLO, target="gpu-h100")
    fit = memplan.fits(saves, X, W, target="cpu", memory_limit="1GiB")
    rewritten = memplan.rewrite(saves, X, W, target="cpu", memory_limit="1kB")
    packing = memplan.pack([0, 1], [2, 3], [8, 8])
    for change in (lambda x: pickle.loads(pickle.dumps(x)), copy.copy, copy.deepcopy):
        again = change(plan)
        assert str(again) == str(plan) and repr(again) == repr(plan) and again._repr_html_() == plan._repr_html_()
        assert again.totals == plan.totals and again.holders == plan.holders and again.spaces == plan.spaces
        assert again.to_records() == plan.to_records() and again.allocations == plan.allocations
        np.testing.assert_array_equal(again.curve, plan.curve)
        assert memplan.check(again.module, again) == memplan.check(plan.module, plan)
        assert str(change(again)) == str(plan)
        assert str(change(fit)) == str(fit) and change(fit).estimate.seconds == fit.estimate.seconds
        assert change(fit).estimate.total == fit.estimate.total
        assert str(change(rewritten)) == str(rewritten) and change(rewritten).steps == rewritten.steps
        assert change(rewritten).after == rewritten.after and change(rewritten).is_changed
        assert change(plan.module).to_text() == plan.module.to_text()
        assert change(packing).offsets.tolist() == packing.offsets.tolist()
        proof = memplan.check(plan.module, plan)
        assert change(proof) == proof
    error = pickle.loads(pickle.dumps(memplan.InputError("text")))
    assert isinstance(error, memplan.InputError) and str(error) == "text"


def test_answers_draw_themselves() -> None:
    fit = memplan.fits(saves, X, W, target="cpu", memory_limit="64KiB")
    html = fit._repr_html_()
    assert "does not fit" in html and "too much" in html and "<svg" in html and "programs.py:" in html
    assert "to spare" in memplan.fits(saves, X, W, target="gpu-h100")._repr_html_()
    # The table is that of the text: the same lines, in the same words.
    plain = " ".join(str(fit.estimate).split())
    cells = re.findall(r"<td[^>]*>(.*?)</td>", html.split("live at the peak")[1])
    assert len(cells) >= 10 and all(unescape(cell) in plain for cell in cells if len(cell) < 20)
    assert "max-width: 100%; overflow-x: auto" in html
    plan = memplan.plan(HLO, target="cpu")
    proof = memplan.check(plan.module, plan)
    assert "plan verified" in proof._repr_html_() and f"{proof.reads:,}" in proof._repr_html_()
    packing = memplan.pack([0, 1, 0], [2, 3, 1], [96, 32, 32])
    assert packing._repr_html_().count("<rect") == 3 and "the least there is" in packing._repr_html_()
    assert "<svg" not in memplan.pack([], [], [])._repr_html_()
    many = np.arange(3000)
    drawn = memplan.pack(many, many + 2, many % 7 + 1)._repr_html_()
    assert drawn.count("<rect") == 2000 and "1,000 smallest" in drawn


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
        (b"module @m { func.func @main() { \xff } }", "no UTF-8 from byte 32"),
        (b"HloModule m\nENTRY \xff { }", "."),
        ("module @m {\n \ud800 }", "surrogate"),
        (b"\x1f\x8b\x08damaged", "damaged"),
        ("/no\0such/file", "cannot read"),
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


def test_packing_is_limited_by_steps() -> None:
    """The answer does not depend on the machine, unless a time is asked for."""
    random = np.random.default_rng(0)
    lower = random.integers(0, 1 << 8, 500)
    columns = (lower, lower + random.integers(1, 50, lower.shape), random.integers(1, 1 << 20, lower.shape))
    alignment = 1 << random.integers(0, 18, lower.shape)
    first, second = (memplan.pack(*columns, alignment=alignment, steps=2000) for _ in range(2))
    assert first.offsets.tolist() == second.offsets.tolist() and first.nodes == second.nodes > 0
    assert memplan.pack(*columns, alignment=alignment, steps=0).nodes == 0
    with pytest.raises(memplan.InputError, match="by seconds or by steps"):
        memplan.pack(*columns, steps=1, seconds=1.0)
    for seconds in (-1.0, float("nan")):
        with pytest.raises(memplan.InputError, match="not a time"):
            memplan.pack(*columns, seconds=seconds)


def crowded(n: int) -> tuple[Any, Any, Any]:
    """Intervals of which so many are live at a time that each heuristic takes its time."""
    random = np.random.default_rng(0)
    lower = random.integers(0, n // 3, n)
    return lower, lower + random.integers(1, n // 60, n), random.integers(1, 1 << 20, n)


def test_packing_stops_at_its_deadline() -> None:
    packing = memplan.pack(*crowded(60_000), seconds=0)
    # One packing is made in any case; no search begins.
    assert packing.status == "packed" and packing.nodes == 0
    assert packing.height > memplan.pack(*crowded(60_000), steps=0).height


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
lower = random.integers(0, 100_000, 300_000)
columns = lower, lower + random.integers(1, 5000, 300_000), random.integers(1, 1 << 20, 300_000)
print("ready", flush=True)
try:
    memplan.pack(*columns, seconds=600)
except KeyboardInterrupt:
    import glob, time
    # The thread that packs ends, too.
    working = lambda: [t for t in glob.glob("/proc/self/task/*/comm") if "packing" in open(t).read()]
    for _ in range(150):
        if not working():
            print("interrupted")
            break
        time.sleep(0.1)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "interrupted\n"


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
