"""XProf's own code opens what `--emit xprof=DIR` writes, and finds the plan's total, to the byte."""

import json
import subprocess
import sys

import pytest

from conftest import case_id, cases

xprof = pytest.importorskip("xprof", reason="no xprof from pip")

# XProf ends the process where a file is not as it should be, so each file has a process of its own.
ASK = """
import json, sys
from xprof.convert import _pywrap_profiler_plugin as plugin
path, module = sys.argv[1:]
def ask(tool, **options):
    data, ok = plugin.xspace_to_tools_data([path], tool, {'module_name': module, **options})
    assert ok, data
    return data
memory = json.loads(ask('memory_viewer', memory_space='0'))
graph = ask('graph_viewer', type='short_txt', node_name='', graph_width=3, show_metadata=False)
print(json.dumps({'peak': memory['peakHeapMib'], 'heap': len(memory.get('maxHeap', [])), 'graph': len(graph)}))
"""


@pytest.mark.parametrize("case", cases(), ids=case_id)
def test_peak_is_the_plan_s_total(case, memplan, tmp_path):
    path, verb, target = case
    plan = memplan(path, verb, target, "xprof=log")
    (run,) = (tmp_path / "log" / "plugins" / "profile").iterdir()
    assert (run / "x.xplane.pb").read_bytes() == b""
    (program,) = run.glob("*.hlo_proto.pb")
    module = program.name.removesuffix(".hlo_proto.pb")
    answer = subprocess.run(
        [sys.executable, "-c", ASK, str(run / "x.xplane.pb"), module], capture_output=True, text=True, timeout=600
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    said = json.loads(answer.stdout.splitlines()[-1])
    assert said["peak"] * 2**20 == plan["totals"]["total"]
    assert said["heap"] > 0 and said["graph"] > 0
