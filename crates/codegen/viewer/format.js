// Numbers and texts for people, as the command writes them.

const UNITS = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

export function bytesText(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  let value = bytes / 1024;
  let unit = 0;
  while (value >= 1024 && unit + 1 < UNITS.length) {
    value /= 1024;
    unit += 1;
  }
  return `${value.toFixed(2)} ${UNITS[unit]}`;
}

export function exactBytes(bytes) {
  return `${bytes.toLocaleString("en-US")} B`;
}

export function secondsText(seconds) {
  if (seconds >= 1) return `${seconds.toPrecision(3)} s`;
  if (seconds >= 1e-3) return `${(seconds * 1e3).toPrecision(3)} ms`;
  if (seconds >= 1e-6) return `${(seconds * 1e6).toPrecision(3)} µs`;
  return `${Math.round(seconds * 1e9)} ns`;
}

// A time with three decimals, as in reports.
export function durationText(seconds) {
  const [factor, unit] = seconds >= 1 ? [1, "s"] : seconds >= 1e-3 ? [1e3, "ms"] : seconds >= 1e-6 ? [1e6, "µs"] : [1e9, "ns"];
  return `${(seconds * factor).toFixed(3)} ${unit}`;
}

export function countText(n, what) {
  return `${n.toLocaleString("en-US")} ${what}${n === 1 ? "" : "s"}`;
}

// The end of a long text, which says most.
export function shortText(text, width) {
  return text.length <= width ? text : `…${text.slice(text.length + 1 - width)}`;
}

// An element with attributes and children; texts are never read as HTML.
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}
