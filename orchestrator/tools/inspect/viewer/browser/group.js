// The group: all answers to a task side by side, and those of another evaluation to it.

const CARD_TOKENS = 260, BEFORE_PART = 12, LONG_TEXT = 20_000;
let shown = null; // what the panes show: its groups, answers and scales
let turn = 0; // counts what was asked for, so that a late answer of an earlier question is not shown

async function show() {
  const asked = ++turn, table = tables.get(state.file);
  if (state.row < 0 || state.row >= table.rows) return blank(table.rows ? "Choose an answer in the table (j, k)." : "This file has no answers.");
  try {
    const here = await groupOf(state.file, state.row);
    const there = state.against && other(taskOf(table, state.row));
    const beside = there ? await groupOf(state.against, there.row) : null;
    if (asked !== turn) return undefined;
    const groups = beside ? [here, beside] : [here];
    shown = { here, beside, chosen: here.answers[state.row - here.first], scales: scalesOf(groups) };
  } catch (error) { // or another answer would stand beside the row that is marked
    if (asked === turn) blank("This answer can't be shown.");
    throw error;
  }
  return drawPanes();
}

function blank(why) {
  shown = null;
  $("group").replaceChildren(element("p", { className: "hint", textContent: why }));
  $("answer").replaceChildren();
  $("token").replaceChildren();
  legend();
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
    if (beside) parts.push(cards(beside, chosen, (row) => go({ file: state.against, against: state.file, row })));
  }
  $("group").replaceChildren(...parts);
}

const sampling = (given) => Object.entries(given).map(([name, value]) => `, ${name} ${JSON.stringify(value)}`).join("");

function message(one, call) {
  const text = typeof one.content === "string" ? one.content : JSON.stringify(one.content ?? one, null, 1);
  const who = call === undefined ? one.role || "message" : `${one.role} ${written(call)}`;
  return element("div", { className: "message" }, element("b", {}, ...plain(`${who}  `)), ...beginning(text));
}

// A text; of one that would take seconds to draw its beginning, and a button for the rest.
function beginning(text) {
  if (text.length <= LONG_TEXT) return plain(text);
  const more = element("button", { textContent: `${number(text.length - LONG_TEXT)} more characters` });
  more.onclick = () => more.replaceWith(...plain(text.slice(LONG_TEXT)));
  return [...plain(text.slice(0, LONG_TEXT)), more];
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
    card.tabIndex = 0;
    card.setAttribute("role", "button");
    card.onclick = () => act(first + place);
    card.onkeydown = ({ key }) => { if (key === "Enter") act(first + place); };
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
    if (TURNS.test(text) || UNSEEN.test(text)) hide(span, text);
    const colour = colourOf(one, i, shown.scales);
    if (colour) span.style.background = colour;
    span.dataset.token = i;
    made.push(span);
  }
  return made;
}
