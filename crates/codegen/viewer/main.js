// The page: what is chosen, and who is told.

import { bytesText, countText, durationText, element, shortText } from "./format.js";
import { Model, bringTogether } from "./model.js";
import { GROUPINGS, groupsOf, pixelColors } from "./colors.js";
import { Axis } from "./axis.js";
import { Chart } from "./chart.js";
import { bufferDetails, hint, keeperOf, momentDetails } from "./details.js";
import { Roving } from "./roving.js";
import { copyText, readLink, writeLink } from "./share.js";
import { BufferTable } from "./table.js";
import { notes } from "./notes.js";
import { found } from "./search.js";

const byId = (id) => document.getElementById(id);
const MOST_LEGEND = 14;
const TABS = ["notes", "moment", "buffer", "table"];

class Page {
  constructor({ stages, tables, opens_beside: opensBeside }) {
    this.models = stages.map((stage) => new Model(stage));
    if (this.models.length > 1) bringTogether(...this.models);
    this.charts = [];
    // Chosen by the reader: the model that the panel is about, a buffer of it, a launch of it.
    Object.assign(this, { model: this.models[0], selected: null, hovered: null, grouping: "line", across: "launches", query: "" });
    this.moment = this.model.nLaunches > 0 ? this.model.peak.launch : null;
    this.relations = { producers: [], consumers: [] };
    this.colors = new Map();
    this.visible = new Map();
    this.fresh = new Map();
    this.opened = new Map();
    this.act = { select: (i, opens) => this.select(i, opens), show: (i) => this.show(i), say: (text) => this.tell(text), refresh: () => this.refresh() };
    this.table = new BufferTable(byId("table"), this.act);
    this.panels = { moment: new Roving(byId("moment"), ".stop"), buffer: new Roving(byId("buffer"), ".stop"), notes: new Roving(byId("notes"), ".link") };
    this.tabs = new Roving(document.querySelector('[role="tablist"]'), '[role="tab"]', ["ArrowLeft", "ArrowRight"]);
    this.fillChoices();
    if (opensBeside) byId("stage").value = "all";
    this.opensWith = byId("stage").value;
    byId("tab-notes").hidden = tables.length === 0;
    this.panels.notes.fill(notes(tables, (query) => this.findAndShow(query), this.act.say));
    this.listen();
    this.pictureStages();
    this.opensTab = tables.length > 0 ? "notes" : "moment";
    this.tab(this.opensTab);
    this.follow(readLink());
  }

  // Says what has happened, for those who read the page with their ears, and where nothing else shows it.
  say(text) {
    byId("said").textContent = text;
  }

  // Says it to all, for a moment.
  tell(text) {
    this.say(text);
    byId("said").className = "shown";
    clearTimeout(this.told);
    this.told = setTimeout(() => (byId("said").className = ""), 2500);
  }

  // What a link keeps: all that the reader has chosen. Buffers and programs by name, as numbers change with the program.
  link() {
    const [chart] = this.charts;
    const isWhole = (low, high, end) => low <= 0 && high >= end;
    const span = (low, high) => [low, high].map((place) => Number(place.toPrecision(6))).join("-");
    const { low, high, end } = chart.axis;
    const space = chart.model.spaces[0];
    const seen = chart.heights.get(space.id);
    return {
      show: byId("stage").value === this.opensWith ? "" : byId("stage").value,
      group: this.grouping === "line" ? "" : this.grouping,
      across: this.across === "launches" ? "" : this.across,
      find: this.query,
      of: this.model === this.models[0] ? "" : this.models.indexOf(this.model),
      buffer: this.selected === null ? "" : this.model.bufferName(this.selected),
      launch: this.moment === null || this.moment === this.model.peak.launch ? "" : this.moment,
      tab: this.open === this.opensTab ? "" : this.open,
      time: isWhole(low, high, end) ? "" : span(low, high),
      bytes: isWhole(seen.low, seen.high, space.height) || this.charts.length > 1 ? "" : span(seen.low, seen.high),
    };
  }

