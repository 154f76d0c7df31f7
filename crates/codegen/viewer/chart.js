// The picture: loops, bytes live, and for each memory address by time. Buffers are painted into an array of their
// numbers first, a number a pixel, so that colouring and finding what is under the pointer take no longer for many
// buffers than for few.

import { bytesText, secondsText } from "./format.js";
import { faded, lightened, rgbOf, pixel } from "./colors.js";

export const MARGIN = { left: 74, right: 10, top: 8, bottom: 20 };
const LOOP_ROW = 15;
const MOST_LOOP_ROWS = 4;
const CURVE = 96;
const HEADING = 18;
const TRANSFERS = 12;
const LETTER = 6.1;

// The number of the first working memory of a kernel among those of buffers; others count down from there.
const SCRATCH = -2;

export class Chart {
  constructor(canvas, model, axis, state) {
    Object.assign(this, { canvas, model, axis, state });
    this.context = canvas.getContext("2d");
    // The part of each memory that is seen, by the number of the space.
    this.heights = new Map(model.spaces.map((space) => [space.id, { low: 0, high: space.height }]));
  }

  // Draws everything; takes time in proportion to buffers and pixels. Charts beside each other have one shape.
  draw(shape = this.ownShape()) {
    const started = performance.now();
    const { canvas, context } = this;
    this.ratio = window.devicePixelRatio || 1;
    this.width = canvas.clientWidth;
    this.height = canvas.clientHeight;
    // A canvas that gets a size is made anew, which takes time.
    const [width, height] = [Math.round(this.width * this.ratio), Math.round(this.height * this.ratio)];
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    this.theme = themeOf();
    this.layOut(shape);
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.drawLoops();
    this.drawCurve();
    this.panels.forEach((panel) => this.drawPanel(panel));
    this.drawTransfers();
    this.drawMoments();
    this.drawAxis();
    this.drawRelations();
    this.took = performance.now() - started;
  }

  rowsOfLoops() {
    return Math.min(MOST_LOOP_ROWS, this.model.loops.reduce((most, loop) => Math.max(most, loop.depth + 1), 0));
  }

  // How high main memory can be below so many rows of loops.
  ownShape(loopRows = this.rowsOfLoops()) {
    const { spaces } = this.model;
    const above = MARGIN.top + loopRows * LOOP_ROW + HEADING + CURVE;
    const room = this.canvas.clientHeight - MARGIN.bottom - above - spaces.length * HEADING - this.transfersHeight();
    return { loopRows, main: Math.max(20, room / this.weights().reduce((a, b) => a + b, 0)) };
  }

  // Of the room: main memory has most, what holds flags and the like needs next to none.
  weights() {
    return this.model.spaces.map((space, i) => (i === 0 ? 1 : space.height < 4096 ? 0.08 : 0.5));
  }

  transfersHeight() {
    return this.model.transfers.length > 0 && this.model.spaces.length > 1 ? TRANSFERS : 0;
  }

  // Where the parts are: loops, the curve, then a panel for each memory.
  layOut({ loopRows, main }) {
    this.loopRows = loopRows;
    this.left = MARGIN.left;
    this.right = this.width - MARGIN.right;
    this.curveTop = MARGIN.top + loopRows * LOOP_ROW + HEADING;
    this.curveBottom = this.curveTop + CURVE;
    const transfers = this.transfersHeight();
    const weights = this.weights();
    let top = this.curveBottom;
    const before = this.panels ?? [];
    this.panels = this.model.spaces.map((space, i) => {
      top += HEADING + (i === 1 ? transfers : 0);
      const panel = { ...before[i], space, top, bottom: top + Math.max(8, main * weights[i]) };
      top = panel.bottom;
      return panel;
    });
    this.transfersTop = transfers > 0 ? this.panels[0].bottom + 4 : null;
  }

  x(place) {
    return this.left + ((place - this.axis.low) / (this.axis.high - this.axis.low)) * (this.right - this.left);
  }

  placeAt(x) {
    return this.axis.low + ((x - this.left) / (this.right - this.left)) * (this.axis.high - this.axis.low);
  }

  launchX(launch) {
    return this.x(this.axis.places[Math.min(launch, this.axis.places.length - 1)]);
  }

  y(panel, address) {
    const { low, high } = this.heights.get(panel.space.id);
    return panel.bottom - ((address - low) / Math.max(high - low, 1)) * (panel.bottom - panel.top);
  }

