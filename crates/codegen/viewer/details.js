// The panel beside the picture: one buffer, or all that is live at a moment.

import { bytesText, countText, element, exactBytes, secondsText, shortText } from "./format.js";

// Most rows of one list; what is beyond is counted.
const MOST_ROWS = 12;

// All that is known of a buffer, with ways to those around it.
export function bufferDetails(model, i, act) {
  const { buffers } = model;
  const size = model.size[i];
  const padding = size - buffers.unpadded[i];
  const allocation = model.allocations[buffers.allocation[i]];
  const flags = [buffers.flags[i] & 1 ? "result" : null, buffers.flags[i] & 2 ? "donated" : null];
  const facts = [
    ["size", `${bytesText(size)} (${exactBytes(size)})`],
    ["padding", padding > 0 ? `${bytesText(padding)}, ${((100 * padding) / size).toFixed(1)} % of it` : "none"],
    ["shape", model.text(buffers.shape[i])],
    ["where", `${model.spaceOf(i).name}, ${allocation.kind === "temp" ? "arena" : allocation.name} + ${exactBytes(buffers.offset[i])}`],
    ["class", [model.classOf(i), model.kindOf(i), ...flags].filter((flag) => flag !== null).join(", ")],
    ["operation", model.operationOf(i) || model.text(buffers.opcode[i])],
    ["source", model.sourceOf(i) || "not said"],
    ["live", `launches ${model.from[i]} to ${model.to[i] - 1}, ${model.to[i] - model.from[i]} of them`],
    ["made by", buffers.made[i] < 0 ? "there from the start" : model.launchName(buffers.made[i])],
    ["last read by", lastReader(model, i)],
    ["kept by", model.keptBy(i)],
    ...comparison(model, i),
  ];
  const rows = facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]);
  const go = (j) => () => act.select(j, true);
  const list = (title, others, note) => {
    if (others.length === 0) return null;
    const shown = others.slice(0, MOST_ROWS).map((j) =>
      element("li", {}, element("button", { class: "link", onclick: go(j), title: model.operationOf(j) }, model.bufferName(j)), element("span", { class: "bytes" }, bytesText(model.size[j]))),
    );
    const rest = others.length > MOST_ROWS ? element("li", { class: "rest" }, `and ${others.length - MOST_ROWS} more`) : null;
    return [element("h3", {}, title, note ? element("small", {}, note) : null), element("ul", { class: "list" }, shown, rest)];
  };
  const next = keeperOf(model, i);
  return [
    element("h2", { id: "buffer-name" }, model.bufferName(i)),
    element("div", { class: "row" },
      element("button", { onclick: () => act.show(i) }, "zoom to it"),
      next === null ? null : element("button", { onclick: go(next), title: "what is made by whoever reads it last" }, "along its chain →"),
    ),
    element("dl", {}, rows),
    list("made from", model.producersOf(i)),
    list("goes into", model.consumersOf(i)),
    list("shares bytes with", model.sharesWith(i), " at other times"),
  ];
}

// What a buffer was, or what it has become, beside another program.
function comparison(model, i) {
  if (model.other === undefined) return [];
  const { model: other, partners } = model.other;
  const partner = partners[i];
  return [[other.name, partner < 0 ? "not there" : `${bytesText(other.size[partner])}, ${other.text(other.buffers.shape[partner])}`]];
}

function lastReader(model, i) {
  const readers = model.readers[i];
  return readers.length === 0 ? "nobody" : model.launchName(Math.max(...readers));
}

// What comes of a buffer where it is read last: the next link of the chain that keeps it alive.
export function keeperOf(model, i) {
  const readers = model.readers[i];
  if (readers.length === 0) return null;
  const made = model.launches.writes[Math.max(...readers)].filter((j) => j !== i);
  return made.length === 0 ? null : made.reduce((a, b) => (model.size[b] > model.size[a] ? b : a));
}

