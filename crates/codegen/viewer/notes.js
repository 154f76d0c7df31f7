// Tables that came with the page: why a program changed, what was done to it. A row that is about buffers finds them.

import { element } from "./format.js";
import { tableButtons } from "./share.js";

export function notes(tables, find, say) {
  return tables.flatMap(({ title, columns, rows }) => [
    element("h2", {}, title),
    tableButtons(title, () => [columns, ...rows.map(({ cells }) => cells)], say),
    element("table", { class: "notes", "aria-label": title },
      element("thead", {}, element("tr", {}, joined(columns).map(([at]) => element("th", { scope: "col" }, columns[at])))),
      element("tbody", {}, rows.map((row) => element("tr", {}, joined(columns).map((of) => cell(row, of, find))))),
    ),
  ]);
}

// What one column of the page shows: a column of the table, and those without a name that follow it, which say by how much it changed.
function joined(columns) {
  const starts = columns.map((name, at) => at).filter((at) => at === 0 || columns[at] !== "");
  return starts.map((start, i) => columns.map((name, at) => at).slice(start, starts[i + 1] ?? columns.length));
}

function cell(row, [at, ...changes], find) {
  const text = at === 0 && row.query !== "" ? finder(row.cells[at], row.query, find) : row.cells[at];
  const beside = changes.map((change) => element("small", {}, row.cells[change]));
  return element("td", { class: at === 0 || beside.length > 0 ? "figure" : null }, text, beside);
}

function finder(text, query, find) {
  return element("button", { class: "link", title: `find ${query}`, onclick: () => find(query) }, text);
}
