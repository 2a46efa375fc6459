// The table: one row per answer of a file. Only the rows that pass the filters and are in view are drawn.

const ROW_HEIGHT = 25, HEAD_HEIGHT = 52, SPARE_ROWS = 12;
const FEW = 24; // a text column with at most this many distinct values filters by a list, any other by a part of the text
const WANTED = "use >0.5, <=10, 2..8, 1 or -";
// In order of priority: the last ones are hidden if the pane is too narrow.
const COLUMNS = [
  { name: "env", title: "env", width: 74, text: true, about: "environment" },
  { name: "prompt", title: "task", width: 120, text: true, about: "beginning of the last user message" },
  { name: "reward", title: "reward", width: 56, about: "reward of the answer; - if it failed" },
  { name: "other", title: "other", width: 56, about: "mean reward of the same task in the other evaluation" },
  { name: "change", title: "change", width: 60, about: "mean reward of the task in this evaluation minus the other one" },
  { name: "advantage", title: "adv", width: 54, about: "mean advantage of the trained tokens" },
  { name: "share", title: "update", width: 58, about: "share of this step's update that comes from the group, 0 to 1" },
  { name: "tokens", title: "tokens", width: 56, about: "sampled tokens" },
  { name: "stop", title: "stop", width: 82, text: true, about: "why the episode ended" },
  { name: "failure", title: "failure", width: 76, text: true, about: "error outside the model" },
  { name: "spread", title: "std", width: 52, about: "standard deviation of the rewards of the group" },
  { name: "mismatch", title: "mismatch", width: 70, about: "mean |trainer logprob - engine logprob| of the trained tokens, in nats" },
  { name: "lag", title: "lag", width: 42, about: "weight updates between the start of the group and its training" },
  { name: "masked", title: "no loss", width: 88, text: true, about: "why some tokens carry no loss; empty if all do" },
  { name: "mode", title: "mode", width: 84, text: true, about: "thinking mode, with its budget in tokens" },
  { name: "turns", title: "turns", width: 50, about: "turns of the episode: calls of the engine" },
  { name: "seconds", title: "s", width: 50, about: "seconds of the episode" },
  { name: "surprisal", title: "surprisal", width: 68, about: "mean -log p of the sampled tokens by the engine, in nats" },
];
const CONSTANT = ["env", "mode", "masked"]; // hidden if all rows have the same value

let view = [];

// The current table, empty until one is read.
const EMPTY = { rows: 0, trained: 0, columns: {}, groups: new Map(), pieces: [], has: () => false };
const tableHere = () => tables.get(state.file) || EMPTY;

function columnsShown() {
  const table = tableHere();
  const varies = ({ name }) => table.has(name) && !(CONSTANT.includes(name) && table.columns[name].values.length === 1 && !state.filters.has(name));
  const filled = COLUMNS.filter((one) => (one.name === "other" || one.name === "change" ? state.against : varies(one)));
  const room = $("scroller").clientWidth;
  let used = 0;
  const shown = filled.filter(({ name, width }) => (used += width) <= room || state.wide || state.filters.has(name) || (state.sort && state.sort.name === name));
  return Object.assign(shown, { hidden: filled.length - shown.length, total: filled.length });
}

const templateOf = (columns) => columns.map(({ name, width }) => (name === "prompt" ? `minmax(${width}px, 1fr)` : `${width}px`)).join(" ");

// Lays the columns out again if the width of the pane changes which of them fit.
function fitColumns() {
  if (templateOf(columnsShown()) !== $("scroller").dataset.template) layOut();
  drawRows();
}

function cellOf(table, name, row) {
  if (name !== "other" && name !== "change") return word(name, table.cell(name, row));
  const there = other(taskOf(table, row));
  const value = there === undefined ? NaN : name === "other" ? there.reward : mean(table, row) - there.reward;
  return value === value ? value : null;
}

const word = (name, value) => (name === "stop" && STOPS[value] ? STOPS[value][0] : value);

const taskOf = (table, row) => [table.cell("env", row), table.cell("key", row), table.cell("mode", row)].join("\u0000");

function mean(table, row) {
  const { first, count } = table.groups.get(table.columns.ticket[row]);
  const rewards = table.columns.reward.slice(first, first + count).filter((one) => one !== null);
  return rewards.length ? rewards.reduce((a, b) => a + b, 0) / rewards.length : NaN;
}

