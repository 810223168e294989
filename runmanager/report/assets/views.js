"use strict";
// The view of one run, or of two side by side, opened from the table, a figure or the address #run-7.
const views = (() => {
  const { data, runs, name, label, short, element } = page;
  const dialog = document.getElementById("view");
  const addresses = new Map(runs.map((run) => [page.address(run), run]));
  let second = null; // the run beside the one that is open
  const sign = data.larger ? 1 : -1;
  const list = (pairs) => element("dl", { class: "facts" }, ...pairs.map(([key, value]) => (
    element("div", {}, element("dt", {}, key), element("dd", {}, value)))));
  const part = (title, ...children) => element("section", {}, element("h3", {}, title), ...children);

  const curvesOf = (view) => {
    const groups = new Map();
    for (const [metric, curve] of Object.entries(view.curves)) {
      if (metric.endsWith("duration")) continue;
      const ending = metric.split("_").at(-1);
      if (!groups.has(ending)) groups.set(ending, {});
      groups.get(ending)[metric] = curve;
    }
    return [...groups].map(([ending, curves]) => mini(ending, Object.entries(curves).map(([metric, curve]) => (
      { name: metric, label: metric.replace("validation_", "validation ").replace("test_", "test "), metric, curve })), view.resumed));
  };

  const neighbours = (run) => {
    const rows = [];
    for (const other of runs) {
      const differing = data.axes.filter((axis) => axis.codes[other] !== axis.codes[run]);
      if (other !== run && differing.length === 1) rows.push([differing[0], other]);
    }
    rows.sort(([a, x], [b, y]) => data.axes.indexOf(a) - data.axes.indexOf(b) || a.codes[x] - b.codes[y]);
    return rows.slice(0, 40).map(([axis, other]) => {
      const score = data.scores[other];
      const gap = score !== null && data.scores[run] !== null ? score - data.scores[run] : null;
      const kind = gap === null || !gap ? "" : sign * gap > 0 ? "better" : "worse";
      const words = gap === null ? page.columns.get("status")[other] : `${short(score)} (${gap > 0 ? "+" : gap < 0 ? "−" : "±"}${short(Math.abs(gap))}${kind ? `, ${kind}` : ""})`;
      return element("tr", {}, element("th", { scope: "row" }, element("a", { href: `#${page.address(other)}` }, name(other))),
        element("td", {}, `${axis.name} ${label(axis, other)} instead of ${label(axis, run)}`),
        element("td", { class: "number" }, words),
        element("td", { class: "number" }, button(`Compare with ${name(other)}`, "Compare", () => open(run, other))));
    });
  };
  const button = (title, words, action) => {
    const made = element("button", { type: "button", "aria-label": title }, words);
    made.addEventListener("click", action);
    return made;
  };

  const statusOf = (run) => {
    const status = page.columns.get("status")[run];
    const rank = data.order.indexOf(run);
    const score = data.scores[run] === null ? "" : `, ${data.metric} ${short(data.scores[run])}`;
    const ranking = rank < 0 ? "" : `, number ${rank + 1} of ${data.order.length.toLocaleString("en")} ranked runs`;
    return [element("span", { class: `status ${status === "completed" ? "good" : ""}` }, status), `${score}${ranking}`];
  };
  const head = (title) => {
    const close = button("Close", "✕", () => dialog.close());
    close.className = "close";
    return [close, element("h2", { id: "view-title", tabindex: "-1" }, title)];
  };
  const pair = (run, other) => [
    ...head(`${name(run)} and ${name(other)}`),
    ...[run, other].map((each) => (
      element("p", {}, element("a", { href: `#${page.address(each)}` }, name(each)), ": ", ...statusOf(each)))),
    compare.choice(run, other, open),
    ...compare.parts(run, other),
  ];
  const content = (run) => {
    const view = data.views[run];
    const parts = [...head(name(run)), element("p", {}, ...statusOf(run)), compare.choice(run, null, open)];
    const params = view ? Object.entries(view.params) : data.axes.map((axis) => [axis.name, label(axis, run)]);
    parts.push(part("Hyperparameters", list(params)));
    if (view && view.error) {
      parts.push(part("What went wrong", element("p", {}, view.error), view.next ? element("p", {}, `Next: ${view.next}`) : ""));
      if (view.log) parts.at(-1).append(element("pre", { tabindex: "0" }, view.log));
    }
    const figuresOf = view ? curvesOf(view) : [];
    if (figuresOf.length) {
      const resumed = view.resumed.length ? [element("p", { class: "note" }, `Resumed at ${data.x} ${view.resumed.join(", ")}: the dashed line.`)] : [];
      parts.push(part("Curves", element("div", { class: "minis" }, ...figuresOf), ...resumed));
    }
    if (view && view.pictures) {
      parts.push(part("Confusion matrix", ...Object.entries(view.pictures).map(([evaluation, source]) => (
        element("img", { src: source, alt: `Confusion matrix of ${name(run)}, ${evaluation}` })))));
    }
    const rows = neighbours(run);
    if (rows.length) {
      parts.push(part("Runs that differ in one hyperparameter", element("table", { class: "neighbours" }, element("tbody", {}, ...rows))));
    }
    const show = `runmanager show ${page.folder(run)}`;
    if (view) {
      const facts = [...Object.entries(view.facts), ...Object.entries(view.versions), ["epochs", String(view.epochs)], ["attempts", String(view.attempts)], ["folder", view.folder]];
      parts.push(part("How it was executed", list(facts)));
    } else parts.push(element("p", { class: "note" }, `This page has everything of the best ${Object.keys(data.views).length} runs. Of this one:`));
    parts.push(element("pre", { tabindex: "0" }, show));
    return parts;
  };

  const open = (run, other = null) => {
    second = other;
    dialog.replaceChildren(...(other === null ? content(run) : pair(run, other)));
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    dialog.querySelector("h2").focus();
    address.write(page.address(run));
  };
  let chosen = null; // the second run of the address
  address.keep("with", () => (second === null ? [] : [page.address(second)]), ([text]) => {
    chosen = addresses.has(text) ? addresses.get(text) : null;
  });
  address.onFollow((anchor, hasChoices) => {
    const run = addresses.get(anchor);
    if (run !== undefined) open(run, hasChoices && chosen !== run ? chosen : null);
    else if (dialog.open) dialog.close();
  });
  dialog.addEventListener("close", () => {
    second = null;
    if (addresses.has(address.anchor())) address.write("");
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  return { open };
})();
