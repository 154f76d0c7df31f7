"""The page of `--emit html=FILE` in a browser: it opens without an error, shows the plan's figures, and answers."""

import csv
import json
import os
import pathlib
import shutil
import time

import pytest

from conftest import ROOT, case_id, cases

sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright from pip")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]
# Where to leave a picture of each view, for the documentation.
PICTURES = os.environ.get("MEMPLAN_PICTURES")


# Heights of windows by their widths: a telephone, a laptop, a desk.
HEIGHTS = {420: 860, 1280: 720, 1920: 1080}


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser):
    """Opens a page, which may ask no network and say no error; gives it when it is drawn."""
    said, pages = [], []

    def open_it(path, scheme="light", width=1280, link=""):
        page = browser.new_page(viewport={"width": width, "height": HEIGHTS[width]}, color_scheme=scheme)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: said.append(request.url) if not request.url.startswith(("file:", "data:")) else None)
        page.goto(f"file://{path}{link}")
        page.wait_for_function("window.memplan && memplan.charts[0].took !== undefined")
        pages.append(page)
        return page

    yield open_it
    assert said == []
    for page in pages:
        page.close()


def draw(page):
    """Waits until what was asked for is drawn."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def middle_of(page, buffer):
    """Where a buffer is in sight, as a place in the window."""
    return page.evaluate(
        """(i) => {
            const chart = memplan.charts[0];
            const panel = chart.panels.find((p) => p.space === memplan.model.spaceOf(i));
            const [xs, ys] = [[], []];
            panel.ids.forEach((id, at) => { if (id === i) { xs.push(at % panel.width); ys.push(Math.floor(at / panel.width)); } });
            if (xs.length === 0) return null;
            const half = Math.floor(xs.length / 2);
            const box = chart.canvas.getBoundingClientRect();
            return [box.x + chart.left + (xs[half] + 0.5) / chart.ratio, box.y + panel.top + (ys[half] + 0.5) / chart.ratio];
        }""",
        buffer,
    )


@pytest.mark.parametrize("case", cases(), ids=case_id)
def test_every_program(case, memplan, tmp_path, open_page):
    path, verb, target = case
    plan = memplan(path, verb, target, "html=view.html", "layout=layout.json")
    layout = json.loads((tmp_path / "layout.json").read_text())
    assert (tmp_path / "view.html").stat().st_size < 3_000_000
    page = open_page(tmp_path / "view.html")

    # The numbers on the page are the plan's.
    shown = dict(page.eval_on_selector_all("#totals [data-bytes]", "rows => rows.map(r => [r.className, Number(r.dataset.bytes)])"))
    for name, value in shown.items():
        assert value == plan["totals"]["peak_live" if name == "peak" else name], name
    assert shown["total"] == plan["totals"]["total"]
    assert page.inner_text("#module") == plan["module"]
    assert int(page.get_attribute("#live-bytes", "data-bytes")) == plan["totals"]["peak_live"]
    assert page.evaluate("memplan.model.nBuffers") == len(layout["buffers"])

    # What is painted under the pointer is what the pointer is told of, and a click selects it.
    order = sorted(range(len(layout["buffers"])), key=lambda i: -layout["buffers"][i]["size"])
    buffer, at = next(((i, at) for i in order[:200] if (at := middle_of(page, i)) is not None), (None, None))
    assert buffer is not None, "no buffer is in sight"
    page.mouse.move(*at)
    expected = layout["buffers"][buffer]
    path_in = "{" + ",".join(map(str, expected["shape_index"])) + "}" if expected.get("shape_index") else ""
    assert page.inner_text("#hint b") == expected["name"] + path_in
    assert expected["shape"] in page.inner_text("#hint")
    page.mouse.click(*at)
    assert page.inner_text("#buffer-name") == expected["name"] + path_in
    assert f"{expected['size']:,} B" in page.inner_text("#buffer")

    # Search finds what the layout has, and the table shows it.
    page.fill("#search", expected["name"])
    hits = sum(1 for b, notes in zip(layout["buffers"], page.evaluate("Array.from({length: memplan.model.nBuffers}, (_, i) => [memplan.model.operationOf(i), memplan.model.sourceOf(i)])"))
               if any(expected["name"].lower() in text.lower() for text in (b["name"], b["shape"], *notes)))
    assert page.evaluate("memplan.hits.length") >= hits > 0
    page.click("#tab-table")
    assert page.locator("#table tbody tr").count() > 0

    # A click on the curve says who is live there.
    page.fill("#search", "")
    box = page.evaluate("(() => { const c = memplan.charts[0], b = c.canvas.getBoundingClientRect(); return [b.x + (c.left + c.right) / 2, b.y + c.curveBottom - 5]; })()")
    page.mouse.click(*box)
    launch = page.evaluate("memplan.moment")
    live = {i for i, b in enumerate(layout["buffers"]) if b["live"]["from"] <= launch < max(b["live"]["to"], b["live"]["from"] + 1)}
    assert set(page.evaluate("memplan.model.liveAt(memplan.moment)")) <= live


def test_loops_close_and_chains_lead_on(memplan, tmp_path, open_page):
    memplan(ROOT / "tests/corpus/lstm/before.hlo.txt", "compile", "gpu-h100", "html=view.html")
    page = open_page(tmp_path / "view.html")
    assert page.evaluate("memplan.model.loops.length") > 0
    end = page.evaluate("memplan.charts[0].axis.end")
    box = page.evaluate("(() => { const c = memplan.charts[0], b = c.canvas.getBoundingClientRect(), l = c.loopBoxes[0]; return [b.x + (l.left + l.right) / 2, b.y + l.top + 6]; })()")
    page.mouse.click(*box)
    assert page.evaluate("memplan.charts[0].axis.end") < end
    # Along producers and along the chain that keeps a buffer alive.
    start = page.evaluate("(() => { const m = memplan.model; return m.peak.buffers.find((i) => m.readers[i].length > 0 && m.consumersOf(i).length > 0) ?? m.from.findIndex((_, i) => m.consumersOf(i).length > 0); })()")
    page.evaluate("(i) => memplan.select(i, true)", start)
    page.keyboard.press("]")
    assert page.evaluate("memplan.selected") != start
    page.keyboard.press("Escape")
    assert page.evaluate("memplan.selected") is None


def test_before_and_after_have_one_scale(memplan, tmp_path, open_page):
    memplan(ROOT / "tests/corpus/transformer_training_step/before.hlo.txt", "compile", "gpu-h100", "html=view.html")
    page = open_page(tmp_path / "view.html")
    page.select_option("#stage", "all")
    draw(page)
    assert page.locator("canvas").count() == 2
    heights = page.evaluate("memplan.charts.map((c) => [c.heights.get(0).high, c.panels[0].bottom - c.panels[0].top])")
    assert heights[0] == heights[1]
    # What is gone is greyed, what is kept is not.
    greyed = page.evaluate("memplan.visible.get(memplan.models[1]).reduce((n, v) => n + (v === 0), 0)")
    assert greyed > 0


STEP, REMAT = (ROOT / f"tests/hlo/diff/{name}.hlo" for name in ("step", "remat"))
TRAINING = ROOT / "tests/corpus/transformer_training_step/before.hlo.txt"
# Verbs that compare programs: what they are given, where their answer is, which of its rows are those of the first table.
PAIRS = {
    "diff": (["diff", STEP, REMAT, "--format", "json", "-o", "out.json"], lambda out: out["programs"][0]["causes"]),
    "fit": (["fit", TRAINING, "--target", "gpu-h100", "--memory-limit", "100KiB", "--devices", "2", "--format", "json", "-o", "out.json"], lambda out: out["best"]["changes"]),
    "rewrite": (["rewrite", TRAINING, "--compiler", "xla-gpu", "-o", "out.hlo"], None),
}


@pytest.mark.parametrize("verb", PAIRS)
def test_two_programs_beside_each_other(verb, command, tmp_path, open_page):
    args, rows = PAIRS[verb]
    command(*args, emits=["html=view.html"], statuses=(0, 3))
    page = open_page(tmp_path / "view.html")
    assert page.locator("canvas").count() == 2
    heights = page.evaluate("memplan.charts.map((c) => [c.heights.get(0).high, c.panels[0].bottom - c.panels[0].top])")
    assert heights[0] == heights[1]
    # The table has what the command says.
    listed = page.locator("#notes table").first.locator("tbody tr").count()
    assert listed > 0 if rows is None else listed == len(rows(json.loads((tmp_path / "out.json").read_text())))
    # What is gone is greyed, what is new is marked, all else has a partner, and a click on it outlines both.
    [after, before] = page.evaluate("memplan.models.map((m) => m.nBuffers)")
    count = lambda what: page.evaluate(f"[...{what} ?? []].reduce((n, v) => n + v, 0)")
    kept, fresh = count("memplan.visible.get(memplan.models[1])"), count("memplan.fresh.get(memplan.models[0])")
    assert 0 < kept < before and kept == after - fresh
    page.evaluate("memplan.select(memplan.models[0].other.partners.findIndex((p) => p >= 0), true)")
    assert page.evaluate("memplan.models[1].name") in page.inner_text("#buffer dl")
    # A row that is about buffers finds them.
    finders = page.locator("#notes .link")
    if finders.count() > 0:
        page.click("#tab-notes")
        finders.first.click()
        assert page.evaluate("memplan.models.some((m) => memplan.visible.get(m).some((v) => v === 1))")


def duration(seconds):
    """As reports have it."""
    factor, unit = next((f, u) for least, f, u in ((1, 1, "s"), (1e-3, 1e3, "ms"), (1e-6, 1e6, "µs"), (0, 1e9, "ns")) if seconds >= least)
    return f"{seconds * factor:.3f} {unit}"


@pytest.mark.parametrize(("path", "verb", "target"), [
    ("tests/corpus/transformer_training_step/before.hlo.txt", "compile", "gpu-h100"),
    ("tests/corpus/lstm/before.hlo.txt", "plan", "tpu-v5e"),
    ("examples/mlp_training_step.hlo.txt", "plan", "tpu-v5e"),
])
def test_figures_and_lines_are_those_of_the_report(path, verb, target, memplan, text_of, tmp_path, open_page):
    plan = memplan(ROOT / path, verb, target, "html=view.html")
    report = text_of(verb, ROOT / path, "--target", target)
    page = open_page(tmp_path / "view.html")
    for said in page.inner_text("#verdict").split("; "):
        assert said in report.replace("does NOT fit", "does not fit")
    assert page.inner_text("#totals .time dd") == duration(plan["cost"]["seconds"])
    assert f"one run takes {duration(plan['cost']['seconds'])}" in report
    # Who holds the peak: the same lines in the same order, with the same bytes.
    if plan["peak"]["bytes"] == plan["totals"]["peak_live"]:
        lines = [(h["bytes"], h["count"], f"{h['operation']} {h['shape']}", h["class"].replace("-", " "), h.get("source") or "") for h in plan["peak"]["holders"]]
        with page.expect_download() as download:
            page.click("#moment .export button:nth-child(2)")
        with open(download.value.path(), newline="") as file:
            rows = list(csv.DictReader(file))
        found = [(int(r["bytes"]), int(r["values"]), r["what"], r["class"], r["source"]) for r in rows]
        assert sorted(found) == sorted(lines)
        assert [line[0] for line in found] == [line[0] for line in lines]


def test_the_table_leaves_the_page(memplan, tmp_path, open_page):
    memplan(TRAINING, "compile", "gpu-h100", "html=view.html", "layout=layout.json")
    buffers = json.loads((tmp_path / "layout.json").read_text())["buffers"]
    page = open_page(tmp_path / "view.html")
    page.click("#tab-table")
    with page.expect_download() as download:
        page.click("#table .export button:nth-child(2)")
    with open(download.value.path(), newline="") as file:
        rows = list(csv.DictReader(file))
    assert download.value.suggested_filename == "buffers.csv"
    assert sorted(int(row["bytes"]) for row in rows) == sorted(buffer["size"] for buffer in buffers)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.fill("#search", "dot_general")
    page.click("#table .export button:nth-child(1)")
    page.wait_for_function("document.querySelector('#said').className === 'shown'")
    lines = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert len(lines) == 1 + page.evaluate("memplan.hits.length")
    assert lines[0].split("\t") == list(rows[0])


def test_a_link_keeps_what_is_seen(memplan, tmp_path, open_page):
    memplan(TRAINING, "compile", "gpu-h100", "html=view.html")
    page = open_page(tmp_path / "view.html")
    state = """({ name: memplan.selected === null ? null : memplan.model.bufferName(memplan.selected), of: memplan.models.indexOf(memplan.model),
        group: memplan.grouping, across: memplan.across, query: memplan.query, moment: memplan.moment, tab: memplan.open,
        shown: document.querySelector("#stage").value, low: memplan.charts[0].axis.low.toPrecision(4), high: memplan.charts[0].axis.high.toPrecision(4) })"""
    first = page.evaluate(state)
    page.wait_for_timeout(400)
    assert page.evaluate("location.hash") == "", "nothing is chosen, so a link says nothing"
    page.select_option("#stage", "1")
    page.evaluate("memplan.group('source'); memplan.goAcross('time'); memplan.find('dot'); memplan.lookAt(7); memplan.select(memplan.model.liveAt(7)[1], true); memplan.zoom(0.5)")
    page.wait_for_function("location.hash.includes('buffer=') && location.hash.includes('time=')")
    seen = page.evaluate(state)
    assert seen != first and seen["name"] is not None
    other = open_page(tmp_path / "view.html", link=page.evaluate("location.hash"))
    assert other.evaluate(state) == seen
    # What a link says of another program is left out.
    other = open_page(tmp_path / "view.html", link="#show=9&group=none&of=7&buffer=nobody&launch=1e9&time=x&tab=y")
    assert {**other.evaluate(state), "moment": first["moment"]} == first


def test_classes_have_the_same_colors_on_every_page(memplan, tmp_path, open_page):
    colors = []
    for path in (TRAINING, ROOT / "tests/corpus/lstm/before.hlo.txt"):
        memplan(path, "plan", "gpu-h100", "html=view.html")
        page = open_page(tmp_path / "view.html")
        colors.append(page.evaluate("Object.fromEntries(memplan.colors.get(memplan.model).meanings)"))
        legend = page.eval_on_selector_all("#legend span", "spans => spans.map((span) => [span.title, span.querySelector('i').style.background])")
        assert [name for name, _ in legend] == list(colors[-1])
    common = colors[0].keys() & colors[1].keys()
    assert len(common) >= 3
    assert all(colors[0][name] == colors[1][name] for name in common)


def small(tmp_path, kib):
    """A machine with so much memory, and 16 KiB beside it that are reserved."""
    path = tmp_path / "small.toml"
    path.write_text(f"""name = "small"
