"use strict";
/* The explorer: a slider for each resource, and the best network of the pool that fits all of them. The pool is sorted, best
 * first, so the first that fits is the best that fits, and more room never shows a worse one. */

const STEPS = 400;
const TOLERANCE = 1e-9; // of the sums in the tables: the same as the search's

/* A network `needs` more of a resource than it is predicted to cost, exactly as in the search: the table may err by the rest. */
function bestWithin(data, limits) {
  return data.networks.find((network) => network.needs.every((least, k) => least <= limits[k] * (1 + TOLERANCE)));
}

/* The network whose worst excess over a limit is least. */
function nearestTo(data, limits) {
  const excess = (network) => Math.max(...network.needs.map((least, k) => least / limits[k]));
  return data.networks.reduce((best, network) => (excess(network) < excess(best) ? network : best));
}

/* A network of the pool with its blocks in full, as it is drawn. */
function inFull(data, network) {
  const stages = network.blocks.map((row, g) => ({
    name: `Stage ${g + 1}`, width: network.widths[g], slots: data.slots[g], blocks: row.map((number) => data.parts[number]),
  }));
  return { text: network.text, stages, stem: data.parts[network.stem], head: data.parts[network.head] };
}

function limitAt(resource, step) {
  return resource.low + ((resource.high - resource.low) * step) / STEPS;
}

function sliderFor(resource, changed) {
  const id = `limit-${resource.name.replace(/[^\w]/g, "-")}`;
  const span = resource.high - resource.low || 1;
  const start = Math.floor((STEPS * (resource.start - resource.low)) / span + 1e-6);
  const input = node("input", { type: "range", id, min: 0, max: STEPS, step: 1, value: start });
  input.dataset.resource = resource.name;
  const output = node("output", { for: id });
  const used = node("span", { class: "used" });
  // The run's own budget need not lie on a step: the slider begins exactly there.
  const atStart = () => Number(input.value) === start;
  const limit = () => (atStart() ? resource.start : limitAt(resource, Number(input.value)));
  const show = () => {
    const text = `at most ${amount(limit(), resource.name)}`;
    output.textContent = text;
    input.setAttribute("aria-valuetext", text);
  };
  input.addEventListener("input", () => { show(); changed(); });
  show();
  const row = node("div", { class: "slider" }, node("label", { for: id }, titleOf(resource.name)), input, output, used);
  return { row, resource, limit, used, atStart };
}

function nothingFits(data, limits) {
  const network = nearestTo(data, limits);
  const needs = data.resources.flatMap((resource, k) => (network.needs[k] > limits[k] * (1 + TOLERANCE)
    ? [`${titleOf(resource.name).toLowerCase()} of ${amount(network.needs[k], resource.name)}`] : []));
  return `No network of the pool fits these limits together. The nearest needs a ${needs.join(" and a ")}.`;
}

function describe(network) {
  const count = `${network.blocks.reduce((sum, row) => sum + row.length, 0)} blocks`;
  if (network.accuracy === null) return `${count}; not evaluated by the run.`;
  return network.evaluated
    ? `${count}, ${percent(network.accuracy)} accurate on held-out images with the super-network's weights (evaluated by the run).`
    : `${count}, expected accuracy ${percent(network.accuracy)} with the super-network's weights (by the effects of its choices; not evaluated).`;
}

function explore(place, data) {
  const widest = Math.max(...data.parts.filter((part) => part.middle).map((part) => part.middle));
  let waiting = false;
  const later = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; update(); });
  };
  const sliders = data.resources.map((resource) => sliderFor(resource, later));
  const status = node("p", { class: "told", role: "status" });
  const remark = node("p", { class: "quiet", id: "explorer-remark" });
  const drawing = node("div", { class: "network", id: "explored" });
  const text = node("code", { class: "architecture", id: "explored-text" });

  function update() {
    const limits = sliders.map((s) => s.limit());
    const network = bestWithin(data, limits);
    remark.textContent = network && sliders.every((s) => s.atStart()) ? data.remark : "";
    status.textContent = network ? describe(network) : nothingFits(data, limits);
    text.textContent = network ? network.text : "";
    sliders.forEach((s, k) => { s.used.textContent = network ? `predicted ${amount(network.costs[k], s.resource.name)}` : ""; });
    if (network) drawNetwork(drawing, inFull(data, network), widest);
    else drawing.replaceChildren();
  }

  if (data.reason) place.append(node("p", { class: "note" }, `${data.reason} So these are the networks that were evaluated.`));
  place.append(node("div", { class: "sliders" }, sliders.map((s) => s.row)), status, remark, drawing, text);
  const careful = data.resources.filter((resource) => resource.ratio < 1);
  if (careful.length) {
    const free = careful.map((r) => `${percent(1 - r.ratio)} of ${titleOf(r.name).toLowerCase()}`).join(", ");
    place.append(node("p", { class: "quiet" }, `Kept free at the start, because the table may err by as much: ${free}.`));
  }
  update();
}
