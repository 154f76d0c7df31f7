// A planned program, read off its columns: who reads what, who lies where, who is live when.

// Two programs beside each other: what each buffer of the earlier one has become, and where each of the later one comes
// from; -1 is nothing.
export function bringTogether(later, earlier) {
  earlier.other = { model: later, partners: earlier.partners };
  later.other = { model: earlier, partners: new Int32Array(later.nBuffers).fill(-1) };
  earlier.partners.forEach((becomes, i) => becomes >= 0 && (later.other.partners[becomes] = i));
}

export class Model {
  constructor(stage) {
    Object.assign(this, stage);
    this.nLaunches = this.launches.name.length;
    this.nBuffers = this.buffers.name.length;
    const { allocation, offset, size, from, to } = this.buffers;
    this.from = Uint32Array.from(from);
    this.to = Uint32Array.from(to);
    this.size = Float64Array.from(size);
    // Where a buffer begins in the stack of allocations of its memory.
    this.base = Float64Array.from(allocation, (a, i) => this.allocations[a].base + offset[i]);
    this.live = runningSums(this.live);
    for (const space of this.spaces) {
      space.live = runningSums(space.live);
      space.buffers = [];
      space.scratch = [];
    }
    const spaceOf = new Map(this.spaces.map((space) => [space.id, space]));
    for (let i = 0; i < this.nBuffers; i++) spaceOf.get(this.allocations[allocation[i]].space)?.buffers.push(i);
    this.scratch = this.scratch.map(([launch, a, at, bytes]) => ({ launch, base: this.allocations[a].base + at, size: bytes, space: this.allocations[a].space }));
    this.scratch.forEach((scratch, i) => spaceOf.get(scratch.space)?.scratch.push(i));
    this.readers = inverted(this.launches.reads, this.nBuffers);
    this.writers = inverted(this.launches.writes, this.nBuffers);
    this.loops = this.loopsOf();
  }

  text(number) {
    return number < 0 ? "" : this.strings[number];
  }

  bufferName(i) {
    return this.text(this.buffers.name[i]);
  }

  launchName(i) {
    return this.text(this.launches.name[i]);
  }

  kindOf(i) {
    return this.allocations[this.buffers.allocation[i]].kind;
  }

  spaceOf(i) {
    const id = this.allocations[this.buffers.allocation[i]].space;
    return this.spaces.find((space) => space.id === id);
  }

  operationOf(i) {
    return this.text(this.buffers.operation[i]);
  }

  sourceOf(i) {
    return this.text(this.buffers.source[i]);
  }

  keptBy(i) {
    return this.text(this.buffers.keeper[i]);
  }

  // What lists of holders call it: the operation that it comes from, without numbers of layers.
  titleOf(i) {
    return this.text(this.buffers.title[i]);
  }

  // The shape without its layout, which affects bytes but not meaning.
  bareShapeOf(i) {
    return this.text(this.buffers.shape[i]).split("{")[0];
  }

  classOf(i) {
    return this.text(this.buffers.class[i]);
  }

  // What the operation that makes a buffer reads.
  producersOf(i) {
    const made = this.buffers.made[i];
    return made < 0 ? [] : this.launches.reads[made].filter((other) => other !== i);
  }

  // What is made by the operations that read a buffer.
  consumersOf(i) {
    const made = new Set(this.readers[i].flatMap((launch) => this.launches.writes[launch]));
    made.delete(i);
    return [...made];
  }

  // Others that have bytes of a buffer's place at other times.
  sharesWith(i) {
    const { allocation } = this.buffers;
    const [low, high] = [this.base[i], this.base[i] + this.size[i]];
    const others = [];
    for (let j = 0; j < this.nBuffers; j++) {
      const overlaps = this.base[j] < high && this.base[j] + this.size[j] > low;
      if (j !== i && allocation[j] === allocation[i] && overlaps) others.push(j);
    }
    return others.sort((a, b) => this.from[a] - this.from[b]);
  }

  // What is live during a launch, largest first, each place once.
  liveAt(launch) {
    if (launch === this.peak.launch) return this.peak.buffers;
    const places = new Map();
    for (let i = 0; i < this.nBuffers; i++) {
      if (this.from[i] > launch || this.to[i] <= launch) continue;
      const place = `${this.buffers.allocation[i]}+${this.buffers.offset[i]}`;
      const other = places.get(place);
      if (other === undefined || this.size[i] > this.size[other]) places.set(place, i);
    }
    return [...places.values()].sort((a, b) => this.size[b] - this.size[a] || a - b);
  }

  bytesAt(launch) {
    return this.live[launch] ?? 0;
  }

  // Loops, branches and calls with the launches that run within them, outer ones first.
  loopsOf() {
    const loops = [];
    for (let i = 0; i < this.nLaunches; i++) {
      const begin = this.launches.begin[i];
      if (begin < i) loops.push({ launch: i, begin, end: i + 1, open: true, depth: 0 });
    }
    loops.sort((a, b) => a.begin - b.begin || b.end - a.end);
    const around = [];
    for (const loop of loops) {
      while (around.length > 0 && around.at(-1).end <= loop.begin) around.pop();
      loop.depth = around.length;
      around.push(loop);
    }
    return loops;
  }
}

function runningSums(differences) {
  const sums = new Float64Array(differences.length);
  let sum = 0;
  differences.forEach((difference, i) => {
    sum += difference;
    sums[i] = sum;
  });
  return sums;
}

// For each number in the lists, the lists that it is in.
function inverted(lists, n) {
  const result = Array.from({ length: n }, () => []);
  lists.forEach((list, at) => list.forEach((i) => result[i].push(at)));
  return result;
}
