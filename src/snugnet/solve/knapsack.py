"""The relaxed multiple-choice knapsack: one option per slot, one budget, solved exactly by upper convex hulls.

In the plane of cost and value only the options on a slot's upper hull can carry probability. Walking all hulls by falling
slope (value per cost) until the budget is used up is the LP's optimum: every slot sits on one option, except the one slot
in which the walk stops between two (theorem 3.1 of HardCoRe-NAS; Kellerer et al., Knapsack Problems, 2004). No tolerance,
no iteration to convergence: the hulls of all slots are wrapped together, one numpy pass per hull edge.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from snugnet.solve.problem import Floats, Ints


@dataclass(frozen=True)
class Walk:
    """Where the walk ended: an option per slot; slot `partial` has moved `share` of the way on to option `onward`."""

    options: Ints  # [S]
    cheapest: float  # cost of the start of the walk; above the budget means that nothing fits
    partial: int
    onward: int
    share: float  # in [0, 1); 0 when no slot is fractional
    price: float  # value per unit of cost at the stop; 0 when the budget does not bind


def walk(values: Floats, costs: Floats, room: float) -> Walk:
    """Maximise value within `room`. values, costs: [S, C]; short slots are padded with copies of one of their options."""
    rows = np.arange(len(costs))
    low = costs.min(axis=1)
    start = np.where(costs == low[:, None], values, -np.inf).argmax(axis=1)
    cheapest = float(low.sum())
    slopes, targets, prices = _hull_edges(values, costs, rows, start)
    if not len(slopes):
        return Walk(start, cheapest, 0, 0, 0.0, 0.0)
    # Slot-major and stable: equal slopes keep the order of the hull; accumulate undoes rounding on collinear edges.
    falling = np.minimum.accumulate(slopes, axis=0).T.ravel()
    order = np.argsort(-falling, kind="stable")
    order = order[: int(np.count_nonzero(falling > 0))]
    edge_slot, edge_level = order // len(slopes), order % len(slopes)
    spent = np.cumsum(prices[edge_level, edge_slot])
    left = room - cheapest
    full = int(np.searchsorted(spent, left, side="right"))
    done = np.bincount(edge_slot[:full], minlength=len(costs))
    options = np.where(done > 0, targets[np.maximum(done, 1) - 1, rows], start)
    if full == len(order):
        return Walk(options, cheapest, 0, 0, 0.0, 0.0)
    slot, level = int(edge_slot[full]), int(edge_level[full])
    before = float(spent[full - 1]) if full else 0.0
    share = min(max((left - before) / float(prices[level, slot]), 0.0), 1.0)
    return Walk(options, cheapest, slot, int(targets[level, slot]), share, float(falling[order[full]]))


def _hull_edges(values: Floats, costs: Floats, rows: Ints, start: Ints) -> tuple[Floats, Ints, Floats]:
    """Edges of all upper hulls from the cheapest option on: slope, option reached, extra cost, each [level, S]."""
    at = start
    slopes, targets, prices = [], [], []
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        while True:
            dearer = costs - costs[rows, at][:, None]
            better = values - values[rows, at][:, None]
            slope = np.where((dearer > 0) & (better > 0), better / dearer, 0.0)
            best = slope.max(axis=1)
            alive = best > 0
            if not alive.any():
                break
            onward = np.where(slope == best[:, None], dearer, -1.0).argmax(axis=1)  # collinear: the farthest
            onward = np.where(alive, onward, at)
            slopes.append(best)
            targets.append(onward)
            prices.append(dearer[rows, onward])
            at = onward
    if not slopes:
        return np.zeros((0, len(rows))), np.zeros((0, len(rows)), np.intp), np.zeros((0, len(rows)))
    return np.array(slopes), np.array(targets), np.array(prices)
