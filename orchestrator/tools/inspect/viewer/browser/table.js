// The table: a row for each answer of a file, of which those that filters and the search leave are drawn where they are in sight.

const ROW_HEIGHT = 25, HEAD_HEIGHT = 52, SPARE_ROWS = 12;
const FEW = 24; // distinct values of a column of text that a list offers; of more, a part of them is typed
const WANTED = "use >0.5, <=10, 2..8, 1 or -";
const COLUMNS = [
  { name: "env", title: "env", width: 74, text: true, about: "environment" },
  { name: "mode", title: "mode", width: 84, text: true, about: "mode of thinking, with its budget in tokens" },
  { name: "reward", title: "reward", width: 56, about: "reward of the answer; - where it failed" },
  { name: "spread", title: "spread", width: 56, about: "standard deviation of the rewards of its group" },
  { name: "other", title: "there", width: 62, about: "mean reward of the same task in the other evaluation" },
  { name: "change", title: "change", width: 64, about: "mean reward of the task here minus there" },
  { name: "stop", title: "stop", width: 66, text: true, about: "why it ended" },
  { name: "tokens", title: "tokens", width: 58, about: "sampled tokens" },
  { name: "gap", title: "gap", width: 62, about: "mean |log pi - log mu| of its trained tokens, in nats: trainer against engine" },
  { name: "advantage", title: "adv", width: 58, about: "mean advantage of its trained tokens" },
  { name: "lag", title: "lag", width: 42, about: "pushes between the weights at its admission and those that it trained" },
  { name: "surprise", title: "surprise", width: 66, about: "mean -log mu of its sampled tokens, in nats" },
  { name: "left_out", title: "no loss", width: 92, text: true, about: "why tokens of it carry no loss; empty where all do" },
  { name: "turns", title: "turns", width: 52, about: "calls of the engine" },
  { name: "seconds", title: "s", width: 56, about: "seconds of the episode" },
  { name: "failure", title: "failure", width: 84, text: true, about: "what broke outside of the model" },
  { name: "prompt", title: "task", width: 300, text: true, about: "what the task asks last, its beginning" },
];

let view = [];

// The table that is shown; one without rows before any was read.
const EMPTY = { rows: 0, trained: 0, columns: {}, groups: new Map(), pieces: [], has: () => false };
const tableHere = () => tables.get(state.file) || EMPTY;

function columnsShown() {
  const table = tableHere();
  const says = ({ name }) => table.has(name) && !(name === "mode" && table.columns.mode.values.length === 1);
  return COLUMNS.filter((one) => (one.name === "other" || one.name === "change" ? state.against : says(one)));
}

function cellOf(table, name, row) {
  if (name !== "other" && name !== "change") return table.cell(name, row);
  const there = other(taskOf(table, row));
  const value = there === undefined ? NaN : name === "other" ? there.reward : mean(table, row) - there.reward;
  return value === value ? value : null;
}

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

// What the lists call a text: one that nothing is known of, and an empty one, have names too.
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
  const columns = columnsShown(), template = columns.map(({ width }) => `${width}px`).join(" ");
  $("scroller").style.setProperty("--template", template);
  for (const id of ["heads", "filters"]) $(id).style.gridTemplateColumns = template;
  $("heads").replaceChildren(...columns.map(({ name, title, text, about }) => {
    const head = element("button", { textContent: title, title: `${about}; a click sorts`, className: text ? "text" : "" });
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
    const known = table.columns[name].values.map(called);
    const values = [...new Set(wanted ? [...known, wanted] : known)]; // a filter stays when its file is read again
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
      field.title = wrong ? `not understood, so all rows stay: ${WANTED}` : "";
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
  drawRows();
}

function drawRows() {
  const table = tableHere(), scroller = $("scroller");
  const from = Math.max(0, Math.floor(scroller.scrollTop / ROW_HEIGHT) - SPARE_ROWS);
  const to = Math.min(view.length, from + Math.ceil(scroller.clientHeight / ROW_HEIGHT) + 2 * SPARE_ROWS);
  const columns = columnsShown(), template = columns.map(({ width }) => `${width}px`).join(" ");
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
