"use strict";
/* The explorer: a slider for each resource; the network for these limits, from the saved worths, with what it costs. */

const STEPS = 400;

function asProblem(data) {
  const names = data.resources.map((resource) => resource.name);
  const joined = (resource) => {
    const ends = [data.stem.cost[resource.name], data.head.cost[resource.name]];
    return resource.combine === "max" ? Math.max(...ends) : ends[0] + ends[1];
  };
  return {
    resources: data.resources.map((resource) => ({ combine: resource.combine, base: joined(resource) })),
    groups: data.stages.map((stage) => ({
      depths: stage.depths,
      depthWorth: stage.depthWorth,
      slots: stage.cells.map((cells, p) => ({ worth: stage.worth[p], cost: cells.map((cell) => names.map((name) => cell.cost[name])) })),
    })),
  };
}

/* The answer of the solver as a network that can be drawn. */
function asNetwork(data, answer) {
  const stages = data.stages.map((stage, g) => ({ ...stage, blocks: answer.options[g].map((c, p) => stage.cells[p][c]) }));
  const row = (stage) => [`c${stage.width}`, ...runs(stage.blocks.map(blockWord))].join(" ");
  const text = [`r${data.resolution} c${data.stemWidth}`, ...stages.map(row), `f${data.headWidth}`].join(" | ");
  return { text, stages, stem: data.stem, head: data.head };
}

/* Neighbours that are alike, as the text form writes them: 2*k3e4. */
function runs(words) {
  const found = [];
  for (const word of words) {
    if (found.length && found[found.length - 1].word === word) found[found.length - 1].times += 1;
    else found.push({ word, times: 1 });
  }
  return found.map(({ word, times }) => (times > 1 ? `${times}*${word}` : word));
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
  const told = node("output", { for: id });
  const used = node("span", { class: "used" });
  // The run's own budget need not lie on a step: the slider begins exactly there.
  const limit = () => (Number(input.value) === start ? resource.start : limitAt(resource, Number(input.value)));
  const tell = () => {
    told.textContent = `at most ${amount(limit(), resource.name)}`;
    input.setAttribute("aria-valuetext", `at most ${amount(limit(), resource.name)}`);
  };
  input.addEventListener("input", () => { tell(); changed(); });
  tell();
  const row = node("div", { class: "slider" }, node("label", { for: id }, titleOf(resource.name)), input, told, used);
  return { row, resource, limit, used, input };
}

/* Limits -> a network within all of them: solved over all of the space, or picked among those that were evaluated. */
function chooser(data) {
  if (data.networks) return (limits) => picked(data, limits);
  const problem = asProblem(data);
  return (limits) => {
    const answer = solve(problem, limits);
    if (!answer.found) return answer;
    const network = asNetwork(data, answer);
    return { ...answer, network, words: expected(data, answer, network) };
  };
}

function picked(data, limits) {
  const names = data.resources.map((resource) => resource.name);
  const within = (network) => names.every((name, k) => network.total[name] <= limits[k] * (1 + TOLERANCE));
  const network = data.networks.find(within); // the most accurate stand first
  if (!network) return { found: false };
  const words = `${percent(network.accuracy)} accurate with the super-network's weights, the best of those evaluated within these limits.`;
  return { found: true, network, costs: names.map((name) => network.total[name]), words };
}

function explore(place, data) {
  const choose = chooser(data);
  const blocks = data.networks ? data.networks.flatMap((n) => n.stages.flatMap((s) => s.blocks)) : data.stages.flatMap((s) => s.cells.flat());
  const widest = Math.max(...blocks.map((block) => block.middle));
  let waiting = false;
  const later = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; update(); });
  };
  const sliders = data.resources.map((resource) => sliderFor(resource, later));
  const words = node("p", { class: "told", role: "status" });
  const drawing = node("div", { class: "network", id: "explored" });
  const text = node("code", { class: "architecture", id: "explored-text" });

  function update() {
    // A table that errs by its margin keeps that much of the limit free, exactly as the search does.
    const answer = choose(sliders.map((s) => s.limit() / (1 + s.resource.margin)));
    if (!answer.found) {
      words.textContent = "No network was found under these limits together. Raise one of them.";
      drawing.replaceChildren();
      text.textContent = "";
      sliders.forEach((s) => { s.used.textContent = ""; });
      return;
    }
    drawNetwork(drawing, answer.network, widest);
    text.textContent = answer.network.text;
    sliders.forEach((s, k) => { s.used.textContent = `predicted ${amount(answer.costs[k], s.resource.name)}`; });
    words.textContent = answer.words;
  }

  if (data.remark) place.append(node("p", { class: "note" }, `${data.remark} So these are the networks that were evaluated.`));
  place.append(node("div", { class: "sliders" }, sliders.map((s) => s.row)), words, drawing, text);
  const careful = data.resources.filter((resource) => resource.margin > 0);
  if (careful.length) {
    const kept = careful.map((r) => `${percent(r.margin / (1 + r.margin))} of ${titleOf(r.name).toLowerCase()}`).join(", ");
    place.append(node("p", { class: "quiet" }, `Kept free, because the table may err by as much: ${kept}.`));
  }
  update();
}

function expected(data, answer, network) {
  const blocks = network.stages.reduce((sum, stage) => sum + stage.blocks.length, 0);
  const line = data.accuracy;
  if (line.slope === undefined) return `${blocks} blocks.`;
  const guess = Math.max(0, Math.min(1, line.intercept + line.slope * answer.worth));
  return `${blocks} blocks, expected accuracy ${percent(guess)} ± ${percent(line.error)} with the super-network's weights (from ${digits(line.networks)} networks evaluated).`;
}
