// Keys and clicks. This file comes last because it starts the page.

function move(by) {
  const place = view.indexOf(state.row), next = place < 0 ? 0 : Math.min(view.length - 1, Math.max(0, place + by));
  return view.length && choose(view[next]);
}

function moveGroup(by) {
  if (!view.length) return undefined;
  const tickets = tableHere().columns.ticket;
  let place = Math.max(0, view.indexOf(state.row));
  const ticket = tickets[view[place]];
  while (place >= 0 && place < view.length && tickets[view[place]] === ticket) place += by;
  return place >= 0 && place < view.length && choose(view[place]);
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

function begin() {
  $("run-name").textContent = facts.run;
  document.title = `${facts.run} - temper view`;
  for (const kind of ["step", "evaluation"]) {
    const files = facts.files.filter((one) => one.kind === kind);
    const options = files.map(({ name, label }) => element("option", { value: name, textContent: `${kind} ${label}` }));
    if (options.length) $("file").append(element("optgroup", { label: `${kind}s` }, ...options));
  }
  $("file").onchange = () => go({ file: $("file").value, row: null });
  $("against").onchange = () => go({ against: $("against").value || null, row: $("against").value ? null : state.row });
  $("search").oninput = () => { state.search = $("search").value.trim(); refresh(); };
  $("clear").onclick = () => { state.filters.clear(); state.search = $("search").value = ""; layOut(); refresh(); };
  $("more").onclick = () => { state.wide = !state.wide; layOut(); drawRows(); };
  $("help-button").onclick = () => $("help").showModal();
  $("scroller").onscroll = drawRows;
  new ResizeObserver(fitColumns).observe($("scroller"));
  $("rows").onclick = (event) => {
    const line = event.target.closest(".row");
    if (line) choose(Number(line.dataset.row));
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
    return act();
  };
  onhashchange = () => named();
  named();
}

begin();
