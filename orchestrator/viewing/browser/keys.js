// What keys and clicks do; read last, since it begins the page.

function move(by) {
  const place = view.indexOf(state.row), next = place < 0 ? 0 : Math.min(view.length - 1, Math.max(0, place + by));
  if (view.length) choose(view[next]);
}

function moveGroup(by) {
  const tickets = tables.get(state.file).columns.ticket;
  let place = Math.max(0, view.indexOf(state.row));
  const ticket = tickets[view[place]];
  while (place >= 0 && place < view.length && tickets[view[place]] === ticket) place += by;
  if (place >= 0 && place < view.length) choose(view[place]);
}

function moveToken(to) {
  if (!shown || !shown.chosen.count) return;
  state.token = Math.min(shown.chosen.count - 1, Math.max(0, to));
  fill($("tokens"), shown.chosen, state.token + CHUNK / 2);
  address();
  mark();
  drawToken();
}

function toParting() {
  const at = shown ? groupPartsAt(shown.chosen) : -1;
  if (at >= 0) moveToken(at);
}

const KEYS = {
  j: () => move(1), k: () => move(-1), g: () => moveGroup(1), G: () => moveGroup(-1), d: toParting,
  n: () => moveToken(state.token < 0 && shown ? shown.chosen.begin : state.token + 1), p: () => moveToken(state.token - 1),
  "/": () => $("search").focus(), "?": () => $("help").showModal(),
  ...Object.fromEntries(COLOURS.map(({ name }, place) => [String(place + 1), () => paint(name)])),
};

function fail(error) {
  $("notice").hidden = false;
  $("notice").textContent = String(error.message || error);
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  try { localStorage.setItem("temper-view-theme", name); } catch { /* a page from a file may not keep anything */ }
}

function begin() {
  let kept = null;
  try { kept = localStorage.getItem("temper-view-theme"); } catch { /* likewise */ }
  document.documentElement.dataset.theme = kept || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  $("theme").onclick = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  $("run-name").textContent = facts.run;
  document.title = `${facts.run} - temper view`;
  for (const kind of ["step", "evaluation"]) {
    const files = facts.files.filter((one) => one.kind === kind);
    const options = files.map(({ name, label }) => element("option", { value: name, textContent: `${kind} ${label}` }));
    if (options.length) $("file").append(element("optgroup", { label: `${kind}s` }, ...options));
  }
  $("file").onchange = () => open({ file: $("file").value, row: 0 }).catch(fail);
  $("against").onchange = () => open({ against: $("against").value || null, row: state.row, token: state.token }).catch(fail);
  $("search").oninput = () => { state.search = $("search").value.trim(); refresh(); };
  $("clear").onclick = () => { state.filters.clear(); state.search = $("search").value = ""; layOut(); refresh(); };
  $("help-button").onclick = () => $("help").showModal();
  $("scroller").onscroll = drawRows;
  new ResizeObserver(drawRows).observe($("scroller"));
  $("rows").onclick = (event) => {
    const line = event.target.closest(".row");
    if (line) choose(Number(line.dataset.row)).catch(fail);
  };
  $("answer").onclick = (event) => {
    const span = event.target.closest("#tokens span[data-token]");
    if (span) moveToken(Number(span.dataset.token));
  };
  document.onkeydown = (event) => {
    if (event.key === "Escape" && event.target.matches("input, select")) return event.target.blur();
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea") || $("help").open) return undefined;
    const act = KEYS[event.key];
    if (!act) return undefined;
    event.preventDefault();
    return Promise.resolve(act()).catch(fail);
  };
  onhashchange = () => named();
  named();
}

begin();