// Who is live during a launch, in groups.
export function momentDetails(model, launch, groups, keys, act) {
  const live = model.liveAt(launch);
  const bytes = model.bytesAt(launch);
  const byGroup = new Map();
  live.forEach((i) => {
    if (!byGroup.has(keys[i])) byGroup.set(keys[i], []);
    byGroup.get(keys[i]).push(i);
  });
  const sum = (members) => members.reduce((total, i) => total + model.size[i], 0);
  const order = [...byGroup].sort((a, b) => sum(b[1]) - sum(a[1]) || (a[0] < b[0] ? -1 : 1));
  const isPeak = launch === model.peak.launch;
  const name = isPeak ? model.peak.instruction : model.launchName(launch);
  return [
    element("h2", {}, isPeak ? "live at the peak" : `live at launch ${launch}`),
    element("p", { class: "sum" }, element("b", { id: "live-bytes", "data-bytes": bytes }, bytesText(bytes)), ` while ${name} runs, ${countText(live.length, "buffer")}, ${secondsText(model.launches.seconds[launch] ?? 0)}`),
    order.map(([key, members], rank) => {
      const shown = members.slice(0, MOST_ROWS).map((i) =>
        element("li", {}, element("button", { class: "link", onclick: () => act.select(i, false), title: model.operationOf(i) }, model.bufferName(i)), element("span", { class: "bytes" }, bytesText(model.size[i]))),
      );
      const rest = members.length > MOST_ROWS ? element("li", { class: "rest" }, `and ${members.length - MOST_ROWS} more`) : null;
      const share = bytes > 0 ? (100 * sum(members)) / bytes : 0;
      return element("details", { open: rank < 3 ? "" : null },
        element("summary", {},
          element("i", { class: "swatch", style: `background:${groups.get(key).color}` }),
          element("span", { class: "key", title: key }, shortText(key, 34)),
          element("span", { class: "bytes" }, `${bytesText(sum(members))}`),
          element("span", { class: "share", style: `width:${share.toFixed(1)}%;background:${groups.get(key).color}` }),
        ),
        element("ul", { class: "list" }, shown, rest),
      );
    }),
  ];
}

// A few lines for the pointer.
export function hint(model, target) {
  if (target.kind === "loop") {
    const { launch, begin, end, open } = target.loop;
    const trips = model.launches.trips[launch];
    return [model.launchName(launch), trips === null ? "" : `${trips} times`, `launches ${begin} to ${end - 1}`, `click to ${open ? "close" : "open"}, double click to zoom`];
  }
  if (target.kind === "curve") return [`launch ${target.launch}: ${model.launchName(target.launch) ?? ""}`, `${bytesText(model.bytesAt(target.launch))} live`, "click for who is live"];
  if (target.kind === "transfer") {
    const { name, bytes, from, to, start, done, runs } = target.transfer;
    const spaceName = (id) => model.spaces.find((space) => space.id === id)?.name ?? `space ${id}`;
    return [name, `${bytesText(bytes)} from ${spaceName(from)} to ${spaceName(to)}`, `launches ${start} to ${done ?? "?"}${runs > 1 ? `, ${runs} times` : ""}`];
  }
  if (target.kind === "scratch") return [`working memory of ${model.launchName(target.scratch.launch)}`, bytesText(target.scratch.size), `launch ${target.scratch.launch}`];
  if (target.kind === "space") return [];
  const i = target.buffer;
  const padding = model.size[i] - model.buffers.unpadded[i];
  return [
    model.bufferName(i),
    `${bytesText(model.size[i])}${padding > 0 ? `, ${bytesText(padding)} of it padding` : ""}`,
    model.text(model.buffers.shape[i]),
    shortText(model.operationOf(i) || model.text(model.buffers.opcode[i]), 70),
    shortText(model.sourceOf(i), 70),
    `made by ${model.buffers.made[i] < 0 ? "nobody: there from the start" : model.launchName(model.buffers.made[i])}`,
    `last read by ${lastReader(model, i)}`,
    `kept by ${model.keptBy(i)}`,
  ];
}
