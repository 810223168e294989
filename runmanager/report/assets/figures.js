// The kinds of figures: what of each is visible, which color it has, and which marks can be read.
const figures = (() => {
  const { data, short, drawn, isVisible } = page;
  const { Reader, numbers, indices, marksOf, written, scaleOf, line } = reading;
  const MANY = 100; // lines that are visible at once
  const COLOR = /\b[co]\d\b/;
  const recolor = (path, run) => {
    path.setAttribute("class", path.getAttribute("class").replace(COLOR, page.color(run)));
  };
  const hide = (path, isGone) => path.classList.toggle("gone", isGone);

  // a dot or a bar for each run
  class Points extends Reader {
    constructor(svg) {
      super(svg);
      this.paths = [...svg.querySelectorAll("path.dots, path.bar")];
      this.all = this.paths.flatMap(marksOf);
      this.layer = svg.querySelector("[clip-path]");
    }

    marks() { return this.all.filter((mark) => isVisible(mark.run)); }

    update() {
      if (this.svg.dataset.figure === "points") {
        const groups = Map.groupBy(this.marks(), (mark) => page.color(mark.run));
        this.paths.forEach((path) => path.remove());
        this.paths = [...groups].map(([color, group]) => drawn("path", { class: `dots ${color}`, d: written(group) }));
        this.layer.prepend(...this.paths);
      } else {
        for (const path of this.paths) {
          hide(path, !isVisible(indices(path)[0]));
          recolor(path, indices(path)[0]);
        }
      }
      for (const path of this.svg.querySelectorAll(".cross, .halo")) hide(path, !isVisible(Number(path.dataset.r)));
      // means are of all runs
      for (const path of this.svg.querySelectorAll(".mean, .trend, .front, .value")) hide(path, page.isFiltered());
    }
  }

  // a line for each run
  class Curves extends Reader {
    constructor(svg) {
      super(svg);
      const { metric, x, y } = svg.dataset;
      this.metric = metric;
      this.curves = data.curves[metric] || {};
      this.x = scaleOf(...numbers(x));
      this.y = scaleOf(...numbers(y));
      this.paths = [...svg.querySelectorAll("path[data-r]")];
      this.layer = svg.querySelector("[clip-path]");
      this.extra = []; // lines of runs that are not in the file's figure
      this.groups = [...svg.querySelectorAll("path.band, path.middle")].map((path) => ({ path, runs: indices(path) }));
      this.inFile = new Set([...svg.querySelectorAll("path.run")].map((path) => Number(path.dataset.r)));
      this.seen = [...this.inFile];
    }

    points(run) {
      const [values, epochs] = this.curves[run];
      return values.map((value, n) => {
        const epoch = epochs ? epochs[n] : n + 1;
        return { run, value, epoch, x: this.x.at(epoch), y: this.y.at(value) };
      });
    }

    // the last epoch of a run is its first mark
    marks() { return this.seen.flatMap((run) => this.points(run).reverse()); }

    beside(isAcross) {
      const { run, epoch } = this.current;
      return this.marks().filter((mark) => (isAcross ? mark.run === run : mark.epoch === epoch));
    }

    words(mark) { return `${data.x} ${mark.epoch}: ${this.metric} ${short(mark.value)}`; }

    update() {
      const left = Object.keys(this.curves).map(Number).filter(isVisible);
      const isAll = page.isFiltered() && left.length <= MANY;
      this.seen = left.filter((run) => isAll || this.inFile.has(run));
      const extra = this.seen.filter((run) => !this.inFile.has(run));
      this.extra.forEach((path) => path.remove());
      this.extra = extra.map((run) => drawn("path", { class: `run ${page.color(run)}`, d: line(this.points(run)), "data-r": run }));
      this.layer.prepend(...this.extra); // behind the others
      const seen = new Set(this.seen);
      for (const path of this.paths) {
        const run = Number(path.dataset.r);
        hide(path, !seen.has(run));
        recolor(path, run);
      }
      const { colored } = page.state;
      for (const { path, runs } of this.groups) {
        const isOne = colored && runs.every((run) => colored.codes[run] === colored.codes[runs[0]]);
        hide(path, !isOne || !runs.every(isVisible));
        recolor(path, runs[0]);
      }
      for (const label of this.svg.querySelectorAll(".end")) hide(label, !seen.has(data.order[0]));
    }
  }

  const kinds = { points: Points, bars: Points, curves: Curves };
  const start = () => {
    const readers = [...document.querySelectorAll("svg[data-figure]")].map((svg) => new kinds[svg.dataset.figure](svg));
    page.onChange(() => readers.forEach((reader) => { reader.show(null); reader.update(); }));
  };
  return { start };
})();