  clipped(draw) {
    const { context } = this;
    context.save();
    context.beginPath();
    context.rect(this.left, 0, this.right - this.left, this.height);
    context.clip();
    draw();
    context.restore();
  }

  drawLoops() {
    const { context, theme } = this;
    this.loopBoxes = [];
    this.clipped(() => {
      for (const loop of this.model.loops) {
        if (loop.depth >= this.loopRows) continue;
        const [left, right] = [this.launchX(loop.begin), this.launchX(loop.end)];
        if (right < this.left || left > this.right || right - left < 2) continue;
        const top = MARGIN.top + loop.depth * LOOP_ROW;
        context.fillStyle = loop.open ? theme.loop : theme.closed;
        context.fillRect(left, top, right - left - 1, LOOP_ROW - 2);
        this.loopBoxes.push({ loop, left, right, top, bottom: top + LOOP_ROW });
        const trips = this.model.launches.trips[loop.launch];
        const times = this.model.launches.kind[loop.launch] === "while" ? ` × ${trips ?? "?"}` : "";
        const name = `${loop.open ? "▾" : "▸"} ${this.model.launchName(loop.launch)}${times}`;
        this.textWithin(name, Math.max(left, this.left) + 4, top + 6.5, Math.min(right, this.right), theme.text);
      }
    });
  }

  drawCurve() {
    const { context, theme, axis } = this;
    const most = this.state.mostLive;
    const { live } = this.model.spaces[0];
    const y = (bytes) => this.curveBottom - (bytes / Math.max(most, 1)) * CURVE;
    const { name, available } = this.model.spaces[0];
    this.heading(`bytes live in ${name}${available === null ? "" : `, of ${bytesText(available)}`}`, this.curveTop);
    // Of launches that share a pixel, the most.
    const columns = new Float64Array(Math.ceil((this.right - this.left) * this.ratio));
    const scale = columns.length / (axis.high - axis.low);
    for (let i = axis.launchAt(axis.low); i < live.length && axis.places[i] < axis.high; i++) {
      const from = Math.max(0, Math.floor((axis.places[i] - axis.low) * scale));
      const to = Math.min(columns.length, Math.max(from + 1, Math.floor((axis.places[i + 1] - axis.low) * scale)));
      for (let column = from; column < to; column++) columns[column] = Math.max(columns[column], live[i]);
    }
    context.fillStyle = theme.curve;
    columns.forEach((bytes, column) => {
      const top = y(bytes);
      context.fillRect(this.left + column / this.ratio, top, 1 / this.ratio, this.curveBottom - top);
    });
    this.scale(this.curveTop, this.curveBottom, 0, most);
    if (available !== null && available <= most) this.limit(y(available), available);
  }

  // What programs may have of a memory.
  limit(y, available) {
    const { context, theme } = this;
    const text = `limit ${bytesText(available)}`;
    context.fillStyle = theme.limit;
    context.fillRect(this.left, y - 0.75, this.right - this.left, 1.5);
    const width = text.length * LETTER + 4;
    context.fillRect(this.right - width, y, width, 14);
    context.fillStyle = theme.page;
    context.fillText(text, this.right - width + 3, y + 7.5);
  }

  drawPanel(panel) {
    const { context, theme } = this;
    const { low, high } = this.heights.get(panel.space.id);
    const { name, total, available } = panel.space;
    this.heading(`${name}: address by time, ${bytesText(total)}${available === null ? "" : ` of ${bytesText(available)}`}`, panel.top);
    context.fillStyle = theme.empty;
    context.fillRect(this.left, panel.top, this.right - this.left, panel.bottom - panel.top);
    this.paint(panel);
    this.color(panel);
    this.clipped(() => this.nameBuffers(panel));
    this.scale(panel.top, panel.bottom, low, high);
    if (available !== null && available > low && available < high) this.limit(this.y(panel, available), available);
  }

