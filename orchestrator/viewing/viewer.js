// The page of `temper view`. No framework, no HTML from data: text of models only ever becomes text nodes.
"use strict";

const ROW_HEIGHT = 25, HEAD_HEIGHT = 52, SPARE_ROWS = 12, CHUNK = 800, CARD_TOKENS = 260, BEFORE_PART = 12, KEPT_PIECES = 60;
const FEW = 24; // distinct values of a column of text that a list offers
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
  { name: "prompt", title: "task", width: 300, text: true, about: "end of the prompt" },
];
const COLOURS = [
  { name: "gap", title: "gap", trained: true },
  { name: "surprise", title: "surprise" },
  { name: "advantage", title: "advantage", trained: true },
  { name: "version", title: "version" },
  { name: "forced", title: "forced" },
  { name: "loss", title: "loss", trained: true },
];
const REASONS = {
  forced: ["inserted by the budget's rule, not sampled: no loss", 35],
  truncated: ["the answer ran into a limit on tokens: no loss (mask_truncated)", 265],
  error_guard: ["error_guard: its sequence is too far from what the engine computed", 0],
  sequence_range: ["sequence_range: the mean ratio of its sequence lies outside", 320],
  negative_guard: ["negative_guard: a bad answer that has become too unlikely", 190],
  token_range: ["token_range: its own ratio lies outside", 110],
};
const UNRECORDED = "not recorded";

const facts = JSON.parse(document.getElementById("facts").textContent);
const state = { file: null, against: null, row: -1, token: -1, colour: "gap", sort: null, filters: new Map(), search: "" };
const tables = new Map();
const pieces = new Map();
let view = [];
let shown = null; // what the panes show: its groups, answers and scales
let turn = 0; // counts what was asked for, so that a late answer of an earlier question is not shown

const $ = (id) => document.getElementById(id);

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// ---- columns: embedded in this file, or asked of the server ----

const embedded = new Map([...document.querySelectorAll("script[data-part]")].map((one) => [one.dataset.part, one]));

// A file of the run is no longer the one that this page's table is of.
class Changed extends Error {
  constructor(path) {
    super(`${path} is of a file that was written again`);
    this.file = path.split("/")[0];
  }
}

async function part(path) {
  let data;
  if (facts.offline) {
    const text = atob(embedded.get(path).textContent);
    data = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) data[i] = text.charCodeAt(i);
  } else {
    const answer = await fetch("data/" + path.split("/").map(encodeURIComponent).join("/"));
    if (answer.status === 409) throw new Changed(path);
    if (!answer.ok) throw new Error((await answer.json()).error);
    data = await answer.arrayBuffer();
  }
  const plain = new Blob([data]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(plain).json();
}

async function tableOf(name, again = false) {
  if (again || !tables.has(name)) {
    const table = await part(name + "/table");
    table.cell = (column, row) => {
      const values = table.columns[column];
      return values === undefined ? null : Array.isArray(values) ? values[row] : values.values[values.codes[row]];
    };
    const filled = Object.entries(table.columns).filter(([, values]) => (Array.isArray(values) ? values : values.values).some((one) => one !== null));
    const recorded = new Set(filled.map(([column]) => column));
    table.has = (column) => recorded.has(column);
    table.groups = new Map();
    const tickets = table.columns.ticket || [];
    for (let row = 0; row < tickets.length; row++) {
      if (row && tickets[row] === tickets[row - 1]) table.groups.get(tickets[row]).count++;
      else table.groups.set(tickets[row], { first: row, count: 1 });
    }
    tables.set(name, table);
  }
  return tables.get(name);
}

// Throws where the server says that the file has changed since; one that has gone can't say it.
async function unchanged(name) {
  const { mark } = tables.get(name);
  if (mark) await part(`${name}/${mark}/same`).catch((error) => { if (error instanceof Changed) throw error; });
}

async function groupOf(name, row) {
  const table = await tableOf(name);
  const number = table.pieces.findIndex(([first, count]) => row >= first && row < first + count);
  const path = [name, ...(table.mark ? [table.mark] : []), number].join("/");
  let piece = pieces.get(path);
  if (piece) await unchanged(name);
  else {
    piece = await part(path);
    pieces.set(path, piece);
    if (pieces.size > KEPT_PIECES) pieces.delete(pieces.keys().next().value);
  }
  let first = piece.first;
  for (const group of piece.groups) {
    if (row < first + group.answers.length) return { name, group, first, answers: group.answers.map((one) => tokensOf(one, piece.bytes)) };
    first += group.answers.length;
  }
  throw new Error(`${name} has no row ${row}`);
}

