"use strict";
/* The best network under every slider's limit: additive worths, additive costs, hard limits.
 *
 * Prices on the resources (Lagrangian multipliers) make every block's choice independent; a subgradient walk over the
 * prices proposes networks; those over a limit are repaired, and the best few are improved by single and paired changes
 * until none helps. A network is returned only after its costs were summed and found within every limit. The dual value
 * bounds the optimum from above, so the answer knows how far from it it may be.
 *
 * problem: {resources: [{combine, base}], groups: [{depths, depthWorth, slots: [{worth: [c], cost: [c][k]}]}]}
 * A resource that combines by "max" (peak memory) rules options out; the others are sums. */

const TOLERANCE = 1e-9;
const EPSILON = 1e-12;

function solve(problem, limits) {
  const narrowed = narrow(problem, limits);
  if (!narrowed) return { found: false };
  const start = firstFitting(narrowed);
  if (!start) return { found: false };
  const best = search(narrowed, start);
  const answer = { found: true, depths: [], options: [], worth: best.worth.value, bound: best.bound };
  narrowed.groups.forEach((group, g) => {
    const depth = group.depths[best.choice.depth[g]];
    answer.depths.push(depth);
    answer.options.push(group.slots.slice(0, depth).map((slot, p) => slot.index[best.choice.option[g][p]]));
  });
  answer.costs = costsOf(problem, answer);
  const over = answer.costs.some((cost, k) => cost > limits[k] * (1 + TOLERANCE));
  return over ? { found: false } : answer;
}

/* What a network costs in every resource, from the untouched tables. */
function costsOf(problem, answer) {
  return problem.resources.map((resource, k) => {
    let total = resource.base;
    answer.options.forEach((row, g) => row.forEach((option, p) => {
      const cost = problem.groups[g].slots[p].cost[option][k];
      total = resource.combine === "max" ? Math.max(total, cost) : total + cost;
    }));
    return total;
  });
}

/* The problem without what a limit on a largest part rules out, costs as shares of the room left by the fixed parts. */
function narrow(problem, limits) {
  const allowed = limits.map((limit) => limit * (1 + TOLERANCE));
  const sums = [];
  for (let k = 0; k < limits.length; k++) {
    const resource = problem.resources[k];
    if (resource.base > allowed[k]) return null;
    if (resource.combine !== "max") sums.push(k);
  }
  const rooms = sums.map((k) => Math.max(allowed[k] - problem.resources[k].base, EPSILON));
  const groups = [];
  for (const group of problem.groups) {
    const slots = [];
    for (const slot of group.slots) {
      const index = [];
      slot.cost.forEach((cost, c) => {
        const admitted = problem.resources.every((r, k) => r.combine !== "max" || cost[k] <= allowed[k]);
        if (admitted) index.push(c);
      });
      if (!index.length) break;
      const share = index.map((c) => sums.map((k, at) => slot.cost[c][k] / rooms[at]));
      slots.push({ index, worth: index.map((c) => slot.worth[c]), cost: share });
    }
    const kept = group.depths.map((_, i) => i).filter((i) => group.depths[i] <= slots.length);
    if (!kept.length) return null;
    groups.push({
      depths: kept.map((i) => group.depths[i]),
      depthWorth: kept.map((i) => group.depthWorth[i]),
      slots: slots.slice(0, Math.max(...kept.map((i) => group.depths[i]))),
    });
  }
  return { groups, resources: sums.length };
}

/* The best network when every share of room has its price and worths count `weight`. */
function priced(problem, prices, weight) {
  const choice = { depth: [], option: [] };
  let value = 0;
  for (const group of problem.groups) {
    const option = [];
    const running = [0];
    for (const slot of group.slots) {
      let best = 0;
      let top = -Infinity;
      for (let c = 0; c < slot.worth.length; c++) {
        let worth = weight * slot.worth[c];
        for (let k = 0; k < prices.length; k++) worth -= prices[k] * slot.cost[c][k];
        if (worth > top) { top = worth; best = c; }
      }
      option.push(best);
      running.push(running[running.length - 1] + top);
    }
    let depth = 0;
    let top = -Infinity;
    group.depths.forEach((d, i) => {
      const worth = weight * group.depthWorth[i] + running[d];
      if (worth > top) { top = worth; depth = i; }
    });
    choice.depth.push(depth);
    choice.option.push(option);
    value += top;
  }
  return { choice, value };
}

