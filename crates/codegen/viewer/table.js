// All buffers as a table, of which only the rows in sight are there. The tab key stops at one row; arrows move.

import { bytesText, element, shortText } from "./format.js";
import { Roving } from "./roving.js";
import { tableButtons } from "./share.js";

const ROW = 22;

const COLUMNS = [
  { name: "size", of: (model, i) => bytesText(model.size[i]), order: (model, a, b) => model.size[b] - model.size[a] },
  { name: "buffer", of: (model, i) => model.bufferName(i), order: (model, a, b) => compare(model.bufferName(a), model.bufferName(b)) },
  { name: "operation", of: (model, i) => shortText(operationOrOpcode(model, i), 40), order: (model, a, b) => compare(model.operationOf(a), model.operationOf(b)) },
  { name: "from", of: (model, i) => model.from[i], order: (model, a, b) => model.from[a] - model.from[b] },
  { name: "life", of: (model, i) => model.to[i] - model.from[i], order: (model, a, b) => model.to[b] - model.from[b] - model.to[a] + model.from[a] },
];

// What leaves the page has everything, in numbers that programs read.
const EXPORTED = ["bytes", "buffer", "operation", "shape", "class", "source", "from", "to", "padding", "memory", "address", "kept by"];

export class BufferTable {
  constructor(place, act) {
    Object.assign(this, { act, column: 0, reversed: false, buffers: [], at: 0 });
    this.heads = COLUMNS.map(({ name }, i) => element("th", { scope: "col", class: `c${i}` }, element("button", { onclick: () => this.sortBy(i) }, name)));
    this.body = element("tbody", { onkeydown: (event) => this.key(event) });
    this.space = element("div", { class: "scroll-space" });
    const head = element("thead", {}, element("tr", { "aria-rowindex": "1" }, this.heads));
    this.table = element("table", { role: "grid", "aria-label": "buffers", "aria-readonly": "true" }, head, this.body);
    this.scroller = element("div", { class: "scroller", tabindex: "-1", onscroll: () => this.fill() }, this.space, this.table);
    place.replaceChildren(tableButtons("buffers", () => this.exported(), act.say), this.scroller);
    this.sorting = new Roving(head, "button", ["ArrowLeft", "ArrowRight"]);
  }

  show(model, buffers, selected) {
    if (this.model !== model) this.at = 0;
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
    if (this.selected !== null) this.at = Math.max(0, this.buffers.indexOf(this.selected));
    this.heads.forEach((head, i) => head.setAttribute("aria-sort", i !== this.column ? "none" : this.reversed ? "descending" : "ascending"));
    this.table.setAttribute("aria-rowcount", `${this.buffers.length + 1}`);
    this.space.style.height = `${(this.buffers.length + 1) * ROW}px`;
    this.fill();
  }

  fill() {
    const { scrollTop, clientHeight } = this.scroller;
    const first = Math.max(0, Math.floor(scrollTop / ROW) - 2);
    const shown = this.buffers.slice(first, first + Math.ceil(clientHeight / ROW) + 5);
    // The stop of the tab key is the current row, or the first in sight.
    const stop = this.at >= first && this.at < first + shown.length ? this.at : first;
    const rows = shown.map((i, offset) =>
      element("tr", { class: i === this.selected ? "selected" : null, "data-buffer": i, "aria-selected": `${i === this.selected}`, "aria-rowindex": first + offset + 2, tabindex: first + offset === stop ? "0" : "-1", onclick: () => this.choose(first + offset, true) },
        COLUMNS.map(({ of }, column) => element("td", { class: `c${column}` }, `${of(this.model, i)}`)),
      ),
    );
    const hadFocus = this.body.contains(document.activeElement);
    this.table.style.transform = `translateY(${first * ROW}px)`;
    this.body.replaceChildren(...rows);
    if (hadFocus) this.body.querySelector('[tabindex="0"]')?.focus({ preventScroll: true });
  }

  choose(at, opens) {
    this.at = at;
    this.act.select(this.buffers[at], opens);
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / ROW) - 2);
    const to = { ArrowUp: this.at - 1, ArrowDown: this.at + 1, PageUp: this.at - page, PageDown: this.at + page, Home: 0, End: this.buffers.length - 1 }[event.key];
    if (to === undefined && event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    if (to === undefined) {
      this.choose(this.at, true);
      return;
    }
    this.at = Math.max(0, Math.min(to, this.buffers.length - 1));
    const top = (this.at + 1) * ROW;
    const { scrollTop, clientHeight } = this.scroller;
    if (top < scrollTop + ROW) this.scroller.scrollTop = top - ROW;
    else if (top + ROW > scrollTop + clientHeight) this.scroller.scrollTop = top + ROW - clientHeight;
    this.choose(this.at, false);
  }

  exported() {
    const { model } = this;
    const row = (i) => [
      model.size[i], model.bufferName(i), operationOrOpcode(model, i), model.text(model.buffers.shape[i]), model.classOf(i), model.sourceOf(i),
      model.from[i], model.to[i], model.size[i] - model.buffers.unpadded[i], model.spaceOf(i).name, model.base[i], model.keptBy(i),
    ];
    return [EXPORTED, ...this.buffers.map(row)];
  }
}

function operationOrOpcode(model, i) {
  return model.operationOf(i) || model.text(model.buffers.opcode[i]);
}

function compare(a, b) {
  return a < b ? -1 : a > b ? 1 : 0;
}
