"use strict";
/* A network, stage by stage. A block is drawn as what it is, an inverted residual: it widens to its middle channels and
 * narrows again; its colour is the kernel, a ring says squeeze-and-excite, a dashed outline a place that stays empty. */

const WIDE = 70;
const TALL = 96;

function blockShape(block, x, middle, scale) {
  const half = (channels) => Math.max(2, (Math.sqrt(channels) * scale) / 2);
  const [a, b, c] = [half(block.in), half(block.middle), half(block.out)];
  const [l, m1, m2, r] = [x + 2, x + WIDE * 0.32, x + WIDE * 0.68, x + WIDE - 2];
  const curve = (x1, y1, x2, y2) => `C${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2} ${x2} ${y2}`;
  return [
    `M${l} ${middle - a}`, curve(l, middle - a, m1, middle - b), `L${m2} ${middle - b}`, curve(m2, middle - b, r, middle - c),
    `L${r} ${middle + c}`, curve(r, middle + c, m2, middle + b), `L${m1} ${middle + b}`, curve(m1, middle + b, l, middle + a), "Z",
  ].join("");
}

/* As the text form writes it: k5e6s. */
function blockWord(block) {
  return `k${block.kernel}e${digits(block.expand)}${block.se ? "s" : ""}`;
}

function blockWords(block) {
  const costs = Object.entries(block.cost).map(([name, cost]) => `${titleOf(name)} ${amount(cost, name)}`);
  const shape = `${block.in} → ${block.middle} → ${block.out} channels, kernel ${block.kernel}, expansion ${digits(block.expand)}`;
  const place = block.size ? `, on ${block.size} × ${block.size}${block.stride > 1 ? `, stride ${block.stride}` : ""}` : "";
  return [`${shape}${block.se ? ", squeeze-and-excite" : ""}${place}`, ...costs].join("\n");
}

function blockDrawing(block, x, tall, scale) {
  const group = svg("g", { class: `block k${Math.min(block.kernel, 9)}` }, tip(blockWords(block)));
  group.append(svg("path", { d: blockShape(block, x, tall / 2, scale) }));
  if (block.se) group.append(svg("circle", { class: "se", cx: x + WIDE / 2, cy: tall / 2, r: 6 }));
  group.append(svg("text", { x: x + WIDE / 2, y: tall + 14, "text-anchor": "middle" }, `${block.kernel}×${block.kernel} ·${digits(block.expand)}`));
  return group;
}

function stageDrawing(stage, scale) {
  const places = Math.max(stage.slots, stage.blocks.length);
  const tall = Math.max(30, ...stage.blocks.map((block) => Math.sqrt(Math.max(block.in, block.middle, block.out)) * scale));
  const picture = svg("svg", { viewBox: `0 0 ${places * WIDE} ${tall + 20}`, width: places * WIDE, height: tall + 20, class: "stage", role: "img",
    "aria-label": `${stage.name}: ${stage.blocks.map((b) => `kernel ${b.kernel} expansion ${digits(b.expand)}${b.se ? " with squeeze-and-excite" : ""}`).join("; ")}` });
  stage.blocks.forEach((block, p) => picture.append(blockDrawing(block, p * WIDE, tall, scale)));
  for (let p = stage.blocks.length; p < places; p++) {
    picture.append(svg("rect", { class: "idle", x: p * WIDE + 8, y: tall / 2 - 13, width: WIDE - 16, height: 26, rx: 6 }, tip("left out")));
  }
  const size = stage.blocks[0] && stage.blocks[0].size ? ` · ${stage.blocks[0].size} px in` : "";
  const words = node("figcaption", {}, node("strong", {}, stage.name), ` ${stage.width} channels${size}`);
  return node("figure", { class: "stage" }, words, picture);
}

/* `widest` keeps the scale when two networks of one space are compared. */
function drawNetwork(place, network, widest) {
  const most = widest || Math.max(...network.stages.flatMap((stage) => stage.blocks.map((block) => block.middle)));
  const scale = (TALL - 4) / Math.sqrt(Math.max(most, 1));
  const end = (name, part) => {
    const told = Object.entries(part.cost).map(([r, cost]) => `${titleOf(r)} ${amount(cost, r)}`).join("\n");
    return node("div", { class: "end", title: `${part.label}\n${told}` }, node("strong", {}, name), node("span", {}, part.words));
  };
  place.replaceChildren(end("Stem", network.stem), ...network.stages.map((stage) => stageDrawing(stage, scale)), end("Head", network.head));
}

function kernelLegend(kernels, se) {
  const entries = kernels.map((kernel) => {
    const mark = svg("svg", { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" }, svg("g", { class: `block k${Math.min(kernel, 9)}` }, svg("path", { d: "M1 5L5 1L11 1L15 5L15 11L11 15L5 15L1 11Z" })));
    return node("li", {}, mark, `kernel ${kernel} × ${kernel}`);
  });
  if (se) entries.push(node("li", {}, svg("svg", { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" }, svg("circle", { class: "se key", cx: 8, cy: 8, r: 5 })), "squeeze-and-excite"));
  entries.push(node("li", {}, "height: channels; the number after the dot: expansion"));
  return node("ul", { class: "legend" }, entries);
}
