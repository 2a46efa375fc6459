// The group: all answers to a task side by side, also from another evaluation.

const CARD_TOKENS = 260, BEFORE_PART = 12, LONG_TEXT = 20_000;
let shown = null; // groups, answers and scales of the panes
let turn = 0; // number of the current request: late answers to earlier requests are dropped

async function show() {
  const request = ++turn, table = tables.get(state.file);
  if (state.row < 0 || state.row >= table.rows) return blank(table.rows ? "Select an answer in the table (j, k)." : "This file has no answers.");
  try {
    const here = await groupOf(state.file, state.row);
    const there = state.against && other(taskOf(table, state.row));
    const beside = there ? await groupOf(state.against, there.row) : null;
    if (request !== turn) return undefined;
    const groups = beside ? [here, beside] : [here];
    shown = { here, beside, chosen: here.answers[state.row - here.first], scales: scalesOf(groups) };
  } catch (error) {
    if (request === turn) blank("This answer cannot be shown."); // never another answer than the selected row
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
  const tickets = [...tables.get(state.file).groups.keys()];
  parts.push(element("h2", { textContent: `${group.env}, group ${tickets.indexOf(group.ticket) + 1} of ${tickets.length}`, title: `ticket ${group.ticket}` }));
  parts.push(element("p", { className: "sub", textContent: `task ${group.key}, thinking ${mode}, weights version ${group.admitted}${sampling(group.sampling)}`, title: "version of the weights when the group started" }));
  parts.push(...group.messages.map((one) => message(one)));
  parts.push(element("h3", { textContent: `${here.answers.length} answers, the first token that differs from the selected one is marked` }));
  parts.push(cards(here, chosen, (row) => choose(row)));
  if (state.against) {
    const label = facts.files.find(({ name }) => name === state.against).label;
    parts.push(element("h3", { textContent: beside ? `same task in evaluation ${label}, ${beside.answers.length} answers` : `evaluation ${label} does not have this task` }));
    if (beside) parts.push(cards(beside, chosen, (row) => go({ file: state.against, against: state.file, row })));
  }
  $("group").replaceChildren(...parts);
}

const sampling = (settings) => Object.entries(settings).map(([name, value]) => `, ${name} ${JSON.stringify(value)}`).join("");

function message(one, call) {
  const text = typeof one.content === "string" ? one.content : JSON.stringify(one.content ?? one, null, 1);
  const who = call === undefined ? one.role || "message" : `${one.role} ${written(call)}`;
  return element("div", { className: "message" }, element("b", {}, ...plain(`${who}  `)), ...beginning(text));
}

// A text. A long text, slow to draw, gets a button for its rest.
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
    if (one.count === one.begin) tokens.append(element("span", { className: "none", textContent: "no sampled tokens" }));
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

// Reasons why an episode ended, with a kind of badge and an explanation.
const STOPS = {
  env: ["finished", "", "the environment ended the episode"],
  turns: ["turn limit", "", "the episode reached its turn limit"],
  length: ["token limit", "bad", "a turn reached its token limit"],
  episode_length: ["token limit", "bad", "the episode reached its token limit"],
  prompt_too_long: ["prompt too long", "bad", "the prompt left no room for an answer"],
  failure: ["error", "bad", "an error outside the model ended the episode"],
};

function badges(one, place) {
  const { answer } = one, made = element("div", { className: "badges" }, element("b", { textContent: String(place) }));
  const badge = (text, kind = "", title = "") => made.append(element("span", { className: `badge ${kind}`, textContent: text, title }));
  if (answer.failure) badge(`failed: ${answer.failure.kind}`, "bad");
  else badge(`reward ${number(answer.reward)}`, answer.reward >= 1 ? "good" : answer.reward <= 0 ? "bad" : "");
  badge(...(STOPS[answer.stop] || [answer.stop]));
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
    if (one.reasons[i] === "injected") classes.push("injected");
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
