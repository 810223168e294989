"use strict";
// The kinds of figures: what of each is visible, which color it has, and which mark is near.
const figures = (() => {
  const { data, short, drawn, isVisible } = page;
  const { Reader, numbers, indices, marksOf, written } = reading;
  const MANY = 100; // lines that are visible at once
  const COLOR = /\b[co]\d\b/;

  class Points extends Reader {
    constructor(svg) {
      super(svg);
      this.paths = [...svg.querySelectorAll("path.dots, path.bar")];
      this.all = this.paths.flatMap(marksOf);
      // colored by the score, whatever axis colors the other figures
      const byScore = svg.dataset.colors ? this.paths : [];
      this.fixed = new Map(byScore.flatMap((path) => indices(path).map((run) => [run, path.getAttribute("class").match(/\bs\d\b/)[0]])));
    }

    hint() {
      this.readout.textContent = `Point at a ${this.svg.dataset.figure === "bars" ? "bar" : "dot"}, or press the arrow keys.`;
    }

    words(mark) {
      const seconds = page.columns.get("run duration");
      const time = seconds && !Number.isNaN(seconds[mark.run]) ? `, ${short(seconds[mark.run])} s` : "";
      return super.words(mark) + (this.svg.dataset.figure === "bars" ? time : "");
    }

    marks() { return this.all.filter((mark) => isVisible(mark.run)); }

    update() {
      const marks = this.marks();
      if (this.svg.dataset.figure === "points") {
        const groups = new Map();
        for (const mark of marks) {
          const color = this.fixed.get(mark.run) || page.color(mark.run);
          if (!groups.has(color)) groups.set(color, []);
          groups.get(color).push(mark);
        }
        const layer = this.layer || (this.layer = this.paths[0].parentNode);
        this.paths.forEach((path) => path.remove());
        this.paths = [...groups].map(([color, group]) => drawn("path", { class: `dots ${color}`, d: written(group) }));
        layer.prepend(...this.paths);
      } else {
        for (const path of this.paths) {
          path.classList.toggle("gone", !isVisible(indices(path)[0]));
          recolor(path, indices(path)[0]);
        }
      }
      for (const path of this.svg.querySelectorAll(".cross")) path.classList.toggle("gone", !isVisible(Number(path.dataset.r)));
      // means are of all runs
      for (const path of this.svg.querySelectorAll(".mean, .trend, .front")) path.classList.toggle("gone", page.isFiltered());
    }
  }

  const recolor = (path, run) => {
    if (COLOR.test(path.getAttribute("class"))) {
      path.setAttribute("class", path.getAttribute("class").replace(COLOR, page.color(run)));
    }
  };

  // figures with a line for each run
  class Lines extends Reader {
    constructor(svg) {
      super(svg);
      this.lines = [...svg.querySelectorAll("path.run")].map((path) => (
        { path, run: Number(path.dataset.r), isSpare: path.classList.contains("spare") }));
      this.others = [...svg.querySelectorAll("path[data-r]:not(.run)")];
      this.groups = [...svg.querySelectorAll("path.band, path.middle")].map((path) => ({ path, runs: indices(path) }));
      this.seen = this.lines.filter((line) => !line.isSpare);
    }

    update() {
      const left = this.lines.filter((line) => isVisible(line.run));
      const isAll = page.isFiltered() && left.length <= MANY;
      this.seen = left.filter((line) => isAll || !line.isSpare);
      const seen = new Set(this.seen.map((line) => line.run));
      for (const { path, run } of this.lines) {
        path.classList.toggle("gone", !seen.has(run));
        path.classList.toggle("spare", !seen.has(run));
        recolor(path, run);
      }
      for (const path of this.others) {
        path.classList.toggle("gone", !seen.has(Number(path.dataset.r)));
        path.classList.remove("spare");
      }
      const { colored } = page.state;
      for (const { path, runs } of this.groups) {
        const isOne = colored && runs.every((run) => colored.codes[run] === colored.codes[runs[0]]);
        path.classList.toggle("gone", !isOne || !runs.every(isVisible));
        recolor(path, runs[0]);
      }
    }
  }

  const kinds = { points: Points, bars: Points };
  const start = () => {
    const readers = [...document.querySelectorAll("svg[data-figure]")].map((svg) => new kinds[svg.dataset.figure](svg));
    const update = () => readers.forEach((reader) => { reader.show(null); reader.update(); });
    page.onChange(update);
    const lines = new Map();
    for (const path of document.querySelectorAll("svg [data-r]")) {
      if (!lines.has(path.dataset.r)) lines.set(path.dataset.r, []);
      lines.get(path.dataset.r).push(path);
    }
    let lit = null;
    page.onLight((run) => {
      for (const path of lines.get(String(lit)) || []) path.classList.remove("on");
      for (const path of lines.get(String(run)) || []) path.classList.add("on");
      lit = run;
    });
  };
  return { start, kinds, Lines };
})();
