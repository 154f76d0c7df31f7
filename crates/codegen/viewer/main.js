// The page: what is chosen, and who is told.

import { bytesText, countText, element, secondsText, shortText } from "./format.js";
import { Model, bringTogether } from "./model.js";
import { GROUPINGS, groupsOf, pixelColors } from "./colors.js";
import { Axis } from "./axis.js";
import { Chart } from "./chart.js";
import { bufferDetails, hint, keeperOf, momentDetails } from "./details.js";
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
    Object.assign(this, { model: this.models[0], selected: null, hovered: null, grouping: "operation", across: "launches", query: "" });
    this.moment = this.model.nLaunches > 0 ? this.model.peak.launch : null;
    this.relations = { producers: [], consumers: [] };
    this.colors = new Map();
    this.visible = new Map();
    this.fresh = new Map();
    this.act = { select: (i, zooms) => this.select(i, zooms), show: (i) => this.show(i) };
    this.table = new BufferTable(byId("table"), this.act);
    this.fillChoices();
    if (opensBeside) byId("stage").value = "all";
    byId("tab-notes").hidden = tables.length === 0;
    byId("notes").replaceChildren(...notes(tables, (query) => this.findAndShow(query)));
    this.listen();
    this.pictureStages();
    this.tab(tables.length > 0 ? "notes" : "moment");
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
    this.mostLive = Math.max(...shown.map((model) => model.spaces[0].live.reduce((a, b) => Math.max(a, b), 0)));
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
    const time = element("div", {}, element("dt", {}, "time"), element("dd", {}, secondsText(seconds)));
    byId("totals").replaceChildren(...rows, row("peak", peak.bytes), time);
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
    const { groups } = this.colors.get(this.model);
    const shown = [...groups.values()].slice(0, MOST_LEGEND);
    const entries = shown.map(({ key, color }) => element("span", { title: key }, element("i", { class: "swatch", style: `background:${color}` }), shortText(key, 28)));
    const rest = groups.size - shown.length;
    const meanings = this.charts.length > 1 ? [element("span", {}, "grey: not there any more"), element("span", {}, "striped: new")] : [];
    byId("legend").replaceChildren(...meanings, ...entries, rest > 0 ? `and ${rest} more` : "");
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
    const { keys, groups } = this.colors.get(this.model);
    if (this.moment !== null) byId("moment").replaceChildren(...nodes(momentDetails(this.model, this.moment, groups, keys, this.act)));
    const nothing = element("p", { class: "sum" }, "Click a buffer in the picture or in a list.");
    byId("buffer").replaceChildren(...(this.selected === null ? [nothing] : nodes(bufferDetails(this.model, this.selected, this.act))));
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
  }

  select(i, opens, model = this.model) {
    this.about(model);
    this.selected = i;
    this.relations = i === null ? { producers: [], consumers: [] } : { producers: model.producersOf(i), consumers: model.consumersOf(i) };
    if (opens && i !== null) this.tab("buffer");
    this.refresh();
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
  }

  tab(name) {
    for (const other of TABS) {
      byId(other).hidden = other !== name;
      byId(`tab-${other}`).setAttribute("aria-selected", `${other === name}`);
    }
    if (name === "table") this.table.fill();
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
    byId("across").addEventListener("change", (event) => {
      this.across = event.target.value;
      this.charts.forEach((chart) => (chart.axis = new Axis(chart.model, this.across)));
      this.redraw();
    });
    byId("search").addEventListener("input", (event) => this.find(event.target.value));
    byId("search").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && this.hits?.length > 0) {
        const next = this.hits[(this.hits.indexOf(this.selected) + 1) % this.hits.length];
        this.select(next, true);
        this.show(next);
      }
      if (event.key === "Escape") event.target.blur();
    });
    for (const name of TABS) byId(`tab-${name}`).addEventListener("click", () => this.tab(name));
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
    const middle = (charts[0].axis.high + charts[0].axis.low) / 2;
    const move = (by) => charts.forEach((chart) => chart.axis.pan(by));
    const zoom = (factor) => charts.forEach((chart) => chart.axis.zoom(factor, middle));
    const climb = (pixels) => charts.forEach((chart) => chart.panAddresses((chart.panels[0].top + chart.panels[0].bottom) / 2, pixels));
    const keys = {
      ArrowLeft: () => move(-span / 10), ArrowRight: () => move(span / 10), ArrowUp: () => climb(30), ArrowDown: () => climb(-30),
      "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7),
      0: () => this.whole(), p: () => this.toPeak(), t: () => this.otherTheme(), c: () => this.nextGrouping(),
      "[": () => this.toProducer(), "]": () => this.alongChain(),
      ",": () => this.lookAt((this.moment ?? 0) - 1), ".": () => this.lookAt((this.moment ?? 0) + 1),
      "/": () => byId("search").focus(), "?": () => byId("keys").showModal(), Escape: () => this.select(null, false),
    };
    if (keys[event.key] === undefined || event.target.matches(".scroller, .scroller *")) return;
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

function nodes(list) {
  return list.flat(Infinity).filter((node) => node !== null && node !== undefined);
}

// The page is there for scripts too.
window.memplan = new Page(JSON.parse(byId("document").textContent));
