"use strict";
// Brushing in parallel coordinates: a range of an axis, by pointer or keys, leaves the runs that pass through it.
const brushes = (() => {
  const { data, drawn, state } = page;
  const scores = data.scores.filter((score) => score !== null);
  const [least, most] = [scores.reduce((a, b) => Math.min(a, b), Infinity), scores.reduce((a, b) => Math.max(a, b), -Infinity)];

  const add = ({ svg, xs }) => {
    const [top, base, lost] = svg.dataset.span.split(" ").map(Number);
    const names = svg.dataset.axes.split("|");
    xs.forEach((x, number) => {
      const axis = number ? data.axes.find((each) => each.name === names[number]) : null;
      const last = axis ? axis.labels.length - 1 : 10;
      const half = axis ? Math.min(13, 0.3 * (base - top) / Math.max(1, last)) : 0;
      const heightOf = (code) => base + (code / Math.max(1, last)) * (top - base);
      const scoreAt = (y) => least + (base - y) / (base - top) * (most - least);
      const at = (run) => {
        if (axis) return heightOf(axis.codes[run]);
        return data.scores[run] === null ? lost : base - (data.scores[run] - least) / (most - least || 1) * (base - top);
      };
      const group = drawn("g", { class: "brush", tabindex: 0, role: "slider", "aria-orientation": "vertical",
        "aria-label": `Brush ${number ? names[number] : data.metric}`, "aria-valuemin": 0, "aria-valuemax": last });
      const hit = drawn("rect", { class: "hit", x: x - 14, y: top - 16, width: 28, height: lost - top + 26 });
      const band = drawn("rect", { class: "range", x: x - 6, width: 12, visibility: "hidden" });
      group.append(hit, band);
      svg.append(group);
      let range = null; // heights
      let codes = null; // first and last, of the keys

      const words = () => {
        if (!range) return "all runs";
        if (axis) {
          const chosen = axis.labels.filter((_, code) => heightOf(code) + half >= range[0] && heightOf(code) - half <= range[1]);
          return chosen.length ? chosen.join(", ") : "no value";
        }
        return range[0] > base + 10 ? "runs without a score"
          : `${page.short(scoreAt(Math.min(range[1], base)))} to ${page.short(scoreAt(Math.max(range[0], top)))}`;
      };
      const set = (next) => {
        range = next;
        band.setAttribute("visibility", range ? "visible" : "hidden");
        if (range) {
          band.setAttribute("y", range[0]);
          band.setAttribute("height", Math.max(4, range[1] - range[0]));
          state.brushes.set(names[number], (run) => at(run) + half >= range[0] && at(run) - half <= range[1]);
        } else state.brushes.delete(names[number]);
        group.setAttribute("aria-valuetext", words());
        group.setAttribute("aria-valuenow", codes ? codes[1] : 0);
        page.update();
      };
      const clear = () => {
        codes = null;
        if (range) set(null);
      };
      group.setAttribute("aria-valuetext", "all runs");
      group.setAttribute("aria-valuenow", 0);

      let from = null;
      const heightAt = (event) => (
        new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse()).y);
      hit.addEventListener("pointerdown", (event) => {
        from = heightAt(event);
        hit.setPointerCapture(event.pointerId);
      });
      hit.addEventListener("pointermove", (event) => {
        if (from === null) return;
        const to = heightAt(event);
        if (Math.abs(to - from) > 3) set([Math.min(from, to), Math.max(from, to)]);
      });
      hit.addEventListener("pointerup", (event) => {
        if (from !== null && Math.abs(heightAt(event) - from) <= 3) clear();
        from = null;
      });
      group.addEventListener("keydown", (event) => {
        const step = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1 }[event.key];
        if (step) {
          event.preventDefault();
          const end = codes ? Math.max(0, Math.min(last, codes[1] + step)) : step > 0 ? 0 : last;
          codes = [event.shiftKey && codes ? codes[0] : end, end];
          const [a, b] = [heightOf(Math.max(...codes)), heightOf(Math.min(...codes))];
          const room = axis ? 3 : (base - top) / 20;
          set([a - room, b + room]);
        } else if (["Escape", "Delete", "Backspace"].includes(event.key)) clear();
      });
      clears.push(clear);
    });
  };
  const clears = [];
  return { add, clear: () => clears.forEach((clear) => clear()) };
})();