family = "cpu"
description = "A device with little memory"

[[spaces]]
id = 0
name = "memory"
capacity = {1024 * (kib + 16)}
reserved = {1024 * 16}
alignment = 64
""")
    return path


def test_the_limit_is_a_line(memplan, tmp_path, open_page):
    """Where the limit is near, it is drawn: above the program, or through it."""
    for kib, fits in ((200, True), (128, False)):
        memplan(TRAINING, "plan", small(tmp_path, kib), "html=view.html", statuses=(0, 3))
        page = open_page(tmp_path / "view.html")
        assert (": fits, " in page.inner_text("#verdict")) == fits
        drawn = page.evaluate("""(() => {
            const chart = memplan.charts[0], { available } = memplan.model.spaces[0];
            const y = chart.curveBottom - (available / memplan.mostLive) * (chart.curveBottom - chart.curveTop);
            const drawn = [...chart.context.getImageData((chart.left + 4) * chart.ratio, Math.round(y * chart.ratio), 1, 1).data];
            const wanted = getComputedStyle(document.documentElement).getPropertyValue("--limit").trim();
            return [drawn.slice(0, 3), [1, 3, 5].map((at) => Number.parseInt(wanted.slice(at, at + 2), 16))];
        })()""")
        # The edge of the line may be mixed with what is behind.
        assert all(abs(a - b) < 60 for a, b in zip(*drawn))


def test_by_keyboard_alone(memplan, tmp_path, open_page):
    memplan(TRAINING, "compile", "gpu-h100", "html=view.html")
    page = open_page(tmp_path / "view.html")
    focused = lambda: page.evaluate("document.activeElement.id || document.activeElement.getAttribute('role') || document.activeElement.tagName.toLowerCase()")

    def tab_to(wanted):
        for _ in range(40):
            page.keyboard.press("Tab")
            if focused() == wanted:
                return
        raise AssertionError(f"the tab key does not come to {wanted}")

    # The tab key goes around the page in few steps, whatever the lists hold.
    stops = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        stops.add(page.evaluate("(() => { const all = [...document.querySelectorAll('*')]; return all.indexOf(document.activeElement); })()"))
    assert len(stops) <= 25
    # The picture: one launch on, the next of those that are live there; each is said.
    tab_to("img")
    page.keyboard.press("p")
    peak = page.evaluate("memplan.moment")
    page.keyboard.press(",")
    assert page.evaluate("memplan.moment") == peak - 1
    assert page.inner_text("[role=status]").startswith(f"launch {peak - 1}, ")
    page.keyboard.press("j")
    assert page.evaluate("memplan.selected === memplan.model.liveAt(memplan.moment)[0]")
    assert page.inner_text("#buffer-name") in page.inner_text("[role=status]")
    # Tabs by arrows, and within the groups that are live.
    tab_to("tab-buffer")
    page.keyboard.press("ArrowLeft")
    assert focused() == "tab-moment" and page.is_visible("#moment")
    tab_to("summary")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.closest('#moment') !== null && memplan.selected !== null")
    # The table: down two rows, and open the buffer there.
    tab_to("theme")
    tab_to("tab-moment")
    page.keyboard.press("End")
    assert focused() == "tab-table"
    page.evaluate("memplan.select(null, false)")
    tab_to("tr")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    # Rows count from one, and the first is that of the heads.
    assert page.get_attribute("#table tbody tr:focus", "aria-rowindex") == "4"
    page.keyboard.press("End")
    assert page.get_attribute("#table tbody tr:focus", "aria-rowindex") == page.get_attribute("#table table", "aria-rowcount")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert focused() == "buffer-name" and page.is_visible("#buffer")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", sorted(HEIGHTS))
def test_widths(width, scheme, memplan, tmp_path, open_page):
    memplan(TRAINING, "compile", "gpu-h100", "html=view.html")
    page = open_page(tmp_path / "view.html", scheme, width)
    for tab in ("moment", "buffer", "table"):
        page.evaluate("memplan.select(memplan.model.peak.buffers[0], false)")
        page.evaluate(f"memplan.tab('{tab}')")
        draw(page)
        # Nothing is wider than the window, and the panel is in reach.
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.locator(f"#{tab}").scroll_into_view_if_needed()
        assert page.is_visible(f"#{tab}")
    assert page.evaluate("memplan.charts[0].width") >= min(400, width)
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    page.select_option("#stage", "all")
    draw(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_hundred_thousand_buffers(memplan, tmp_path, browser, open_page):
    """Times are reported, not asserted: machines differ."""
    n = 100_000
    lines = ["HloModule large, is_scheduled=true", "ENTRY main {", "  p = f32[1024]{0} parameter(0)"]
    last = "p"
    for i in range(n // 2):
        lines.append(f"  a{i} = f32[{256 + 64 * (i % 37)}]{{0}} iota(), iota_dimension=0")
        lines.append(f"  b{i} = f32[1024]{{0}} custom-call({last}, a{max(0, i - 40)}), custom_call_target=\"step\"")
        last = f"b{i}"
    lines[-1] = lines[-1].replace("  b", "  ROOT b", 1)
    (tmp_path / "large.hlo").write_text("\n".join(lines + ["}"]))
    memplan(tmp_path / "large.hlo", "plan", "cpu", "html=view.html")
    processes = lambda: browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    worked = lambda: sum(process["cpuTime"] for process in processes())
    started, before = time.monotonic(), worked()
    page = open_page(tmp_path / "view.html")
    loaded, work = time.monotonic() - started, worked() - before
    frames = page.evaluate(
        """async () => {
            const [chart] = memplan.charts, took = [];
            for (let i = 0; i < 40; i++) {
                chart.axis.zoom(i < 20 ? 0.85 : 1 / 0.85, chart.axis.end / 3);
                memplan.redraw();
                await new Promise(requestAnimationFrame);
                took.push(chart.took);
            }
            return took.sort((a, b) => a - b);
        }"""
    )
    assert page.evaluate("memplan.model.nBuffers") >= n
    print(f"\n100,000 buffers: {(tmp_path / 'view.html').stat().st_size / 1e6:.1f} MB, loaded and drawn in {loaded:.2f} s "
          f"with {work:.2f} s of processors, "
          f"a frame in {frames[len(frames) // 2]:.1f} ms (most {frames[-1]:.1f} ms)")


@pytest.mark.skipif(PICTURES is None, reason="MEMPLAN_PICTURES is not set")
def test_pictures_for_the_documentation(memplan, command, tmp_path, open_page):
    """Ten views, as files of a folder: MEMPLAN_PICTURES=docs/viewer pytest tests/viewers -k pictures"""
    folder = pathlib.Path(PICTURES)
    folder.mkdir(parents=True, exist_ok=True)
    program = TRAINING

    def picture(page, name):
        draw(page)
        page.screenshot(path=folder / f"{name}.png")

    memplan(program, "compile", "gpu-h100", "html=gpu.html")
    page = open_page(tmp_path / "gpu.html")
    picture(page, "program")
    page.evaluate("memplan.select(memplan.model.peak.buffers.find((i) => memplan.model.kindOf(i) === 'temp') ?? memplan.model.peak.buffers[0], true)")
    picture(page, "buffer")
    page.evaluate("memplan.select(null, false); memplan.tab('table')")
    page.fill("#search", "dot_general")
    picture(page, "search")
    page.fill("#search", "")
    page.evaluate("memplan.tab('moment')")
    page.select_option("#stage", "all")
    picture(page, "before_and_after")
    command(*PAIRS["diff"][0], emits=["html=diff.html"])
    picture(open_page(tmp_path / "diff.html"), "diff")
    command(*PAIRS["fit"][0], emits=["html=fit.html"], statuses=(0, 3))
    picture(open_page(tmp_path / "fit.html"), "fit")
    memplan(program, "compile", "tpu-v5e", "html=tpu.html")
    page = open_page(tmp_path / "tpu.html", "dark")
    page.evaluate("memplan.group('module')")
    picture(page, "fast_memory_dark")
    memplan(ROOT / "tests/corpus/lstm/before.hlo.txt", "compile", "gpu-h100", "html=loop.html")
    page = open_page(tmp_path / "loop.html")
    page.select_option("#across", "time")
    picture(page, "loop_by_time")
    memplan(program, "plan", small(tmp_path, 128), "html=limit.html", statuses=(0, 3))
    picture(open_page(tmp_path / "limit.html", "dark", 420), "narrow_dark")
    picture(open_page(tmp_path / "limit.html", "light", 1920), "wide")
