// Reading a figure: the run nearest to the pointer, a finger or the arrow keys; what it is stands below the figure.
const reading = (() => {
  const { data, settings, short, element, drawn } = page;
  const numbers = (text) => text.trim().split(/\s+/).map(Number);
  const indices = (path) => (path.dataset.runs ? numbers(path.dataset.runs) : []);

  // the marks of a path of points or bars: M x y h width
  const marksOf = (path) => {
    const runs = indices(path);
    return [...path.getAttribute("d").matchAll(/M([-\d.]+) ([-\d.]+)h([-\d.]+)/g)].map(([, x, y, width], n) => (
      { run: runs[n], x: Number(x), y: Number(y), width: Number(width) }));
  };
  const written = (marks) => marks.map(({ x, y, width }) => `M${x} ${y}h${width}`).join("");

  const scaleOf = (low, high, start, end, isLog) => {
    const map = isLog ? (each) => Math.log10(Math.max(each, low / 10)) : (each) => each;
    const [from, to] = [map(low), map(high)];
    return { at: (number) => start + (map(number) - from) / (to - from || 1) * (end - start) };
  };

  const line = (points) => points.map(({ x, y }, n) => `${n ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("")
    + (points.length > 1 ? "" : "h0");

  class Reader {
    constructor(svg) {
      this.svg = svg;
      this.readout = element("output", { class: "readout" });
      (svg.closest(".scroll") || svg).after(element("div", { class: "reading" }, this.readout));
      svg.setAttribute("role", "application");
      svg.setAttribute("aria-roledescription", "figure, arrow keys read its runs");
      svg.setAttribute("tabindex", "0");
      this.ring = drawn("circle", { class: "ring", r: 4.5, visibility: "hidden" });
      svg.append(this.ring);
      this.current = null;
      const read = (event) => {
        const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
        this.show(this.nearest(x, y));
      };
      svg.addEventListener("pointermove", read);
      svg.addEventListener("pointerdown", read);
      svg.addEventListener("pointerleave", (event) => {
        if (event.pointerType !== "touch" && document.activeElement !== svg) this.show(null);
      });
      svg.addEventListener("click", (event) => {
        if (event.pointerType !== "touch" && this.current) views.open(this.current.run);
      });
      svg.addEventListener("keydown", (event) => this.key(event));
      svg.addEventListener("blur", () => this.show(null));
      this.show(null);
    }

    key(event) {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (step) {
        event.preventDefault();
        this.show(this.current ? this.next(...step) : this.first());
      } else if (event.key === "Enter" && this.current) views.open(this.current.run);
      else if (event.key === "Escape") this.show(null);
    }

    show(mark) {
      this.current = mark;
      this.ring.setAttribute("visibility", mark ? "visible" : "hidden");
      page.light(mark ? mark.run : null);
      this.readout.textContent = "";
      if (!mark) return;
      this.ring.setAttribute("cx", mark.x);
      this.ring.setAttribute("cy", mark.y);
      this.readout.replaceChildren(page.link(mark.run), ` · ${settings(mark.run)} · ${this.words(mark)}`);
    }

    words(mark) {
      const score = short(data.scores[mark.run]);
      return score ? `${data.metric} ${score}` : page.columns.get("status")[mark.run];
    }

    // the mark next to the current one: by x for left and right, by y for up and down
    next(dx, dy) {
      const key = dx ? "x" : "y";
      const ranked = this.beside(dx !== 0).sort((a, b) => a[key] - b[key] || a.run - b.run);
      const now = ranked.findIndex((each) => each.run === this.current.run && each.x === this.current.x);
      return ranked[Math.max(0, Math.min(ranked.length - 1, now + dx + dy))] || null;
    }

    beside() { return this.marks(); }

    first() { return this.marks().find((each) => each.run === data.order[0]) || this.marks()[0] || null; }

    nearest(x, y) {
      let best = null;
      let least = Infinity;
      for (const mark of this.marks()) {
        const beside = Math.max(mark.x - x, 0, x - mark.x - (mark.width || 0));
        const distance = beside ** 2 + (mark.y - y) ** 2;
        if (distance < least) [least, best] = [distance, mark];
      }
      return best;
    }
  }

  return { Reader, scaleOf, numbers, indices, marksOf, written, line };
})();
