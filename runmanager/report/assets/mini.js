// A small figure of a few curves: the metrics of one run that end alike, or one metric of two runs.
const mini = (title, lines, resumed) => {
  const { short, drawn, element, data } = page;
  const [LEFT, RIGHT, TOP, BASE] = [44, 290, 12, 150];
  const curves = lines.map(([, label, [values, epochs]]) => (
    { label, points: values.map((value, n) => [epochs ? epochs[n] : n + 1, value]) }));
  const [[first, last], [low, high]] = [0, 1].map((n) => {
    const all = curves.flatMap(({ points }) => points.map((point) => point[n]));
    return [Math.min(...all), Math.max(...all)];
  });
  const x = reading.scaleOf(first, last, LEFT, RIGHT, false);
  const y = reading.scaleOf(low, high, BASE, TOP, low > 0 && high / low > 100);
  const words = curves.map(({ label, points }) => `${label} from ${short(points[0][1])} to ${short(points.at(-1)[1])}`).join("; ");
  const svg = drawn("svg", { viewBox: "0 0 400 176", class: "figure", role: "img", "aria-label": `${title}: ${words}` });
  const draw = (kind, d) => svg.append(drawn("path", { class: kind, d }));
  const write = (text, attributes) => svg.append(drawn("text", attributes, text));
  for (const end of new Set([low, high])) {
    draw("grid", `M${LEFT} ${y.at(end)}H${RIGHT}`);
    write(short(end), { x: LEFT - 6, y: y.at(end) + 4, "text-anchor": "end" });
  }
  for (const epoch of resumed) draw("pause", `M${x.at(epoch)} ${TOP}V${BASE}`);
  curves.forEach(({ label, points }, n) => {
    const color = n ? "c3" : "c1";
    draw(`run ${color}${n ? " second" : ""}`, reading.line(points.map(([epoch, value]) => ({ x: x.at(epoch), y: y.at(value) }))));
    draw(`swatch ${color}`, `M298 ${20 + 15 * n}h12`);
    write(label, { x: 316, y: 24 + 15 * n, class: `end ${color}` });
  });
  const range = first === last ? short(first) : `${short(first)} to ${short(last)}`;
  write(`${data.x} ${range}`, { x: (LEFT + RIGHT) / 2, y: 172, class: "name", "text-anchor": "middle" });
  return element("figure", {}, element("figcaption", {}, title), svg);
};