  // Writes the number of each buffer into the pixels that it has.
  paint(panel) {
    const { model, ratio } = this;
    const [width, height] = [
      Math.max(1, Math.round((this.right - this.left) * ratio)),
      Math.max(1, Math.round((panel.bottom - panel.top) * ratio)),
    ];
    if (panel.ids?.length !== width * height) {
      panel.ids = new Int32Array(width * height);
      panel.image = this.context.createImageData(width, height);
    }
    const ids = panel.ids.fill(-1);
    const large = new Uint8Array(model.nBuffers);
    const { places, low: left, high: right } = this.axis;
    const { low, high } = this.heights.get(panel.space.id);
    const [scaleX, scaleY] = [width / (right - left), height / Math.max(high - low, 1)];
    const last = places.length - 1;
    // Where a range of launches and one of addresses is in pixels; none where it is out of sight.
    const box = (first, end, bottom, bytes) => {
      const [from, to, top] = [places[Math.min(first, last)], places[Math.min(end, last)], bottom + bytes];
      if (to <= left || from >= right || top <= low || bottom >= high) return null;
      const x0 = Math.max(0, Math.min(width - 1, Math.round((from - left) * scaleX)));
      const x1 = Math.max(x0 + 1, Math.min(width, Math.round((to - left) * scaleX)));
      const y1 = Math.max(1, Math.min(height, Math.round((high - bottom) * scaleY)));
      const y0 = Math.min(y1 - 1, Math.max(0, Math.round((high - top) * scaleY)));
      return [x0, x1, y0, y1];
    };
    const fill = ([x0, x1, y0, y1], id) => {
      for (let row = y0; row < y1; row++) ids.fill(id, row * width + x0, row * width + x1);
    };
    for (const i of panel.space.scratch) {
      const { launch, base, size } = model.scratch[i];
      const at = box(launch, launch + 1, base, size);
      if (at !== null) fill(at, SCRATCH - i);
    }
    for (const i of panel.space.buffers) {
      const at = box(model.from[i], model.to[i], model.base[i], model.size[i]);
      if (at === null) continue;
      large[i] = at[1] - at[0] > 3 && at[3] - at[2] > 3 ? 1 : 0;
      fill(at, i);
    }
    Object.assign(panel, { width, height, large });
  }

  color({ ids, width, image, large, top }) {
    const { inside, edge } = this.state.colors.get(this.model);
    const visible = this.state.visible.get(this.model);
    const fresh = this.state.fresh.get(this.model);
    const pixels = new Uint32Array(image.data.buffer);
    const [empty, hatch] = [pixel(rgbOf(this.theme.empty)), pixel(rgbOf(this.theme.line))];
    for (let at = 0; at < ids.length; at++) {
      const id = ids[at];
      if (id < 0) {
        pixels[at] = id <= SCRATCH && ((at % width) + Math.floor(at / width)) % 5 === 0 ? hatch : empty;
        continue;
      }
      const isEdge = large[id] === 1 && (ids[at - 1] !== id || (at >= width && ids[at - width] !== id));
      const isStripe = fresh?.[id] === 1 && ((at % width) + Math.floor(at / width)) % 7 < 2;
      const color = isEdge ? edge[id] : isStripe ? lightened(inside[id]) : inside[id];
      pixels[at] = visible === null || visible[id] === 1 ? color : faded(color, empty);
    }
    this.context.putImageData(image, Math.round(this.left * this.ratio), Math.round(top * this.ratio));
  }

  // Names where they have room.
  nameBuffers(panel) {
    const { model, context } = this;
    for (const i of panel.space.buffers) {
      if (panel.large[i] === 0) continue;
      const [left, right] = [Math.max(this.left, this.launchX(model.from[i])), Math.min(this.right, this.launchX(model.to[i]))];
      const [top, bottom] = [
        Math.max(panel.top, this.y(panel, model.base[i] + model.size[i])),
        Math.min(panel.bottom, this.y(panel, model.base[i])),
      ];
      if (bottom - top < 13 || right - left < 40) continue;
      context.globalAlpha = this.state.visible.get(model)?.[i] === 0 ? 0.3 : 1;
      const name = `${model.bufferName(i)}  ${bytesText(model.size[i])}`;
      this.textWithin(name, left + 4, (top + bottom) / 2, right, "#ffffff");
      context.globalAlpha = 1;
    }
  }

