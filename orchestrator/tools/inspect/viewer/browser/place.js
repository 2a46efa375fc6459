// The current place: file, answer, token and colours, which the address contains.

const state = { file: null, against: null, row: -1, token: -1, colour: "advantage", wanted: "advantage", sort: null, wide: false, filters: new Map(), search: "" };
let noticeText = "";

function address() {
  const named = new URLSearchParams({ file: state.file });
  if (state.against) named.set("against", state.against);
  if (state.row >= 0) named.set("row", state.row);
  if (state.token >= 0) named.set("token", state.token);
  named.set("colour", state.colour);
  history.replaceState(null, "", `#${named}`);
}

async function open(place) {
  await turnTo(place).catch(renew);
}

// Reads the table of a changed file again. No row stays chosen, because rows are different answers now. Filters stay.
async function renew(error) {
  if (!(error instanceof Changed)) throw error;
  const name = error.file;
  await tableOf(name, true);
  if (name === state.file || name === state.against) await turnTo({ again: name });
}

async function turnTo({ file = state.file, against = state.against, row = -1, token = -1, colour = state.wanted, again = null }) {
  const changed = again || file !== state.file || against !== state.against;
  const about = facts.files.find(({ name }) => name === file);
  if (!about) throw new Error(`this page has no file ${file}`);
  const others = facts.files.filter((one) => one.kind === "evaluation" && one.name !== file);
  const fits = about.kind === "evaluation" && others.some(({ name }) => name === against);
  const request = ++turn, table = await tableOf(file);
  if (fits) await tableOf(against);
  if (request !== turn) return undefined; // a later request replaces this one
  if (file !== state.file) Object.assign(state, { sort: null, search: "" }), state.filters.clear(), ($("search").value = "");
  Object.assign(state, { file, against: fits ? against : null, row: -1, token, colour, wanted: colour });
  state.row = Math.min(row === null ? openingRow() : row, table.rows - 1);
  if (!COLOURS.find((one) => one.name === colour) || (usable(colour) === false && colour !== "surprisal")) state.colour = "surprisal";
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
  const notes = again ? [`The run wrote ${again} again. This is the new table, with different rows.`] : [];
  if (table.trained === 0) {
    const why = about.kind === "evaluation" ? "evaluations are not trained on" : "an earlier version wrote it";
    notes.push(`Not recorded in this file: trainer logprobs, advantages and loss masks (${why}).`);
  } else if (table.trained < table.rows) notes.push(`${number(table.rows - table.trained)} answers were not trained on or failed.`);
  if (table.rows && table.columns.tokens.every((one) => one === 0)) notes.push("Only the text of these answers is known: the server sent no tokens.");
  else if (!table.tokenizer) notes.push("The run has no tokenizer, so tokens are shown as ids.");
  showNotice(notes.join(" "));
}

// Opens a place. If that fails, shows the error and keeps the current place.
const go = (place) => open(place).catch(fail);
const choose = (row, token = -1) => go({ row, token });

function fail(error) {
  showNotice(String(error.message || error));
  if (state.file) $("file").value = state.file;
}

function showNotice(message) {
  noticeText = message;
  drawNotice();
}

// Shows the notice, or the request that the server has not answered in time.
function drawNotice() {
  const [question] = late;
  const message = question ? `Waiting for temper view: it reads ${question.path}, or is suspended.` : noticeText;
  $("notice").textContent = message;
  $("notice").hidden = !message;
}

function named() {
  const linked = new URLSearchParams(location.hash.slice(1)), whole = (name) => (linked.has(name) ? Number(linked.get(name)) : -1);
  const first = facts.files.find(({ kind }) => kind === "step") || facts.files[0];
  if (!first) return fail("This run has no recorded answers yet. Steps and evaluations write them to its folder `trajectories`.");
  const against = linked.get("against") || (facts.offline && facts.files.length > 1 && !linked.has("file") ? facts.files[1].name : null);
  const chosen = { file: linked.get("file") || (facts.offline ? facts.files[0] : first).name, against, row: whole("row"), token: whole("token"), colour: linked.get("colour") || "advantage" };
  return open(linked.has("row") ? chosen : { ...chosen, row: null }).then(() => { document.body.dataset.ready = "true"; }).catch(fail);
}
