// What the reader chose, in the address: #run-7?filter=lr<0.1&hide=adam. A reload and a link that is sent keep it.
const address = (() => {
  const { data, state } = page;
  const QUIET_MS = 200; // a browser refuses hundreds of addresses in a row
  const parts = new Map(); // key -> { get, set } of its texts
  let follow = null; // called with the part before ?, and whether there were choices
  let timer = 0;

  const anchor = () => window.location.hash.slice(1).split("?")[0];
  const write = (next = anchor()) => {
    window.clearTimeout(timer);
    const chosen = new URLSearchParams();
    for (const [key, { get }] of parts) for (const text of get()) chosen.append(key, text);
    const hash = `#${next}${[...chosen].length ? `?${chosen}` : ""}`;
    if (hash !== (window.location.hash || "#")) window.history.replaceState(null, "", hash);
  };
  const changed = () => {
    window.clearTimeout(timer);
    timer = window.setTimeout(write, QUIET_MS);
  };
  // an address without ? is a link of the page: what was chosen stays
  const start = () => {
    const [, ...rest] = window.location.hash.split("?");
    const chosen = new URLSearchParams(rest.join("?"));
    if (rest.length) {
      parts.forEach(({ set }, key) => set(chosen.getAll(key)));
      page.update();
    }
    follow(anchor(), rest.length > 0);
    const part = document.getElementById(anchor());
    if (rest.length && part) part.scrollIntoView(); // without choices, the browser does that
  };
  window.addEventListener("hashchange", () => {
    start();
    write();
  });
  page.onChange(changed);
  document.addEventListener("click", changed); // a heading or a button

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
  return { anchor, write, start, keep, onFollow: (each) => { follow = each; } };
})();
