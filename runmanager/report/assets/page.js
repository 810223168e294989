// The table: sorting, filtering, columns. The page is complete without any script.
(() => {
  const { data, runs, columns, element, link, state, short } = page;
  const MOST = 1000; // rows at once
  const table = document.getElementById("runs");
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];
  const rowOf = new Map([...body.rows].map((row) => [Number(row.dataset.r), row]));
  const ranked = [...new Set([...rowOf.keys(), ...data.order, ...runs])];

  for (const [run, row] of rowOf) row.cells[0].replaceChildren(link(run));

  const valueOf = (column, run) => {
    const heading = data.heads[column].name;
    const axis = data.axes.find((each) => each.name === heading);
    if (column === 0) return run;
    if (heading === data.metric) return data.scores[run];
    if (axis) return axis.codes[run];
    const value = (columns.get(heading) || [])[run];
    return value === undefined || Number.isNaN(value) ? null : value;
  };
  const makeRow = (run) => { // of a run that is not in the file's table
    const cells = data.heads.map(({ name: heading }, column) => {
      if (column === 0) return element("th", { scope: "row" }, link(run));
      const axis = data.axes.find((each) => each.name === heading);
      const value = valueOf(column, run);
      const text = axis ? axis.labels[value] : typeof value === "number" ? short(value) + (heading.endsWith(" duration") ? " s" : "") : value || "";
      return element("td", {}, text);
    });
    const row = element("tr", { "data-r": run }, ...cells);
    rowOf.set(run, row);
    return row;
  };
  const shown = document.getElementById("shown");
  const everything = document.getElementById("everything");
  const filter = document.getElementById("filter");
  const update = () => {
    const left = ranked.filter(page.isVisible);
    body.replaceChildren(...left.slice(0, MOST).map((run) => rowOf.get(run) || makeRow(run)));
    const isFiltered = left.length < runs.length;
    const cut = left.length > MOST ? `, the first ${MOST.toLocaleString("en")} in the table` : "";
    const words = isFiltered || cut ? `${left.length} of ${runs.length} run${runs.length === 1 ? "" : "s"}${cut}` : "";
    shown.textContent = words;
    everything.hidden = !isFiltered;
  };
  page.onChange(update);

  let sorted = null; // the heading that was chosen, and its direction
  const sort = (heading, direction) => {
    const sign = direction === "ascending" ? 1 : -1;
    headings.forEach((other) => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", direction);
    const keys = new Map(runs.map((run) => [run, valueOf(headings.indexOf(heading), run)]));
    ranked.sort((a, b) => {
      const [x, y] = [keys.get(a), keys.get(b)];
      if (x === null || y === null) return (x === null) - (y === null); // missing values are always last
      return sign * (x < y ? -1 : x > y ? 1 : 0);
    });
    sorted = [heading, direction];
    update();
  };
  for (const heading of headings) {
    const button = heading.querySelector("button");
    button.addEventListener("click", () => {
      const now = heading.getAttribute("aria-sort");
      sort(heading, now ? (now === "ascending" ? "descending" : "ascending") : button.dataset.first);
    });
  }
  address.keep("sort", () => (sorted ? [`${sorted[1]} ${sorted[0].textContent}`] : []), ([chosen = ""]) => {
    const [, direction, column] = chosen.match(/^(ascending|descending) (.*)$/) || [];
    const heading = headings.find((each) => each.textContent === column);
    if (heading) sort(heading, direction);
  });

  // plain words are looked for in all cells of a row
  const hasWords = (text) => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    return (run) => {
      if (!words.length) return true;
      const texts = [...(rowOf.get(run) || makeRow(run)).cells].map((cell) => cell.textContent.toLowerCase());
      return words.every((word) => texts.some((each) => each.includes(word)));
    };
  };
  const choose = () => {
    let problem = "";
    try {
      state.filter = /[<>=]/.test(filter.value) ? where.parse(filter.value, columns) : hasWords(filter.value);
    } catch (error) {
      if (!(error instanceof where.Refused)) throw error;
      problem = error.message; // what was chosen before stays
    }
    filter.setAttribute("aria-invalid", Boolean(problem));
    page.update();
    if (problem) shown.textContent = problem;
  };
  filter.addEventListener(runs.length > MOST ? "change" : "input", choose);
  address.keep("filter", () => (filter.value ? [filter.value] : []), ([text = ""]) => {
    filter.value = text;
    choose();
  });
  everything.addEventListener("click", () => {
    filter.value = "";
    state.hidden.clear();
    choose();
    filter.focus();
  });

  document.querySelectorAll(".alive").forEach((each) => { each.hidden = each === everything; });
  const wide = document.getElementById("columns");
  wide.hidden = headings.every((heading) => heading.offsetParent);
  const widen = (isWide) => wide.setAttribute("aria-pressed", table.classList.toggle("all", isWide));
  wide.addEventListener("click", () => widen());
  address.keep("columns", () => (table.classList.contains("all") ? ["all"] : []), ([chosen]) => widen(chosen === "all"));

  // the legends: each value, or of more values than colors each color, can be hidden, in all figures and in the table
  let pressed = []; // pairs of a button and its codes
  let drawnAxis = null; // the axis of the legends
  const legend = () => {
    const { colored } = state;
    drawnAxis = colored;
    if (!colored) return;
    const drawn = new Set([...data.order, ...Object.values(data.curves).flatMap(Object.keys)].map((run) => colored.codes[run]));
    const groups = [...Map.groupBy([...drawn].sort((a, b) => a - b), (code) => colored.colors[code])];
    const words = (labels) => (colored.colors[0].startsWith("o") ? [...new Set([labels[0], labels.at(-1)])].join(" to ")
      : labels.slice(0, 4).join(", ") + (labels.length > 4 ? ", …" : ""));
    pressed = [...document.querySelectorAll(".colors")].flatMap((key) => {
      const buttons = groups.map(([color, codes]) => {
        const button = element("button", { type: "button" }, element("span", { class: `line ${color}`, "aria-hidden": "true" }),
          ` ${words(codes.map((code) => colored.labels[code]))}`);
        button.addEventListener("click", () => {
          const isHidden = button.getAttribute("aria-pressed") === "false";
          for (const code of codes) state.hidden[isHidden ? "delete" : "add"](code);
          page.update();
        });
        return [button, codes];
      });
      key.replaceChildren(`Colored by ${colored.name}: `, ...buttons.map(([button]) => button));
      key.setAttribute("role", "group");
      key.setAttribute("aria-label", `Values of ${colored.name}`);
      return buttons;
    });
  };
  const colors = document.getElementById("colors");
  colors.append(...data.axes.map((axis) => element("option", {}, axis.name)));
  colors.parentNode.hidden = data.axes.length < 2;
  colors.addEventListener("change", () => page.recolor(data.axes.find((axis) => axis.name === colors.value)));
  const draw = () => {
    colors.value = state.colored ? state.colored.name : "";
    if (state.colored !== drawnAxis) legend();
    for (const [button, codes] of pressed) button.setAttribute("aria-pressed", !codes.every((code) => state.hidden.has(code)));
  };
  page.onChange(draw);
  draw();

  body.addEventListener("pointerover", (event) => page.light(event.target.closest("tr")?.dataset.r));
  body.addEventListener("pointerleave", () => page.light(null));
  figures.start();
  if (runs.length > rowOf.size) update();
  address.start();
})();

