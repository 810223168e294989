"use strict";
// What the page is about, and which of its runs are visible: those that the filter and the legend leave.
const page = (() => {
  const data = JSON.parse(document.getElementById("page-data").textContent);
  const runs = [...data.scores.keys()];
  const value = (each) => (each && each.number !== undefined ? Number(each.number.replace("inf", "Infinity")) : each);
  const unpacked = ({ all, values, codes }) => {
    if (all) return all.map(value);
    const distinct = values.map(value);
    return runs.map((run) => distinct[codes.length ? codes[run] : 0]);
  };
  const columns = new Map(Object.entries(data.columns).map(([name, column]) => [name, unpacked(column)]));
  const name = (run) => (typeof data.names[run] === "number" ? `run ${data.names[run]}` : data.names[run]);
  const address = (run) => name(run).replace(/[^\w.-]+/g, "-");
  const homes = data.homes && unpacked(data.homes); // null for a table from elsewhere, which has no folders
  const number = (run) => (typeof data.names[run] === "number" ? data.names[run] : data.names[run].split("run ").at(-1));
  const quoted = (text) => (/^[\w./@%+=:,-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);
  const folder = (run) => quoted(`${homes[run]}/${number(run)}`); // as the command takes it
  const label = (axis, run) => axis.labels[axis.codes[run]];
  const settings = (run) => data.axes.map((axis) => `${axis.name} ${label(axis, run)}`).join(", ");
  // whether large values are good: 1, -1, or 0 if nobody knows
  const sign = (metric) => {
    if ([metric, `kept ${metric}`].includes(data.metric)) return data.larger ? 1 : -1;
    return metric.endsWith("loss") ? -1 : metric.endsWith("accuracy") ? 1 : 0;
  };
  const short = (number) => (number === null || number === undefined || Number.isNaN(number) ? ""
    : String(Number(number.toPrecision(4))));
  const making = (space) => (tag, attributes = {}, ...children) => {
    const made = document.createElementNS(`http://www.w3.org/${space}`, tag);
    for (const [key, each] of Object.entries(attributes)) made.setAttribute(key, each);
    made.append(...children);
    return made;
  };
  const element = making("1999/xhtml");
  const drawn = making("2000/svg");

  const state = {
    filter: null, // a function of a run
    hidden: new Set(), // codes of the colored axis
    colored: data.axes.find((axis) => axis.name === data.colored) || null,
    lit: null,
  };
  const changed = []; // called when other runs are visible
  const colors = []; // called when another axis has the colors
  const lights = []; // called with a run, or null
  let visible = runs.map(() => true);
  let isHeld = false;

  const update = () => {
    if (isHeld) return;
    const tests = [];
    if (state.filter) tests.push(state.filter);
    if (state.hidden.size) tests.push((run) => !state.hidden.has(state.colored.codes[run]));
    visible = runs.map((run) => tests.every((test) => test(run)));
    changed.forEach((each) => each());
  };
  // several choices, of which the figures are drawn once
  const batch = (action) => {
    isHeld = true;
    action();
    isHeld = false;
    update();
  };
  const light = (run) => {
    if (run === state.lit) return;
    state.lit = run;
    lights.forEach((each) => each(run));
  };
  return {
    data, runs, columns, name, address, folder, sign, label, settings, short, element, drawn, state, update, batch, light,
    isVisible: (run) => visible[run],
    isFiltered: () => visible.includes(false),
    color: (run) => (state.colored ? state.colored.colors[state.colored.codes[run]] : "c1"),
    onChange: (each) => changed.push(each),
    onColor: (each) => colors.push(each),
    onLight: (each) => lights.push(each),
    recolor: (axis) => {
      state.colored = axis;
      state.hidden.clear();
      colors.forEach((each) => each());
      update();
    },
  };
})();