// ---- tokens of an answer, a column for each thing known of them ----

function tokensOf(answer, bytes) {
  if (answer.model) return answer.model;
  const count = answer.turns.reduce((sum, one) => sum + one.context_ids.length + (one.sampled_ids.length || wordsOf(one).length), 0);
  const floats = () => new Float64Array(count).fill(NaN);
  const made = {
    answer, count, ids: new Int32Array(count), texts: new Array(count), sampled: new Uint8Array(count), turns: new Int32Array(count),
    engine: floats(), trainer: floats(), gap: floats(), surprise: floats(), advantage: floats(), version: floats(),
    factor: floats(), taught: floats(), reasons: new Array(count).fill(null), begin: answer.turns.length ? answer.turns[0].context_ids.length : 0,
  };
  const training = answer.training, decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  const each = (value, place) => (Array.isArray(value) ? value[place] : value) ?? NaN;
  let at = 0, trained = 0;
  const text = (id) => {
    if (bytes === null) return `${id} `;
    const characters = bytes[id], data = new Uint8Array(characters.length);
    for (let i = 0; i < characters.length; i++) data[i] = characters.charCodeAt(i);
    return decoder.decode(data, { stream: true });
  };
  answer.turns.forEach((one, number) => {
    for (const id of one.context_ids) {
      made.ids[at] = id; made.texts[at] = text(id); made.turns[at] = number; at++;
    }
    for (const word of one.sampled_ids.length ? [] : wordsOf(one)) {
      made.ids[at] = idOf(word); made.texts[at] = word; made.turns[at] = number; made.sampled[at] = 1; at++;
    }
    const forced = new Uint8Array(one.sampled_ids.length);
    for (const [first, length] of one.forced) forced.fill(1, first, first + length);
    const versions = one.versions.flatMap(([version, length]) => new Array(length).fill(version));
    one.sampled_ids.forEach((id, place) => {
      made.ids[at] = id; made.texts[at] = text(id); made.turns[at] = number; made.sampled[at] = 1; made.version[at] = versions[place];
      if (forced[place]) {
        made.reasons[at] = "forced";
      } else {
        made.engine[at] = one.logprobs[place] ?? NaN;
        made.surprise[at] = -made.engine[at];
        if (training && training.untrained) made.reasons[at] = training.untrained;
        else if (training) {
          made.trainer[at] = training.logprobs[trained] ?? NaN;
          made.gap[at] = made.trainer[at] - made.engine[at];
          made.advantage[at] = each(training.advantage, trained);
          made.factor[at] = each(training.factor, trained);
          made.taught[at] = made.advantage[at] * made.factor[at];
          made.reasons[at] = reasonAt(training.left_out, trained);
        }
        trained++;
      }
      at++;
    });
  });
  const rest = bytes === null ? "" : decoder.decode();
  if (rest && count) made.texts[count - 1] += rest;
  Object.defineProperty(answer, "model", { value: made });
  return made;
}

// Of what a server answered the text alone is known: its words stand for tokens, with negative numbers for ids.
const words = new Map();
const wordsOf = (one) => (one.text || "").match(/\s*\S+|\s+$/g) || [];

function idOf(word) {
  if (!words.has(word)) words.set(word, -1 - words.size);
  return words.get(word);
}

function reasonAt(reasons, place) {
  for (const [reason, runs] of Object.entries(reasons)) {
    for (const [first, length] of runs) if (place >= first && place < first + length) return reason;
  }
  return null;
}

function partsAt(one, other) {
  const most = Math.min(one.count, other.count);
  let at = 0;
  while (at < most && one.ids[at] === other.ids[at]) at++;
  return at === one.count && at === other.count ? -1 : Math.min(at, one.count - 1);
}

// Where the first of the other answers to the task leaves this one; -1 where none does.
function groupPartsAt(one) {
  const places = shown.here.answers.filter((other) => other !== one && other.count).map((other) => partsAt(one, other));
  return places.reduce((least, at) => (at >= 0 && (least < 0 || at < least) ? at : least), -1);
}

