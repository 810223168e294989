"use strict";
// Learning curves: the value of the nearest run at an epoch.
(() => {
  const { data, name, short, drawn, isVisible } = page;
  const { scaleOf, apart, numbers } = reading;

  class Curves extends figures.Lines {
    constructor(svg) {
      super(svg);
      const { metric, x, y, log } = svg.dataset;
      this.metric = metric;
      this.curves = data.curves[metric] || {};
      [, , this.base, this.top] = numbers(y);
      [, , , this.right] = numbers(x);
      this.x = scaleOf(...numbers(x), false);
      this.y = scaleOf(...numbers(y), log === "1");
    }

    pointsOf(run) {
      const [values, epochs] = this.curves[run] || [[]];
      return values.map((value, n) => ({ run, value, epoch: epochs ? epochs[n] : n + 1 }));
    }

    markOf(point) { return point ? { ...point, x: this.x.at(point.epoch), y: this.y.at(point.value) } : null; }

    words(mark) { return `${data.x} ${mark.epoch}: ${this.metric} ${short(mark.value)}`; }

    nearest(x, y) {
      let best = null;
      let least = Infinity;
      for (const { run } of this.seen) {
        const points = this.pointsOf(run).map((point) => this.markOf(point));
        for (let n = 0; n < points.length; n += 1) {
          const [a, b] = [points[n], points[n + 1] || points[n]];
          const share = b.x === a.x ? 0 : Math.max(0, Math.min(1, (x - a.x) / (b.x - a.x)));
          const distance = Math.hypot(3 * (a.x + share * (b.x - a.x) - x), a.y + share * (b.y - a.y) - y);
          if (distance < least) [least, best] = [distance, share < 0.5 ? a : b];
        }
      }
      return best;
    }

    first() {
      const points = [data.order[0], ...this.seen.map(({ run }) => run)].map((run) => (
        this.seen.some((line) => line.run === run) ? this.pointsOf(run).at(-1) : null));
      return this.markOf(points.find(Boolean));
    }

    next(dx, dy) {
      const { run, epoch } = this.current;
      if (dx) {
        const points = this.pointsOf(run);
        const now = points.findIndex((point) => point.epoch === epoch);
        return this.markOf(points[Math.max(0, Math.min(points.length - 1, now + dx))]);
      }
      const column = this.seen.map((line) => this.pointsOf(line.run).find((point) => point.epoch === epoch));
      const ranked = column.filter(Boolean).sort((a, b) => b.value - a.value || a.run - b.run);
      const now = ranked.findIndex((point) => point.run === run);
      return this.markOf(ranked[Math.max(0, Math.min(ranked.length - 1, now + dy))]);
    }

    update() {
      super.update();
      this.label();
    }

    // write at the end of the lines what they are: the best run, and each value that has a color
    label() {
      this.svg.querySelectorAll(".end, .swatch").forEach((each) => each.remove());
      const end = (run) => this.pointsOf(run).at(-1);
      const items = [];
      const { colored } = page.state;
      if (this.seen.some(({ run }) => run === data.order[0]) && end(data.order[0])) {
        items.push({ y: this.y.at(end(data.order[0]).value), text: name(data.order[0]), kind: "best" });
      }
      for (const code of colored && colored.labels.length <= 6 ? colored.labels.keys() : []) {
        const group = Object.keys(this.curves).map(Number).filter((run) => isVisible(run) && colored.codes[run] === code);
        const values = group.map(end).filter(Boolean).map((point) => point.value).sort((a, b) => a - b);
        if (values.length) {
          const y = this.y.at(values[Math.floor(values.length / 2)]);
          items.push({ y, text: colored.labels[code], kind: colored.colors[code] });
        }
      }
      items.forEach((item) => { item.y = Math.max(this.top, Math.min(this.base, item.y)); });
      apart(items, 12, this.top, this.base);
      for (const { y, text, kind } of items) {
        const label = drawn("text", { x: this.right + 14, y: y + 4, class: `end ${kind}` });
        label.textContent = text.length > 9 ? `${text.slice(0, 8)}…` : text;
        this.svg.append(drawn("path", { d: `M${this.right + 4} ${y}h7`, class: `swatch ${kind}` }), label);
      }
    }
  }
  figures.kinds.curves = Curves;
})();
