// Columns of the run's files: embedded in this page, or asked of its server.

const KEPT_PIECES = 60, LATE_MS = 2000, ANSWER_MS = 300_000;
const facts = JSON.parse(document.getElementById("facts").textContent);
const tables = new Map();
const pieces = new Map();
const late = new Set(); // what the server was asked for and has not answered in time
const embedded = new Map([...document.querySelectorAll("script[data-part]")].map((one) => [one.dataset.part, one]));

// A file of the run is no longer the one that this page's table is of.
class Changed extends Error {
  constructor(path) {
    super(`${path} is of a file that was written again`);
    this.file = path.split("/")[0];
  }
}

// Asks the server, and says so where that takes long: it may be at a large file, or suspended.
async function asked(path) {
  const question = { path };
  const timer = setTimeout(() => {
    late.add(question);
    drawNotice();
  }, LATE_MS);
  try {
    return await fetch("data/" + path.split("/").map(encodeURIComponent).join("/"), { signal: AbortSignal.timeout(ANSWER_MS) });
  } catch (error) {
    throw new Error(error.name === "TimeoutError" ? `temper view has not answered for ${ANSWER_MS / 1000} s, and is asked no longer for ${path}.`
      : "temper view answers no longer: it has ended, and this page has only what it had read by then.");
  } finally {
    clearTimeout(timer);
    if (late.delete(question)) drawNotice();
  }
}

async function part(path) {
  let data;
  if (facts.offline) {
    const text = atob(embedded.get(path).textContent);
    data = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) data[i] = text.charCodeAt(i);
  } else {
    const answer = await asked(path);
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
