// The live page of `temper status --serve`.

const POLL_MS = 1000, ANSWER_MS = 5000, LATE_S = 30, SHOWN_GROUPS = 12, SHOWN_BROKEN = 4, WIDTH = 240, HEIGHT = 84, GIB = 2 ** 30;
const SVG = "http://www.w3.org/2000/svg";

let silent_s = null; // how long ago the driver had told something when the last answer came
let came = performance.now(); // when that was, by the clock of this page; before the first one, when the page was opened

const number = (value) => (value === null || value === undefined ? "-" : Math.abs(value) >= 1e5 ? value.toExponential(2) : String(Number(value.toPrecision(4))));
const seconds = (value) => (value < 120 ? `${Math.round(value)} s` : value < 7200 ? `${Math.round(value / 60)} minutes` : `${Math.round(value / 3600)} hours`);
const counts = (of) => Object.entries(of || {}).map(([name, count]) => `${name} ${count}`).join(", ");

function row(...cells) {
  return element("tr", {}, ...cells.map((text, place) => element(place ? "td" : "th", {}, String(text))));
}

function list(id, lines) {
  $(id).replaceChildren(...(lines.length ? lines : [element("li", { className: "none" }, "none")]));
}

function curve({ name, steps, values }) {
  const known = values.filter((one) => one !== null);
  const low = known.length ? Math.min(...known) : null, high = known.length ? Math.max(...known) : null, span = high - low || 1, first = steps[0], last = steps.at(-1);
  const at = (step) => ((step - first) / (last - first || 1)) * WIDTH, up = (value) => HEIGHT - 4 - ((value - low) / span) * (HEIGHT - 8);
  const lines = [[]], broken = steps.filter((_, i) => values[i] === null);
  steps.forEach((step, i) => (values[i] === null ? lines.push([]) : lines.at(-1).push(`${at(step).toFixed(1)},${up(values[i]).toFixed(1)}`)));
  const drawn = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none" });
  drawn.append(...broken.map((step) => shape("line", { x1: at(step), x2: at(step), y1: 0, y2: HEIGHT })));
  drawn.append(...lines.filter((points) => points.length).map((points) => shape("polyline", { points: points.join(" ") })));
  const box = element("div", { className: "curve" }, element("h3", {}, name, element("b", {}, number(values.at(-1)))), drawn,
    element("p", {}, element("span", {}, `step ${first} to ${last}`), element("span", {}, `${number(low)} to ${number(high)}`)));
  if (broken.length) box.append(element("p", { className: "bad" }, `not finite at step ${broken.slice(0, SHOWN_BROKEN).join(", ")}${broken.length > SHOWN_BROKEN ? ", ..." : ""}`));
  box.dataset.curve = name;
  return box;
}

function shape(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function show(told) {
  const lag = told.newest["train/lag_tokens"], stage = told.stage || "between stages";
  const doing = told.evaluation ? `evaluates ${told.evaluation.name}: ${told.evaluation.answered} of ${told.evaluation.tasks} tasks` : "";
  const at = `${stage} ${told.steps ? `${told.step}/${told.steps}` : ""}`;
  $("now").textContent = told.finished ? "all stages are done" : told.pid === undefined ? "starting" : at;
  silent_s = told.silent_s;
  came = performance.now();
  age();
  const state = [
    ["does", told.running ? doing || (told.members || []).map((one) => one.doing).filter(Boolean).join(", ") || "waits" : "nothing: not running"],
    ["version", told.version ?? "-"],
    ["a step takes", told.seconds_a_step === null ? "-" : `${number(told.seconds_a_step)} s`],
    ["left", told.seconds_left === null ? "-" : `about ${seconds(told.seconds_left)}`],
    ["lag of tokens", lag === undefined || lag === null ? "-" : `${number(lag)} versions`],
    ["groups", told.finished ? "-" : counts(told.buffer) || "-"],
    ["failed episodes", counts(told.failures) || "none"],
    ...told.memory.map((one) => [`memory of ${one.name}`, `${(one.bytes / GIB).toFixed(2)} GiB`]),
    ["free memory here", `${(told.free_memory / GIB).toFixed(2)} GiB`],
  ];
  $("state").replaceChildren(...state.map((cells) => row(...cells)));
  const members = told.running ? told.members || [] : [];
  $("process-heads").replaceChildren(row("process", "state", "answered", "quiet", "restarts"));
  $("processes").replaceChildren(...members.map((one) => row(one.name, one.state, one.answered_s === null ? "" : `${seconds(one.answered_s)} ago`, one.quiet_s ? seconds(one.quiet_s) : "", one.restarts)));
  const tickets = told.running ? [...(told.tickets || [])].sort((a, b) => b.age_s - a.age_s).slice(0, SHOWN_GROUPS) : [];
  $("groups").replaceChildren(...tickets.map((one) => row(`#${one.number}`, one.env, one.state, seconds(one.age_s), one.worker || "")));
  $("curves").replaceChildren(...told.curves.map(curve));
  const event = (one) => element("li", {}, ...plain(`${one.stage} ${one.step}: ${one.text}`));
  list("alarms", told.alarms.map(event));
  list("events", told.events.map(event));
  list("faults", told.found.map((line) => element("li", {}, ...plain(line))));
  list("recorded", told.recorded.map((one) => element("li", {}, element("a", { href: one.link }, `${one.kind} ${one.label}`))));
  gone(told);
}

const since = () => (performance.now() - came) / 1000;

function age() {
  $("age").textContent = silent_s === null ? "" : `told ${seconds(silent_s + since())} ago`;
}

function gone(told) {
  const late = told.running && told.silent_s > LATE_S;
  const text = told.finished ? "The run has ended as planned: all its stages are done." : !told.running
    ? told.silent_s === null ? "No driver holds this run, and none has told anything yet." : `The driver is gone: it told its last ${seconds(told.silent_s)} ago. The same command goes on with the run.`
    : late ? `The driver holds the run and has told nothing for ${seconds(told.silent_s)}.` : "";
  say(text, told.finished);
}

function say(text, planned = false) {
  $("gone").textContent = text;
  $("gone").classList.toggle("planned", planned);
  $("gone").hidden = !text;
}

async function poll() {
  try {
    const answer = await fetch("facts.json", { signal: AbortSignal.timeout(ANSWER_MS) }), told = await answer.json();
    if (!answer.ok) throw new Error(told.error);
    show(told);
    document.body.dataset.ready = "true";
  } catch (error) {
    say(error.name === "TimeoutError" ? `Nothing has come from temper status --serve for ${seconds(since())}: it is suspended or held up, and this page is as it was then.`
      : error instanceof TypeError ? "temper status --serve answers no longer: it has ended, and this page is as it was then." : String(error.message));
  }
  setTimeout(poll, POLL_MS);
}

$("run-name").textContent = JSON.parse($("facts").textContent).run;
document.title = `${$("run-name").textContent} - temper status`;
setInterval(age, POLL_MS);
poll();
