"""The linear programmes of Frank-Wolfe and of the projection: over alpha at fixed beta, over beta at fixed alpha.

Both are the same relaxed knapsack: blocks (slots or groups), each with one unit of probability, and a row per budget.

    maximise values' x    over a product of simplices (blocks) and  rows x <= rhs

No budget: every block takes its best. One: `relaxed_mckp`, exact by upper convex hulls. Several: `WarmSimplex`, one HiGHS
model kept alive. The answer is a vertex, so at most one block per budget is fractional, and it fits in float64 as the
problem itself computes costs. Every solve is a function of its numbers and of the basis in `memory` alone: a search that
stores it resumes bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import highspy
import numpy as np

from snugnet.solve.problem import TOLERANCE, Floats, Ints, Outcome, Problem, Solution, Status

_OPTIMAL: Final = Status(Outcome.OPTIMAL, "exact; use the vertex as it is")
_REPAIRS: Final = 4
_ROUNDING: Final = 1e-12  # relative; what a row is asked to stay clear of its limit, so that sums do not round past it

Excess = Callable[[Floats], Floats]


class LinearOracle:
    """Solves both LPs of one problem; keeps warm starts between calls (`memory`, `remember`)."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        base = problem.base[problem.limited]
        self._alpha = _Blocks(problem.slot_sizes, base, problem.limit)
        self._beta = _Blocks(problem.depth_sizes, base, problem.limit)

    def alpha(self, values: Floats, beta: Floats) -> Solution[Floats]:
        """Flat alpha [N] that maximises `values` [N] within every budget, at this flat beta [M]."""
        p = self.problem
        rows = p.alpha_costs(beta)[p.limited]
        return self._alpha.solve(values, rows, lambda x: self._excess(x, beta), self._where("depths"))

    def beta(self, values: Floats, alpha: Floats) -> Solution[Floats]:
        """Flat beta [M] that maximises `values` [M] within every budget, at this flat alpha [N]."""
        p = self.problem
        rows = p.beta_costs(alpha)[p.limited]
        return self._beta.solve(values, rows, lambda x: self._excess(alpha, x), self._where("options"))

    def _excess(self, alpha: Floats, beta: Floats) -> Floats:
        """[limited] cost minus limit, rounded exactly as `Problem.cost_vector` rounds it."""
        p = self.problem
        return (p.base + p.beta_costs(alpha) @ beta)[p.limited] - p.limit

    def _where(self, fixed: str) -> str:
        return (
            f"at these {fixed} no point meets the limits on {', '.join(self.problem.limits)}; start from a fitting one"
        )

    @property
    def memory(self) -> tuple[Basis | None, Basis | None]:
        """The warm starts of alpha and beta: all that a later call depends on, besides its arguments."""
        return self._alpha.memory, self._beta.memory

    def remember(self, memory: tuple[Basis | None, Basis | None]) -> None:
        self._alpha.memory, self._beta.memory = memory


