"""All choices within a given distance of the best, exactly: enumeration by Lagrangian losses.

Put a price lambda >= 0 on every budget. Each option then loses a known amount against the best one of its slot, each depth
against the best one of its group, and for every choice that fits

    objective = L - (sum of its losses) - lambda' (unused budget),        L = the Lagrangian bound.

So a choice of at least L - Delta has losses of at most Delta in all: few options qualify, few combinations of them, and
all of those can be listed. They are listed for a growing Delta until the number asked for is there; what was not listed
is below L - Delta, which is the proof. Lists of slots are merged into two halves, and the halves are joined
through whichever sorted order leaves fewest pairs. With the LP's prices Delta is tiny and this takes milliseconds where a
general solver takes a second. Ties can make the lists explode: the enumeration then stops, says so, and leaves its bound.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from snugnet.solve.problem import TOLERANCE, Choice, Floats, Ints, Objective, Problem

_LIST_CAP: Final = 400_000
_JOIN_CAP: Final = 30_000_000
_CHUNK: Final = 500_000
_THIN_FROM: Final = 256
_SUMS: Final = 1e-12  # relative; costs are summed here in another order than in the final, exact check
_ROUNDING: Final = 1e-9  # relative; the bound is only believed this far


class _TooMany(Exception):
    """A list would outgrow its cap, or the time is up."""


@dataclass(frozen=True)
class EnumerationResult:
    """The best choices seen, best first; `proven` if no unseen one beats the last; `bound` on all unseen ones."""

    choices: tuple[Choice, ...]
    proven: bool
    bound: float


@dataclass
class _List:
    """Partial choices: loss [n], cost [K, n], and where they come from (a slot's options, two lists, or a union)."""

    loss: Floats
    cost: Floats
    picks: Ints | None = None  # leaf: option numbers of `slot`
    slot: int = -1
    parents: tuple[_List, _List] | None = None
    origin: tuple[Ints, Ints] | None = None
    union: tuple[_List, ...] = ()
    depths: tuple[tuple[int, int], ...] = ()  # set in passing: (group, depth)

    def write(self, row: int, options: list[int], depths: list[int]) -> None:
        """Fill in what row `row` stands for."""
        open_ends: list[tuple[_List, int]] = [(self, row)]
        while open_ends:
            node, at = open_ends.pop()
            for group, depth in node.depths:
                depths[group] = depth
            if node.picks is not None:
                options[node.slot] = int(node.picks[at])
            elif node.parents is not None and node.origin is not None:
                open_ends += [(parent, int(rows[at])) for parent, rows in zip(node.parents, node.origin)]
            elif node.origin is not None:
                which, inner = node.origin
                open_ends.append((node.union[int(which[at])], int(inner[at])))

    def take(self, rows: Ints) -> None:
        self.loss, self.cost = self.loss[rows], self.cost[:, rows]
        if self.picks is not None:
            self.picks = self.picks[rows]
        elif self.origin is not None:
            self.origin = (self.origin[0][rows], self.origin[1][rows])


class LagrangianEnumeration:
    """The enumeration for one problem, one objective and one vector of prices; `run` may be called once."""

    def __init__(self, problem: Problem, objective: Objective, prices: Floats, *, count: int, deadline: float) -> None:
        self._problem, self._objective, self._count, self._deadline = problem, objective, count, deadline
        flat = problem.flat_objective(objective)
        n = len(problem.option_slot)
        self._prices = prices
        self._limit = problem.limit * (1 + TOLERANCE)
        self._theta = problem.theta[problem.limited]
        self._base = problem.base[problem.limited]
        effect = flat[:n] - prices @ self._theta
        best = np.maximum.reduceat(effect, problem.slot_starts)
        self._option_loss = best[problem.option_slot] - effect
        depth_effect = flat[n:] + best @ problem.runs
        top = np.maximum.reduceat(depth_effect, problem.depth_starts)
        self._depth_loss = np.repeat(top, problem.depth_sizes) - depth_effect
        self.bound = float(prices @ (self._limit - self._base) + top.sum())
        scale = float(np.abs(effect).max() + np.abs(flat).max())
        self._rounding = _ROUNDING * max(scale, abs(self.bound), 1e-300)

    def run(self) -> EnumerationResult:
        """Widen Delta until `count` choices are proven best, everything is listed, or the lists grow too long."""
        widest = self._widest()
        delta = min(self._first_delta(), widest)
        bound = self.bound
        seen: dict[Choice, float] = {}
        while True:
            try:
                seen.update((c, self._problem.value(self._objective, c)) for c in self._within(delta))
            except _TooMany:
                return EnumerationResult(self._ranked(seen), False, bound)
            bound = min(bound, self.bound - delta + self._rounding)
            ranked = self._ranked(seen)
            if delta >= widest:
                return EnumerationResult(ranked, True, seen[ranked[0]] if ranked else bound)
            if len(ranked) >= self._count and seen[ranked[self._count - 1]] >= bound:
                return EnumerationResult(ranked, True, max(bound, seen[ranked[0]]))
            delta = max(delta * 1.6, self._rounding)
            if len(ranked) >= self._count:  # no need to look past what the known ones require
                delta = min(delta, self.bound - seen[ranked[self._count - 1]] + 2 * self._rounding)
            delta = min(delta, widest)

    def _ranked(self, seen: dict[Choice, float]) -> tuple[Choice, ...]:
        """Best first; equal ones in the order of depths and options, so that the answer is one."""
        order = sorted(seen, key=lambda c: (-seen[c], c.depths, c.options))
        return tuple(order[: self._count])

    def _widest(self) -> float:
        """A Delta at which every choice qualifies."""
        p = self._problem
        per_slot = np.maximum.reduceat(self._option_loss, p.slot_starts)
        per_group = np.maximum.reduceat(self._depth_loss, p.depth_starts)
        dearest = self._prices @ np.maximum(self._limit - self._base, 0.0)
        return float(per_slot.sum() + per_group.sum() + dearest) * (1 + 1e-9) + 4 * self._rounding

    def _first_delta(self) -> float:
        """Where about ten thousand combinations of single options qualify: scale-free, and cheap to be wrong about."""
        losses = np.sort(self._option_loss)
        slots = self._problem.option_slot
        low, high = 0, len(losses) - 1
        while low < high:
            middle = (low + high + 1) // 2
            counts = np.bincount(slots[self._option_loss <= losses[middle]], minlength=len(self._problem.slot_sizes))
            if np.log(np.maximum(counts, 1)).sum() <= np.log(1e4):
                low = middle
            else:
                high = middle - 1
        return float(losses[low])

    # --- listing everything within delta ----------------------------------------------------------------------------------

    def _within(self, delta: float) -> list[Choice]:
        """Every choice that fits and reaches at least L - delta (and some that are a little below)."""
        units = self._units(delta)
        if any(not len(u.loss) for u in units):
            return []
        lows = [u.cost.min(axis=1) for u in units]
        highs = [u.cost.max(axis=1) for u in units]
        joined = []
        for members in _two_halves([len(u.loss) for u in units]):
            current = units[members[0]]
            for done, i in enumerate(members[1:], start=2):
                rest = [j for j in range(len(units)) if j not in members[:done]]
                rest_low = sum((lows[j] for j in rest), np.zeros(len(self._limit)))
                rest_high = sum((highs[j] for j in rest), np.zeros(len(self._limit)))
                current = self._merged(current, units[i], delta, rest_low, rest_high)
                if not len(current.loss):
                    return []
            joined.append(current)
        if len(joined) == 1:
            joined.append(_List(np.zeros(1), np.zeros((len(self._limit), 1))))
        return list(self._join(joined[0], joined[1], delta))

    def _units(self, delta: float) -> list[_List]:
        """A list per slot that always runs, and one per group whose depth varies."""
        p, units = self._problem, []
        for g, group in enumerate(p.groups):
            start, slots = int(p.depth_starts[g]), p.group_slots[g]
            by_depth = []
            for i, depth in enumerate(group.depths):
                loss = float(self._depth_loss[start + i])
                if loss > delta:
                    continue
                mark = _List(np.array([loss]), np.zeros((len(self._limit), 1)), depths=((g, depth),))
                leaves = [self._leaf(s, delta) for s in slots[:depth]]
                if len(group.depths) == 1:
                    units += [mark, *leaves]
                    continue
                current = mark
                for leaf in leaves:
                    current = self._merged(current, leaf, delta, None, None)
                by_depth.append(current)
            if len(group.depths) > 1:
                units.append(_union(by_depth, len(self._limit)))
        return units

    def _leaf(self, slot: int, delta: float) -> _List:
        start, size = int(self._problem.slot_starts[slot]), int(self._problem.slot_sizes[slot])
        loss = self._option_loss[start : start + size]
        picks = np.flatnonzero(loss <= delta)
        return _List(loss[picks], self._theta[:, start + picks], picks=picks, slot=slot)

    def _merged(self, a: _List, b: _List, delta: float, low: Floats | None, high: Floats | None) -> _List:
        """All pairs that lose at most delta and that the rest (cost between low and high) could still complete."""
        order = np.argsort(b.loss, kind="stable")
        counts = np.searchsorted(b.loss[order], delta - a.loss, side="right")
        total = int(counts.sum())
        if total > _LIST_CAP or time.monotonic() > self._deadline:
            raise _TooMany
        rows_a, rows_b = _pairs(counts, np.zeros(len(counts), np.intp))
        rows_b = order[rows_b]
        merged = _List(a.loss[rows_a] + b.loss[rows_b], a.cost[:, rows_a] + b.cost[:, rows_b])
        merged.parents, merged.origin = (a, b), (rows_a, rows_b)
        if low is not None and high is not None:
            room = (self._limit - self._base)[:, None]
            keep = (merged.cost + low[:, None] <= room + _SUMS * self._limit[:, None]).all(axis=0)
            spare = self._spare(delta - merged.loss)
            keep &= (merged.cost + high[:, None] >= room - spare).all(axis=0)
            merged.take(np.flatnonzero(keep))
        if self._count == 1 and len(merged.loss) > _THIN_FROM:
            merged.take(_undominated(merged.loss - self._prices @ merged.cost, merged.cost))
        return merged

    def _spare(self, delta: Floats) -> Floats:
        """[K, n] how much of each budget may stay unused if no more than delta may still be lost."""
        with np.errstate(divide="ignore", invalid="ignore"):
            spare = np.where(self._prices[:, None] > 0, delta / self._prices[:, None], np.inf)
        return spare + 1e-9 * (self._limit[:, None] + np.abs(spare))

    def _join(self, a: _List, b: _List, delta: float) -> Iterator[Choice]:
        """Complete choices from the two halves, through the order (by loss, or by one cost) that leaves fewest pairs."""
        room = self._limit - self._base
        order = np.argsort(b.loss, kind="stable")
        first = np.zeros(len(a.loss), np.intp)
        last = np.searchsorted(b.loss[order], delta - a.loss, side="right")
        spare = self._spare(np.maximum(delta - a.loss, 0.0))
        for k in range(len(room)):
            by_cost = np.argsort(b.cost[k], kind="stable")
            costs = b.cost[k][by_cost]
            left = room[k] - a.cost[k]
            lower = np.searchsorted(costs, left - spare[k], side="left")
            upper = np.searchsorted(costs, left + _SUMS * self._limit[k], side="right")
            upper = np.maximum(upper, lower)
            if (upper - lower).sum() < (last - first).sum():
                order, first, last = by_cost, lower, upper
        counts = last - first
        if counts.sum() > _JOIN_CAP:
            raise _TooMany
        edges = np.searchsorted(np.cumsum(counts), np.arange(_CHUNK, int(counts.sum()) + _CHUNK, _CHUNK))
        begin = 0
        for end in np.unique(np.minimum(edges + 1, len(counts))).tolist():
            if time.monotonic() > self._deadline:
                raise _TooMany
            rows_a, rows_b = _pairs(counts[begin:end], first[begin:end])
            yield from self._complete(a, b, rows_a + begin, order[rows_b], delta)
            begin = end

    def _complete(self, a: _List, b: _List, rows_a: Ints, rows_b: Ints, delta: float) -> Iterator[Choice]:
        room = self._limit - self._base
        loss = a.loss[rows_a] + b.loss[rows_b]
        effect = self.bound - loss
        rows = np.flatnonzero(loss <= delta + self._rounding)
        for k in range(len(room)):  # one budget after the other: each leaves fewer pairs to look at
            cost = a.cost[k, rows_a[rows]] + b.cost[k, rows_b[rows]]
            effect[rows] -= self._prices[k] * np.maximum(room[k] - cost, 0.0)
            fits = cost <= room[k] + _SUMS * self._limit[k]
            rows = rows[fits & (effect[rows] >= self.bound - delta - self._rounding)]
        if len(rows) > 50 * self._count + 1000:
            keep = np.argsort(-effect[rows], kind="stable")[: 50 * self._count + 1000]
            cut = effect[rows[keep[-1]]]
            rows = rows[effect[rows] >= cut] if (effect[rows] == cut).sum() <= 10_000 else rows[keep]
        p = self._problem
        for row in rows.tolist():
            options, depths = [0] * len(p.slot_sizes), [0] * len(p.groups)
            a.write(int(rows_a[row]), options, depths)
            b.write(int(rows_b[row]), options, depths)
            choice = p.choice(options, depths)
            if p.is_feasible(choice):
                yield choice


def _two_halves(sizes: list[int]) -> list[list[int]]:
    """Numbers of the lists in each half: products of sizes about equal, short lists first; no half is empty."""
    halves: list[list[int]] = [[], []]
    weight = [0.0, 0.0]
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        side = int(weight[1] < weight[0])
        halves[side].append(i)
        weight[side] += float(np.log(sizes[i])) + 1e-9
    return [half[::-1] for half in halves if half]


def _pairs(counts: Ints, first: Ints) -> tuple[Ints, Ints]:
    """For row i the pairs (i, first[i]), ..., (i, first[i] + counts[i] - 1)."""
    rows = np.repeat(np.arange(len(counts)), counts)
    start = np.cumsum(counts) - counts
    return rows, np.arange(len(rows)) - np.repeat(start - first, counts)


def _union(lists: list[_List], budgets: int) -> _List:
    if not lists:
        return _List(np.zeros(0), np.zeros((budgets, 0)))
    which = np.repeat(np.arange(len(lists)), [len(x.loss) for x in lists])
    inner = np.concatenate([np.arange(len(x.loss)) for x in lists])
    merged = _List(np.concatenate([x.loss for x in lists]), np.concatenate([x.cost for x in lists], axis=1))
    merged.union, merged.origin = tuple(lists), (which, inner)
    return merged


def _undominated(worse: Floats, cost: Floats) -> Ints:
    """Rows that no other row beats in objective and in every cost (one budget), or does not equal in all (several)."""
    if len(cost) == 0:
        return np.array([int(np.argmin(worse))])
    if len(cost) == 1:
        order = np.lexsort((worse, cost[0]))
        best = np.minimum.accumulate(worse[order])
        return np.sort(order[np.append(True, worse[order][1:] < best[:-1])])
    order = np.lexsort((worse, *cost))
    table = np.vstack([cost, worse])[:, order]
    return np.sort(order[np.append(True, (np.diff(table, axis=1) != 0).any(axis=0))])
