"use strict";
/* The charts: predicted against measured, accuracy against cost, training curves, heat maps of alpha and beta. */

function checkChart(place, data) {
  const all = [...data.seen, ...data.unseen, ...(data.chosen ? [data.chosen] : [])];
  const ends = range(all.flatMap(([predicted, , low, high]) => [predicted, low, high]));
  responsive(place, (width) => {
    const show = (value) => digits(value);
    const { picture, across, up } = frame({
      width, height: Math.min(440, Math.max(300, width * 0.62)), x: ends, y: ends,
      xLabel: "predicted (ms)", yLabel: "measured (ms)", xShow: show, yShow: show, label: "Predicted against measured latency",
    });
    picture.append(svg("line", { class: "line even", x1: across(ends[0]), y1: up(ends[0]), x2: across(ends[1]), y2: up(ends[1]) }));
    const dot = (kind) => ([predicted, measured, low, high, text]) => {
      const caption = `${text}: predicted ${digits(predicted)} ms, measured ${digits(measured)} ms (${digits(low)} to ${digits(high)})`;
      const x = across(predicted);
      const mark = kind === "star chosen"
        ? svg("path", { class: kind, d: star(x, up(measured), 9) })
        : svg("circle", { class: kind, cx: x, cy: up(measured), r: 4.5 });
      picture.append(svg("g", {}, tip(caption), svg("line", { class: "whisker", x1: x, x2: x, y1: up(low), y2: up(high) }), mark));
    };
    data.seen.forEach(dot("dot seen"));
    data.unseen.forEach(dot("dot unseen"));
    if (data.chosen) dot("star chosen")(data.chosen);
    return picture;
  });
  const entries = [["line even", "equal"]];
  if (data.seen.length) entries.push(["dot seen", "networks the table was fitted to"]);
  if (data.unseen.length) entries.push(["dot unseen", "networks it had not seen"]);
  if (data.chosen) entries.push(["star chosen", "the chosen network"]);
  place.after(legend(entries));
}

function frontChart(place, data) {
  const extra = [data.chosen, data.final].filter(Boolean);
  const all = [...data.points, ...data.evaluated, ...extra];
  const x = range([...all.map((p) => p[0]), ...(data.limit ? [data.limit] : [])]);
  const y = range(all.map((p) => p[1]));
  responsive(place, (width) => {
    const { picture, across, up, inside } = frame({
      width, height: Math.min(440, Math.max(300, width * 0.58)), x, y,
      xLabel: titleOf(data.resource), yLabel: "accuracy", xShow: (v) => amount(v, data.resource), yShow: (v) => percent(v),
      label: `Accuracy against ${data.resource}`,
    });
    const caption = ([cost, accuracy], text) => `${amount(cost, data.resource)}, ${percent(accuracy, 2)}${text ? `: ${text}` : ""}`;
    const at = (p) => [across(p[0]), up(p[1])];
    if (data.limit) {
      picture.append(svg("rect", { class: "beyond", x: across(data.limit), y: inside.top, width: Math.max(0, inside.right - across(data.limit)), height: inside.bottom - inside.top }));
      picture.append(svg("line", { class: "line limit", x1: across(data.limit), x2: across(data.limit), y1: inside.top, y2: inside.bottom }));
    }
    for (const p of data.evaluated) picture.append(svg("circle", { class: "dot evaluated", cx: at(p)[0], cy: at(p)[1], r: 3 }, tip(caption(p, p[2]))));
    if (data.points.length) {
      picture.append(svg("path", { class: "line front", d: path(data.points.map(at)) }));
      for (const p of data.points) picture.append(svg("circle", { class: "dot front", cx: at(p)[0], cy: at(p)[1], r: 4.5 }, tip(caption(p, p[2]))));
    }
    if (data.chosen) picture.append(svg("path", { class: "star inherited", d: star(...at(data.chosen), 9) }, tip(caption(data.chosen, "chosen, the super-network's weights"))));
    if (data.final) picture.append(svg("path", { class: "star chosen", d: star(...at(data.final), 10) }, tip(caption(data.final, "chosen, fine-tuned and measured"))));
    return picture;
  });
  const entries = [];
  if (data.points.length) entries.push(["line front", "the front, each network evaluated"]);
  if (data.evaluated.length) entries.push(["dot evaluated", "every network evaluated on the way"]);
  if (data.chosen) entries.push(["star inherited", "chosen, with the super-network's weights"]);
  if (data.final) entries.push(["star chosen", "chosen, fine-tuned and measured"]);
  if (data.limit) entries.push(["line limit", `limit ${amount(data.limit, data.resource)}`]);
  place.after(legend(entries), ...(data.remark ? [node("p", { class: "quiet", id: "front-remark" }, data.remark)] : []));
}

function curves(place, series, phases, yLabel, yShow, xLabel = "step") {
  if (!series.length) {
    place.append(node("p", { class: "note" }, `No ${yLabel} was written down.`));
    return;
  }
  const points = series.flatMap((s) => s.points);
  const x = [0, Math.max(...points.map((p) => p[0]))];
  const y = range(points.map((p) => p[1]));
  responsive(place, (width) => {
    const { picture, across, up, inside } = frame({
      width, height: 260, x, y, xLabel, yLabel, xShow: digits, yShow, label: `${yLabel} by ${xLabel}`,
    });
    phases.forEach((phase, i) => {
      const from = i ? across(phase.from) : inside.left;
      if (i) picture.append(svg("line", { class: "phase", x1: from, x2: from, y1: inside.top, y2: inside.bottom }));
      picture.append(svg("text", { class: "tick", x: from + 4, y: inside.top + 10 }, phase.name));
    });
    series.forEach((one, i) => {
      const line = one.points.filter((p) => p[1] !== null).map((p) => [across(p[0]), up(p[1])]);
      picture.append(svg("path", { class: `line series${i % 6}`, d: path(line) }, tip(one.name)));
      const last = line[line.length - 1];
      if (last) picture.append(svg("circle", { class: `dot series${i % 6}`, cx: last[0], cy: last[1], r: 3 }, tip(`${one.name} ${yShow(one.points[one.points.length - 1][1])}`)));
    });
    return picture;
  });
  place.after(legend(series.map((one, i) => [`line series${i % 6}`, `${one.name}: ${yShow(one.points[one.points.length - 1][1])} at the end`])));
}