/* Worth and shares of room of a choice; it fits when no share is above one. */
function weigh(problem, choice) {
  const use = new Array(problem.resources).fill(0);
  let value = 0;
  problem.groups.forEach((group, g) => {
    value += group.depthWorth[choice.depth[g]];
    for (let p = 0; p < group.depths[choice.depth[g]]; p++) {
      const slot = group.slots[p];
      const c = choice.option[g][p];
      value += slot.worth[c];
      for (let k = 0; k < use.length; k++) use[k] += slot.cost[c][k];
    }
  });
  return { value, use };
}

const excess = (use) => use.reduce((sum, share) => sum + Math.max(0, share - 1), 0);
const fitsAll = (use) => use.every((share) => share <= 1);

/* Any network that fits: prices alone, raised where room is short; what is nearest is then repaired. */
function firstFitting(problem) {
  let prices = new Array(problem.resources).fill(1);
  let nearest = null;
  for (let turn = 0; turn < 80; turn++) {
    const { choice } = priced(problem, prices, 0);
    const { use } = weigh(problem, choice);
    if (fitsAll(use)) return choice;
    if (!nearest || excess(use) < nearest.excess) nearest = { choice, excess: excess(use) };
    const rate = 4 / Math.sqrt(1 + turn);
    prices = prices.map((price, k) => price * Math.exp(rate * (use[k] - 1)));
    const total = prices.reduce((a, b) => a + b, 0);
    prices = prices.map((price) => price / total + 1e-9);
  }
  if (!nearest) return null;
  const repaired = repair(problem, nearest.choice, prices);
  return fitsAll(weigh(problem, repaired).use) ? repaired : null;
}

/* Every single change of a choice: another option in a running slot, or another depth of a group. */
function changes(problem, choice, prices) {
  const found = [];
  problem.groups.forEach((group, g) => {
    const depth = group.depths[choice.depth[g]];
    for (let p = 0; p < depth; p++) {
      const slot = group.slots[p];
      const now = choice.option[g][p];
      for (let c = 0; c < slot.worth.length; c++) {
        if (c === now) continue;
        const use = slot.cost[c].map((share, k) => share - slot.cost[now][k]);
        found.push({ g, p, options: [[p, c]], depth: choice.depth[g], worth: slot.worth[c] - slot.worth[now], use });
      }
    }
    group.depths.forEach((other, i) => {
      if (i !== choice.depth[g]) found.push(...depthChanges(group, choice, g, i, depth, other, prices));
    });
  });
  return found;
}

function depthChanges(group, choice, g, i, depth, other, prices) {
  const before = group.depthWorth[choice.depth[g]];
  const base = { g, p: -1, depth: i, worth: group.depthWorth[i] - before, use: prices.map(() => 0), options: [] };
  if (other < depth) {
    for (let p = other; p < depth; p++) {
      const c = choice.option[g][p];
      base.worth -= group.slots[p].worth[c];
      group.slots[p].cost[c].forEach((share, k) => { base.use[k] -= share; });
    }
    return [base];
  }
  // New blocks are filled by what is best at these prices, by what is cheapest, and by what is worth most.
  return [[1, 1], [0, 1], [1, 0]].map(([weight, cost]) => {
    const made = { ...base, use: base.use.slice(), options: [] };
    for (let p = depth; p < other; p++) {
      const slot = group.slots[p];
      let best = 0;
      let top = -Infinity;
      for (let c = 0; c < slot.worth.length; c++) {
        let worth = weight * slot.worth[c];
        slot.cost[c].forEach((share, k) => { worth -= cost * (prices[k] + (weight ? 0 : 1)) * share; });
        if (worth > top) { top = worth; best = c; }
      }
      made.worth += slot.worth[best];
      slot.cost[best].forEach((share, k) => { made.use[k] += share; });
      made.options.push([p, best]);
    }
    return made;
  });
}

function applied(choice, ...moves) {
  const made = { depth: choice.depth.slice(), option: choice.option.map((row) => row.slice()) };
  for (const move of moves) {
    if (move.p < 0) made.depth[move.g] = move.depth;
    for (const [p, c] of move.options) made.option[move.g][p] = c;
  }
  return made;
}