  // Shows what a link says; what it says of another program is left out.
  follow(said) {
    if (Object.keys(said).length === 0) return;
    const show = [...byId("stage").options].some(({ value }) => value === said.show) ? said.show : this.opensWith;
    if (byId("stage").value !== show) {
      byId("stage").value = show;
      this.pictureStages();
    }
    this.goAcross(said.across === "time" ? "time" : "launches");
    this.group(said.group in GROUPINGS ? said.group : "line");
    this.findAndShow(said.find ?? "");
    const model = this.models[Number(said.of ?? 0)] ?? this.models[0];
    this.about(model);
    const launch = Number(said.launch ?? model.peak.launch);
    if (model.nLaunches > 0) this.moment = Math.max(0, Math.min(model.nLaunches - 1, Number.isInteger(launch) ? launch : 0));
    const buffer = said.buffer === undefined ? -1 : model.buffers.name.findIndex((_, i) => model.bufferName(i) === said.buffer);
    this.select(buffer < 0 ? null : buffer, false);
    const span = (text) => /^([\d.e+]+)-([\d.e+]+)$/.exec(text ?? "")?.slice(1).map(Number);
    const [time, bytes] = [span(said.time), span(said.bytes)];
    for (const chart of this.charts) {
      if (time) chart.axis.show(time[0], Math.max(time[1] - time[0], 1e-9));
      if (bytes) chart.showAddresses(chart.model.spaces[0], bytes[0], Math.max(bytes[1] - bytes[0], 1));
    }
    this.tab(TABS.includes(said.tab) && !byId(`tab-${said.tab}`).hidden ? said.tab : this.opensTab);
    this.redraw();
  }

  fillChoices() {
    const names = this.models.map((model, i) => element("option", { value: `${i}` }, model.name));
    if (this.models.length > 1) names.unshift(element("option", { value: "all" }, "side by side"));
    byId("stage").append(...names);
    byId("stage").value = "0";
    byId("stage").parentElement.hidden = this.models.length < 2;
    byId("grouping").append(...Object.entries(GROUPINGS).map(([key, { label }]) => element("option", { value: key }, label)));
    byId("grouping").value = this.grouping;
  }

  // A chart for each stage that is shown, all with one scale.
  pictureStages() {
    const chosen = byId("stage").value;
    const shown = chosen === "all" ? [...this.models].reverse() : [this.models[Number(chosen)]];
    if (!shown.includes(this.model)) this.about(shown[0]);
    const most = Math.max(...shown.map((model) => model.spaces[0].live.reduce((a, b) => Math.max(a, b), 0)));
    // The limit is in sight unless it would make the curve flat.
    const limits = shown.map((model) => model.spaces[0].available ?? 0).filter((limit) => limit <= 2 * most);
    this.mostLive = Math.max(most, ...limits.map((limit) => 1.02 * limit));
    this.charts = shown.map((model) => {
      const label = `Memory of ${model.module} on ${model.target}: ${bytesText(model.totals.total)}, peak ${bytesText(model.peak.bytes)} in ${model.peak.instruction}. The table has all buffers.`;
      const canvas = element("canvas", { role: "img", tabindex: "0", "aria-label": label });
      const chart = new Chart(canvas, model, new Axis(model, this.across), this);
      listenTo(chart, this);
      return chart;
    });
    // Beside each other, one byte is as high here as there.
    if (shown.length > 1) {
      for (const space of shown[0].spaces) {
        const height = Math.max(...shown.map((model) => model.spaces.find((other) => other.id === space.id)?.height ?? 0));
        this.charts.forEach((chart) => chart.heights.has(space.id) && chart.heights.set(space.id, { low: 0, high: height }));
      }
    }
    const named = shown.length > 1;
    byId("pictures").replaceChildren(
      ...this.charts.map((chart) =>
        element("div", { class: "picture" }, element("div", { class: "stage" }, named ? `${chart.model.name}: ${bytesText(chart.model.totals.total)}` : ""), chart.canvas),
      ),
    );
    this.recolor();
    this.header();
    this.refresh();
  }

  header() {
    const { module, target, totals, peak, seconds } = this.model;
    byId("module").textContent = module;
    byId("target").textContent = `on ${target}`;
    const row = (name, bytes) => element("div", { class: name, "data-bytes": bytes }, element("dt", {}, name), element("dd", {}, bytesText(bytes)));
    const parts = ["total", "arguments", "outputs", "aliased", "constants", "temp", "padding"];
    const rows = parts.filter((part) => part === "total" || totals[part] > 0).map((part) => row(part, totals[part]));
    const time = seconds > 0 ? [element("div", { class: "time" }, element("dt", {}, "time"), element("dd", {}, durationText(seconds)))] : [];
    byId("totals").replaceChildren(...rows, row("peak", peak.bytes), ...time);
    byId("verdict").textContent = this.model.spaces.map(verdict).filter((text) => text !== "").join("; ");
  }

