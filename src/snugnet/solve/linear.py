"""The linear programmes of Frank-Wolfe and of the projection: over alpha at fixed beta, over beta at fixed alpha.

Both are the same relaxed knapsack, in other clothes: blocks (slots or groups) each with one unit of probability, and a row
a budget. No budget: every block takes its best. One: the exact hull walk of `knapsack`. Several: HiGHS, warm. The answer is
a vertex, so at most one block per budget is fractional, and it fits in float64 as the problem itself computes costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from snugnet.solve.knapsack import walk
from snugnet.solve.problem import TOLERANCE, Floats, Ints, Problem
from snugnet.solve.solution import Outcome, Solution, Status
from snugnet.solve.warm_simplex import Basis, WarmSimplex

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


def best_alpha(problem: Problem, values: Sequence[Floats], beta: Sequence[Floats]) -> Solution[tuple[Floats, ...]]:
    """One LP over alpha at fixed beta (vectors per slot and per group)."""
    got = LinearOracle(problem).alpha(problem.flat_alpha(values), problem.flat_beta(beta))
    return Solution(found=tuple(problem.split_alpha(f) for f in got.found), status=got.status, stats=got.stats)


def best_beta(problem: Problem, values: Sequence[Floats], alpha: Sequence[Floats]) -> Solution[tuple[Floats, ...]]:
    """One LP over beta at fixed alpha (vectors per group and per slot)."""
    got = LinearOracle(problem).beta(problem.flat_beta(values), problem.flat_alpha(alpha))
    return Solution(found=tuple(problem.split_beta(f) for f in got.found), status=got.status, stats=got.stats)


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
        got = walk(values[self._table], row[self._table], limit - base)
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
