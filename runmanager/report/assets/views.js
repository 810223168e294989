"use strict";
// The view of one run, opened from the table, a figure or the address #run-7.
const views = (() => {
  const { data, runs, name, label, short, element, drawn } = page;
  const dialog = document.getElementById("view");
  const addresses = new Map(runs.map((run) => [page.address(run), run]));
  const sign = data.larger ? 1 : -1;
  const list = (pairs) => element("dl", { class: "facts" }, ...pairs.map(([key, value]) => (
    element("div", {}, element("dt", {}, key), element("dd", {}, value)))));
  const part = (title, ...children) => element("section", {}, element("h3", {}, title), ...children);

  // the curves of metrics that end alike, as loss and validation_loss, in one figure
  const figure = (ending, curves, resumed) => {
    const points = Object.entries(curves).map(([metric, [values, epochs]]) => (
      [metric, values.map((value, n) => [epochs ? epochs[n] : n + 1, value])]));
    const all = points.flatMap(([, line]) => line);
    const values = all.map(([, value]) => value);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const isLog = low > 0 && high / low > 100;
    const x = reading.scaleOf(Math.min(...all.map(([epoch]) => epoch)), Math.max(...all.map(([epoch]) => epoch)), 44, 290, false);
    const y = reading.scaleOf(low, high === low ? low + 1 : high, 150, 12, isLog);
    const words = points.map(([metric, line]) => `${metric} from ${short(line[0][1])} to ${short(line.at(-1)[1])}`).join("; ");
    const svg = drawn("svg", { viewBox: "0 0 400 176", class: "figure", role: "img", "aria-label": `${ending}: ${words}` });
    for (const tick of reading.ticks(low, high === low ? low + 1 : high, isLog)) {
      svg.append(drawn("path", { class: "grid", d: `M44 ${y.at(tick)}H290` }));
      const text = drawn("text", { x: 38, y: y.at(tick) + 4, "text-anchor": "end" });
      text.textContent = short(tick);
      svg.append(text);
    }
    for (const epoch of resumed) svg.append(drawn("path", { class: "pause", d: `M${x.at(epoch)} 12V150` }));
    points.forEach(([metric, line], n) => {
      const color = n ? "c3" : "c1";
      svg.append(drawn("path", { class: `run ${color} on-card`, d: line.map(([epoch, value], k) => (
        `${k ? "L" : "M"}${x.at(epoch).toFixed(1)} ${y.at(value).toFixed(1)}`)).join("") }));
      const better = (metric.endsWith("loss") ? -1 : 1);
      const [epoch, value] = line.reduce((a, b) => (better * b[1] > better * a[1] ? b : a));
      svg.append(drawn("path", { class: `peak ${color}`, d: `M${x.at(epoch)} ${y.at(value)}h0` }));
      const end = drawn("text", { x: 316, y: 24 + 15 * n, class: `end ${color}` });
      end.textContent = metric.replace("validation_", "validation ").replace("test_", "test ");
      svg.append(drawn("path", { class: `swatch ${color}`, d: `M298 ${20 + 15 * n}h12` }), end);
    });
    const below = drawn("text", { x: 167, y: 172, class: "name", "text-anchor": "middle" });
    below.textContent = `epoch ${Math.min(...all.map(([epoch]) => epoch))} to ${Math.max(...all.map(([epoch]) => epoch))}`;
    svg.append(below);
    return svg;
  };

  const curvesOf = (view) => {
    const groups = new Map();
    for (const [metric, curve] of Object.entries(view.curves)) {
      if (metric.endsWith("duration")) continue;
      const ending = metric.split("_").at(-1);
      if (!groups.has(ending)) groups.set(ending, {});
      groups.get(ending)[metric] = curve;
    }
    return [...groups].map(([ending, curves]) => figure(ending, curves, view.resumed));
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
        element("td", { class: "number" }, words));
    });
  };

  const content = (run) => {
    const view = data.views[run];
    const status = page.columns.get("status")[run];
    const rank = data.order.indexOf(run);
    const score = data.scores[run] === null ? "" : `, ${data.metric} ${short(data.scores[run])}`;
    const close = element("button", { type: "button", class: "close", "aria-label": "Close" }, "✕");
    close.addEventListener("click", () => dialog.close());
    const parts = [close, element("h2", { id: "view-title", tabindex: "-1" }, name(run)),
      element("p", {}, element("span", { class: `status ${status === "completed" ? "good" : ""}` }, status),
        `${score}${rank < 0 ? "" : `, ${rank + 1} of ${data.order.length} in the ranking`}`)];
    const params = view ? Object.entries(view.params) : data.axes.map((axis) => [axis.name, label(axis, run)]);
    parts.push(part("Hyperparameters", list(params)));
    if (view && view.error) {
      parts.push(part("What went wrong", element("p", {}, view.error), view.next ? element("p", {}, `Next: ${view.next}`) : ""));
      if (view.log) parts.at(-1).append(element("pre", { tabindex: "0" }, view.log));
    }
    const figuresOf = view ? curvesOf(view) : [];
    if (figuresOf.length) {
      const resumed = view.resumed.length ? [element("p", { class: "note" }, `Resumed at epoch ${view.resumed.join(", ")}: the dashed line.`)] : [];
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
    const show = `runmanager show ${data.paths[run] || data.paths[0]} ${typeof data.names[run] === "number" ? data.names[run] : data.names[run].split("run ").at(-1)}`;
    if (view) {
      const facts = [...Object.entries(view.facts), ...Object.entries(view.versions), ["epochs", String(view.epochs)], ["attempts", String(view.attempts)], ["folder", view.folder]];
      parts.push(part("How it was executed", list(facts)));
    } else parts.push(element("p", { class: "note" }, `This page has everything of the best ${Object.keys(data.views).length} runs. Of this one:`));
    parts.push(element("pre", { tabindex: "0" }, show));
    return parts;
  };

  const open = (run) => {
    dialog.replaceChildren(...content(run));
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    dialog.querySelector("h2").focus();
    if (window.location.hash !== `#${page.address(run)}`) window.history.replaceState(null, "", `#${page.address(run)}`);
  };
  const unquoted = () => {
    try {
      return decodeURIComponent(window.location.hash.slice(1));
    } catch { // written by hand
      return "";
    }
  };
  const follow = () => {
    const run = addresses.get(unquoted());
    if (run !== undefined) open(run);
  };
  dialog.addEventListener("close", () => {
    if (addresses.has(unquoted())) window.history.replaceState(null, "", "#");
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  window.addEventListener("hashchange", follow);
  return { open, follow };
})();