// Live: a page that is renewed loads itself again. What the reader chose is in its address, the scrolled tables are kept with it.
(() => {
  const boxes = [...document.querySelectorAll(".scroll")];
  const open = "dialog[open], details[open]";
  (window.history.state || []).forEach(([left, top], n) => boxes[n] && boxes[n].scrollTo(left, top));
  const age = document.getElementById("age");
  const write = () => {
    if (!age) return;
    const seconds = Math.max(Math.round(Date.now() / 1000 - Number(age.dataset.written)), 0);
    const [unit, size] = [["h", 3600], ["min", 60]].find(([, each]) => seconds >= 2 * each) || ["s", 1];
    age.textContent = `, ${Math.floor(seconds / size)} ${unit} ago`;
  };
  window.setInterval(write, 1000);
  write();
  let used = 0; // when the reader last did something
  const use = () => { used = Date.now(); };
  for (const name of ["pointerdown", "keydown", "wheel"]) document.addEventListener(name, use, { passive: true });
  const reload = () => {
    const isBusy = Date.now() - used < 2000 || !window.getSelection().isCollapsed || document.querySelector(open);
    if (document.hidden || isBusy) return;
    address.write();
    window.history.replaceState(boxes.map((box) => [box.scrollLeft, box.scrollTop]), "");
    window.location.reload();
  };
  if (document.body.dataset.seconds) window.setInterval(reload, 1000 * Number(document.body.dataset.seconds));
})();
