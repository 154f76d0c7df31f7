// Lists of which the tab key stops at one element; arrows move within.

export class Roving {
  // `selector` finds the elements in their place; `keys` are the arrows back and on.
  constructor(place, selector, keys = ["ArrowUp", "ArrowDown"]) {
    Object.assign(this, { place, selector, keys, at: 0 });
    place.addEventListener("keydown", (event) => this.key(event));
    place.addEventListener("focusin", (event) => {
      const at = this.items().indexOf(event.target);
      if (at >= 0) this.stopAt(at);
    });
  }

  // The elements that can be seen: those of a closed group cannot.
  items() {
    return [...this.place.querySelectorAll(this.selector)].filter((item) => item.checkVisibility?.() ?? item.offsetParent !== null);
  }

  // Other contents: the stop stays where it was, and has the focus if it had it.
  fill(contents) {
    const hadFocus = this.place.contains(document.activeElement);
    this.place.replaceChildren(...contents);
    this.stopAt(this.at);
    if (hadFocus) this.items()[this.at]?.focus({ preventScroll: true });
  }

  stopAt(at) {
    const items = this.items();
    this.at = Math.max(0, Math.min(at, items.length - 1));
    this.place.querySelectorAll(this.selector).forEach((item) => (item.tabIndex = -1));
    if (items.length > 0) items[this.at].tabIndex = 0;
  }

  key(event) {
    const items = this.items();
    const from = items.indexOf(event.target);
    const to = { [this.keys[0]]: from - 1, [this.keys[1]]: from + 1, Home: 0, End: items.length - 1 }[event.key];
    if (from < 0 || to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    items[Math.max(0, Math.min(to, items.length - 1))].focus();
  }
}
