// What the page is about, and which of its runs are visible: those that the filter and the legend leave.
const page = (() => {
  const data = JSON.parse(document.getElementById("page-data").textContent);
  const runs = [...data.scores.keys()];
  const value = (each) => (each && each.number !== undefined ? Number(each.number.replace("inf", "Infinity")) : each);
  const unpacked = ({ all, values, codes }) => (
    (all || runs.map((run) => values[codes.length ? codes[run] : 0])).map(value));
  const columns = new Map(Object.entries(data.columns).map(([name, column]) => [name, unpacked(column)]));
  const name = (run) => (typeof data.names[run] === "number" ? `run ${data.names[run]}` : data.names[run]);
  const address = (run) => name(run).replace(/[^\w.-]+/g, "-");
  const homes = data.homes && unpacked(data.homes); // null for a table from elsewhere, which has no folders
  const quoted = (text) => (/^[\w./@%+=:,-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);
  const folder = (run) => quoted(`${homes[run]}/${name(run).split("run ").at(-1)}`); // as the command takes it
  const label = (axis, run) => axis.labels[axis.codes[run]];
  const settings = (run) => data.axes.map((axis) => `${axis.name} ${label(axis, run)}`).join(", ");
  // whether large values are good: 1, -1, or 0 if nobody knows
  const sign = (metric) => {
    if ([metric, `kept ${metric}`].includes(data.metric)) return data.larger ? 1 : -1;
    return metric.endsWith("loss") ? -1 : metric.endsWith("accuracy") ? 1 : 0;
  };
  const short = (number) => (Number.isNaN(number ?? NaN) ? "" : String(Number(number.toPrecision(4))));
  const making = (space) => (tag, attributes = {}, ...children) => {
    const made = document.createElementNS(`http://www.w3.org/${space}`, tag);
    for (const [key, each] of Object.entries(attributes)) made.setAttribute(key, each);
    made.append(...children);
    return made;
  };
  const element = making("1999/xhtml");
  const drawn = making("2000/svg");
  const link = (run) => element("a", { href: `#${address(run)}` }, name(run));

  const state = {
    filter: () => true, // whether the filter leaves a run
    hidden: new Set(), // codes of the colored axis
    colored: data.axes.find((axis) => axis.name === data.colored) || null,
    lit: null,
  };
  const changed = []; // called when other runs are visible, or another axis has the colors
  let visible = runs.map(() => true);
  const update = () => {
    visible = runs.map((run) => state.filter(run) && !(state.colored && state.hidden.has(state.colored.codes[run])));
    changed.forEach((each) => each());
  };
  const light = (run) => {
    if (run === state.lit) return;
    state.lit = run;
    for (const each of document.querySelectorAll(".on")) each.classList.remove("on");
    for (const each of document.querySelectorAll(`[data-r="${run}"]`)) each.classList.add("on");
  };
  const recolor = (axis) => {
    state.colored = axis;
    state.hidden.clear();
    update();
  };
  return {
    data, runs, columns, name, address, folder, sign, label, settings, short, element, drawn, link, state, update, light, recolor,
    isVisible: (run) => visible[run],
    isFiltered: () => visible.includes(false),
    color: (run) => (state.colored ? state.colored.colors[state.colored.codes[run]] : "c1"),
    onChange: (each) => changed.push(each),
  };
})();
