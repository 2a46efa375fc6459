// What colours the tokens, and its legend.

const COLOURS = [
  { name: "gap", title: "gap", trained: true },
  { name: "surprise", title: "surprise" },
  { name: "advantage", title: "advantage", trained: true },
  { name: "version", title: "version" },
  { name: "forced", title: "forced" },
  { name: "loss", title: "loss", trained: true },
];

const REASONS = {
  forced: ["inserted by the budget's rule, not sampled: no loss", 35],
  truncated: ["the answer ran into a limit on tokens: no loss (mask_truncated)", 265],
  error_guard: ["error_guard: its sequence is too far from what the engine computed", 0],
  sequence_range: ["sequence_range: the mean ratio of its sequence lies outside", 320],
  negative_guard: ["negative_guard: a bad answer that has become too unlikely", 190],
  token_range: ["token_range: its own ratio lies outside", 110],
};

function scalesOf(groups) {
  const gaps = [], taught = [], versions = new Set(), reasons = new Map();
  for (const { answers } of groups) {
    for (const one of answers) {
      for (let i = 0; i < one.count; i++) {
        if (!one.sampled[i]) continue;
        if (one.gap[i] === one.gap[i]) gaps.push(Math.abs(one.gap[i]));
        if (one.taught[i] === one.taught[i]) taught.push(Math.abs(one.taught[i]));
        if (one.version[i] === one.version[i]) versions.add(one.version[i]);
        if (one.reasons[i]) reasons.set(one.reasons[i], (reasons.get(one.reasons[i]) || 0) + 1);
      }
    }
  }
  gaps.sort((a, b) => a - b);
  const gap = Math.max(gaps.length ? gaps[Math.floor(gaps.length * 0.99)] : 0, 2e-5);
  return { gap, surprise: 4, taught: taught.reduce((most, one) => Math.max(most, one), 0) || 1, versions: [...versions].sort((a, b) => a - b), reasons };
}

function colourOf(one, i, scales) {
  if (!one.sampled[i]) return "";
  const tint = (name, share) => (share > 0.03 ? `rgb(var(--${name}) / ${(0.75 * Math.min(1, share)).toFixed(3)})` : "");
  const signed = (value, scale, below, above) => (value === value ? tint(value < 0 ? below : above, Math.abs(value) / scale) : "");
  switch (state.colour) {
    case "gap": return signed(one.gap[i], scales.gap, "low", "high");
    case "surprise": return signed(one.surprise[i], scales.surprise, "warm", "warm");
    case "advantage": return signed(one.taught[i], scales.taught, "minus", "plus");
    case "version": {
      const [oldest, newest] = [scales.versions[0], scales.versions.at(-1)];
      return one.version[i] < newest ? tint("old", 0.1 + 0.9 * (newest - one.version[i]) / (newest - oldest)) : "";
    }
    case "forced": return one.reasons[i] === "forced" ? tint("forced", 0.8) : "";
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
    gap: () => [swatch(full("low"), "trainer below engine"), swatch(full("high"), "above"), `full at ${number(scales.gap)} nats`],
    surprise: () => [swatch(full("warm"), `-log mu, full at ${scales.surprise} nats`)],
    advantage: () => [swatch(full("plus"), "made likelier"), swatch(full("minus"), "unlikelier"), `advantage x weight, full at ${number(scales.taught)}`],
    version: () => versions.length > 1
      ? [swatch(full("old"), `oldest: version ${versions[0]}`), `newest: ${versions.at(-1)}, not coloured`]
      : [versions.length ? `all tokens of the group are of version ${versions[0]}` : UNRECORDED],
    forced: () => [swatch(full("forced"), scales.reasons.has("forced") ? "inserted, not sampled" : "inserted tokens: none in this group")],
    loss: () => scales.reasons.size
      ? [...scales.reasons].map(([reason, count]) => swatch(`hsl(${hue(reason)} 65% 50% / 0.45)`, `${reason} ${number(count)}`))
      : ["every sampled token of the group carries loss"],
  };
  $("legend").replaceChildren(...parts[state.colour]());
}

const usable = (name) => !COLOURS.find((one) => one.name === name)?.trained || tableHere().trained > 0;

function drawColours() {
  $("colours").replaceChildren(...COLOURS.map(({ name, title }, place) => {
    const button = element("button", { textContent: title, disabled: !usable(name), title: usable(name) ? `key ${place + 1}` : UNRECORDED + " in this file" });
    button.setAttribute("role", "radio");
    button.setAttribute("aria-checked", String(name === state.colour));
    button.dataset.colour = name;
    button.onclick = () => paint(name);
    return button;
  }));
}

function paint(name) {
  if (!usable(name)) return;
  state.colour = name;
  drawColours();
  address();
  if (shown) drawPanes();
}