// ---- colours ----

function scalesOf(groups) {
  const gaps = [], taught = [], versions = new Set(), reasons = new Map();
  for (const { answers } of groups) {
    for (const one of answers) {
      for (let i = 0; i < one.count; i++) {
        if (!one.sampled[i]) continue;
        if (one.gap[i] === one.gap[i]) gaps.push(Math.abs(one.gap[i]));
        if (one.taught[i] === one.taught[i]) taught.push(Math.abs(one.taught[i]));
        if (one.version[i] === one.version[i]) versions.add(one.version[i]);
        if (one.reasons[i]) reasons.set(one.reasons[i], (reasons.get(one.reasons[i]) || 0) + 1);
      }
    }
  }
  gaps.sort((a, b) => a - b);
  const gap = Math.max(gaps.length ? gaps[Math.floor(gaps.length * 0.99)] : 0, 2e-5);
  return { gap, surprise: 4, taught: taught.reduce((most, one) => Math.max(most, one), 0) || 1, versions: [...versions].sort((a, b) => a - b), reasons };
}

function colourOf(one, i, scales) {
  if (!one.sampled[i]) return "";
  const tint = (name, share) => (share > 0.03 ? `rgb(var(--${name}) / ${(0.75 * Math.min(1, share)).toFixed(3)})` : "");
  const signed = (value, scale, below, above) => (value === value ? tint(value < 0 ? below : above, Math.abs(value) / scale) : "");
  switch (state.colour) {
    case "gap": return signed(one.gap[i], scales.gap, "low", "high");
    case "surprise": return signed(one.surprise[i], scales.surprise, "warm", "warm");
    case "advantage": return signed(one.taught[i], scales.taught, "minus", "plus");
    case "version": {
      const [oldest, newest] = [scales.versions[0], scales.versions.at(-1)];
      return one.version[i] < newest ? tint("old", 0.1 + 0.9 * (newest - one.version[i]) / (newest - oldest)) : "";
    }
    case "forced": return one.reasons[i] === "forced" ? tint("forced", 0.8) : "";
    default: return one.reasons[i] ? `hsl(${hue(one.reasons[i])} 65% 50% / 0.45)` : "";
  }
}

const hue = (reason) => (REASONS[reason] || ["", 220])[1];

function legend() {
  const swatch = (colour, text) => element("span", {}, Object.assign(element("span", { className: "swatch" }), { style: `background: ${colour}` }), text);
  const full = (name) => `rgb(var(--${name}) / 0.75)`;
  const scales = shown && shown.scales;
  if (!scales) return $("legend").replaceChildren();
  const versions = scales.versions;
  const parts = {
    gap: () => [swatch(full("low"), "trainer below engine"), swatch(full("high"), "above"), `full at ${number(scales.gap)} nats`],
    surprise: () => [swatch(full("warm"), `-log mu, full at ${scales.surprise} nats`)],
    advantage: () => [swatch(full("plus"), "made likelier"), swatch(full("minus"), "unlikelier"), `advantage x weight, full at ${number(scales.taught)}`],
    version: () => versions.length > 1
      ? [swatch(full("old"), `oldest: version ${versions[0]}`), `newest: ${versions.at(-1)}, not coloured`]
      : [versions.length ? `all tokens of the group are of version ${versions[0]}` : UNRECORDED],
    forced: () => [swatch(full("forced"), scales.reasons.has("forced") ? "inserted, not sampled" : "inserted tokens: none in this group")],
    loss: () => scales.reasons.size
      ? [...scales.reasons].map(([reason, count]) => swatch(`hsl(${hue(reason)} 65% 50% / 0.45)`, `${reason} ${count}`))
      : ["every sampled token of the group carries loss"],
  };
  $("legend").replaceChildren(...parts[state.colour]());
}

// ---- the table ----

function columnsShown() {
  const table = tables.get(state.file);
  const says = ({ name }) => table.has(name) && !(name === "mode" && table.columns.mode.values.length === 1);
  return COLUMNS.filter((one) => (one.name === "other" || one.name === "change" ? state.against : says(one)));
}