  about(model) {
    if (this.model === model) return;
    Object.assign(this, { model, selected: null, hovered: null, moment: model.nLaunches > 0 ? model.peak.launch : null });
    this.relations = { producers: [], consumers: [] };
    this.header();
  }

  recolor() {
    for (const model of this.models) {
      const groups = groupsOf(model, this.grouping);
      this.colors.set(model, { ...groups, ...pixelColors(model, groups) });
    }
    const { meanings } = this.colors.get(this.model);
    const shown = [...meanings].slice(0, MOST_LEGEND);
    const entries = shown.map(([key, color]) => element("span", { title: key }, element("i", { class: "swatch", style: `background:${color}` }), shortText(key, 28)));
    const rest = meanings.size - shown.length;
    const marks = this.charts.length > 1 ? [element("span", {}, "grey: not there any more"), element("span", {}, "striped: new")] : [];
    byId("legend").replaceChildren(...marks, ...entries, rest > 0 ? `and ${rest} more` : "");
    this.filter();
  }

  // Which buffers stand out: those that are found; beside each other, those that have not vanished. What is new is marked.
  filter() {
    const [later] = this.models;
    const isBeside = this.charts.length > 1;
    for (const model of this.models) {
      const hits = found(model, this.query);
      const isThere = (is) => model.other.partners.reduce((list, partner, i) => ((partner >= 0) === is ? (list.push(i), list) : list), []);
      this.visible.set(model, flags(model, hits ?? (isBeside && model !== later ? isThere(true) : null)));
      this.fresh.set(model, flags(model, isBeside && model === later ? isThere(false) : null));
      if (model === this.model) {
        this.hits = hits;
        byId("found").value = hits === null ? "" : countText(hits.length, "buffer");
      }
    }
  }

  refresh() {
    if (this.moment !== null) this.panels.moment.fill(nodes(momentDetails(this.model, this.moment, this.colors.get(this.model), this.opened, this.act)));
    const nothing = element("p", { class: "sum" }, "Click a buffer in the picture or in a list.");
    this.panels.buffer.fill(this.selected === null ? [nothing] : nodes(bufferDetails(this.model, this.selected, this.act)));
    this.table.show(this.model, this.hits ?? Array.from({ length: this.model.nBuffers }, (_, i) => i), this.selected);
    this.redraw();
  }