class _Blocks:
    """maximise values' x over simplices of `sizes`, subject to base + rows x <= limit."""

    def __init__(self, sizes: Ints, base: Floats, limit: Floats) -> None:
        starts = np.cumsum(sizes) - sizes
        columns = np.arange(int(sizes.max()))
        # Short blocks repeat their first option: padding that neither adds nor wins anything.
        self._table = starts[:, None] + np.where(columns < sizes[:, None], columns, 0)
        self._starts = starts
        self._columns = int(sizes.sum())
        self._base, self._limit = base, limit
        self._simplex = WarmSimplex(sizes, len(limit)) if len(limit) > 1 else None

    @property
    def memory(self) -> Basis | None:
        return self._simplex.memory if self._simplex else None

    @memory.setter
    def memory(self, memory: Basis | None) -> None:
        if self._simplex:
            self._simplex.memory = memory

    def solve(self, values: Floats, rows: Floats, excess: Excess, why_not: str) -> Solution[Floats]:
        infeasible: Solution[Floats] = Solution(found=(), status=Status(Outcome.INFEASIBLE, why_not))
        if self._simplex is not None:
            return self._several(self._simplex, values, rows, excess) or infeasible
        if len(self._limit):
            return self._one(values, rows[0], excess) or infeasible
        x = np.zeros(self._columns)
        x[self._starts + values[self._table].argmax(axis=1)] = 1.0
        return Solution(found=(x,), status=_OPTIMAL)

    def _one(self, values: Floats, row: Floats, excess: Excess) -> Solution[Floats] | None:
        base, limit = float(self._base[0]), float(self._limit[0])
        got = relaxed_mckp(values[self._table], row[self._table], limit - base)
        if base + got.cheapest > limit * (1 + TOLERANCE):
            return None
        x = np.zeros(self._columns)
        x[self._starts + got.options] = 1.0
        here = self._starts[got.partial] + got.options[got.partial]
        there = self._starts[got.partial] + got.onward
        share = got.share if got.share > 1e-12 else 0.0
        while share > 0.0:
            x[here], x[there] = 1.0 - share, share
            over = float(excess(x)[0])
            if over <= 0:
                break
            # The sum rounded up past the limit: give back a little more than the rounding; below 1e-12 nothing is left.
            share -= 2 * over / float(row[there] - row[here]) + 1e-15
            x[here], x[there] = 1.0, 0.0
        return Solution(found=(x,), status=_OPTIMAL, stats={"price": got.price})

    def _several(self, simplex: WarmSimplex, values: Floats, rows: Floats, excess: Excess) -> Solution[Floats] | None:
        base, limit = self._base, self._limit
        if (base > limit * (1 + TOLERANCE)).any():
            return None
        # Rows in units of the room there is, unless that is next to nothing: coefficients must stay moderate.
        scale = np.maximum(np.maximum(limit - base, TOLERANCE * limit), 1e-6 * rows.max(axis=1))
        scale = np.where(scale > 0, scale, 1.0)
        scaled, tighter = rows / scale[:, None], np.full(len(limit), _ROUNDING)
        kept: Solution[Floats] | None = None
        for _ in range(_REPAIRS):
            vertex = simplex.solve(values, scaled, (limit - base) / scale - tighter)
            if vertex is None:
                if kept is not None or not tighter.any():
                    break
                tighter = np.zeros(len(limit))  # perhaps only the limit itself fits
                continue
            over = excess(vertex.x)
            if (over <= TOLERANCE * limit).all():
                prices = {f"price_{k}": float(v) for k, v in enumerate(vertex.prices / scale)}
                kept = Solution(found=(vertex.x,), status=_OPTIMAL, stats=prices)
            if (over <= 0).all():
                break
            # The solver's tolerance, or rounding, let a row through: ask again for as much less, plus a little.
            tighter += np.where(over > 0, 2 * over / scale + _ROUNDING, 0.0)
        return kept


@dataclass(frozen=True)
class MckpVertex:
    """An option per slot, except that slot `partial` has moved `share` of the way on to option `onward`."""

    options: Ints  # [S]
    cheapest: float  # cost of every slot's cheapest option; above the budget means that nothing fits
    partial: int
    onward: int
    share: float  # in [0, 1); 0 when no slot is fractional
    price: float  # value per unit of cost at the stop; 0 when the budget does not bind


def relaxed_mckp(values: Floats, costs: Floats, room: float) -> MckpVertex:
    """The relaxed multiple-choice knapsack: maximise value within a budget of `room`, exactly.

    values, costs: [S, C]; short slots are padded with copies of one of their options. In the plane of cost and value only
    the options on a slot's upper hull can carry probability. Walking all hulls by falling slope (value per cost) until the
    budget is used up is the LP's optimum: every slot sits on one option, except the one in which the walk stops between
    two (theorem 3.1 of HardCoRe-NAS; Kellerer et al., Knapsack Problems, 2004). No tolerance, no iteration to convergence:
    the hulls of all slots are wrapped together, one numpy pass per hull edge.
    """
    rows = np.arange(len(costs))
    low = costs.min(axis=1)
    start = np.where(costs == low[:, None], values, -np.inf).argmax(axis=1)
    cheapest = float(low.sum())
    slopes, targets, prices = _hull_edges(values, costs, rows, start)
    if not len(slopes):
        return MckpVertex(start, cheapest, 0, 0, 0.0, 0.0)
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
        return MckpVertex(options, cheapest, 0, 0, 0.0, 0.0)
    slot, level = int(edge_slot[full]), int(edge_level[full])
    before = float(spent[full - 1]) if full else 0.0
    share = min(max((left - before) / float(prices[level, slot]), 0.0), 1.0)
    return MckpVertex(options, cheapest, slot, int(targets[level, slot]), share, float(falling[order[full]]))


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


Basis = tuple[tuple[int, ...], tuple[int, ...]]

_FEASIBILITY: Final = 1e-9  # absolute, on rows scaled to a right-hand side of about one


def quiet_highs(**options: Any) -> highspy.Highs:
    """A silent HiGHS on one thread."""
    highs = highspy.Highs()
    for name, value in {"output_flag": False, "threads": 1, "parallel": "off", "random_seed": 0, **options}.items():
        highs.setOptionValue(name, value)
    return highs


