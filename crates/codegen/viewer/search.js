// Finding buffers by name, operation, file, shape or class.

// The buffers that have every word of a query somewhere; none where nothing is asked for.
export function found(model, query) {
  const words = query.toLowerCase().split(/\s+/).filter((word) => word !== "");
  if (words.length === 0) return null;
  const cached = new Map();
  const lower = (number) => {
    if (number < 0) return "";
    if (!cached.has(number)) cached.set(number, model.strings[number].toLowerCase());
    return cached.get(number);
  };
  const { name, operation, title, source, shape, opcode, class: classes } = model.buffers;
  const matches = (i) => words.every((word) => [name, operation, title, source, shape, opcode, classes].some((column) => lower(column[i]).includes(word)));
  const all = [];
  for (let i = 0; i < model.nBuffers; i++) if (matches(i)) all.push(i);
  return all;
}