  // Draws before the next frame, once.
  redraw() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => {
      this.isDue = false;
      const loopRows = Math.max(...this.charts.map((chart) => chart.rowsOfLoops()));
      const shapes = this.charts.map((chart) => chart.ownShape(loopRows));
      const shape = { loopRows, main: Math.min(...shapes.map(({ main }) => main)) };
      this.charts.forEach((chart) => chart.draw(shape));
    });
    clearTimeout(this.linked);
    this.linked = setTimeout(() => writeLink(this.link()), 200);
  }

  select(i, opens, model = this.model) {
    this.about(model);
    this.selected = i;
    this.relations = i === null ? { producers: [], consumers: [] } : { producers: model.producersOf(i), consumers: model.consumersOf(i) };
    const cameFrom = document.activeElement?.closest('[role="tabpanel"]') ?? null;
    if (opens && i !== null) this.tab("buffer");
    this.refresh();
    this.say(i === null ? "nothing is selected" : `${model.bufferName(i)}, ${bytesText(model.size[i])}, ${model.classOf(i)}, ${model.titleOf(i)}`);
    // Whoever was in a list that is hidden now goes on where it leads.
    if (cameFrom?.hidden) byId("buffer-name").focus({ preventScroll: true });
  }

  show(i) {
    this.charts.find((chart) => chart.model === this.model)?.showBuffer(i);
    this.redraw();
  }

  lookAt(launch, model = this.model) {
    this.about(model);
    this.moment = Math.max(0, Math.min(model.nLaunches - 1, launch));
    this.tab("moment");
    this.refresh();
    this.say(`launch ${this.moment}, ${model.launchName(this.moment)}: ${bytesText(model.bytesAt(this.moment))} live`);
  }

  // The next of those that are live at the moment, largest first; -1 for the one before.
  nextLive(step) {
    if (this.moment === null) return;
    const live = this.model.liveAt(this.moment);
    const at = live.indexOf(this.selected);
    this.select(live[(at < 0 && step < 0 ? 0 : at + step + live.length) % live.length], true);
  }

  tab(name) {
    this.open = name;
    for (const other of TABS) {
      byId(other).hidden = other !== name;
      byId(`tab-${other}`).setAttribute("aria-selected", `${other === name}`);
    }
    this.tabs.stopAt(this.tabs.items().indexOf(byId(`tab-${name}`)));
    if (name === "table") this.table.fill();
    else this.panels[name].stopAt(this.panels[name].at);
    this.redraw();
  }

  setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    this.redraw();
  }

  find(query) {
    this.query = query;
    this.filter();
    this.refresh();
  }

  findAndShow(query) {
    byId("search").value = query;
    this.find(query);
  }

  listen() {
    byId("stage").addEventListener("change", () => this.pictureStages());
    byId("grouping").addEventListener("change", (event) => this.group(event.target.value));
    byId("across").addEventListener("change", (event) => this.goAcross(event.target.value));
    byId("search").addEventListener("input", (event) => this.find(event.target.value));
    byId("search").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && this.hits?.length > 0) {
        const next = this.hits[(this.hits.indexOf(this.selected) + 1) % this.hits.length];
        this.select(next, true);
        this.show(next);
      }
      if (event.key === "Escape") event.target.blur();
    });
    for (const name of TABS) {
      byId(`tab-${name}`).addEventListener("click", () => this.tab(name));
      byId(`tab-${name}`).addEventListener("focus", () => this.tab(name));
    }
    byId("nearer").addEventListener("click", () => this.zoom(0.7));
    byId("farther").addEventListener("click", () => this.zoom(1 / 0.7));
    byId("link").addEventListener("click", () => this.copyLink());
    window.addEventListener("hashchange", () => this.follow(readLink()));
    byId("peak").addEventListener("click", () => this.toPeak());
    byId("reset").addEventListener("click", () => this.whole());
    byId("theme").addEventListener("click", () => this.otherTheme());
    byId("help").addEventListener("click", () => byId("keys").showModal());
    window.addEventListener("resize", () => this.redraw());
    window.addEventListener("keydown", (event) => this.key(event));
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", () => this.setTheme(dark.matches ? "dark" : "light"));
    document.documentElement.dataset.theme = dark.matches ? "dark" : "light";
  }

  goAcross(across) {
    if (this.across === across) return;
    this.across = across;
    byId("across").value = across;
    this.charts.forEach((chart) => (chart.axis = new Axis(chart.model, across)));
    this.redraw();
  }

  zoom(factor) {
    this.charts.forEach(({ axis }) => axis.zoom(factor, (axis.low + axis.high) / 2));
    this.redraw();
  }

  copyLink() {
    writeLink(this.link());
    copyText(window.location.href, "a link to what is seen", this.act.say);
  }

  group(grouping) {
    this.grouping = grouping;
    byId("grouping").value = grouping;
    this.recolor();
    this.refresh();
  }

  toPeak() {
    const { launch } = this.model.peak;
    const chart = this.charts.find((candidate) => candidate.model === this.model);
    const around = Math.max(10, Math.round(this.model.nLaunches / 40));
    chart.axis.showLaunches(Math.max(0, launch - around), launch + around);
    this.lookAt(launch);
  }

  whole() {
    this.charts.forEach((chart) => chart.reset());
    this.redraw();
  }

  otherTheme() {
    this.setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  }

  nextGrouping() {
    const names = Object.keys(GROUPINGS);
    this.group(names[(names.indexOf(this.grouping) + 1) % names.length]);
  }

  toProducer() {
    const producers = this.selected === null ? [] : this.model.producersOf(this.selected);
    if (producers.length > 0) this.select(producers.reduce((a, b) => (this.model.size[b] > this.model.size[a] ? b : a)), true);
  }

  alongChain() {
    const next = this.selected === null ? null : keeperOf(this.model, this.selected);
    if (next !== null) this.select(next, true);
  }

  key(event) {
    if (event.target.matches("input, select, dialog *") || event.ctrlKey || event.metaKey || event.altKey) return;
    const charts = this.charts;
    const span = charts[0].axis.high - charts[0].axis.low;
    const move = (by) => charts.forEach((chart) => chart.axis.pan(by));
    const climb = (pixels) => charts.forEach((chart) => chart.panAddresses((chart.panels[0].top + chart.panels[0].bottom) / 2, pixels));
    const keys = {
      ArrowLeft: () => move(-span / 10), ArrowRight: () => move(span / 10), ArrowUp: () => climb(30), ArrowDown: () => climb(-30),
      "+": () => this.zoom(0.7), "=": () => this.zoom(0.7), "-": () => this.zoom(1 / 0.7),
      0: () => this.whole(), p: () => this.toPeak(), t: () => this.otherTheme(), c: () => this.nextGrouping(),
      "[": () => this.toProducer(), "]": () => this.alongChain(), j: () => this.nextLive(1), k: () => this.nextLive(-1), l: () => this.copyLink(),
      ",": () => this.lookAt((this.moment ?? 0) - 1), ".": () => this.lookAt((this.moment ?? 0) + 1),
      "/": () => byId("search").focus(), "?": () => byId("keys").showModal(), Escape: () => this.select(null, false),
    };
    // Arrows move the picture; elsewhere they scroll.
    const isOnPicture = event.target === document.body || event.target.matches("canvas");
    if (keys[event.key] === undefined || (event.key.startsWith("Arrow") && !isOnPicture)) return;
    event.preventDefault();
    keys[event.key]();
    this.redraw();
  }
}

