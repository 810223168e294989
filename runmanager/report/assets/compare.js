"use strict";
// Two runs side by side: what differs in their settings, their results, and their curves over each other.
const compare = (() => {
  const { data, runs, name, label, short, element } = page;
  const MOST_NAMED = 200; // runs that the field suggests

  const part = (title, ...children) => element("section", {}, element("h3", {}, title), ...children);
  const table = (title, heads, rows) => {
    const cells = heads.map((head, n) => element("th", { scope: "col", class: n ? "number" : "" }, head));
    return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title },
      element("table", { class: "plain" }, element("caption", { class: "hidden" }, title),
        element("thead", {}, element("tr", {}, ...cells)),
        element("tbody", {}, ...rows.map(([first, ...others]) => element("tr", {}, element("th", { scope: "row" }, first),
          ...others.map((text) => element("td", { class: "number" }, text)))))));
  };
  // the rows of which the texts differ: of two objects, or of all axes
  const differing = (a, b) => [...new Set([...Object.keys(a), ...Object.keys(b)])]
    .map((key) => [key, a[key] === undefined ? "" : a[key], b[key] === undefined ? "" : b[key]])
    .filter(([, x, y]) => x !== y);
  const paramsOf = (run) => (data.views[run] ? data.views[run].params
    : Object.fromEntries(data.axes.map((axis) => [axis.name, label(axis, run)])));
  const settings = (run, other) => {
    const isWhole = data.views[run] && data.views[other];
    return isWhole ? differing(paramsOf(run), paramsOf(other))
      : data.axes.map((axis) => [axis.name, label(axis, run), label(axis, other)]).filter(([, x, y]) => x !== y);
  };

  const results = (run, other) => {
    const status = page.columns.get("status");
    const rows = status[run] === status[other] ? [] : [["status", status[run], status[other], ""]];
    const isSetting = (head) => data.axes.some((axis) => axis.name === head);
    const numbers = new Map([[data.metric, data.scores]]);
    for (const { name: head, kind } of data.heads) {
      if (kind === "number" && !isSetting(head) && page.columns.has(head) && head !== data.metric) numbers.set(head, page.columns.get(head));
    }
    for (const [head, values] of numbers) {
      const [x, y] = [values[run], values[other]];
      const hasBoth = [x, y].every((each) => typeof each === "number" && !Number.isNaN(each));
      const gap = hasBoth ? y - x : 0;
      const sign = page.sign(head) * Math.sign(gap);
      const words = sign ? `, ${sign > 0 ? "better" : "worse"}` : "";
      rows.push([head, short(x), short(y), hasBoth ? `${gap > 0 ? "+" : gap < 0 ? "−" : "±"}${short(Math.abs(gap))}${words}` : ""]);
    }
    return rows;
  };

  // from the view of each run, or from the figures of the page
  const curvesOf = (run) => {
    if (data.views[run]) return data.views[run].curves;
    return Object.fromEntries(Object.entries(data.curves).filter(([, lines]) => lines[run]).map(([metric, lines]) => [metric, lines[run]]));
  };
  const figures = (run, other) => {
    const [a, b] = [curvesOf(run), curvesOf(other)];
    const metrics = [...new Set([...Object.keys(a), ...Object.keys(b)])].filter((metric) => !metric.endsWith("duration"));
    const rank = (metric) => data.heads.findIndex((head) => head.name === metric) + 1 || Infinity;
    metrics.sort((x, y) => rank(x) - rank(y) || 0); // as in the table
    return metrics.map((metric) => element("figure", {}, element("figcaption", {}, metric),
      mini(metric, [[run, a], [other, b]].filter(([, curves]) => curves[metric]).map(([each, curves]) => (
        { name: name(each), label: name(each), metric, curve: curves[metric] })))));
  };

  const parts = (run, other) => {
    const heads = [name(run), name(other)];
    const rows = settings(run, other);
    const made = [part("Settings that differ", rows.length ? table("Settings that differ", ["", ...heads], rows)
      : element("p", {}, "Both have the same hyperparameters."))];
    made.push(part("Results", table("Results", ["", ...heads, "difference"], results(run, other))));
    const drawn = figures(run, other);
    if (drawn.length) made.push(part("Curves", element("div", { class: "minis" }, ...drawn)));
    const [a, b] = [data.views[run], data.views[other]];
    if (a && b) {
      const facts = differing({ ...a.facts, ...a.versions, error: a.error }, { ...b.facts, ...b.versions, error: b.error });
      made.push(part("How they were executed", facts.length ? table("How they were executed", ["", ...heads], facts)
        : element("p", {}, "Command, commit, machine, device and versions are the same.")));
    } else {
      made.push(element("p", { class: "note" }, `This page has everything of the best ${Object.keys(data.views).length} runs. Of these two:`));
    }
    made.push(element("pre", { tabindex: "0" }, `runmanager diff ${page.folder(run)} ${page.folder(other)}`));
    return made;
  };

  // the field that chooses the second run, by its number or name
  const choice = (run, other, open) => {
    const field = element("input", { list: "all-runs", id: "second", autocomplete: "off", "aria-describedby": "no-run",
      placeholder: "a run's number" });
    if (other !== null) field.value = name(other);
    const note = element("span", { id: "no-run", role: "status", class: "bad" });
    const others = [...data.order, ...runs.filter((each) => !data.order.includes(each))].filter((each) => each !== run);
    const list = element("datalist", { id: "all-runs" }, ...others.slice(0, MOST_NAMED).map((each) => (
      element("option", { value: name(each) }, page.settings(each)))));
    const form = element("form", { class: "tools choice" }, element("label", {}, "Compare with ", field),
      element("button", { type: "submit" }, "Compare"), list, note);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = field.value.trim();
      const chosen = runs.find((each) => [name(each), name(each).replace(/^run /, "")].includes(text));
      if (chosen === undefined || chosen === run) {
        note.textContent = chosen === run ? `This is ${name(run)}; choose another one.` : `There is no run '${text}'.`;
        field.setAttribute("aria-invalid", "true");
      } else open(run, chosen);
    });
    return form;
  };
  return { parts, choice };
})();
