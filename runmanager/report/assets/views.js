// The view of one run, or of two side by side, opened from the table, a figure or the address #run-7?with=run-9.
const views = (() => {
  const { data, runs, name, label, short, element, link } = page;
  const MOST = 300; // runs that can be chosen as the second
  const dialog = document.getElementById("view");
  const addresses = new Map(runs.map((run) => [page.address(run), run]));
  let second = null; // the run beside the one that is open

  const part = (title, ...children) => element("section", {}, element("h3", {}, title), ...children);
  const command = (text) => element("pre", { tabindex: "0" }, `runmanager ${text}`);
  const list = (pairs) => element("dl", { class: "facts" }, ...pairs.map(([key, value]) => (
    element("div", {}, element("dt", {}, key), element("dd", {}, value)))));
  const table = (title, heads, rows) => part(title,
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title },
      element("table", { class: "plain" },
        element("thead", {}, element("tr", {}, ...heads.map((head, n) => element("th", { scope: "col", class: n ? "number" : "" }, head)))),
        element("tbody", {}, ...rows.map(([first, ...others]) => element("tr", {}, element("th", { scope: "row" }, first),
          ...others.map((each) => element("td", { class: "number" }, each))))))));
  const gapOf = (metric, from, to) => {
    if (![from, to].every(Number.isFinite)) return "";
    const gap = to - from;
    const words = { 1: ", better", "-1": ", worse" }[page.sign(metric) * Math.sign(gap)] || "";
    return `${gap > 0 ? "+" : gap < 0 ? "−" : "±"}${short(Math.abs(gap))}${words}`;
  };
  const statusOf = (run) => {
    const status = page.columns.get("status")[run];
    const score = data.scores[run] === null ? "" : `, ${data.metric} ${short(data.scores[run])}`;
    return [element("span", { class: `status ${status === "completed" ? "good" : ""}` }, status), score];
  };
  const choice = (run, other) => {
    const others = [...new Set([...data.order, ...runs])].filter((each) => each !== run && each !== other).slice(0, MOST);
    const field = element("select", {}, other === null ? element("option", {}, "") : "", ...(other === null ? others : [other, ...others])
      .map((each) => element("option", { value: each }, `${name(each)}: ${page.settings(each)}`)));
    field.addEventListener("change", () => open(run, Number(field.value)));
    return element("p", { class: "tools" }, element("label", {}, "Compare with ", field));
  };

  // the curves of a run by metric: from the figures of the page, then from its view
  const curvesOf = (run) => [
    ...Object.entries(data.curves).map(([metric, lines]) => [metric, lines[run]]),
    ...Object.entries(data.views[run] ? data.views[run].curves : {}),
  ].filter(([metric, curve]) => curve && curve[0].length > 1 && !metric.endsWith("duration"));
  // one figure for each title; each line is [title, label, curve]
  const minis = (lines, resumed = []) => {
    const titles = [...new Set(lines.map(([title]) => title))];
    return lines.length ? [part("Curves", element("div", { class: "minis" }, ...titles.map((title) => (
      mini(title, lines.filter(([each]) => each === title), resumed)))))] : [];
  };
  const neighbours = (run) => runs.flatMap((other) => {
    const differing = data.axes.filter((axis) => axis.codes[other] !== axis.codes[run]);
    return other !== run && differing.length === 1 ? [[differing[0], other]] : [];
  }).sort(([a, x], [b, y]) => data.axes.indexOf(a) - data.axes.indexOf(b) || a.codes[x] - b.codes[y]).slice(0, 40)
    .map(([axis, other]) => [link(other), `${axis.name} ${label(axis, other)} instead of ${label(axis, run)}`,
      short(data.scores[other]) || page.columns.get("status")[other], gapOf(data.metric, data.scores[run], data.scores[other])]);

  const pair = (run, other) => {
    const heads = ["name", name(run), name(other)];
    const settings = data.axes.map((axis) => [axis.name, label(axis, run), label(axis, other)]).filter(([, x, y]) => x !== y);
    const metrics = data.heads.filter(({ name: each, kind }) => kind === "number" && !data.axes.some((axis) => axis.name === each));
    const results = metrics.map(({ name: each }) => {
      const [x, y] = [run, other].map((which) => (each === data.metric ? data.scores : page.columns.get(each))[which]);
      return [each, short(x), short(y), gapOf(each, x, y)];
    });
    const lines = [run, other].flatMap((each) => curvesOf(each).map(([metric, curve]) => [metric, name(each), curve]));
    lines.sort(([a], [b]) => (b === data.metric) - (a === data.metric)); // the goal first
    return [
      ...[run, other].map((each) => element("p", {}, link(each), ": ", ...statusOf(each))),
      choice(run, other), table("Settings that differ", heads, settings), table("Results", [...heads, "difference"], results),
      ...minis(lines), data.homes ? command(`diff ${page.folder(run)} ${page.folder(other)}`) : ""];
  };
  const content = (run) => {
    const view = data.views[run];
    const parts = [element("p", {}, ...statusOf(run)), choice(run, null)];
    const error = page.columns.get("error")[run];
    if (data.axes.length) parts.push(part("Hyperparameters", list(data.axes.map((axis) => [axis.name, label(axis, run)]))));
    if (view && error) {
      parts.push(part("What went wrong", element("p", {}, error), view.next ? element("p", {}, `Next: ${view.next}`) : "",
        view.log ? element("pre", { tabindex: "0" }, view.log) : ""));
    }
    parts.push(...minis(curvesOf(run).map(([metric, curve]) => [metric.split("_").at(-1), metric, curve]), view ? view.resumed : []));
    if (view && view.resumed.length) {
      parts.push(element("p", { class: "note" }, `Resumed at ${data.x} ${view.resumed.join(", ")}: the dashed line.`));
    }
    const rows = neighbours(run);
    if (rows.length) parts.push(table("Runs that differ in one hyperparameter", ["run", "difference", data.metric, "gap"], rows));
    if (view && data.homes) {
      const facts = { ...view.facts };
      for (const each of ["epochs", "attempts", "folder"].filter((key) => page.columns.has(key))) facts[each] = page.columns.get(each)[run];
      parts.push(part("How it was executed", list(Object.entries(facts))));
    } else if (!view) parts.push(element("p", { class: "note" }, `This page has everything of the best ${Object.keys(data.views).length} runs. Of this one:`));
    return [...parts, data.homes ? command(`show ${page.folder(run)}`) : ""];
  };

  const open = (run, other = null) => {
    second = other;
    const title = document.getElementById("view-title");
    title.textContent = other === null ? name(run) : `${name(run)} and ${name(other)}`;
    document.getElementById("view-parts").replaceChildren(...(other === null ? content(run) : pair(run, other)));
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    title.focus();
    address.write(page.address(run));
  };
  address.keep("with", () => (second === null ? [] : [page.address(second)]), ([text]) => {
    second = addresses.get(text) ?? null;
  });
  address.onFollow((anchor, hasChoices) => {
    const run = addresses.get(anchor);
    if (run !== undefined) open(run, hasChoices && second !== run ? second : null);
    else dialog.close();
  });
  dialog.addEventListener("close", () => {
    second = null;
    if (addresses.has(address.anchor())) address.write("");
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  return { open };
})();