function cellOf(table, name, row) {
  if (name !== "other" && name !== "change") return table.cell(name, row);
  const there = other(taskOf(table, row));
  return there === undefined ? null : name === "other" ? there.reward : mean(table, row) - there.reward;
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
    return (value) => value !== null && value >= low && value <= high;
  }
  const [, sign, rest] = wanted.match(/^(>=|<=|>|<|=)?\s*(.+)$/) || [null, null, "x"];
  const bound = Number(rest);
  if (Number.isNaN(bound)) return null;
  const compare = { ">": (v) => v > bound, "<": (v) => v < bound, ">=": (v) => v >= bound, "<=": (v) => v <= bound };
  const holds = compare[sign] || ((v) => v === bound);
  return (value) => value !== null && holds(value);
}

function filtered() {
  const table = tables.get(state.file), tests = [];
  for (const [name, wanted] of state.filters) {
    const column = COLUMNS.find((one) => one.name === name);
    if (column.text) tests.push((row) => String(cellOf(table, name, row) ?? "-") === wanted);
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
  const table = tables.get(state.file), wanted = state.filters.get(name) ?? "";
  const set = (value) => {
    if (value) state.filters.set(name, value);
    else state.filters.delete(name);
    refresh();
  };
  let field;
  const known = text ? table.columns[name].values.map((one) => String(one ?? "-")) : [];
  if (known.length > FEW && !state.filters.has(name)) return element("span");
  if (text) {
    const values = [...new Set(state.filters.has(name) ? [...known, wanted] : known)]; // a filter stays when its file is read again
    field = element("select", {}, element("option", { value: "", textContent: "all" }),
      ...values.sort().map((one) => element("option", { value: one, textContent: one || "(none)", selected: one === wanted && state.filters.has(name) })));
    field.onchange = () => { set(field.value); field.classList.toggle("on", field.value !== ""); };
  } else {
    field = element("input", { value: wanted, placeholder: ">, ..", spellcheck: false });
    field.oninput = () => {
      set(field.value.trim());
      field.classList.toggle("on", field.value.trim() !== "");
      field.setCustomValidity(field.value.trim() && !test(field.value) ? "use >0.5, <=10, 2..8, 1 or -" : "");
    };
  }
  field.dataset.column = name;
  field.setAttribute("aria-label", `filter by ${title}`);
  field.classList.toggle("on", wanted !== "");
  return field;
}

function refresh() {
  const table = tables.get(state.file);
  view = filtered();
  $("body").style.height = `${view.length * ROW_HEIGHT}px`;
  $("count").textContent = `${view.length === table.rows ? "" : `${view.length.toLocaleString("en")} of `}${table.rows.toLocaleString("en")} answers, ${table.groups.size.toLocaleString("en")} groups`;
  drawRows();
}

function drawRows() {
  const table = tables.get(state.file), scroller = $("scroller");
  if (!table) return;
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
  const made = element("span", { className: text ? "text" : "", textContent: empty ? "-" : text ? value : number(value) });
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

// ---- the panes ----

async function show() {
  const asked = ++turn, table = tables.get(state.file);
  if (state.row < 0 || state.row >= table.rows) {
    shown = null;
    $("group").replaceChildren(element("p", { className: "hint", textContent: table.rows ? "Choose an answer in the table (j, k)." : "This file has no answers." }));
    $("answer").replaceChildren();
    $("token").replaceChildren();
    return legend();
  }
  const here = await groupOf(state.file, state.row);
  const there = state.against && other(taskOf(table, state.row));
  const beside = there ? await groupOf(state.against, there.row) : null;
  if (asked !== turn) return undefined;
  const groups = beside ? [here, beside] : [here];
  shown = { here, beside, chosen: here.answers[state.row - here.first], scales: scalesOf(groups) };
  drawPanes();
  return undefined;
}

function drawPanes() {
  legend();
  drawGroup();
  drawAnswer();
  drawToken();
}

function drawGroup() {
  const { here, beside, chosen } = shown, { group } = here, parts = [];
  const mode = tables.get(state.file).cell("mode", state.row);
  parts.push(element("h2", { textContent: `${group.env}, group ${group.ticket}` }));
  parts.push(element("p", { className: "sub", textContent: `task ${group.key}, thinking ${mode}, admitted at version ${group.admitted}${sampling(group.sampling)}` }));
  parts.push(...group.messages.map((one) => message(one)));
  parts.push(element("h3", { textContent: `${here.answers.length} answers, marked where they part from the chosen one` }));
  parts.push(cards(here, chosen, (row) => choose(row)));
  if (state.against) {
    const label = facts.files.find(({ name }) => name === state.against).label;
    parts.push(element("h3", { textContent: beside ? `the same task in evaluation ${label}, ${beside.answers.length} answers` : `evaluation ${label} does not have this task` }));
    if (beside) parts.push(cards(beside, chosen, (row) => open({ file: state.against, against: state.file, row })));
  }
  $("group").replaceChildren(...parts);
}

const sampling = (given) => Object.entries(given).map(([name, value]) => `, ${name} ${JSON.stringify(value)}`).join("");

function message(one, call) {
  const text = typeof one.content === "string" ? one.content : JSON.stringify(one.content ?? one, null, 1);
  const who = call === undefined ? one.role || "message" : `${one.role} ${written(call)}`;
  return element("div", { className: "message" }, element("b", { textContent: `${who}  ` }), text);
}

function cards({ group, first, answers }, chosen, act) {
  const list = element("div", { className: "cards" });
  answers.forEach((one, place) => {
    const card = element("div", { className: one === chosen ? "card chosen" : "card" }, badges(one, place + 1));
    const at = one === chosen ? -1 : partsAt(one, chosen);
    const from = at < 0 ? one.begin : Math.max(one.begin, at - BEFORE_PART);
    const tokens = element("div", { className: "tokens" });
    if (from > one.begin) tokens.append(element("span", { className: "context", textContent: "... " }));
    tokens.append(...spans(one, from, Math.min(one.count, from + CARD_TOKENS), at));
    if (from + CARD_TOKENS < one.count) tokens.append(element("span", { className: "context", textContent: " ..." }));
    if (one.count === one.begin) tokens.append(element("span", { className: "none", textContent: "no token was sampled" }));
    card.append(tokens);
    card.dataset.row = first + place;
    card.onclick = () => act(first + place);
    list.append(card);
  });
  return list;
}

function badges(one, place) {
  const { answer } = one, made = element("div", { className: "badges" }, element("b", { textContent: String(place) }));
  const badge = (text, kind = "") => made.append(element("span", { className: `badge ${kind}`, textContent: text }));
  if (answer.failure) badge(`failed: ${answer.failure.kind}`, "bad");
  else badge(`reward ${number(answer.reward)}`, answer.reward >= 1 ? "good" : answer.reward <= 0 ? "bad" : "");
  badge(answer.stop);
  badge(`${number(one.sampled.reduce((sum, is) => sum + is, 0))} tokens`);
  const { training } = answer;
  if (training && typeof training.advantage === "number") badge(`advantage ${number(training.advantage)}`);
  if (training && training.untrained) badge(`not trained: ${training.untrained}`, "bad");
  return made;
}

function spans(one, from, to, parts = -1) {
  const made = [];
  for (let i = from; i < to; i++) {
    const text = one.texts[i], span = element("span", { textContent: text });
    const classes = [];
    if (!one.sampled[i]) classes.push("context");
    if (text.startsWith("\n")) classes.push("newline");
    if (text === "") classes.push("empty");
    if (one.reasons[i] === "forced") classes.push("forced");
    if (i === parts) classes.push("parts");
    if (classes.length) span.className = classes.join(" ");
    const colour = colourOf(one, i, shown.scales);
    if (colour) span.style.background = colour;
    span.dataset.token = i;
    made.push(span);
  }
  return made;
}

function drawAnswer() {
  const { here, chosen } = shown, { answer } = chosen, parts = [];
  const place = state.row - here.first;
  const link = element("button", { textContent: "copy link", title: "the address of this page names file, answer and token" });
  link.onclick = () => copy(location.href, link);
  const top = badges(chosen, place + 1);
  top.append(link);
  parts.push(element("h2", { textContent: `answer ${place + 1} of ${here.answers.length}, row ${state.row}` }), top);
  parts.push(element("h3", { textContent: "why this reward" }), verdict(answer));
  parts.push(element("h3", { textContent: "turns and tools" }), timeline(answer));
  parts.push(element("h3", { textContent: `tokens: prompt and observations grey, ${state.colour} coloured` }));
  const tokens = element("div", { className: "tokens", id: "tokens" });
  parts.push(tokens);
  $("answer").replaceChildren(...parts);
  fill(tokens, chosen, Math.max(CHUNK, state.token + CHUNK / 2));
  mark();
}

function fill(tokens, one, wanted) {
  const done = tokens.querySelectorAll("span[data-token]").length, to = Math.min(one.count, Math.max(done, wanted));
  tokens.querySelector(".more")?.remove();
  tokens.append(...spans(one, done, to, groupPartsAt(one)));
  if (to < one.count) {
    const more = element("span", { className: "more", textContent: `${number(one.count - to)} more tokens` });
    more.onclick = () => fill(tokens, one, to + CHUNK);
    tokens.append(more);
    new IntersectionObserver((seen, watcher) => {
      if (seen.some(({ isIntersecting }) => isIntersecting)) { watcher.disconnect(); if (more.isConnected) more.onclick(); }
    }).observe(more);
  }
}

function verdict(answer) {
  const made = element("table", { className: "facts" });
  const line = (name, value, kind = "") => made.append(element("tr", {}, element("th", { textContent: name }), element("td", { textContent: value, className: kind })));
  if (answer.failure) line("failed", `${answer.failure.kind}: ${answer.failure.message}`, "bad");
  line("reward", answer.reward === null ? "none: what failed is not scored" : String(answer.reward));
  for (const [name, value] of Object.entries(answer.parts)) line(`part ${name}`, String(value));
  if (answer.outcome) line("outcome", answer.outcome);
  line("the verifier says", answer.detail || "nothing");
  const evidence = Object.entries(answer.evidence || {});
  line("evidence", evidence.length ? evidence.map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join("\n") : "none");
  made.lastChild.lastChild.style.whiteSpace = "pre-wrap";
  const box = element("div", {}, made);
  if (answer.reward !== null) {
    const text = `temper regrade ${facts.files.find(({ name }) => name === state.file).path} --row ${state.row}`;
    const button = element("button", { textContent: "copy" });
    button.onclick = () => unchanged(state.file).then(() => copy(text, button)).catch(renew).catch(fail);
    box.append(element("p", { className: "sub", textContent: "this plays the same turns to the verifier again:" }),
      element("div", { className: "command" }, element("pre", { textContent: text }), button));
  }
  return box;
}

function timeline(answer) {
  const list = element("div", { className: "spans" });
  const longest = Math.max(1e-9, ...answer.turns.map(({ times }) => times.queue_s + times.generate_s + times.step_s));
  answer.turns.forEach((one, place) => {
    const bar = element("div", { className: "bar" });
    for (const [kind, seconds] of [["queue", one.times.queue_s], ["generate", one.times.generate_s], ["step", one.times.step_s]]) {
      const share = element("i", { className: kind, title: `${kind} ${seconds} s` });
      share.style.width = `${(100 * seconds) / longest}%`;
      if (seconds > 0) bar.append(share);
    }
    const said = `${number(one.times.generate_s)} s sampling, ${number(one.times.step_s)} s environment` + (one.times.queue_s > 0.001 ? `, ${number(one.times.queue_s)} s waiting` : "");
    list.append(element("span", { textContent: `turn ${place + 1}` }), bar, element("span", { className: "sub", textContent: said }));
    for (const call of one.tool_spans || []) list.append(...callLine(call, one.times, longest));
    const faults = one.faults.length ? `; faults: ${one.faults.join(", ")}` : "";
    list.append(element("span"), element("span", { className: "sub", textContent: `thought closed: ${one.closed}${faults}` }), element("span"));
  });
  const box = element("div", {}, list);
  answer.turns.forEach((one, place) => {
    const told = one.observation.filter(({ role }) => role === "tool").length, calls = one.tool_spans || [];
    if (told && !calls.length) box.append(element("p", { className: "sub", textContent: `turn ${place + 1}: ${told} tool ${told === 1 ? "call" : "calls"}, ${number(one.times.step_s)} s together; the time of each is ${UNRECORDED}` }));
    const asked = calls[Symbol.iterator]();
    box.append(...one.observation.map((said) => message(said, said.role === "tool" ? asked.next().value : undefined)));
  });
  if (!answer.turns.length) box.append(element("p", { className: "hint", textContent: "no turn was played" }));
  return box;
}

// A tool call of a turn: its span where it lies in the turn, on the same scale as the turn's bar.
function callLine(call, times, longest) {
  const share = (seconds) => `${(100 * seconds) / longest}%`;
  const span = element("i", { className: "call", title: `${written(call)}: ${call.seconds} s, ${call.began_s} s into the environment's step` });
  span.style.marginLeft = share(times.queue_s + times.generate_s + call.began_s);
  span.style.width = share(call.seconds);
  return [
    element("span", { className: "sub called", textContent: call.name || "unreadable call", title: written(call) }),
    element("div", { className: "bar of-call" }, span),
    element("span", { className: "sub", textContent: `${number(call.seconds)} s` }),
  ];
}

const written = ({ name, arguments: given }) => (name ? `${name}(${Object.entries(given).map(([key, value]) => `${key}=${JSON.stringify(value)}`).join(", ")})` : "unreadable call");

function mark() {
  document.querySelector("#tokens span.chosen")?.classList.remove("chosen");
  const span = state.token < 0 ? null : document.querySelector(`#tokens span[data-token="${state.token}"]`);
  if (!span) return;
  span.classList.add("chosen");
  span.scrollIntoView({ block: "nearest" });
}

function drawToken() {
  const one = shown.chosen, i = state.token, made = [];
  const fact = (name, value, title = "") => made.push(element("span", { title }, element("b", { textContent: name }), name ? " " : "", value));
  if (i < 0 || i >= one.count) {
    $("token").replaceChildren(element("span", { className: "hint", textContent: "click a token for all that is known of it (n, p)" }));
    return;
  }
  const known = (value) => (value === value ? number(value) : UNRECORDED);
  fact("token", `${i} of ${one.count}`);
  fact("text", JSON.stringify(one.texts[i]));
  fact("id", one.ids[i] < 0 ? `${UNRECORDED}: a word` : String(one.ids[i]));
  fact("turn", String(one.turns[i] + 1));
  if (!one.sampled[i]) fact("", one.turns[i] ? "observation: seen by the model, not sampled, no loss" : "prompt: seen by the model, not sampled, no loss");
  else {
    fact("version", known(one.version[i]));
    const { training } = one.answer;
    if (training && training.version) fact("lag", String(training.version - one.version[i]), "pushes between the weights that sampled it and those that it trained");
    if (one.reasons[i] === "forced") fact("", REASONS.forced[0]);
    else {
      fact("log mu", known(one.engine[i]), "the engine's log-probability");
      if (one.engine[i] === one.engine[i]) fact("mu", number(Math.exp(one.engine[i])));
      fact("log pi", known(one.trainer[i]), "the trainer's, before the step");
      fact("gap", known(one.gap[i]), "log pi - log mu");
      fact("advantage", known(one.advantage[i]));
      fact("weight", known(one.factor[i]), "what its loss was multiplied by");
      const reason = one.reasons[i];
      fact("loss", training ? (reason ? (REASONS[reason] || [reason])[0] : "yes") : UNRECORDED);
    }
  }
  $("token").replaceChildren(...made);
}

async function copy(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "copied";
  } catch {
    const field = element("textarea", { value: text });
    document.body.append(field);
    field.select();
    button.textContent = document.execCommand("copy") ? "copied" : "not copied";
    field.remove();
  }
  setTimeout(() => { button.textContent = before; }, 1200);
}

// ---- where one is: file, answer, token and colour, which the address names ----

function address() {
  const named = new URLSearchParams({ file: state.file });
  if (state.against) named.set("against", state.against);
  if (state.row >= 0) named.set("row", state.row);
  if (state.token >= 0) named.set("token", state.token);
  named.set("colour", state.colour);
  history.replaceState(null, "", `#${named}`);
}

async function open(asked) {
  await turnTo(asked).catch(renew);
}

// Reads the table again of a file that has changed. Its rows are other answers: none is chosen, and filters stay.
async function renew(error) {
  if (!(error instanceof Changed)) throw error;
  const name = error.file;
  await tableOf(name, true);
  if (name === state.file || name === state.against) await turnTo({ again: name });
}

async function turnTo({ file = state.file, against = state.against, row = -1, token = -1, colour = state.colour, again = null }) {
  const changed = again || file !== state.file || against !== state.against;
  const about = facts.files.find(({ name }) => name === file);
  if (!about) throw new Error(`this page has no answers called ${file}`);
  const others = facts.files.filter((one) => one.kind === "evaluation" && one.name !== file);
  const fits = about.kind === "evaluation" && others.some(({ name }) => name === against);
  const table = await tableOf(file);
  if (fits) await tableOf(against);
  if (file !== state.file) Object.assign(state, { sort: null, search: "" }), state.filters.clear(), ($("search").value = "");
  Object.assign(state, { file, against: fits ? against : null, row: Math.min(row, table.rows - 1), token, colour });
  if (!COLOURS.find((one) => one.name === colour) || (usable(colour) === false && colour !== "surprise")) state.colour = "surprise";
  $("file").value = file;
  $("against-label").hidden = about.kind !== "evaluation" || others.length === 0;
  $("against").replaceChildren(element("option", { value: "", textContent: "nothing" }), ...others.map(({ name, label }) => element("option", { value: name, textContent: label, selected: name === state.against })));
  if (changed) {
    notice(about, table, again);
    layOut();
    refresh();
  }
  drawColours();
  scrollTo(state.row);
  drawRows();
  address();
  await show();
}

const usable = (name) => !COLOURS.find((one) => one.name === name)?.trained || tables.get(state.file).trained > 0;

function notice(about, table, again) {
  const said = again ? [`The run has written ${again} again, so the table was read again: its rows are other answers.`] : [];
  if (table.trained === 0) {
    const why = about.kind === "evaluation" ? "an evaluation is not trained on" : "it was written before runs recorded this";
    said.push(`Not recorded in this file: log-probabilities of the trainer, advantages, why tokens carry no loss; ${why}.`);
  } else if (table.trained < table.rows) said.push(`${number(table.rows - table.trained)} of these answers were not trained on, or failed.`);
  if (table.rows && table.columns.tokens.every((one) => one === 0)) said.push("Of these answers the text alone is known: a server gave them without their tokens.");
  else if (!table.tokenizer) said.push("The run's tokenizer is not there: tokens are shown by their ids.");
  $("notice").textContent = said.join(" ");
  $("notice").hidden = said.length === 0;
}

function drawColours() {
  $("colours").replaceChildren(...COLOURS.map(({ name, title }, place) => {
    const button = element("button", { textContent: title, disabled: !usable(name), title: usable(name) ? `key ${place + 1}` : UNRECORDED + " in this file" });
    button.setAttribute("role", "radio");
    button.setAttribute("aria-checked", String(name === state.colour));
    button.dataset.colour = name;
    button.onclick = () => paint(name);
    return button;
  }));
}

function paint(name) {
  if (!usable(name)) return;
  state.colour = name;
  drawColours();
  address();
  if (shown) drawPanes();
}

function scrollTo(row) {
  const place = view.indexOf(row), scroller = $("scroller");
  if (place < 0) return;
  const top = place * ROW_HEIGHT, room = scroller.clientHeight - HEAD_HEIGHT;
  if (top < scroller.scrollTop) scroller.scrollTop = top;
  else if (top + ROW_HEIGHT > scroller.scrollTop + room) scroller.scrollTop = top + ROW_HEIGHT - room;
}

const choose = (row, token = -1) => open({ row, token });

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

function named() {
  const given = new URLSearchParams(location.hash.slice(1)), whole = (name) => (given.has(name) ? Number(given.get(name)) : -1);
  const first = facts.files.find(({ kind }) => kind === "step") || facts.files[0];
  if (!first) return fail("This run has left no answers yet: steps and evaluations leave them in its folder `trajectories`.");
  const against = given.get("against") || (facts.offline && facts.files.length > 1 && !given.has("file") ? facts.files[1].name : null);
  const chosen = { file: given.get("file") || (facts.offline ? facts.files[0] : first).name, against, row: whole("row"), token: whole("token"), colour: given.get("colour") || "gap" };
  return open(given.has("row") ? chosen : { ...chosen, row: 0 }).then(() => { document.body.dataset.ready = "true"; }).catch(fail);
}

begin();
