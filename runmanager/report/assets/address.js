"use strict";
// What the reader chose, in the address: #run-7?filter=lr<0.1&hide=adam. A reload and a link that is sent keep it.
const address = (() => {
  const { data, state } = page;
  const QUIET_MS = 200; // a browser refuses hundreds of addresses in a row
  const parts = new Map(); // key -> { get, set } of its texts
  const follows = []; // called with the part before ?, and whether there were choices
  let timer = 0;
  let isReading = false;

  const split = () => {
    const [anchor, ...rest] = window.location.hash.slice(1).split("?");
    return [anchor, new URLSearchParams(rest.join("?"))];
  };
  const unquoted = (text) => {
    try {
      return decodeURIComponent(text);
    } catch { // written by hand
      return "";
    }
  };
  const anchor = () => unquoted(split()[0]);
  const write = (next = split()[0], memory = null) => {
    window.clearTimeout(timer);
    const chosen = new URLSearchParams();
    for (const [key, { get }] of parts) for (const text of get()) chosen.append(key, text);
    const query = [...chosen].length ? `?${chosen}` : "";
    const hash = `#${next}${query}`;
    const isSame = hash === (window.location.hash || "#");
    if (!isSame || memory || window.history.state) window.history.replaceState(memory, "", hash);
  };
  const changed = () => {
    if (isReading) return;
    window.clearTimeout(timer);
    timer = window.setTimeout(write, QUIET_MS);
  };
  const read = () => {
    const [, chosen] = split();
    isReading = true;
    page.batch(() => parts.forEach(({ set }, key) => set(chosen.getAll(key))));
    isReading = false;
  };
  // an address without ? is a link of the page: what was chosen stays
  const start = () => {
    const hasChoices = window.location.hash.includes("?");
    if (hasChoices) read();
    follows.forEach((each) => each(anchor(), hasChoices));
    const part = document.getElementById(anchor());
    if (hasChoices && part) part.scrollIntoView(); // without them, the browser does that
  };
  window.addEventListener("hashchange", () => {
    start();
    write();
  });
  page.onChange(changed);
  page.onColor(changed);

  const keep = (key, get, set) => parts.set(key, { get, set });
  const isOther = () => state.colored && state.colored.name !== data.colored;
  keep("color", () => (isOther() ? [state.colored.name] : []), ([chosen = data.colored]) => {
    const axis = data.axes.find((each) => each.name === chosen);
    if (axis && axis !== state.colored) page.recolor(axis);
  });
  keep("hide", () => [...state.hidden].map((code) => state.colored.labels[code]), (labels) => {
    const codes = state.colored ? labels.map((label) => state.colored.labels.indexOf(label)) : [];
    state.hidden = new Set(codes.filter((code) => code >= 0));
  });
  return { anchor, write, changed, start, keep, onFollow: (each) => follows.push(each) };
})();
