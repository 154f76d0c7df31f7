// All buffers as a table, of which only the rows in sight are there.

import { bytesText, element, shortText } from "./format.js";

const ROW = 22;

const COLUMNS = [
  { name: "size", of: (model, i) => bytesText(model.size[i]), order: (model, a, b) => model.size[b] - model.size[a] },
  { name: "buffer", of: (model, i) => model.bufferName(i), order: (model, a, b) => compare(model.bufferName(a), model.bufferName(b)) },
  { name: "operation", of: (model, i) => shortText(model.operationOf(i) || model.text(model.buffers.opcode[i]), 40), order: (model, a, b) => compare(model.operationOf(a), model.operationOf(b)) },
  { name: "from", of: (model, i) => model.from[i], order: (model, a, b) => model.from[a] - model.from[b] },
  { name: "life", of: (model, i) => model.to[i] - model.from[i], order: (model, a, b) => model.to[b] - model.from[b] - model.to[a] + model.from[a] },
];

export class BufferTable {
  constructor(place, act) {
    this.act = act;
    this.column = 0;
    this.reversed = false;
    this.heads = COLUMNS.map(({ name }, i) => element("th", { scope: "col", class: `c${i}` }, element("button", { onclick: () => this.sortBy(i) }, name)));
    this.body = element("tbody");
    this.space = element("div", { class: "scroll-space" });
    this.table = element("table", { "aria-label": "buffers" }, element("thead", {}, element("tr", {}, this.heads)), this.body);
    this.scroller = element("div", { class: "scroller", tabindex: "0", onscroll: () => this.fill() }, this.space, this.table);
    place.replaceChildren(this.scroller);
  }

  show(model, buffers, selected) {
    Object.assign(this, { model, buffers: [...buffers], selected });
    this.sort();
  }

  sortBy(column) {
    this.reversed = column === this.column && !this.reversed;
    this.column = column;
    this.sort();
  }

  sort() {
    const { order } = COLUMNS[this.column];
    const sign = this.reversed ? -1 : 1;
    this.buffers.sort((a, b) => sign * order(this.model, a, b) || a - b);
    this.heads.forEach((head, i) => head.setAttribute("aria-sort", i !== this.column ? "none" : this.reversed ? "descending" : "ascending"));
    this.space.style.height = `${(this.buffers.length + 1) * ROW}px`;
    this.fill();
  }

  fill() {
    const { scrollTop, clientHeight } = this.scroller;
    const first = Math.max(0, Math.floor(scrollTop / ROW) - 2);
    const rows = this.buffers.slice(first, first + Math.ceil(clientHeight / ROW) + 5).map((i) =>
      element("tr", { class: i === this.selected ? "selected" : null, "data-buffer": i, onclick: () => this.act.select(i, true) },
        COLUMNS.map(({ of }, column) => element("td", { class: `c${column}` }, `${of(this.model, i)}`)),
      ),
    );
    this.table.style.transform = `translateY(${first * ROW}px)`;
    this.body.replaceChildren(...rows);
  }
}

function compare(a, b) {
  return a < b ? -1 : a > b ? 1 : 0;
}
