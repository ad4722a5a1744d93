"use strict";
/* Fills the sections: a picture where the run has the numbers, the reason where it has not. */

function section(name, data, draw) {
  const place = document.getElementById(name);
  if (data.missing) {
    place.append(node("p", { class: "note" }, data.missing));
    return;
  }
  if (data.note) place.append(node("p", { class: "note" }, data.note));
  try {
    draw(place, data);
  } catch (error) {
    // One strange number must not cost the pictures below.
    console.error(name, error);
    place.append(node("p", { class: "note warn" }, `This could not be drawn (${error.message}).`));
  }
}

function figure(place) {
  const box = node("div", { class: "figure-room" });
  place.append(box);
  return box;
}

function showNetwork(place, data) {
  const drawing = node("div", { class: "network", id: "chosen" });
  const blocks = data.stages.flatMap((stage) => stage.blocks);
  const kernels = [...new Set(blocks.map((block) => block.kernel))].sort((a, b) => a - b);
  place.append(drawing, kernelLegend(kernels, blocks.some((block) => block.se)), node("code", { class: "architecture" }, data.text));
  drawNetwork(drawing, data);
}

function showCheck(place, data) {
  checkChart(figure(place), data);
  const f = data.figures;
  if (f.r2 === undefined) return;
  const figures = `R² ${f.r2.toFixed(4)}, predicted / measured ${f.ratio.toFixed(3)}, worst error ${percent(f.worst_error)}.`;
  place.append(node("p", { class: "quiet" }, `${figures} ${data.message}`));
}

function showCurves(place, data) {
  const both = node("div", { class: "pair" });
  place.append(both);
  const boxes = ["loss", "accuracy"].map(() => {
    const half = node("div");
    both.append(half);
    return figure(half);
  });
  curves(boxes[0], data.loss, data.phases, "loss", digits);
  curves(boxes[1], data.accuracy, data.phases, "accuracy", (v) => percent(v));
}

/* Click or press a heading to sort by it; numbers as numbers. */
function sortable(table) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = node("button", { type: "button" }, head.textContent);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") === "ascending";
      [...table.tHead.rows[0].cells].forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const key = (row) => row.cells[column].textContent;
      const order = (a, b) => {
        const [x, y] = [parseFloat(key(a)), parseFloat(key(b))];
        return Number.isNaN(x) || Number.isNaN(y) ? key(a).localeCompare(key(b)) : x - y;
      };
      const rows = [...body.rows].sort(order);
      body.append(...(falling ? rows.reverse() : rows));
    });
  });
}

const numbers = JSON.parse(document.getElementById("numbers").textContent);
section("network", numbers.network, showNetwork);
section("check", numbers.check, showCheck);
section("front", numbers.front, (place, data) => frontChart(figure(place), data));
section("explorer", numbers.explorer, explore);
section("training", numbers.training, showCurves);
section("finetuning", numbers.finetuning, showCurves);
section("heat", numbers.heat, heatMaps);
section("movement", numbers.movement, movements);
section("effects", numbers.effects, effectMaps);
document.querySelectorAll("table.sortable").forEach(sortable);
