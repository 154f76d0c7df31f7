// Tables that came with the page: why a program changed, what was done to it. A row that is about buffers finds them.

import { element } from "./format.js";

export function notes(tables, find) {
  return tables.flatMap(({ title, columns, rows }) => [
    element("h2", {}, title),
    element("table", { class: "notes", "aria-label": title },
      element("thead", {}, element("tr", {}, columns.map((column) => element("th", { scope: "col" }, column)))),
      element("tbody", {}, rows.map((row) => element("tr", {}, row.cells.map((cell, at) => element("td", {}, at === 0 && row.query !== "" ? finder(cell, row.query, find) : cell))))),
    ),
  ]);
}

function finder(text, query, find) {
  return element("button", { class: "link", title: `find ${query}`, onclick: () => find(query) }, text);
}
