// The panel beside the picture: one buffer, or all that is live at a moment.

import { bytesText, countText, element, exactBytes, secondsText, shortText } from "./format.js";
import { tableButtons } from "./share.js";

// Most rows of one list; what is beyond is counted.
const MOST_ROWS = 12;
// Most groups that are live at a moment, unless all are asked for.
const MOST_GROUPS = 30;

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
    ["line", `${model.titleOf(i)} ${model.bareShapeOf(i)}`],
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
      element("li", {}, element("button", { class: "link stop", onclick: go(j), title: model.operationOf(j) }, model.bufferName(j)), element("span", { class: "bytes" }, bytesText(model.size[j]))),
    );
    const rest = others.length > MOST_ROWS ? element("li", { class: "rest" }, `and ${others.length - MOST_ROWS} more`) : null;
    return [element("h3", {}, title, note ? element("small", {}, note) : null), element("ul", { class: "list" }, shown, rest)];
  };
  const next = keeperOf(model, i);
  return [
    element("h2", { id: "buffer-name", tabindex: "-1" }, model.bufferName(i)),
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

// Who is live during a launch, in groups, largest first: bytes, members, and what they have in common.
export function liveGroups(model, launch, { groups, keys }) {
  const members = new Map();
  for (const i of model.liveAt(launch)) {
    if (!members.has(keys[i])) members.set(keys[i], []);
    members.get(keys[i]).push(i);
  }
  const list = [...members].map(([key, of]) => ({ ...groups.get(key), members: of, bytes: of.reduce((sum, i) => sum + model.size[i], 0) }));
  list.sort((a, b) => b.bytes - a.bytes || a.members[0] - b.members[0]);
  const common = (of, text) => of.every((i) => text(i) === text(of[0])) ? text(of[0]) : "";
  for (const group of list) {
    group.class = common(group.members, (i) => model.classOf(i).replaceAll("-", " "));
    group.source = common(group.members, (i) => model.sourceOf(i));
    group.keeper = keepers(model, group.members);
  }
  return list;
}

// The keeper of most bytes of a group, and how many others there are.
function keepers(model, members) {
  const bytes = new Map();
  members.forEach((i) => bytes.set(model.keptBy(i), (bytes.get(model.keptBy(i)) ?? 0) + model.size[i]));
  const [most] = [...bytes].reduce((a, b) => (b[1] > a[1] ? b : a));
  return bytes.size === 1 ? most : `${most}, and ${bytes.size - 1} more`;
}

// The same for people.
export function momentDetails(model, launch, colored, opened, act) {
  const list = liveGroups(model, launch, colored);
  const bytes = model.bytesAt(launch);
  const isPeak = launch === model.peak.launch;
  const name = isPeak ? model.peak.instruction : model.launchName(launch);
  const n = list.reduce((sum, { members }) => sum + members.length, 0);
  const shareOf = (part) => (bytes > 0 ? (100 * part) / bytes : 0);
  let sum = 0;
  const rows = list.map((group, rank) => {
    sum += group.bytes;
    return [group, rank, sum];
  });
  const all = [...rows];
  const exported = () => [
    ["bytes", "sum %", "values", "what", "class", "source", "kept by"],
    ...all.map(([group, , until]) => [group.bytes, shareOf(until).toFixed(1), group.members.length, group.name, group.class, group.source, group.keeper]),
  ];
  const smaller = opened.get("all") ? [] : rows.splice(MOST_GROUPS);
  const rest = smaller.reduce(([values, part], [group]) => [values + group.members.length, part + group.bytes], [0, 0]);
  const showAll = () => {
    opened.set("all", true);
    act.refresh();
  };
  return [
    element("h2", {}, isPeak ? "live at the peak" : `live at launch ${launch}`),
    element("p", { class: "sum" }, element("b", { id: "live-bytes", "data-bytes": bytes }, bytesText(bytes)), ` while ${name} runs, ${countText(n, "buffer")}, ${secondsText(model.launches.seconds[launch] ?? 0)}`),
    tableButtons("live", exported, act.say),
    rows.map(([group, rank, until]) => {
      const { key, color, members } = group;
      const shown = members.slice(0, MOST_ROWS).map((i) =>
        element("li", {}, element("button", { class: "link stop", onclick: () => act.select(i, false), title: model.operationOf(i) }, model.bufferName(i)), element("span", { class: "bytes" }, bytesText(model.size[i]))),
      );
      const beyond = members.length > MOST_ROWS ? element("li", { class: "rest" }, `and ${members.length - MOST_ROWS} more`) : null;
      const what = members.length === 1 ? group.name : `${members.length} × ${group.name}`;
      const about = [group.class, shortText(group.source, 40), group.keeper && `kept by ${group.keeper}`].filter((part) => part !== "" && part !== group.name);
      const isOpen = opened.get(key) ?? rank < 1;
      return element("details", { open: isOpen ? "" : null },
        element("summary", { class: "stop", onclick: (event) => opened.set(key, !event.currentTarget.parentElement.open) },
          element("i", { class: "swatch", style: `background:${color}`, title: group.meaning }),
          element("span", { class: "key", title: what }, what),
          element("span", { class: "bytes" }, `${bytesText(group.bytes)}  ${shareOf(until).toFixed(1)} %`),
          element("span", { class: "about" }, about.join(" · ")),
          element("span", { class: "share", style: `width:${shareOf(group.bytes).toFixed(1)}%;background:${color}` }),
        ),
        element("ul", { class: "list" }, shown, beyond),
      );
    }),
    smaller.length === 0 ? null : element("p", { class: "rest" }, element("button", { class: "link stop", onclick: showAll }, `and ${countText(smaller.length, "smaller line")} of ${countText(rest[0], "value")}, ${bytesText(rest[1])} together`)),
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