@dataclass(frozen=True)
class Vertex:
    """x [N] and the price of each row (value per unit of its right-hand side)."""

    x: Floats
    prices: Floats


class WarmSimplex:
    """Blocks of `sizes` columns each summing to one, and `budgets` rows whose numbers come with every call."""

    def __init__(self, sizes: Ints, budgets: int) -> None:
        self._columns = int(sizes.sum())
        self._blocks = len(sizes)
        self._budgets = budgets
        self._starts = np.cumsum(sizes) - sizes
        self._every_column = np.arange(self._columns, dtype=np.int32)
        self._budget_rows = np.arange(self._blocks, self._blocks + budgets, dtype=np.int32)
        self._highs = quiet_highs(
            solver="simplex",
            presolve="off",
            primal_feasibility_tolerance=_FEASIBILITY,
            dual_feasibility_tolerance=_FEASIBILITY,
        )
        self._pass_blocks(sizes)
        self._basis: highspy.HighsBasis | None = None

    @property
    def memory(self) -> Basis | None:
        """The basis that the next solve starts from, as plain numbers."""
        if self._basis is None:
            return None
        return tuple(int(s) for s in self._basis.col_status), tuple(int(s) for s in self._basis.row_status)

    @memory.setter
    def memory(self, memory: Basis | None) -> None:
        self._basis = None if memory is None else _unpacked(memory)

    def _pass_blocks(self, sizes: Ints) -> None:
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = self._columns, self._blocks
        lp.col_cost_ = np.zeros(self._columns)
        lp.col_lower_, lp.col_upper_ = np.zeros(self._columns), np.full(self._columns, np.inf)
        lp.row_lower_ = lp.row_upper_ = np.ones(self._blocks)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_ = np.arange(self._columns + 1, dtype=np.int32)
        lp.a_matrix_.index_ = np.repeat(np.arange(self._blocks, dtype=np.int32), sizes)
        lp.a_matrix_.value_ = np.ones(self._columns)
        self._highs.passModel(lp)
        self._add_budgets(np.zeros((self._budgets, self._columns)), np.ones(self._budgets))

    def _add_budgets(self, rows: Floats, rhs: Floats) -> None:
        count, columns = self._budgets, self._columns
        starts = np.arange(count, dtype=np.int32) * columns
        index = np.tile(self._every_column, count)
        lower = np.full(count, -np.inf)
        self._highs.addRows(count, lower, rhs, count * columns, starts, index, np.ascontiguousarray(rows).ravel())

    def solve(self, values: Floats, rows: Floats, rhs: Floats) -> Vertex | None:
        """The optimal vertex, or None when no x meets the rows (the caller knows what the rows mean, and says so)."""
        highs = self._highs
        magnitude = max(float(np.abs(values).max()), 1e-300)
        highs.changeColsCost(self._columns, self._every_column, -values / magnitude)
        highs.deleteRows(self._budgets, self._budget_rows)
        self._add_budgets(rows, rhs)
        highs.clearSolver()
        if self._basis is not None:
            highs.setBasis(self._basis)
        highs.run()
        status = highs.getModelStatus()
        if status not in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kInfeasible):
            highs.clearSolver()  # a stale basis can stall the simplex; from scratch it cannot
            highs.run()
            status = highs.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            self._basis = None
            return None
        if status != highspy.HighsModelStatus.kOptimal:
            raise ArithmeticError(f"HiGHS left an LP of {self._columns} columns as {highs.modelStatusToString(status)}")
        self._basis = highs.getBasis()
        solution = highs.getSolution()
        x = self._snapped(np.array(solution.col_value))
        return Vertex(x, -np.array(solution.row_dual[self._blocks :]) * magnitude)

    def _snapped(self, x: Floats) -> Floats:
        """Exact zeros and exact sums: what the solver leaves within its tolerance is rounded away."""
        x = np.where(x < _FEASIBILITY, 0.0, x)
        sums = np.add.reduceat(x, self._starts)
        ones: Floats = x / np.repeat(sums, np.diff(np.append(self._starts, self._columns)))
        return ones


def _unpacked(packed: Basis) -> highspy.HighsBasis:
    basis = highspy.HighsBasis()
    basis.col_status = [_STATUS[s] for s in packed[0]]
    basis.row_status = [_STATUS[s] for s in packed[1]]
    basis.valid = True
    return basis


_STATUS: Final = {int(s): s for s in highspy.HighsBasisStatus.__members__.values()}
