// Colours of buffers: by what they are for, the layer or operation they come from, the source line.

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

export const GROUPINGS = {
  class: { label: "class", of: (model, i) => model.classOf(i), colors: CLASS_COLORS },
  kind: { label: "allocation", of: (model, i) => model.kindOf(i), colors: KIND_COLORS },
  layer: { label: "layer", of: (model, i) => layerOf(model.operationOf(i)) },
  operation: { label: "operation", of: (model, i) => lastStep(model.operationOf(i)) || model.text(model.buffers.opcode[i]) },
  opcode: { label: "HLO operation", of: (model, i) => model.text(model.buffers.opcode[i]) },
  source: { label: "source line", of: (model, i) => model.sourceOf(i) || "unknown" },
  space: { label: "memory", of: (model, i) => model.spaceOf(i).name },
};

// `jit(step)/transpose(jvp(block_3))/mlp/dot_general` is of `block_3/mlp`.
function layerOf(operation) {
  const steps = operation.split("/").slice(0, -1).map(plainStep);
  const named = steps.filter((step) => step !== "" && !/^(main|jit|pjit|while|body|cond|branch_\d+_fun|closed_call|checkpoint|remat|transpose|jvp|vmap)$/.test(step));
  return named.slice(0, 2).join("/") || "no layer";
}

function plainStep(step) {
  let plain = step;
  for (;;) {
    const inner = /^(?:jit|pjit|jvp|vjp|transpose|vmap|remat|checkpoint|custom_jvp|custom_vjp)\((.*)\)$/.exec(plain);
    if (!inner) return plain;
    if (/^p?jit\(/.test(plain) && !/[(/]/.test(inner[1])) return "";
    plain = inner[1];
  }
}

function lastStep(operation) {
  return operation.split("/").at(-1);
}

// The groups of a model's buffers, those with most bytes at the peak first, with a colour each.
export function groupsOf(model, grouping) {
  const { of, colors } = GROUPINGS[grouping];
  const keys = Array.from({ length: model.nBuffers }, (_, i) => of(model, i));
  const bytes = new Map();
  keys.forEach((key) => bytes.set(key, bytes.get(key) ?? 0));
  model.peak.buffers.forEach((i) => bytes.set(keys[i], bytes.get(keys[i]) + model.size[i]));
  const order = [...bytes.keys()].sort((a, b) => bytes.get(b) - bytes.get(a) || (a < b ? -1 : 1));
  const colorOf = (key, rank) => colors?.[key] ?? PALETTE[rank] ?? REST;
  const groups = new Map(order.map((key, rank) => [key, { key, color: colorOf(key, rank), bytes: bytes.get(key) }]));
  return { keys, groups };
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