  // Between the lanes of two memories: what is on its way, and from when to when.
  drawTransfers() {
    this.transferBoxes = [];
    if (this.transfersTop === null) return;
    const { context, theme } = this;
    context.fillStyle = theme.text;
    context.textAlign = "right";
    context.fillText("transfers", this.left - 6, this.transfersTop + 4);
    context.textAlign = "left";
    this.clipped(() => {
      this.model.transfers.forEach((transfer) => {
        const [left, right] = [this.launchX(transfer.start), this.launchX((transfer.done ?? transfer.start) + 1)];
        if (right < this.left || left > this.right) return;
        context.fillStyle = transfer.to === 0 ? theme.out : theme.in;
        context.globalAlpha = 0.6;
        context.fillRect(left, this.transfersTop + (transfer.to === 0 ? 5 : 0), Math.max(1, right - left), 4);
        this.transferBoxes.push({ transfer, left, right: Math.max(right, left + 2) });
      });
      context.globalAlpha = 1;
    });
  }

  // The peak, and the moment that is looked at.
  drawMoments() {
    const { model, state, theme } = this;
    const middle = (launch) => (this.launchX(launch) + this.launchX(launch + 1)) / 2;
    if (model.nLaunches === 0) return;
    this.vertical(middle(model.peak.launch), theme.peak, [4, 3]);
    this.clipped(() => {
      const text = `peak ${bytesText(model.peak.bytes)}${model.spaces.length > 1 ? " in all memories" : ""}`;
      const x = middle(model.peak.launch);
      const at = x + text.length * LETTER + 6 > this.right ? x - text.length * LETTER - 4 : x + 5;
      this.context.fillStyle = theme.peak;
      this.context.fillText(text, at, this.curveTop + 7);
    });
    if (state.moment !== null && model === state.model) this.vertical(middle(state.moment), theme.moment, []);
  }

  drawAxis() {
    const { context, theme, axis, model } = this;
    const y = this.height - MARGIN.bottom + 9;
    context.fillStyle = theme.text;
    const labels = Math.max(2, Math.floor((this.right - this.left) / 110));
    for (let i = 0; i <= labels; i++) {
      const place = axis.low + ((axis.high - axis.low) * i) / labels;
      const launch = axis.launchAt(place);
      const text = axis.mode === "time" ? secondsText(place) : `${launch}`;
      context.textAlign = i === 0 ? "left" : i === labels ? "right" : "center";
      context.fillText(text, this.x(place), y);
    }
    context.textAlign = "right";
    context.fillText(axis.mode === "time" ? "time" : "launch", this.left - 6, y);
    context.textAlign = "left";
    if (model.nLaunches === 0) context.fillText("nothing is launched", this.left + 60, y);
  }

  // The buffer that is selected and what is near it in the program.
  drawRelations() {
    const { state, theme, model } = this;
    if (state.model !== model) {
      const partner = state.model.other?.model === model && state.selected !== null ? state.model.other.partners[state.selected] : -1;
      if (partner >= 0) this.clipped(() => this.outline(partner, theme.selected, 3));
      return;
    }
    this.clipped(() => {
      if (state.hovered !== null) this.outline(state.hovered, theme.text, 1);
      if (state.selected === null) return;
      state.relations.producers.forEach((i) => this.outline(i, theme.in, 2));
      state.relations.consumers.forEach((i) => this.outline(i, theme.out, 2));
      this.outline(state.selected, theme.selected, 3);
    });
  }

  outline(i, color, width) {
    const { model, context } = this;
    const panel = this.panels.find((candidate) => candidate.space === model.spaceOf(i));
    if (panel === undefined) return;
    const [left, right] = [this.launchX(model.from[i]), this.launchX(model.to[i])];
    const [top, bottom] = [this.y(panel, model.base[i] + model.size[i]), this.y(panel, model.base[i])];
    context.strokeStyle = color;
    context.lineWidth = width;
    context.save();
    context.beginPath();
    context.rect(this.left, panel.top - 2, this.right - this.left, panel.bottom - panel.top + 4);
    context.clip();
    context.strokeRect(left, top, Math.max(2, right - left), Math.max(2, bottom - top));
    context.restore();
  }

  vertical(x, color, dashes) {
    if (x < this.left || x > this.right) return;
    const { context } = this;
    context.strokeStyle = color;
    context.lineWidth = 1.5;
    context.setLineDash(dashes);
    context.beginPath();
    context.moveTo(x, this.curveTop);
    context.lineTo(x, this.panels.at(-1).bottom);
    context.stroke();
    context.setLineDash([]);
  }

  heading(text, top) {
    this.context.fillStyle = this.theme.strong;
    this.context.fillText(text, this.left, top - HEADING / 2);
  }