/* Towards the limits at the least loss of worth for what is gained; gives up where no change helps. */
function repair(problem, choice, prices) {
  let current = choice;
  for (let turn = 0; turn < 200; turn++) {
    const { use } = weigh(problem, current);
    const over = excess(use);
    if (over <= 0) return current;
    let best = null;
    for (const move of changes(problem, current, prices)) {
      const gain = over - excess(use.map((share, k) => share + move.use[k]));
      if (gain <= EPSILON) continue;
      // A worth that rises is free; else what matters is the worth lost for every share of room won.
      const score = move.worth >= 0 ? move.worth : move.worth / gain;
      if (!best || score > best.score) best = { move, score };
    }
    if (!best) return current;
    current = applied(current, best.move);
  }
  return current;
}

/* Single changes while they help, then pairs; every step keeps all limits. */
function improve(problem, choice, prices, pairs) {
  let current = choice;
  for (let turn = 0; turn < 100; turn++) {
    const { use } = weigh(problem, current);
    const moves = changes(problem, current, prices).sort((a, b) => b.worth - a.worth);
    const room = (a, b) => use.every((share, k) => share + a.use[k] + (b ? b.use[k] : 0) <= 1);
    const single = moves.find((move) => move.worth > EPSILON && room(move));
    const step = single ? [single] : pairs ? bestPair(moves, room) : null;
    if (!step) return current;
    const next = applied(current, ...step);
    // Sums of differences round differently from sums: the full sum decides.
    if (!fitsAll(weigh(problem, next).use)) return current;
    current = next;
  }
  return current;
}

function bestPair(moves, room) {
  let best = null;
  let top = EPSILON;
  for (let i = 0; i < moves.length && moves[i].worth > 0; i++) {
    for (let j = i + 1; j < moves.length; j++) {
      const a = moves[i];
      const b = moves[j];
      if (a.worth + b.worth <= top) break; // sorted: nothing better follows
      if (a.g === b.g && (a.p < 0 || b.p < 0 || a.p === b.p)) continue;
      if (room(a, b)) { best = [a, b]; top = a.worth + b.worth; break; }
    }
  }
  return best;
}

/* What runs in a choice, as text: equal for equal networks. */
function keyOf(problem, choice) {
  return problem.groups.map((group, g) => choice.option[g].slice(0, group.depths[choice.depth[g]]).join()).join("|");
}

/* A walk over prices; the dual value bounds, repaired proposals are candidates, the best of them are polished. */
function search(problem, start) {
  let prices = new Array(problem.resources).fill(0);
  const pool = new Map();
  const add = (choice) => {
    const worth = weigh(problem, choice);
    if (!fitsAll(worth.use)) return;
    const key = keyOf(problem, choice);
    if (!pool.has(key)) pool.set(key, { choice, worth });
  };
  const proposed = new Set(); // neighbouring prices often propose the same network: one repair is enough
  const bestKnown = () => Math.max(...[...pool.values()].map((entry) => entry.worth.value));
  add(improve(problem, start, prices, false));
  let bound = Infinity;
  let pace = 1.2;
  let stale = 0;
  for (let turn = 0; turn < 120; turn++) {
    const { choice, value } = priced(problem, prices, 1);
    const dual = value + prices.reduce((a, b) => a + b, 0);
    if (dual < bound - EPSILON) { bound = dual; stale = 0; } else if (++stale > 6) { pace *= 0.6; stale = 0; }
    const { use } = weigh(problem, choice);
    if (!proposed.has(keyOf(problem, choice))) {
      proposed.add(keyOf(problem, choice));
      const fit = fitsAll(use) ? choice : repair(problem, choice, prices);
      add(improve(problem, fit, prices, false));
    }
    const gap = bound - bestKnown();
    if (gap <= EPSILON * Math.max(1, Math.abs(bound))) break;
    const slope = use.map((share, k) => (share > 1 || prices[k] > 0 ? share - 1 : 0));
    const size = slope.reduce((sum, s) => sum + s * s, 0);
    if (size < 1e-18) break;
    prices = prices.map((price, k) => Math.max(0, price + (pace * gap * slope[k]) / size));
  }
  const ranked = [...pool.values()].sort((a, b) => b.worth.value - a.worth.value).slice(0, 6);
  for (const entry of ranked) add(improve(problem, entry.choice, prices, true));
  const best = [...pool.values()].reduce((a, b) => (b.worth.value > a.worth.value ? b : a));
  return { ...best, bound: Math.max(bound, best.worth.value) };
}