/* The fuller the colour, the more probable (by the square root, so that a twelfth can be told from nothing). */
function probability(value) {
  return { kind: "warm", strength: Math.sqrt(Math.max(0, Math.min(1, value))), words: percent(value) };
}

/* One heat map: rows are positions (and the depths below), columns are choices; `paint` says how a number looks. */
function heatGrid(stage, alpha, beta, label, paint) {
  const cell = 22;
  const left = 64;
  const top = 46;
  const widest = stage.choices.reduce((a, b) => (b.length > a.length ? b : a));
  const alike = stage.choices.every((row) => row.every((choice, c) => choice === widest[c]));
  const columns = Math.max(widest.length, stage.depths.length);
  const height = top + (alpha.length + 2.2) * cell;
  const width = left + columns * cell + 30;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "heat", role: "img", "aria-label": label });
  const square = (column, y, value, words) => {
    picture.append(svg("rect", { class: "cell", x: left + column * cell, y, width: cell - 2, height: cell - 2, rx: 3 }));
    const look = paint(value);
    picture.append(svg("rect", { class: look.kind, x: left + column * cell, y, width: cell - 2, height: cell - 2, rx: 3, "fill-opacity": look.strength.toFixed(4) }, tip(`${words}: ${look.words}`)));
  };
  widest.forEach((choice, c) => {
    const x = left + c * cell + cell / 2 + 3;
    picture.append(svg("text", { class: "tick", x: 0, y: 0, transform: `translate(${x} ${top - 6}) rotate(-60)` }, alike ? choice : `choice ${c + 1}`));
  });
  alpha.forEach((row, p) => {
    picture.append(svg("text", { class: "tick", x: left - 8, y: top + p * cell + 14, "text-anchor": "end" }, `block ${p + 1}`));
    row.forEach((value, c) => square(c, top + p * cell, value, `block ${p + 1}, ${stage.choices[p][c]}`));
  });
  const below = top + alpha.length * cell + 10;
  picture.append(svg("text", { class: "tick", x: left - 8, y: below + 14, "text-anchor": "end" }, "depth"));
  beta.forEach((value, d) => {
    square(d, below, value, `${stage.depths[d]} blocks`);
    picture.append(svg("text", { class: "tick", x: left + d * cell + cell / 2 - 1, y: below + cell + 12, "text-anchor": "middle" }, String(stage.depths[d])));
  });
  return picture;
}

const decides = (stage) => stage.choices.some((row) => row.length > 1) || stage.depths.length > 1;

function heatMaps(place, data) {
  for (const stage of data.stages.filter(decides)) {
    const pair = ["start", "end"].map((which) => {
      const label = `${stage.name}, at the ${which}: probabilities of choices and depths`;
      const grid = heatGrid(stage, stage[which].alpha, stage[which].beta, label, probability);
      return node("figure", {}, node("figcaption", {}, `at the ${which}`), node("div", { class: "scroll" }, grid));
    });
    place.append(node("div", { class: "heats" }, node("h3", {}, stage.name), node("div", { class: "pair" }, pair)));
  }
}

/* How probabilities of operations and depths, widths and costs moved from epoch to epoch, a small picture for each. */
function movements(place, data) {
  if (!data.widths.length) {
    place.previousElementSibling.hidden = true;
    return;
  }
  const groups = node("div", { class: "pair" });
  place.append(groups);
  const add = (title, series, label, show) => {
    const half = node("div", {}, node("h4", {}, title));
    groups.append(half);
    curves(figure(half), series, [], label, show, "epoch");
  };
  for (const one of data.costs) add(`${one.name} of the strongest network`, one.series, `${one.name} (${one.unit})`, digits);
  add("Widths of the strongest operations", data.widths, "middle channels", digits);
  for (const one of data.depths) add(`${one.name}: depth`, one.series, "probability", percent);
  for (const one of data.layers) add(`${one.name}: operation`, one.series, "probability", percent);
}

/* The effect of every choice on the score against the mean of its block, and of every depth against its stage's mean. */
function effectMaps(place, data) {
  const stages = data.stages.filter(decides);
  const most = Math.max(1e-12, ...stages.flatMap((stage) => [...stage.alpha.flat(), ...stage.beta].map(Math.abs)));
  const paint = (value) => ({
    kind: value >= 0 ? "warm" : "cold",
    strength: Math.abs(value) / most,
    words: `score ${value >= 0 ? "+" : "−"}${digits(Math.abs(value))}`,
  });
  const grids = node("div", { class: "pair" });
  for (const stage of stages) {
    const grid = heatGrid(stage, stage.alpha, stage.beta, `${stage.name}: effects of choices and depths`, paint);
    grids.append(node("figure", {}, node("figcaption", {}, node("strong", {}, stage.name)), node("div", { class: "scroll" }, grid)));
  }
  place.append(grids, node("ul", { class: "legend" }, ["warm", "cold"].map((kind) => node("li", {},
    svg("svg", { viewBox: "0 0 16 16", width: 16, height: 16, class: "heat", "aria-hidden": "true" }, svg("rect", { class: kind, width: 16, height: 16, rx: 3 })),
    kind === "warm" ? "better than the mean of its block" : "worse"))));
}
