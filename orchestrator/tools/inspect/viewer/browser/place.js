// Where one is: file, answer, token and colours, which the address names.

const state = { file: null, against: null, row: -1, token: -1, colour: "gap", sort: null, filters: new Map(), search: "" };
let told = "";

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
  const asked = ++turn, table = await tableOf(file);
  if (fits) await tableOf(against);
  if (asked !== turn) return undefined; // something else was asked for meanwhile
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
  return show();
}

function notice(about, table, again) {
  const said = again ? [`The run has written ${again} again, so the table was read again: its rows are other answers.`] : [];
  if (table.trained === 0) {
    const why = about.kind === "evaluation" ? "an evaluation is not trained on" : "it was written before runs recorded this";
    said.push(`Not recorded in this file: log-probabilities of the trainer, advantages, why tokens carry no loss; ${why}.`);
  } else if (table.trained < table.rows) said.push(`${number(table.rows - table.trained)} of these answers were not trained on, or failed.`);
  if (table.rows && table.columns.tokens.every((one) => one === 0)) said.push("Of these answers the text alone is known: a server gave them without their tokens.");
  else if (!table.tokenizer) said.push("The run's tokenizer is not there: tokens are shown by their ids.");
  tell(said.join(" "));
}

// Opens what is asked for, and says so where that can't be shown: what was shown stays.
const go = (asked) => open(asked).catch(fail);
const choose = (row, token = -1) => go({ row, token });

function fail(error) {
  tell(String(error.message || error));
  if (state.file) $("file").value = state.file;
}

function tell(text) {
  told = text;
  drawNotice();
}

// Shows what was told last, or in its place which answer of the server is late.
function drawNotice() {
  const [question] = late;
  const text = question ? `temper view has not answered yet: it reads ${question.path}, or is suspended.` : told;
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

function named() {
  const given = new URLSearchParams(location.hash.slice(1)), whole = (name) => (given.has(name) ? Number(given.get(name)) : -1);
  const first = facts.files.find(({ kind }) => kind === "step") || facts.files[0];
  if (!first) return fail("This run has left no answers yet: steps and evaluations leave them in its folder `trajectories`.");
  const against = given.get("against") || (facts.offline && facts.files.length > 1 && !given.has("file") ? facts.files[1].name : null);
  const chosen = { file: given.get("file") || (facts.offline ? facts.files[0] : first).name, against, row: whole("row"), token: whole("token"), colour: given.get("colour") || "gap" };
  return open(given.has("row") ? chosen : { ...chosen, row: 0 }).then(() => { document.body.dataset.ready = "true"; }).catch(fail);
}
