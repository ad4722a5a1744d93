"""The same linear programme again and again, with other numbers: one HiGHS model kept alive, warm-started.

    maximise values' x    over a product of simplices (blocks) and  rows x <= rhs  (one row a budget)

Answers are vertices. Every solve starts from the basis in `memory` and from nothing else (the solver's own state is
cleared), so an answer is a function of the numbers and of that basis: a search that stores it resumes bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import highspy
import numpy as np

from snugnet.solve.problem import Floats, Ints

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
        expand_range = max(float(np.abs(values).max()), 1e-300)
        highs.changeColsCost(self._columns, self._every_column, -values / expand_range)
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
        return Vertex(x, -np.array(solution.row_dual[self._blocks :]) * expand_range)

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
