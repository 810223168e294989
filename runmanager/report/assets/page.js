"use strict";
// Sorting and searching the table; the same run lit in the table and in all figures. The page is complete without.
(() => {
  const table = document.getElementById("runs");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const headings = [...table.tHead.rows[0].cells];

  const keys = headings.map((_, column) => {
    const values = rows.map((row) => row.cells[column].dataset.v);
    const numeric = values.every((value) => value === "" || !Number.isNaN(Number(value)));
    return new Map(rows.map((row, n) => [row, values[n] === "" ? null : numeric ? Number(values[n]) : values[n]]));
  });

  headings.forEach((heading, column) => {
    const button = heading.querySelector("button");
    button.addEventListener("click", () => {
      const now = heading.getAttribute("aria-sort");
      const next = now ? (now === "ascending" ? "descending" : "ascending") : button.dataset.first;
      const sign = next === "ascending" ? 1 : -1;
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", next);
      const key = keys[column];
      rows.sort((a, b) => {
        const [x, y] = [key.get(a), key.get(b)];
        if (x === null || y === null) return (x === null) - (y === null); // missing values are always last
        return sign * (x < y ? -1 : x > y ? 1 : 0);
      });
      body.append(...rows);
    });
  });

  const filter = document.getElementById("filter");
  const shown = document.getElementById("shown");
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let number = 0;
    for (const row of rows) {
      const cells = [...row.cells].map((cell) => cell.textContent.toLowerCase());
      row.hidden = !words.every((word) => cells.some((cell) => cell.includes(word)));
      number += !row.hidden;
    }
    shown.textContent = words.length ? `${number} of ${rows.length} runs` : "";
  });

  const lines = new Map();
  for (const line of document.querySelectorAll("svg [data-r]")) {
    if (!lines.has(line.dataset.r)) lines.set(line.dataset.r, []);
    lines.get(line.dataset.r).push(line);
  }
  const rowOf = new Map(rows.map((row) => [row.dataset.r, row]));
  const readout = document.getElementById("readout");
  let lit = null;

  const light = (run) => {
    if (run === lit) return;
    for (const on of [false, true]) {
      for (const line of lines.get(lit) || []) line.classList.toggle("on", on);
      if (rowOf.has(lit)) rowOf.get(lit).classList.toggle("on", on);
      if (!on) lit = run;
    }
  };

  document.addEventListener("pointerover", (event) => {
    const marked = event.target.closest && event.target.closest("[data-r]");
    light(marked ? marked.dataset.r : null);
    const row = marked && marked.ownerSVGElement ? rowOf.get(lit) : null;
    readout.hidden = !row;
    if (row) {
      const parts = [...row.cells].map((cell, n) => `${n ? headings[n].textContent + " " : ""}${cell.textContent}`);
      readout.textContent = parts.join(" · ");
      const left = Math.min(event.clientX + 14, window.innerWidth - readout.offsetWidth - 8);
      readout.style.left = `${Math.max(8, left)}px`;
      readout.style.top = `${Math.max(8, event.clientY - readout.offsetHeight - 12)}px`;
    }
  });
})();

// Live: a page that is renewed loads itself again. What the reader has typed, opened and scrolled to is in the
// address for that moment, as #state=...: a page from the file system has no other memory.
(() => {
  const prefix = "#state=";
  const fields = () => [...document.querySelectorAll("input[id], select[id], details[id]")];
  const value = (field) => (field.matches("details") ? field.open : field.value);
  if (window.location.hash.startsWith(prefix)) {
    let state = { hash: "", y: 0, fields: {}, sort: null, inner: [] };
    try {
      state = { ...state, ...JSON.parse(decodeURIComponent(window.location.hash.slice(prefix.length))) };
    } catch { /* the address was written by hand */ }
    window.history.replaceState(null, "", state.hash || "#");
    for (const field of fields()) {
      if (!(field.id in state.fields) || value(field) === state.fields[field.id]) continue;
      if (field.matches("details")) field.open = state.fields[field.id];
      else {
        field.value = state.fields[field.id];
        for (const name of ["input", "change"]) field.dispatchEvent(new Event(name, { bubbles: true }));
      }
    }
    for (const button of document.querySelectorAll("#runs thead button")) {
      const heading = button.closest("th");
      for (let n = 0; state.sort && button.textContent === state.sort[0] && n < 2; n += 1) {
        if (heading.getAttribute("aria-sort") !== state.sort[1]) button.click();
      }
    }
    if (state.hash) window.dispatchEvent(new HashChangeEvent("hashchange"));
    document.querySelectorAll(".scroll").forEach((box, n) => [box.scrollLeft, box.scrollTop] = state.inner[n] || [0, 0]);
    document.documentElement.style.scrollBehavior = "auto";
    window.scrollTo(0, state.y);
    if (state.focus && document.getElementById(state.focus)) document.getElementById(state.focus).focus({ preventScroll: true });
    document.documentElement.style.scrollBehavior = "";
  }
  const seconds = Number(document.body.dataset.seconds);
  if (!seconds) return;
  let used = 0; // when the reader last did something
  for (const name of ["pointerdown", "keydown", "input", "wheel"]) {
    document.addEventListener(name, () => { used = Date.now(); }, { passive: true });
  }
  const reload = () => {
    const isBusy = Date.now() - used < 2000 || !window.getSelection().isCollapsed;
    if (document.hidden || isBusy) {
      window.setTimeout(reload, 1000);
      return;
    }
    const sorted = document.querySelector("#runs th[aria-sort]");
    const state = {
      hash: window.location.hash, y: window.scrollY, focus: document.activeElement.id,
      fields: Object.fromEntries(fields().map((field) => [field.id, value(field)])),
      sort: sorted && [sorted.textContent, sorted.getAttribute("aria-sort")],
      inner: [...document.querySelectorAll(".scroll")].map((box) => [box.scrollLeft, box.scrollTop]),
    };
    window.history.replaceState(null, "", prefix + encodeURIComponent(JSON.stringify(state)));
    window.location.reload();
  };
  window.setTimeout(reload, 1000 * seconds);
})();
