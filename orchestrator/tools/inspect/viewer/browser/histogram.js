// Histograms of the rows that pass the filters: rewards and lengths.

const BINS = 20, HISTOGRAMS = [["reward", "reward"], ["tokens", "tokens per answer"]], WIDTH = 200, HEIGHT = 34;

function drawHistograms() {
  const table = tableHere();
  $("histograms").replaceChildren(...HISTOGRAMS.flatMap(([name, title]) => {
    const values = table.has(name) ? view.map((row) => table.columns[name][row]).filter((one) => one !== null) : [];
    return values.length ? [histogram(title, values)] : [];
  }));
}

function histogram(title, values) {
  const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  if (low === high) return element("figure", {}, element("figcaption", {}, element("b", { textContent: title }), ` all ${number(low)}`));
  const count = Math.min(BINS, Math.max(new Set(values).size, 2)), size = (high - low) / count;
  const bins = new Array(count).fill(0);
  for (const value of values) bins[Math.min(count - 1, Math.floor((value - low) / size))]++;
  const most = Math.max(...bins), step = WIDTH / count;
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `histogram of ${title}` });
  bins.forEach((height, bin) => {
    const tall = height && Math.max(1.5, (HEIGHT * height) / most);
    const bar = shape("rect", { x: bin * step + 0.5, y: HEIGHT - tall, width: step - 1, height: tall });
    bar.append(Object.assign(shape("title"), { textContent: `${number(low + bin * size)} to ${number(low + (bin + 1) * size)}: ${number(height)} answers` }));
    svg.append(bar);
  });
  const mean = values.reduce((a, b) => a + b, 0) / values.length;
  return element("figure", {},
    element("figcaption", {}, element("b", { textContent: title }), ` mean ${number(mean)}`), svg,
    element("div", { className: "ends" }, element("span", { textContent: number(low) }), element("span", { textContent: number(high) })));
}

function shape(tag, attributes = {}) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