function other(task) {
  const table = tables.get(state.against);
  if (!table) return undefined;
  if (!table.tasks) {
    table.tasks = new Map();
    for (const { first } of table.groups.values()) table.tasks.set(taskOf(table, first), { row: first, reward: mean(table, first) });
  }
  return table.tasks.get(task);
}

function test(text) {
  const wanted = text.trim();
  if (wanted === "-") return (value) => value === null;
  const range = wanted.match(/^(-?[\d.e-]*)\.\.(-?[\d.e-]*)$/);
  if (range && (range[1] || range[2])) {
    const low = range[1] ? Number(range[1]) : -Infinity, high = range[2] ? Number(range[2]) : Infinity;
    if (Number.isNaN(low) || Number.isNaN(high)) return null;
    return (value) => value !== null && value >= low && value <= high;
  }
  const [, sign, rest] = wanted.match(/^(>=|<=|>|<|=)?\s*(.+)$/) || [null, null, "x"];
  const bound = Number(rest);
  if (Number.isNaN(bound)) return null;
  const compare = { ">": (v) => v > bound, "<": (v) => v < bound, ">=": (v) => v >= bound, "<=": (v) => v <= bound };
  const holds = compare[sign] || ((v) => v === bound);
  return (value) => value !== null && holds(value);
}

// The label of a text in a list; null and the empty text have labels too.
const called = (value) => (value === null ? "-" : String(value) || "(none)");

const many = (table, name) => table.columns[name].values.length > FEW;

function textTest(table, name, wanted) {
  if (!many(table, name)) return (row) => called(cellOf(table, name, row)) === wanted;
  const part = wanted.toLowerCase();
  return (row) => called(cellOf(table, name, row)).toLowerCase().includes(part);
}

function filtered() {
  const table = tableHere(), tests = [];
  for (const [name, wanted] of state.filters) {
    const column = COLUMNS.find((one) => one.name === name);
    if (column.text) tests.push(textTest(table, name, wanted));
    else {
      const holds = test(wanted);
      if (holds) tests.push((row) => holds(cellOf(table, name, row)));
    }
  }
  if (state.search) {
    const words = state.search.toLowerCase();
    const matches = ["prompt", "key", "detail"].map((name) => {
      const column = table.columns[name];
      return column && column.values.map((one) => String(one ?? "").toLowerCase().includes(words));
    });
    tests.push((row) => matches.some((found, i) => found && found[table.columns[["prompt", "key", "detail"][i]].codes[row]]));
  }
  const rows = [];
  for (let row = 0; row < table.rows; row++) if (tests.every((holds) => holds(row))) rows.push(row);
  if (state.sort) {
    const { name, down } = state.sort, keys = new Map(rows.map((row) => [row, cellOf(table, name, row)]));
    const empty = (value) => value === null || value === undefined || value !== value;
    rows.sort((a, b) => {
      const [one, two] = [keys.get(a), keys.get(b)];
      if (empty(one) || empty(two)) return empty(one) - empty(two) || a - b;
      const order = typeof one === "string" ? one.localeCompare(two) : one - two;
      return (down ? -order : order) || a - b;
    });
  }
  return rows;
}

function layOut() {
  const columns = columnsShown(), template = templateOf(columns);
  $("scroller").dataset.template = template;
  $("scroller").style.setProperty("--least", `${columns.reduce((sum, { width }) => sum + width, 0)}px`);
  for (const id of ["heads", "filters"]) $(id).style.gridTemplateColumns = template;
  $("more").hidden = !columns.hidden && !state.wide;
  $("more").textContent = columns.hidden ? `+${columns.hidden} column${columns.hidden === 1 ? "" : "s"}` : "fewer columns";
  $("heads").replaceChildren(...columns.map(({ name, title, text, about }) => {
    const head = element("button", { textContent: title, title: `${about}. Click to sort.`, className: text ? "text" : "" });
    if (state.sort && state.sort.name === name) {
      head.setAttribute("aria-sort", state.sort.down ? "descending" : "ascending");
      head.textContent += state.sort.down ? " \u2193" : " \u2191";
    }
    head.onclick = () => {
      const again = state.sort && state.sort.name === name;
      state.sort = again && !state.sort.down ? null : { name, down: again ? false : !text };
      layOut();
      refresh();
    };
    return head;
  }));
  $("filters").replaceChildren(...columns.map(filterOf));
}

