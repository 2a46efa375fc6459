// The answer: its reward, turns, tool calls and tokens, and the details of one token.

const CHUNK = 800; // tokens that are drawn at once

function drawAnswer() {
  const { here, chosen } = shown, { answer } = chosen, parts = [];
  const place = state.row - here.first;
  const link = element("button", { textContent: "copy link", title: "a link to this file, answer and token" });
  link.onclick = () => copy(location.href, link);
  const top = badges(chosen, place + 1);
  top.append(link);
  parts.push(element("h2", { textContent: `answer ${place + 1} of ${here.answers.length}, row ${state.row}` }), top);
  parts.push(element("h3", { textContent: "why this reward" }), verdict(answer));
  parts.push(element("h3", { textContent: "turns and tools" }), timeline(answer));
  if (chosen.forced.length) parts.push(element("h3", { textContent: "forced answers: this reasoning, ended at each budget" }), ...chosen.forced.map(forcedAnswer));
  parts.push(element("h3", { textContent: `tokens (prompt and observations grey, colours: ${COLOURS.find(({ name }) => name === state.colour).title})` }));
  const tokens = element("div", { className: "tokens", id: "tokens" });
  parts.push(tokens);
  $("answer").replaceChildren(...parts);
  fill(tokens, chosen, Math.max(CHUNK, state.token + CHUNK / 2));
  mark();
}

function forcedAnswer(one) {
  const { budget, kept, failure } = one.answer, tokens = element("div", { className: "tokens" });
  const made = element("div", { className: "forced" }, badges(one, `budget ${number(budget)}`));
  if (failure) made.append(element("p", { className: "sub" }, ...beginning(failure.message)));
  else made.firstChild.append(element("span", { className: "badge", textContent: `${number(kept)} reasoning tokens kept` }));
  fill(tokens, one, CHUNK, -1);
  made.append(tokens);
  return made;
}

function fill(tokens, one, wanted, parting = groupPartsAt(one)) {
  const done = tokens.querySelectorAll("span[data-token]").length, to = Math.min(one.count, Math.max(done, wanted));
  tokens.querySelector(".more")?.remove();
  tokens.append(...spans(one, done, to, parting));
  if (to < one.count) {
    const more = element("span", { className: "more", textContent: `${number(one.count - to)} more tokens` });
    more.onclick = () => fill(tokens, one, to + CHUNK, parting);
    tokens.append(more);
    new IntersectionObserver((seen, watcher) => {
      if (seen.some(({ isIntersecting }) => isIntersecting)) { watcher.disconnect(); if (more.isConnected) more.onclick(); }
    }).observe(more);
  }
}

function verdict(answer) {
  const made = element("table", { className: "facts" });
  const line = (name, value, kind = "") => made.append(element("tr", {}, element("th", { textContent: name }), element("td", { className: kind }, ...beginning(value))));
  if (answer.failure) line("failed", `${answer.failure.kind}: ${answer.failure.message}`, "bad");
  line("reward", answer.reward === null ? "none: failed answers are not scored" : String(answer.reward));
  for (const [name, value] of Object.entries(answer.parts)) line(`part ${name}`, String(value));
  if (answer.outcome) line("outcome", answer.outcome);
  line("verifier", answer.detail || "no detail");
  const evidence = Object.entries(answer.evidence || {});
  line("evidence", evidence.length ? evidence.map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join("\n") : "none");
  made.lastChild.lastChild.style.whiteSpace = "pre-wrap";
  const box = element("div", {}, made);
  if (answer.reward !== null) {
    const text = `temper env regrade ${facts.files.find(({ name }) => name === state.file).path} --row ${state.row}`;
    const button = element("button", { textContent: "copy" });
    button.onclick = () => unchanged(state.file).then(() => copy(text, button)).catch(renew).catch(fail);
    box.append(element("p", { className: "sub", textContent: "Grade these turns again:" }),
      element("div", { className: "command" }, element("pre", { textContent: text }), button));
  }
  return box;
}

// How the thinking of a turn ended.
const ENDINGS = {
  itself: ["thinking ended by the model", ""],
  line_end: ["thinking ended by the budget, at a line end", "the thinking budget inserted the end of thinking"],
  abrupt: ["thinking ended by the budget, inside a line", "the thinking budget inserted the end of thinking"],
  never: ["thinking did not end", "the answer has no end of thinking"],
  none: ["no thinking", "thinking is off"],
};

// Faults in the form of a turn.
const FAULTS = {
  thinking: "malformed: thinking must be closed once, without its tags in the answer",
  tool_call: "malformed: a tool call is unreadable, has no name or lacks an argument",
};

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
    const spent = `${number(one.times.generate_s)} s sampling, ${number(one.times.step_s)} s environment` + (one.times.queue_s > 0.001 ? `, ${number(one.times.queue_s)} s waiting` : "");
    list.append(element("span", { textContent: `turn ${place + 1}` }), bar, element("span", { className: "sub", textContent: spent }));
    for (const call of one.tool_spans || []) list.append(...callLine(call, one.times, longest));
    const ended = [(ENDINGS[one.closed] || [one.closed])[0], ...one.faults.map((fault) => FAULTS[fault] || fault)].join("; ");
    list.append(element("span", { className: "sub closed", textContent: ended, title: (ENDINGS[one.closed] || ["", ""])[1] }));
  });
  const box = element("div", {}, list);
  answer.turns.forEach((one, place) => {
    const count = one.observation.filter(({ role }) => role === "tool").length, calls = one.tool_spans || [];
    if (count && !calls.length) box.append(element("p", { className: "sub", textContent: `turn ${place + 1}: ${count} tool ${count === 1 ? "call" : "calls"}, ${number(one.times.step_s)} s in total (single times ${UNRECORDED})` }));
    const next = calls[Symbol.iterator]();
    box.append(...one.observation.map((one) => message(one, one.role === "tool" ? next.next().value : undefined)));
  });
  if (!answer.turns.length) box.append(element("p", { className: "hint", textContent: "no turns" }));
  return box;
}

// A tool call: its time span within the turn, on the scale of the turn's bar.
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

const written = ({ name, arguments: values }) => (name ? `${name}(${Object.entries(values).map(([key, value]) => `${key}=${JSON.stringify(value)}`).join(", ")})` : "unreadable call");

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
    $("token").replaceChildren(element("span", { className: "hint", textContent: "click a token for its details (n, p)" }));
    return;
  }
  const known = (value) => (value === value ? number(value) : UNRECORDED);
  fact("token", `${i} of ${one.count}`);
  fact("text", JSON.stringify(one.texts[i]));
  fact("id", one.ids[i] < 0 ? `${UNRECORDED}: a word` : String(one.ids[i]));
  fact("turn", String(one.turns[i] + 1));
  if (!one.sampled[i]) fact("", one.turns[i] ? "observation: input, not sampled, no loss" : "prompt: input, not sampled, no loss");
  else {
    fact("weights version", known(one.version[i]));
    const { training } = one.answer;
    if (training && training.version) fact("lag", String(training.version - one.version[i]), "weight updates between sampling and training");
    if (one.reasons[i] === "injected") fact("", REASONS.injected[0]);
    else {
      fact("engine logprob", known(one.engine[i]));
      if (one.engine[i] === one.engine[i]) fact("p", number(Math.exp(one.engine[i])), "the engine's probability");
      fact("trainer logprob", known(one.trainer[i]), "before the update");
      fact("mismatch", known(one.mismatch[i]), "trainer logprob - engine logprob");
      fact("advantage", known(one.advantage[i]));
      fact("weight", known(one.factor[i]), "factor of its loss");
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
