"use strict";
// A small figure of a few curves: the metrics of one run that end alike, or one metric of two runs.
const mini = (title, lines, resumed = []) => {
  const { short, drawn, data } = page;
  const [LEFT, RIGHT, TOP, BASE] = [44, 290, 12, 150];
  const curves = lines.map(({ name, label, metric, curve: [values, epochs] }) => (
    { name, label, metric, points: values.map((value, n) => [epochs ? epochs[n] : n + 1, value]) }));
  const all = curves.flatMap(({ points }) => points);
  const values = all.map(([, value]) => value);
  const [first, last] = [Math.min(...all.map(([epoch]) => epoch)), Math.max(...all.map(([epoch]) => epoch))];
  const low = Math.min(...values);
  const high = Math.max(...values) === low ? low + 1 : Math.max(...values);
  const isLog = low > 0 && high / low > 100;
  const x = reading.scaleOf(first, last === first ? first + 1 : last, LEFT, RIGHT, false);
  const y = reading.scaleOf(low, high, BASE, TOP, isLog);
  const words = curves.map(({ name, points }) => `${name} from ${short(points[0][1])} to ${short(points.at(-1)[1])}`).join("; ");
  const svg = drawn("svg", { viewBox: "0 0 400 176", class: "figure", role: "img", "aria-label": `${title}: ${words}` });
  const write = (text, attributes) => {
    const made = drawn("text", attributes);
    made.textContent = text;
    svg.append(made);
  };
  for (const tick of reading.ticks(low, high, isLog)) {
    svg.append(drawn("path", { class: "grid", d: `M${LEFT} ${y.at(tick)}H${RIGHT}` }));
    write(short(tick), { x: LEFT - 6, y: y.at(tick) + 4, "text-anchor": "end" });
  }
  for (const epoch of resumed) svg.append(drawn("path", { class: "pause", d: `M${x.at(epoch)} ${TOP}V${BASE}` }));
  curves.forEach(({ label, metric, points }, n) => {
    const color = n ? "c3" : "c1";
    svg.append(drawn("path", { class: `run ${color} on-card${n ? " second" : ""}`, d: points.map(([epoch, value], k) => (
      `${k ? "L" : "M"}${x.at(epoch).toFixed(1)} ${y.at(value).toFixed(1)}`)).join("") + (points.length > 1 ? "" : "h0") }));
    const sign = page.sign(metric) || 1;
    const [epoch, value] = points.reduce((a, b) => (sign * b[1] > sign * a[1] ? b : a));
    svg.append(drawn("path", { class: `peak ${color}`, d: `M${x.at(epoch)} ${y.at(value)}h0` }));
    svg.append(drawn("path", { class: `swatch ${color}`, d: `M298 ${20 + 15 * n}h12` }));
    write(label, { x: 316, y: 24 + 15 * n, class: `end ${color}` });
  });
  write(first === last ? `${data.x} ${short(first)}` : `${data.x} ${short(first)} to ${short(last)}`, { x: (LEFT + RIGHT) / 2, y: 172, class: "name", "text-anchor": "middle" });
  return svg;
};