function filterOf({ name, text, title }) {
  const table = tableHere(), wanted = state.filters.get(name) ?? "";
  const set = (value) => {
    if (value) state.filters.set(name, value);
    else state.filters.delete(name);
    refresh();
  };
  let field;
  if (text && !many(table, name)) {
    const known = table.columns[name].values.map((one) => called(word(name, one)));
    const values = [...new Set(wanted ? [...known, wanted] : known)]; // a filter survives a new version of its file
    field = element("select", {}, element("option", { value: "", textContent: "all" }),
      ...values.sort().map((one) => element("option", { value: one, textContent: one, selected: one === wanted })));
    field.onchange = () => { set(field.value); field.classList.toggle("on", field.value !== ""); };
  } else {
    field = element("input", { value: wanted, placeholder: text ? "part" : ">, ..", spellcheck: false });
    field.oninput = () => {
      const value = field.value.trim(), wrong = !text && value && !test(value);
      set(value);
      field.classList.toggle("on", value !== "");
      field.setCustomValidity(wrong ? WANTED : "");
      field.title = wrong ? `not understood, so no row is filtered: ${WANTED}` : "";
    };
  }
  field.dataset.column = name;
  field.setAttribute("aria-label", `filter by ${title}`);
  field.classList.toggle("on", wanted !== "");
  return field;
}

function refresh() {
  const table = tableHere();
  view = filtered();
  $("body").style.height = `${view.length * ROW_HEIGHT}px`;
  $("count").textContent = `${view.length === table.rows ? "" : `${view.length.toLocaleString("en")} of `}${table.rows.toLocaleString("en")} answers, ${table.groups.size.toLocaleString("en")} groups`;
  drawHistograms();
  drawRows();
}

function drawRows() {
  const table = tableHere(), scroller = $("scroller");
  const from = Math.max(0, Math.floor(scroller.scrollTop / ROW_HEIGHT) - SPARE_ROWS);
  const to = Math.min(view.length, from + Math.ceil(scroller.clientHeight / ROW_HEIGHT) + 2 * SPARE_ROWS);
  const columns = columnsShown(), template = templateOf(columns);
  const ticket = state.row < 0 ? null : table.columns.ticket[state.row];
  $("rows").style.transform = `translateY(${from * ROW_HEIGHT}px)`;
  $("rows").replaceChildren(...view.slice(from, to).map((row) => {
    const line = element("div", { className: "row" });
    line.style.gridTemplateColumns = template;
    line.dataset.row = row;
    if (row === state.row) line.classList.add("chosen");
    else if (table.columns.ticket[row] === ticket) line.classList.add("group");
    line.append(...columns.map(({ name, text }) => cell(name, text, cellOf(table, name, row))));
    return line;
  }));
}

function cell(name, text, value) {
  const empty = value === null || value === undefined || value !== value;
  const made = element("span", { className: text ? "text" : "", textContent: empty ? "-" : text ? "" : number(value) });
  if (!empty && text) made.append(...plain(value));
  if (empty) made.classList.add("none");
  else if (name === "reward" || name === "other") made.classList.add(value >= 1 ? "good" : value <= 0 ? "bad" : "some");
  else if (name === "change" && value) made.classList.add(value > 0 ? "good" : "bad");
  if (text && value) made.title = value;
  return made;
}

function number(value) {
  if (value === null || value === undefined || value !== value) return "-";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size < 1e-4 ? value.toExponential(0) : size < 0.01 ? value.toFixed(4) : size < 10 ? value.toFixed(3) : value.toFixed(1);
}

function scrollTo(row) {
  const place = view.indexOf(row), scroller = $("scroller");
  if (place < 0) return;
  const top = place * ROW_HEIGHT, room = scroller.clientHeight - HEAD_HEIGHT;
  if (top < scroller.scrollTop) scroller.scrollTop = top;
  else if (top + ROW_HEIGHT > scroller.scrollTop + room) scroller.scrollTop = top + ROW_HEIGHT - room;
}

// The row to open first: of a step the group with the largest share of the update, of an evaluation the largest change or
// the first wrong answer.
function openingRow() {
  const table = tableHere(), rows = [...Array(table.rows).keys()];
  const largest = (size) => rows.reduce((best, row) => (size(row) > size(best) ? row : best), 0);
  if (table.has("share")) return largest((row) => [table.columns.share[row], Math.abs(table.columns.advantage[row] || 0)].reduce((share, own) => share + own * 1e-6));
  const change = (row) => Math.abs(cellOf(table, "change", row) || 0);
  const changed = state.against && table.rows ? largest(change) : 0;
  if (changed && change(changed)) return changed;
  return Math.max(0, table.rows ? table.columns.reward.findIndex((one) => !(one > 0)) : 0);
}
