// The axis of time: launches beside each other, or as long as they take. Loops can be closed to a narrow strip.

export class Axis {
  constructor(model, mode) {
    this.model = model;
    this.mode = mode;
    this.lay();
    [this.low, this.high] = [0, this.end];
  }

  // Places of launches from the left; one more than there are launches.
  lay() {
    const { model } = this;
    const n = model.nLaunches;
    const width = new Float64Array(n);
    for (let i = 0; i < n; i++) width[i] = this.mode === "time" ? Math.max(model.launches.seconds[i], 1e-9) : 1;
    for (const loop of model.loops) {
      if (loop.open) continue;
      let inside = 0;
      for (let i = loop.begin; i < loop.end; i++) inside += width[i];
      const closed = Math.min(inside, this.mode === "time" ? inside * 0.05 : 3);
      for (let i = loop.begin; i < loop.end; i++) width[i] *= closed / inside;
    }
    this.places = new Float64Array(Math.max(n, 1) + 1);
    for (let i = 0; i < n; i++) this.places[i + 1] = this.places[i] + width[i];
    if (n === 0) this.places[1] = 1;
    this.end = this.places.at(-1);
  }

  // The launch at a place.
  launchAt(place) {
    let [low, high] = [0, this.places.length - 2];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.places[middle] <= place) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  zoom(factor, around) {
    const least = this.end / Math.max(this.places.length * 4, 50);
    const span = Math.min(this.end, Math.max(least, (this.high - this.low) * factor));
    const share = (around - this.low) / (this.high - this.low);
    this.show(around - share * span, span);
  }

  pan(by) {
    this.show(this.low + by, this.high - this.low);
  }

  // Shows a span from a place on, within the program.
  show(low, span) {
    this.low = Math.max(0, Math.min(low, this.end - span));
    this.high = this.low + span;
  }

  // Shows some launches with a little of what is around them.
  showLaunches(from, to) {
    const [low, high] = [this.places[from], this.places[Math.min(to, this.places.length - 1)]];
    const span = Math.min(this.end, (high - low) * 1.3);
    this.show((low + high - span) / 2, span);
  }

  reset() {
    this.show(0, this.end);
  }
}
