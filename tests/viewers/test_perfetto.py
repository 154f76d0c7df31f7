"""What `--emit perfetto=FILE` writes has the plan's figures: by the rules of trace events, and, where its program can be
had, by Perfetto's own trace processor."""

import collections
import json
import os
import shutil

import pytest

from conftest import case_id, cases


def peaks_of(plan, layout):
    """The most bytes live at once in each memory, by the process that stands for it."""
    names = {space["id"]: f"memory: {space['name']}" for space in layout["spaces"]}
    return {names[peak["space"]]: peak["bytes"] for peak in [plan["peak"], *plan.get("other_peaks", [])]}


@pytest.mark.parametrize("case", cases(), ids=case_id)
def test_trace_events(case, memplan, tmp_path):
    path, verb, target = case
    plan = memplan(path, verb, target, "perfetto=trace.json", "layout=layout.json")
    layout = json.loads((tmp_path / "layout.json").read_text())
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    slices, counters = collections.defaultdict(list), collections.defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append(event)
        elif event["ph"] == "C":
            counters[event["pid"]].append(event["args"]["bytes"])

    # The program's own counter is the sum, where there are several memories; each of them has one, too.
    assert max(counters[1] or counters[2]) == plan["totals"]["peak_live"]
    assert {processes[pid]: max(of) for pid, of in counters.items() if pid > 1} == peaks_of(plan, layout)
    assert len(slices[1, 1]) == layout["launches"]
    assert sum(len(of) for (pid, _), of in slices.items() if pid > 1) == len(layout["buffers"])
    assert sum(len(of) for (pid, tid), of in slices.items() if pid == 1 and tid > 1) == len(layout["transfers"])
    for (pid, tid), of in slices.items():
        of.sort(key=lambda e: (e["ts"], -e["dur"]))
        around = []
        for event in of:
            begin, end = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
            while around and around[-1] <= begin:
                around.pop()
            assert not around or ((pid, tid) == (1, 1) and end <= around[-1]), f"{event['name']} overlaps"
            around.append(end)


@pytest.fixture(scope="module")
def processor():
    """Opens a trace in Perfetto's trace processor: the one that TRACE_PROCESSOR names, that is on the path, or that the
    package fetches when it is first asked, which needs a network."""
    api = pytest.importorskip("perfetto.trace_processor", reason="no perfetto from pip")
    path = os.environ.get("TRACE_PROCESSOR") or shutil.which("trace_processor_shell")
    config = api.TraceProcessorConfig(bin_path=path)
    try:
        api.TraceProcessor(config=config).close()
    except Exception as error:
        if path:
            raise
        pytest.skip(f"no trace processor: {str(error)[:60]}")
    return lambda trace: api.TraceProcessor(trace=str(trace), config=config)


def answers(trace, sql):
    """Rows of two columns, as a dictionary."""
    return {row.key: row.value for row in trace.query(sql)}


@pytest.mark.parametrize("case", cases(), ids=case_id)
def test_trace_processor(case, memplan, tmp_path, processor):
    path, verb, target = case
    plan = memplan(path, verb, target, "perfetto=trace.json", "layout=layout.json")
    layout = json.loads((tmp_path / "layout.json").read_text())
    names = {space["id"]: f"memory: {space['name']}" for space in layout["spaces"]}
    buffers = collections.Counter(names[buffer["space"]] for buffer in layout["buffers"])
    with processor(tmp_path / "trace.json") as trace:
        assert answers(trace, "select name as key, value from stats where severity != 'info' and value > 0") == {}
        # Of each memory the most bytes live at once, and a slice for each buffer.
        peaks = answers(trace, """
            select process.name as key, cast(max(counter.value) as int) as value
            from counter join process_counter_track track on counter.track_id = track.id join process using (upid)
            group by upid""")
        slices = answers(trace, """
            select process.name as key, count(*) as value
            from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
            where process.name glob 'memory: *' group by upid""")
    of_all = {peaks.pop(name) for name in list(peaks) if name not in names.values()}
    assert of_all <= {plan["totals"]["peak_live"]}
    assert peaks == peaks_of(plan, layout)
    assert slices == buffers
