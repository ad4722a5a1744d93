"use strict";
/* Small tools for drawing: elements, numbers as people read them, axes. Text is set as text, never as markup. */

const SVG = "http://www.w3.org/2000/svg";
const TITLES = { latency: "Latency", macs: "MACs", params: "Parameters", model_size: "Model size", memory: "Peak memory" };

function node(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(key, String(value));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

function titleOf(name) {
  const [base, label] = name.split("@");
  return (TITLES[base] || base) + (label ? ` on ${label}` : "");
}

function digits(value) {
  if (Math.abs(value) >= 1e4) return value.toFixed(0);
  return String(Number(value.toPrecision(4)));
}

function scaled(value, steps, word) {
  let [prefix, size] = steps[0];
  for (const [name, factor] of steps) if (Math.abs(value) >= factor) [prefix, size] = [name, factor];
  return `${digits(value / size)}\u202f${prefix}${word}`.trim();
}

const COUNTS = [["", 1], ["k", 1e3], ["M", 1e6], ["G", 1e9]];
const BYTES = [["", 1], ["Ki", 2 ** 10], ["Mi", 2 ** 20], ["Gi", 2 ** 30]];

function amount(value, resource) {
  const base = resource.split("@")[0];
  if (base === "latency") return `${digits(value)}\u202fms`;
  if (base === "macs") return scaled(value, COUNTS, "MACs");
  if (base === "params") return scaled(value, COUNTS, "");
  return scaled(value, BYTES, "B");
}

const percent = (share, places = 1) => `${(100 * share).toFixed(places)}\u202f%`;

/* Round steps of 1, 2 or 5 between two numbers. */
function ticks(low, high, count) {
  const span = Math.max(high - low, 1e-12);
  const rough = span / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) || 10 * power;
  const places = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) {
    places.push(Math.abs(at) < step * 1e-6 ? 0 : at);
  }
  return places;
}

function range(values, pad = 0.06) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  const room = (high - low || Math.abs(high) || 1) * pad;
  return [low - room, high + room];
}

/* Draws anew whenever the room for it changes, so that text keeps its size on every screen. */
function responsive(place, draw) {
  let last = 0;
  const again = () => {
    const width = Math.floor(place.clientWidth);
    if (width < 40 || width === last) return;
    last = width;
    place.replaceChildren(draw(width));
  };
  new ResizeObserver(again).observe(place);
  again();
}

/* A frame with axes; returns the picture and the two scales. */
function frame({ width, height, x, y, xLabel, yLabel, xShow, yShow, label }) {
  const left = 66;
  const right = 14;
  const top = 14;
  const bottom = 44;
  const across = (value) => left + ((value - x[0]) / (x[1] - x[0])) * (width - left - right);
  const up = (value) => height - bottom - ((value - y[0]) / (y[1] - y[0])) * (height - top - bottom);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label, class: "chart" });
  for (const at of ticks(y[0], y[1], 7)) {
    if (at < y[0] || at > y[1]) continue;
    picture.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: up(at), y2: up(at) }));
    picture.append(svg("text", { class: "tick", x: left - 8, y: up(at) + 4, "text-anchor": "end" }, yShow(at)));
  }
  for (const at of ticks(x[0], x[1], Math.max(2, Math.floor(width / 130)))) {
    if (at < x[0] || at > x[1]) continue;
    picture.append(svg("line", { class: "grid", x1: across(at), x2: across(at), y1: top, y2: height - bottom }));
    picture.append(svg("text", { class: "tick", x: across(at), y: height - bottom + 17, "text-anchor": "middle" }, xShow(at)));
  }
  picture.append(svg("text", { class: "axis", x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, xLabel));
  const middle = (top + height - bottom) / 2;
  picture.append(svg("text", { class: "axis", x: 0, y: 0, transform: `translate(12 ${middle}) rotate(-90)`, "text-anchor": "middle" }, yLabel));
  return { picture, across, up, inside: { left, right: width - right, top, bottom: height - bottom } };
}

const tip = (text) => svg("title", {}, text);
const path = (points) => points.map(([a, b], i) => `${i ? "L" : "M"}${a.toFixed(2)} ${b.toFixed(2)}`).join("");

function legend(entries) {
  return node("ul", { class: "legend" }, entries.map(([kind, text]) => {
    const mark = svg("svg", { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" });
    if (kind.startsWith("line")) mark.append(svg("line", { class: kind, x1: 0, x2: 16, y1: 8, y2: 8 }));
    else if (kind.startsWith("star")) mark.append(svg("path", { class: kind, d: star(8, 8, 7) }));
    else mark.append(svg("circle", { class: kind, cx: 8, cy: 8, r: 5 }));
    return node("li", {}, mark, text);
  }));
}

function star(x, y, size) {
  const points = [];
  for (let i = 0; i < 10; i++) {
    const reach = i % 2 ? size * 0.45 : size;
    const turn = (Math.PI * i) / 5 - Math.PI / 2;
    points.push([x + reach * Math.cos(turn), y + reach * Math.sin(turn)]);
  }
  return path(points) + "Z";
}