// What the pointer does on a picture.
function listenTo(chart, page) {
  const { canvas } = chart;
  let drag = null;
  const target = (event) => chart.at(event.offsetX, event.offsetY);
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const factor = Math.exp(Math.sign(event.deltaY || event.deltaX) * 0.18);
    if (event.shiftKey) chart.zoomAddresses(event.offsetY, factor);
    else chart.axis.zoom(factor, chart.placeAt(event.offsetX));
    page.redraw();
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    drag = { x: event.offsetX, y: event.offsetY, moved: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag === null) {
      pointAt(chart, page, event, target(event));
      return;
    }
    const [dx, dy] = [event.offsetX - drag.x, event.offsetY - drag.y];
    if (!drag.moved && Math.abs(dx) + Math.abs(dy) < 4) return;
    chart.axis.pan((-dx / (chart.right - chart.left)) * (chart.axis.high - chart.axis.low));
    chart.panAddresses(drag.y, dy);
    drag = { x: event.offsetX, y: event.offsetY, moved: true };
    byId("hint").hidden = true;
    page.redraw();
  });
  canvas.addEventListener("pointerup", (event) => {
    const moved = drag?.moved ?? false;
    drag = null;
    if (!moved) click(chart, page, target(event));
  });
  canvas.addEventListener("pointerleave", () => {
    byId("hint").hidden = true;
    page.hovered = null;
    page.redraw();
  });
  canvas.addEventListener("dblclick", (event) => {
    const at = target(event);
    if (at?.kind === "loop") chart.axis.showLaunches(at.loop.begin, at.loop.end);
    else if (at?.kind === "buffer") chart.showBuffer(at.buffer);
    else chart.reset();
    page.redraw();
  });
}

function click(chart, page, target) {
  if (target === null) return;
  if (target.kind === "buffer") page.select(target.buffer, true, chart.model);
  else if (target.kind === "curve") page.lookAt(target.launch, chart.model);
  else if (target.kind === "loop") {
    target.loop.open = !target.loop.open;
    chart.axis.lay();
    chart.axis.reset();
    page.redraw();
  } else page.select(null, false, chart.model);
}

function pointAt(chart, page, event, target) {
  const box = byId("hint");
  const lines = target === null ? [] : hint(chart.model, target).filter((line) => line !== "");
  box.hidden = lines.length === 0;
  if (lines.length > 0) {
    box.replaceChildren(element("b", {}, lines[0]), ...lines.slice(1).map((line) => element("div", {}, line)));
    const left = Math.min(event.clientX + 14, window.innerWidth - box.offsetWidth - 8);
    const below = event.clientY + 16 + box.offsetHeight < window.innerHeight;
    box.style.left = `${Math.max(4, left)}px`;
    box.style.top = `${below ? event.clientY + 16 : event.clientY - box.offsetHeight - 8}px`;
  }
  const hovered = target?.kind === "buffer" && chart.model === page.model ? target.buffer : null;
  if (hovered !== page.hovered) {
    page.hovered = hovered;
    page.redraw();
  }
}

// 1 for the buffers of a list; nothing where there is no list.
function flags(model, list) {
  if (list === null) return null;
  const of = new Uint8Array(model.nBuffers);
  list.forEach((i) => (of[i] = 1));
  return of;
}

// Whether a program fits into a memory, as reports say it.
function verdict({ name, total, available }) {
  if (available === null) return "";
  const room = available - total;
  return `${bytesText(total)} of ${bytesText(available)} of ${name}: ${room >= 0 ? `fits, ${bytesText(room)} to spare` : `does not fit, ${bytesText(-room)} too much`}`;
}

function nodes(list) {
  return list.flat(Infinity).filter((node) => node !== null && node !== undefined);
}

// The page is there for scripts too.
window.memplan = new Page(JSON.parse(byId("document").textContent));
