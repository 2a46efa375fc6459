// The tokens of an answer, as columns.

const UNRECORDED = "not recorded";

function tokensOf(answer, bytes) {
  if (answer.model) return answer.model;
  const count = answer.turns.reduce((sum, one) => sum + one.context_ids.length + (one.sampled_ids.length || wordsOf(one).length), 0);
  const floats = () => new Float64Array(count).fill(NaN);
  const made = {
    answer, count, ids: new Int32Array(count), texts: new Array(count), sampled: new Uint8Array(count), turns: new Int32Array(count),
    engine: floats(), trainer: floats(), mismatch: floats(), surprisal: floats(), advantage: floats(), version: floats(),
    factor: floats(), taught: floats(), reasons: new Array(count).fill(null), begin: answer.turns.length ? answer.turns[0].context_ids.length : 0,
  };
  const training = answer.training, decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  const leftOut = spread((training && training.left_out) || {});
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
    const injected = new Uint8Array(one.sampled_ids.length);
    for (const [first, length] of one.injected) injected.fill(1, first, first + length);
    const versions = one.versions.flatMap(([version, length]) => new Array(length).fill(version));
    one.sampled_ids.forEach((id, place) => {
      made.ids[at] = id; made.texts[at] = text(id); made.turns[at] = number; made.sampled[at] = 1; made.version[at] = versions[place];
      if (injected[place]) {
        made.reasons[at] = "injected";
      } else {
        made.engine[at] = one.logprobs[place] ?? NaN;
        made.surprisal[at] = -made.engine[at];
        if (training && training.untrained) made.reasons[at] = training.untrained;
        else if (training) {
          made.trainer[at] = training.logprobs[trained] ?? NaN;
          made.mismatch[at] = made.trainer[at] - made.engine[at];
          made.advantage[at] = each(training.advantage, trained);
          made.factor[at] = each(training.factor, trained);
          made.taught[at] = made.advantage[at] * made.factor[at];
          made.reasons[at] = leftOut[trained] ?? null;
        }
        trained++;
      }
      at++;
    });
  });
  const rest = bytes === null ? "" : decoder.decode();
  if (rest && count) made.texts[count - 1] += rest;
  made.forced = answer.forced_answers.map((one) => tokensOf(one, bytes));
  Object.defineProperty(answer, "model", { value: made });
  return made;
}

// An answer from a server has text only: words replace tokens, with negative ids.
const words = new Map();
const wordsOf = (one) => (one.text || "").match(/\s*\S+|\s+$/g) || [];

function idOf(word) {
  if (!words.has(word)) words.set(word, -1 - words.size);
  return words.get(word);
}

// Returns for each trained token the reason why it carries no loss. `reasons` has runs of [first, count].
function spread(runs) {
  const reasons = [];
  for (const [reason, places] of Object.entries(runs)) {
    for (const [first, length] of places) for (let place = first; place < first + length; place++) reasons[place] ??= reason;
  }
  return reasons;
}

function partsAt(one, other) {
  const most = Math.min(one.count, other.count);
  let at = 0;
  while (at < most && one.ids[at] === other.ids[at]) at++;
  return at === one.count && at === other.count ? -1 : Math.min(at, one.count - 1);
}

// The first token at which another answer to the task differs; -1 if none does.
function groupPartsAt(one) {
  const places = shown.here.answers.filter((other) => other !== one && other.count).map((other) => partsAt(one, other));
  return places.reduce((least, at) => (at >= 0 && (least < 0 || at < least) ? at : least), -1);
}