  // What is lowest and highest, and in between.
  scale(top, bottom, low, high) {
    const { context, theme } = this;
    context.textAlign = "right";
    for (const share of bottom - top < 40 ? [1] : [0, 0.5, 1]) {
      const y = bottom - share * (bottom - top);
      context.fillStyle = theme.text;
      context.fillText(bytesText(Math.round(low + share * (high - low))), this.left - 8, Math.min(bottom - 5, Math.max(top + 5, y)));
      context.fillStyle = theme.line;
      context.fillRect(this.left - 4, y - 0.5, 4, 1);
    }
    context.fillRect(this.left, bottom, this.right - this.left, 1);
    context.textAlign = "left";
  }

  textWithin(text, x, y, right, color) {
    const letters = Math.floor((right - x - 4) / LETTER);
    if (letters < 4) return;
    this.context.fillStyle = color;
    // Squeezed where its letters are wider than most.
    this.context.fillText(text.length <= letters ? text : `${text.slice(0, letters - 1)}…`, x, y, right - x - 2);
  }

  // What is at a point of the canvas: a buffer, a launch on the curve, a loop, a transfer, or nothing.
  at(x, y) {
    if (x < this.left || x >= this.right) return null;
    const loop = this.loopBoxes.findLast((box) => x >= box.left && x < box.right && y >= box.top && y < box.bottom);
    if (loop !== undefined) return { kind: "loop", loop: loop.loop };
    const launch = this.axis.launchAt(this.placeAt(x));
    if (y >= this.curveTop && y < this.curveBottom) return { kind: "curve", launch };
    if (this.transfersTop !== null && y >= this.transfersTop && y < this.transfersTop + 9) {
      const box = this.transferBoxes.findLast((candidate) => x >= candidate.left && x < candidate.right);
      return box === undefined ? null : { kind: "transfer", transfer: box.transfer };
    }
    const panel = this.panels.find((candidate) => y >= candidate.top && y < candidate.bottom);
    if (panel === undefined) return null;
    const column = Math.min(panel.width - 1, Math.floor((x - this.left) * this.ratio));
    const row = Math.min(panel.height - 1, Math.floor((y - panel.top) * this.ratio));
    const buffer = panel.ids[row * panel.width + column];
    if (buffer <= SCRATCH) return { kind: "scratch", scratch: this.model.scratch[SCRATCH - buffer] };
    return { kind: buffer < 0 ? "space" : "buffer", buffer, launch, panel };
  }

  // Zooms the addresses of the memory at a point.
  zoomAddresses(y, factor) {
    const panel = this.panels.find((candidate) => y >= candidate.top && y < candidate.bottom);
    if (panel === undefined) return;
    const seen = this.heights.get(panel.space.id);
    const around = seen.low + ((panel.bottom - y) / (panel.bottom - panel.top)) * (seen.high - seen.low);
    const span = Math.min(panel.space.height, Math.max(64, (seen.high - seen.low) * factor));
    const share = (around - seen.low) / Math.max(seen.high - seen.low, 1);
    this.showAddresses(panel.space, around - share * span, span);
  }

  panAddresses(y, pixels) {
    const panel = this.panels.find((candidate) => y >= candidate.top && y < candidate.bottom);
    if (panel === undefined) return;
    const { low, high } = this.heights.get(panel.space.id);
    this.showAddresses(panel.space, low + (pixels / (panel.bottom - panel.top)) * (high - low), high - low);
  }

  showAddresses(space, low, span) {
    const from = Math.max(0, Math.min(low, space.height - span));
    this.heights.set(space.id, { low: from, high: from + span });
  }

  showBuffer(i) {
    const { model, axis } = this;
    const space = model.spaceOf(i);
    axis.showLaunches(model.from[i], model.to[i]);
    const span = Math.min(space.height, Math.max(64, model.size[i] * 2.5));
    this.showAddresses(space, model.base[i] + model.size[i] / 2 - span / 2, span);
  }

  reset() {
    this.axis.reset();
    this.model.spaces.forEach((space) => this.heights.set(space.id, { low: 0, high: space.height }));
  }
}

function themeOf() {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(`--${name}`).trim();
  const names = ["page", "text", "strong", "line", "empty", "curve", "loop", "closed", "peak", "limit", "moment", "selected", "in", "out"];
  return Object.fromEntries(names.map((name) => [name, color(name)]));
}
