// Colours of buffers: by what they are for, or by what else they have in common.

const KIND_COLORS = { argument: "#9a9089", output: "#d9772b", constant: "#b6992d", temp: "#4e79a7" };
const CLASS_COLORS = {
  parameter: "#9a9089", "optimizer-state": "#8f694f", state: "#4a9c96", input: "#4f9a46", gradient: "#d64f55", activation: "#4e79a7",
  temporary: "#b08d1e", output: "#d9772b", constant: "#9c6b97",
};

// Each reads with white letters on it.
const PALETTE = [
  "#4e79a7", "#d9772b", "#4f9a46", "#d64f55", "#4a9c96", "#9c6b97", "#b08d1e", "#8f694f", "#c9667a", "#4f7fe0",
  "#2a8c7f", "#b04f8b", "#789c3f", "#b8607f",
];
const REST = "#8a929b";

// What buffers have in common: `of` is the key of a group, `named` its name for people, `colored` what its colour means.
// The first one is that of reports: layers are folded into one, as their names have no numbers.
export const GROUPINGS = {
  line: { label: "line of the report", of: lineOf, named: (model, i) => `${model.titleOf(i)} ${model.bareShapeOf(i)}`, colored: (model, i) => model.classOf(i), colors: CLASS_COLORS },
  module: { label: "module path", of: (model, i) => pathOf(model.titleOf(i)) },
  source: { label: "source line", of: (model, i) => model.sourceOf(i) || "unknown" },
  operation: { label: "operation", of: (model, i) => model.titleOf(i) },
  class: { label: "class", of: (model, i) => model.classOf(i), colors: CLASS_COLORS },
  kind: { label: "allocation", of: (model, i) => model.kindOf(i), colors: KIND_COLORS },
  opcode: { label: "HLO operation", of: (model, i) => model.text(model.buffers.opcode[i]) },
  space: { label: "memory", of: (model, i) => model.spaceOf(i).name },
};

// What values of one line have in common: operation, shape, class and source line, as `memplan plan --group kind`.
function lineOf(model, i) {
  return [model.titleOf(i), model.bareShapeOf(i), model.classOf(i), model.sourceOf(i)].join("\n");
}

// `block_*/mlp/dot_general` is of `block_*/mlp`, and the argument `params['mlp']['w']` of `params['mlp']`.
function pathOf(title) {
  const end = title.includes("/") ? title.lastIndexOf("/") : title.lastIndexOf("[");
  return end <= 0 ? "outside of modules" : title.slice(0, end);
}

// The groups of a model's buffers, those with most bytes at the peak first, with a colour each.
export function groupsOf(model, grouping) {
  const { of, named = of, colored = of, colors = {} } = GROUPINGS[grouping];
  const keys = Array.from({ length: model.nBuffers }, (_, i) => of(model, i));
  const groups = new Map();
  keys.forEach((key, i) => groups.has(key) || groups.set(key, { key, name: named(model, i), meaning: colored(model, i), first: i, bytes: 0 }));
  model.peak.buffers.forEach((i) => (groups.get(keys[i]).bytes += model.size[i]));
  const ordered = [...groups.values()].sort((a, b) => b.bytes - a.bytes || (a.key < b.key ? -1 : 1));
  const meanings = colorsOf(ordered, colors);
  ordered.forEach((group) => (group.color = meanings.get(group.meaning)));
  return { keys, groups: new Map(ordered.map((group) => [group.key, group])), meanings };
}

// A colour for each meaning, the same on every page: that of a table, or the one that its name falls on. Where two fall
// on one, the larger group has it, and the other the next that is free.
function colorsOf(ordered, colors) {
  const taken = new Map();
  for (const { meaning } of ordered) {
    if (taken.has(meaning)) continue;
    const used = new Set(taken.values());
    const start = hashOf(meaning);
    const free = PALETTE.map((_, step) => PALETTE[(start + step) % PALETTE.length]).find((color) => !used.has(color));
    taken.set(meaning, colors[meaning] ?? free ?? REST);
  }
  // In the order of the table, so that legends look alike, too.
  const rank = (meaning) => (meaning in colors ? Object.keys(colors).indexOf(meaning) : Infinity);
  return new Map([...taken].sort(([a], [b]) => rank(a) - rank(b) || 0));
}

function hashOf(text) {
  let hash = 2166136261;
  for (let at = 0; at < text.length; at++) hash = Math.imul(hash ^ text.charCodeAt(at), 16777619) >>> 0;
  return hash;
}

// Two colours for each buffer as pixels: of its inside and of its edge. Neighbours of one group differ a little.
export function pixelColors(model, { keys, groups }) {
  const [inside, edge] = [new Uint32Array(model.nBuffers), new Uint32Array(model.nBuffers)];
  const parts = new Map([...groups].map(([key, { color }]) => [key, rgbOf(color)]));
  for (let i = 0; i < model.nBuffers; i++) {
    const rgb = parts.get(keys[i]);
    const shade = 0.92 + 0.16 * fraction(i * 0.618034);
    inside[i] = pixel(rgb, shade);
    edge[i] = pixel(rgb, shade * 0.72);
  }
  return { inside, edge };
}

export function faded(color, background) {
  const mix = (shift) => Math.round((((color >> shift) & 255) * 0.18 + ((background >> shift) & 255) * 0.82));
  return ((255 << 24) | (mix(16) << 16) | (mix(8) << 8) | mix(0)) >>> 0;
}

// What is new, where stripes fall on it.
export function lightened(color) {
  const mix = (shift) => Math.round((((color >> shift) & 255) * 0.45 + 255 * 0.55));
  return ((255 << 24) | (mix(16) << 16) | (mix(8) << 8) | mix(0)) >>> 0;
}

export function rgbOf(color) {
  const n = Number.parseInt(color.slice(1), 16);
  return [n >> 16, (n >> 8) & 255, n & 255];
}

// As canvases have it on machines that store the low byte first.
export function pixel([red, green, blue], shade = 1) {
  const part = (value) => Math.min(255, Math.round(value * shade));
  return ((255 << 24) | (part(blue) << 16) | (part(green) << 8) | part(red)) >>> 0;
}

function fraction(x) {
  return x - Math.floor(x);
}
