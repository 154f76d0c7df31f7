"""What `--emit perfetto=FILE` writes has the plan's figures: by the rules of trace events, and, where its program can be
had, by Perfetto's own trace processor."""

import collections
import json

import pytest

from conftest import case_id, cases


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

    # The program's own counter is the sum, where there are several memories.
    assert max(counters[1] or counters[2]) == plan["totals"]["peak_live"]
    assert {processes[pid] for pid in counters if pid > 1} >= {f"memory: {space['name']}" for space in layout["spaces"] if space["used"] > 0}
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
    perfetto = pytest.importorskip("perfetto.trace_processor", reason="no perfetto from pip")
    try:  # The package fetches its program when it is first asked, which needs a network.
        perfetto.TraceProcessor().close()
    except Exception as error:
        pytest.skip(f"no trace processor: {str(error)[:60]}")
    return perfetto.TraceProcessor


@pytest.mark.parametrize("case", [case for case in cases() if "attention" in case[0].parent.name], ids=case_id)
def test_trace_processor(case, memplan, tmp_path, processor):
    path, verb, target = case
    plan = memplan(path, verb, target, "perfetto=trace.json")
    with processor(trace=str(tmp_path / "trace.json")) as trace:
        (row,) = trace.query("select max(c.value) as most from counter c join process_counter_track t on c.track_id = t.id")
        assert row.most == plan["totals"]["peak_live"]
