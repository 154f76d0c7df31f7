// What leaves the page: tables as text, and a link that shows what is seen now.

import { element } from "./format.js";

// Buttons that copy a table, with tabs between its cells, and that save it as CSV. `rows` gives heads first.
export function tableButtons(name, rows, say) {
  const copy = () => copyText(rows().map((row) => row.map((cell) => `${cell}`.replace(/\s+/g, " ")).join("\t")).join("\n"), "table", say);
  const save = () => {
    saveFile(`${name}.csv`, csvOf(rows()));
    say(`${name}.csv is saved`);
  };
  return element("div", { class: "row export" },
    element("button", { onclick: copy, "aria-label": `copy the table ${name}` }, "copy"),
    element("button", { onclick: save, "aria-label": `save the table ${name} as CSV` }, "CSV"),
  );
}

// As RFC 4180 has it: cells with commas, quotes or line ends are quoted.
export function csvOf(rows) {
  const cellText = (value) => (/[",\r\n]/.test(`${value}`) ? `"${`${value}`.replaceAll('"', '""')}"` : `${value}`);
  return rows.map((row) => `${row.map(cellText).join(",")}\r\n`).join("");
}

export async function copyText(text, what, say) {
  try {
    await navigator.clipboard.writeText(text);
    say(`${what} is copied`);
  } catch {
    say(`the browser does not let this page copy: ${what} is not copied`);
  }
}

function saveFile(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// What a link says: an object of texts.
export function readLink() {
  return Object.fromEntries(new URLSearchParams(window.location.hash.slice(1)));
}

// Writes it into the address of the page, without an entry of the browser's history.
export function writeLink(state) {
  const said = Object.entries(state).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const hash = `#${new URLSearchParams(said)}`;
  if (hash !== window.location.hash && (said.length > 0 || window.location.hash !== "")) window.history.replaceState(null, "", hash);
}
