"use strict";
// Brushing in parallel coordinates: a range of an axis, by pointer or keys, leaves the runs that pass through it.
const brushes = (() => {
  const { data, drawn, state } = page;
  const scores = data.scores.filter((score) => score !== null);
  const [least, most] = [scores.reduce((a, b) => Math.min(a, b), Infinity), scores.reduce((a, b) => Math.max(a, b), -Infinity)];

  const add = ({ svg, xs }) => {
    const [top, base, lost] = svg.dataset.span.split(" ").map(Number);
    const names = svg.dataset.axes.split("|");
    const heights = svg.dataset.heights.split("|").map((each) => each.split(" ").map(Number));
    xs.forEach((x, number) => {
      const axis = number ? data.axes.find((each) => each.name === names[number]) : null;
      const last = axis ? axis.labels.length - 1 : 10;
      const half = axis ? Math.min(13, 0.3 * (base - top) / Math.max(1, last)) : 0;
      const heightOf = (code) => (axis ? heights[number - 1][code] : base + (code / last) * (top - base));
      const scoreAt = (y) => least + (base - y) / (base - top) * (most - least);
      const heightAtScore = (score) => base - (score - least) / (most - least || 1) * (base - top);
      const at = (run) => {
        if (axis) return heightOf(axis.codes[run]);
        return data.scores[run] === null ? lost : heightAtScore(data.scores[run]);
      };
      const group = drawn("g", { class: "brush", tabindex: 0, role: "slider", "aria-orientation": "vertical",
        "aria-label": `Brush ${names[number]}`, id: `brush-${number}`, "aria-valuemin": 0, "aria-valuemax": last });
      const hit = drawn("rect", { class: "hit", x: x - 14, y: top - 16, width: 28, height: lost - top + 26 });
      const band = drawn("rect", { class: "range", x: x - 6, width: 12, visibility: "hidden" });
      group.append(hit, band);
      svg.append(group);
      let range = null; // heights
      let codes = null; // first and last, of the keys
      const isIn = (code) => heightOf(code) + half >= range[0] && heightOf(code) - half <= range[1];
      const hasLost = () => range[1] >= lost;
      const hasScores = () => range[0] <= base;
      const lowest = () => (range[1] >= base ? -Infinity : scoreAt(range[1]));
      const highest = () => (range[0] <= top ? Infinity : scoreAt(range[0]));
      const heightOfText = (text) => (text === "none" ? lost + 8 : Math.max(top - 6, Math.min(base + 6, heightAtScore(Number(text)))));

      // what is brushed: values of an axis; or the ends of scores, "none" for runs without one
      const texts = () => {
        if (!range) return [];
        if (axis) return axis.labels.filter((_, code) => isIn(code));
        if (!hasScores()) return ["none"];
        return [hasLost() ? "none" : String(Number(lowest().toPrecision(6))), String(Number(highest().toPrecision(6)))];
      };
      const words = () => {
        if (!range) return "all runs";
        if (axis) return texts().join(", ");
        if (!hasScores()) return "runs without a score";
        return `${hasLost() ? "no score" : page.short(Math.max(lowest(), least))} to ${page.short(Math.min(highest(), most))}`;
      };
      const set = (next) => {
        range = next;
        if (range && !(axis ? texts().length : hasLost() || hasScores())) range = null; // there is nothing
        band.setAttribute("visibility", range ? "visible" : "hidden");
        if (range) {
          band.setAttribute("y", range[0]);
          band.setAttribute("height", Math.max(4, range[1] - range[0]));
          const [low, high] = [...range];
          state.brushes.set(names[number], (run) => at(run) + half >= low && at(run) - half <= high);
        } else state.brushes.delete(names[number]);
        group.setAttribute("aria-valuetext", words());
        group.setAttribute("aria-valuenow", codes ? codes[1] : 0);
        page.update();
      };
      const setCodes = (next) => {
        codes = next;
        const room = axis ? Math.min(3, half / 2) : (base - top) / 20;
        set([heightOf(Math.max(...codes)) - room, heightOf(Math.min(...codes)) + room]);
      };
      const setTexts = (chosen) => {
        codes = null;
        const numbers = chosen.map(axis ? (label) => axis.labels.indexOf(label) : heightOfText).filter((each) => each >= 0);
        if (!numbers.length) clear();
        else if (axis) setCodes([Math.min(...numbers), Math.max(...numbers)]);
        else set(numbers.length === 1 ? [lost - 8, lost + 8] : [numbers[1], numbers[0]]);
      };
      const clear = () => {
        codes = null;
        if (range) set(null);
      };
      address.keep(axis ? `brush.${names[number]}` : "score", texts, setTexts);
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
          setCodes([event.shiftKey && codes ? codes[0] : end, end]);
        } else if (["Escape", "Delete", "Backspace"].includes(event.key)) clear();
      });
      clears.push(clear);
    });
  };
  const clears = [];
  return { add, clear: () => clears.forEach((clear) => clear()) };
})();
