"use strict";
// Learning curves: the value of the nearest run at an epoch, a logarithmic axis, and a range of the epochs.
(() => {
  const { data, name, short, element, drawn, isVisible } = page;
  const { scaleOf, ticks, apart, numbers } = reading;
  const DOUBLE_MS = 300; // within which a second click is a double click
  const all = []; // the figures, which have one range
  let range = null; // its first and last epoch

  const zoom = (next) => {
    const [low, high] = [Math.min(...all.map((each) => each.span[0])), Math.max(...all.map((each) => each.span[1]))];
    const [first, last] = next ? next.map((epoch) => Math.max(low, Math.min(high, Math.round(epoch)))) : [low, high];
    if (next && !(last > first)) return;
    range = first > low || last < high ? [first, last] : null;
    all.forEach((each) => each.draw());
    address.changed();
  };
  address.keep("epochs", () => (range ? [`${range[0]}-${range[1]}`] : []), ([text = ""]) => {
    const ends = text.match(/^(\d+)-(\d+)$/);
    if (all.length) zoom(ends ? [Number(ends[1]), Number(ends[2])] : null);
  });

  class Curves extends figures.Lines {
    constructor(svg) {
      super(svg);
      const { metric, x, y, log, positive, least } = svg.dataset;
      this.metric = metric;
      this.curves = data.curves[metric] || {};
      this.least = Number(least);
      [this.low, this.high, this.base, this.top] = numbers(y);
      [, , this.left, this.right] = numbers(x);
      this.span = numbers(x).slice(0, 2); // the epochs of the whole figure
      this.isLog = log === "1";
      this.x = scaleOf(...this.span, this.left, this.right, false);
      this.y = scaleOf(this.low, this.high, this.base, this.top, this.isLog);
      this.written = { x: this.x, y: this.y, paths: [...svg.querySelectorAll("[clip-path] path")].map((path) => (
        { path, d: path.getAttribute("d"), isResumed: path.classList.contains("resumed") })) };
      all.push(this);
      if (positive === "1") this.addLog();
      if (this.span[1] - this.span[0] >= 2) this.addZoom();
    }

    button(words, action) {
      const button = element("button", { type: "button" }, words);
      button.addEventListener("click", action);
      this.tools.append(button);
      return button;
    }

    addLog() {
      const usual = this.isLog;
      const set = (isLog) => {
        this.isLog = isLog;
        button.setAttribute("aria-pressed", isLog);
        this.draw();
      };
      const button = this.button("Log axis", () => {
        set(!this.isLog);
        address.changed();
      });
      button.setAttribute("aria-pressed", usual);
      const word = () => (this.isLog ? "log" : "linear");
      address.keep(`scale.${this.metric}`, () => (this.isLog === usual ? [] : [word()]), ([chosen]) => {
        if (chosen !== word()) set(chosen ? chosen === "log" : usual);
      });
    }

    // a range of the epochs, by dragging, by keys or by a button
    addZoom() {
      const { svg } = this;
      this.button("Zoom in", () => this.scale(0.5));
      this.whole = this.button(data.x === "epoch" ? "All epochs" : "Whole range", () => zoom(null));
      this.whole.hidden = true;
      const band = drawn("rect", { class: "range", y: this.top, height: this.base - this.top, visibility: "hidden" });
      svg.append(band);
      let from = null;
      let isDragged = false;
      let timer = 0;
      const within = (event) => Math.max(this.left, Math.min(this.right, this.position(event)[0]));
      const end = () => {
        from = null;
        band.setAttribute("visibility", "hidden");
      };
      svg.addEventListener("pointerdown", (event) => {
        isDragged = false;
        if (event.pointerType !== "touch" && event.button === 0) from = within(event); // a finger reads
      });
      svg.addEventListener("pointermove", (event) => {
        if (from === null) return;
        const to = within(event);
        if (!isDragged && Math.abs(to - from) < 5) return;
        if (!isDragged) svg.setPointerCapture(event.pointerId);
        isDragged = true;
        band.setAttribute("x", Math.min(from, to));
        band.setAttribute("width", Math.abs(to - from));
        band.setAttribute("visibility", "visible");
      });
      svg.addEventListener("pointerup", (event) => {
        const ends = [from, within(event)].sort((a, b) => a - b).map(this.x.back);
        if (from !== null && isDragged) zoom(ends);
        end();
      });
      svg.addEventListener("pointercancel", end);
      svg.addEventListener("keydown", (event) => { if (event.key === "Escape") end(); }, true);
      svg.addEventListener("click", (event) => {
        if (!event.detail || (!isDragged && !range)) return;
        event.stopImmediatePropagation(); // else it opens the run
        const { current } = this;
        window.clearTimeout(timer);
        if (!isDragged && event.detail === 1 && current) timer = window.setTimeout(() => views.open(current.run), DOUBLE_MS);
      }, true);
      svg.addEventListener("dblclick", () => {
        window.clearTimeout(timer);
        zoom(null);
      });
      svg.setAttribute("aria-roledescription", "figure, arrow keys read its runs, plus and minus zoom");
      this.hint();
    }

    // the range, or what of it this figure has
    ends() { return range && range[0] < this.span[1] ? range : this.span; }

    scale(factor) {
      const [first, last] = this.ends();
      const middle = this.current ? this.current.epoch : (first + last) / 2;
      const half = Math.max(1, factor * (last - first)) / 2;
      const start = Math.max(this.span[0], Math.min(this.span[1] - 2 * half, middle - half));
      const { current } = this;
      zoom([Math.floor(start), Math.ceil(start + 2 * half)]);
      if (current) this.show(this.markOf(this.pointsOf(current.run).find(({ epoch }) => epoch === current.epoch)));
    }

    key(event) {
      if (event.target === this.svg && this.whole) {
        if (["+", "=", "-"].includes(event.key)) {
          event.preventDefault();
          this.scale(event.key === "-" ? 2 : 0.5);
          return;
        }
        if (event.key === "Escape" && range) {
          zoom(null);
          return;
        }
      }
      super.key(event);
    }

    // the lowest and highest value: of the whole figure, or of the lines that are visible in the range
    limits() {
      const { low, high } = this;
      const floor = this.isLog && low <= 0 ? this.least : low;
      const values = range ? this.seen.flatMap(({ run }) => this.pointsOf(run).map(({ value }) => value)) : [];
      const kept = values.filter((value) => !this.isLog || value > 0);
      if (!kept.length) return [floor, high];
      const [least, most] = [kept.reduce((a, b) => Math.min(a, b)), kept.reduce((a, b) => Math.max(a, b))];
      if (this.isLog) {
        const room = Math.max((most / least) ** 0.03, 1.001);
        return [least / room, most * room];
      }
      const room = 0.03 * (most - least) || Math.abs(most) / 100 || 1;
      return [least - room, most + room];
    }

    draw() {
      const { x, y, paths } = this.written;
      const [low, high] = this.limits();
      this.x = scaleOf(...this.ends(), this.left, this.right, false);
      this.y = scaleOf(low, high, this.base, this.top, this.isLog);
      const moved = (px, py) => {
        const number = y.back(Number(py));
        const height = this.y.at(this.isLog ? Math.max(number, low / 10) : number);
        return [this.x.at(x.back(Number(px))), height].map((each) => each.toFixed(1)).join(" ");
      };
      for (const { path, d, isResumed } of paths) {
        path.setAttribute("d", isResumed
          ? d.replace(/M(\S+) (\S+)L\S+ \S+?(?=M|$)/g, (_, px, py) => {
            const [mx, my] = moved(px, Number(py) + 4).split(" ").map(Number);
            return `M${mx} ${my - 4}L${mx} ${my + 4}`;
          })
          : d.replace(/(-?[\d.]+) (-?[\d.]+)/g, (_, px, py) => moved(px, py)));
      }
      this.svg.querySelector(".scale").replaceChildren(...this.ticks(low, high));
      if (this.whole) this.whole.hidden = !range;
      this.show(null);
      this.label();
    }

    ticks(low, high) {
      const [first, last] = this.ends();
      const lines = ticks(low, high, this.isLog).flatMap((tick) => {
        const y = this.y.at(tick);
        const text = drawn("text", { x: 38, y: y + 4, class: "tick", "text-anchor": "end" });
        text.textContent = short(tick);
        return [drawn("path", { d: `M44 ${y}H${this.right}`, class: "grid" }), text];
      });
      const epochs = ticks(first, last, false).filter(Number.isInteger).map((tick) => {
        const text = drawn("text", { x: this.x.at(tick), y: this.base + 15, class: "tick", "text-anchor": "middle" });
        text.textContent = String(tick);
        return text;
      });
      return [...lines, ...epochs];
    }

    // the points of a run in the range
    pointsOf(run) {
      const [values, epochs] = this.curves[run] || [[]];
      const [first, last] = this.ends();
      return values.map((value, n) => ({ run, value, epoch: epochs ? epochs[n] : n + 1 }))
        .filter(({ epoch }) => epoch >= first && epoch <= last);
    }

    markOf(point) { return point ? { ...point, x: this.x.at(point.epoch), y: this.y.at(point.value) } : null; }

    words(mark) { return `${data.x} ${mark.epoch}: ${this.metric} ${short(mark.value)}`; }

    hint() {
      const more = this.whole ? " Drag, or press +, to zoom." : "";
      this.readout.textContent = `Point at a line, or press the arrow keys.${more}`;
    }

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
      if (range) this.draw();
      else this.label();
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
