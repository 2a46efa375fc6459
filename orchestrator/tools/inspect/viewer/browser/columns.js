// Columns of the run's files: embedded in this page, or fetched from its server.

const KEPT_PIECES = 60, LATE_MS = 2000, ANSWER_MS = 300_000;
const facts = JSON.parse(document.getElementById("facts").textContent);
const tables = new Map();
const pieces = new Map();
const late = new Set(); // requests that the server has not answered in time
const embedded = new Map([...document.querySelectorAll("script[data-part]")].map((one) => [one.dataset.part, one]));

// A file of the run has changed since this page read its table.
class Changed extends Error {
  constructor(path) {
    super(`${path} belongs to a file that has changed`);
    this.file = path.split("/")[0];
  }
}

// Fetches a path from the server, with a notice if that takes long.
async function fetched(path) {
  const question = { path };
  const timer = setTimeout(() => {
    late.add(question);
    drawNotice();
  }, LATE_MS);
  try {
    return await fetch("data/" + path.split("/").map(encodeURIComponent).join("/"), { signal: AbortSignal.timeout(ANSWER_MS) });
  } catch (error) {
    throw new Error(error.name === "TimeoutError" ? `temper view did not answer within ${ANSWER_MS / 1000} s: ${path}`
      : "temper view has ended. Only the data that this page has already read is available.");
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
    const answer = await fetched(path);
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

// Throws if the file has changed. A server that has ended is ignored.
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
