// Token colours and their legend.

const COLOURS = [
  { name: "mismatch", title: "mismatch", trained: true, about: "trainer logprob minus engine logprob" },
  { name: "surprisal", title: "surprisal", about: "-log p by the engine: how unlikely the token was" },
  { name: "advantage", title: "advantage", trained: true, about: "advantage times loss weight: how the update changed the token" },
  { name: "version", title: "weights", about: "version of the weights that sampled the token" },
  { name: "injected", title: "injected", about: "tokens that the thinking budget inserted" },
  { name: "loss", title: "no loss", trained: true, about: "why a token carries no loss" },
];

const REASONS = {
  injected: ["inserted by the thinking budget, not sampled: no loss", 35],
  truncated: ["the answer reached a token limit: no loss (mask_truncated)", 265],
  error_guard: ["error_guard: the trainer-engine mismatch of the sequence is too large", 0],
  sequence_range: ["sequence_range: the mean ratio of the sequence is out of range", 320],
  negative_guard: ["negative_guard: a bad answer that is already too unlikely", 190],
  token_range: ["token_range: the ratio of the token is out of range", 110],
};

function scalesOf(groups) {
  const mismatches = [], taught = [], versions = new Set(), reasons = new Map();
  for (const { answers } of groups) {
    for (const one of answers.flatMap((one) => [one, ...one.forced])) {
      for (let i = 0; i < one.count; i++) {
        if (!one.sampled[i]) continue;
        if (one.mismatch[i] === one.mismatch[i]) mismatches.push(Math.abs(one.mismatch[i]));
        if (one.taught[i] === one.taught[i]) taught.push(Math.abs(one.taught[i]));
        if (one.version[i] === one.version[i]) versions.add(one.version[i]);
        if (one.reasons[i]) reasons.set(one.reasons[i], (reasons.get(one.reasons[i]) || 0) + 1);
      }
    }
  }
  mismatches.sort((a, b) => a - b);
  const mismatch = Math.max(mismatches.length ? mismatches[Math.floor(mismatches.length * 0.99)] : 0, 2e-5);
  return { mismatch, surprisal: 4, taught: taught.reduce((most, one) => Math.max(most, one), 0) || 1, versions: [...versions].sort((a, b) => a - b), reasons };
}

function colourOf(one, i, scales) {
  if (!one.sampled[i]) return "";
  const tint = (name, share) => (share > 0.03 ? `rgb(var(--${name}) / ${(0.75 * Math.min(1, share)).toFixed(3)})` : "");
  const signed = (value, scale, below, above) => (value === value ? tint(value < 0 ? below : above, Math.abs(value) / scale) : "");
  switch (state.colour) {
    case "mismatch": return signed(one.mismatch[i], scales.mismatch, "low", "high");
    case "surprisal": return signed(one.surprisal[i], scales.surprisal, "warm", "warm");
    case "advantage": return signed(one.taught[i], scales.taught, "minus", "plus");
    case "version": {
      const [oldest, newest] = [scales.versions[0], scales.versions.at(-1)];
      return one.version[i] < newest ? tint("old", 0.1 + 0.9 * (newest - one.version[i]) / (newest - oldest)) : "";
    }
    case "injected": return one.reasons[i] === "injected" ? tint("injected", 0.8) : "";
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
    mismatch: () => [swatch(full("low"), "trainer below engine"), swatch(full("high"), "trainer above"), `full colour at ${number(scales.mismatch)} nats`],
    surprisal: () => [swatch(full("warm"), `-log p, full colour at ${scales.surprisal} nats`)],
    advantage: () => [swatch(full("plus"), "made more likely"), swatch(full("minus"), "less likely"), `advantage x weight, full colour at ${number(scales.taught)}`],
    version: () => versions.length > 1
      ? [swatch(full("old"), `oldest: version ${versions[0]}`), `newest: ${versions.at(-1)}, no colour`]
      : [versions.length ? `weights version ${versions[0]} sampled all tokens of the group` : UNRECORDED],
    injected: () => [swatch(full("injected"), scales.reasons.has("injected") ? "inserted, not sampled" : "no inserted tokens in this group")],
    loss: () => scales.reasons.size
      ? [...scales.reasons].map(([reason, count]) => swatch(`hsl(${hue(reason)} 65% 50% / 0.45)`, `${reason} ${number(count)}`))
      : ["every sampled token of the group carries loss"],
  };
  $("legend").replaceChildren(...parts[state.colour]());
}

const usable = (name) => !COLOURS.find((one) => one.name === name)?.trained || tableHere().trained > 0;

function drawColours() {
  $("colours").replaceChildren(...COLOURS.map(({ name, title, about }, place) => {
    const button = element("button", { textContent: title, disabled: !usable(name), title: usable(name) ? `${about} (key ${place + 1})` : UNRECORDED + " in this file" });
    button.setAttribute("role", "radio");
    button.setAttribute("aria-checked", String(name === state.colour));
    button.dataset.colour = name;
    button.onclick = () => paint(name);
    return button;
  }));
}

function paint(name) {
  if (!usable(name)) return;
  state.colour = state.wanted = name;
  drawColours();
  address();
  if (shown) drawPanes();
}
