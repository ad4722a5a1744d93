"""The joint programme as a MILP: HiGHS for what the sweep leaves open, with cuts for the second best and the next.

What HiGHS returns is believed only after the exact costs were summed. A choice that its tolerances let through although it
does not fit is cut off like one that was already handed out, and the search goes on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import highspy
import numpy as np

from snugnet.solve.joint import HIGHS_FEASIBILITY, columns_of, flat_values, joint_model, read_choice
from snugnet.solve.problem import Choice, Floats, Objective, Problem
from snugnet.solve.warm_simplex import quiet_highs

_MISFITS: Final = 1000


@dataclass(frozen=True)
class MilpResult:
    """Choices best first; `proven` best; `bound` on all others; `exhausted` if no further choice fits."""

    choices: tuple[Choice, ...]
    proven: bool
    bound: float
    exhausted: bool


def programme(
    problem: Problem, values: Objective, *, count: int, deadline: float, gap: float, known: Sequence[Choice] = ()
) -> MilpResult:
    """The `count` best choices by repeated MILPs; `known` fitting choices warm-start the first."""
    flat = flat_values(problem, values)
    expand_range = max(float(np.abs(flat).max()), 1e-300)
    highs = quiet_highs(
        mip_feasibility_tolerance=HIGHS_FEASIBILITY,
        primal_feasibility_tolerance=HIGHS_FEASIBILITY,
        mip_rel_gap=gap,
        mip_abs_gap=1e-10,
    )
    highs.passModel(joint_model(problem, -flat / expand_range, integer=True))
    found: list[Choice] = []
    bound, misfits = float("inf"), 0
    while len(found) < count and misfits <= _MISFITS:
        left = deadline - time.monotonic()
        if left <= 0:
            return MilpResult(tuple(found), False, bound, False)
        _start_from(highs, problem, [c for c in known if c not in found])
        highs.setOptionValue("time_limit", max(left, 0.01))  # counted per run
        highs.run()
        status = highs.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return MilpResult(tuple(found), True, problem.value(values, found[0]) if found else -np.inf, True)
        if not found and not misfits:
            bound = -highs.getInfo().mip_dual_bound * expand_range
        solution = highs.getSolution()
        if not solution.value_valid:
            return MilpResult(tuple(found), False, bound, False)
        choice = read_choice(problem, _rounded(solution.col_value))
        if problem.is_feasible(choice):
            found.append(choice)
            if status != highspy.HighsModelStatus.kOptimal:
                return MilpResult(tuple(found), False, bound, False)
        else:
            misfits += 1
        _cut_off(highs, problem, choice)
    return MilpResult(tuple(found), misfits <= _MISFITS, bound, False)


def _rounded(columns: Sequence[float]) -> Floats:
    return np.round(np.array(columns))


def _start_from(highs: highspy.Highs, problem: Problem, known: Sequence[Choice]) -> None:
    if known:
        columns = np.array(columns_of(problem, known[0]), np.int32)
        x = np.zeros(highs.getNumCol())
        x[columns] = 1.0
        highs.setSolution(len(x), np.arange(len(x), dtype=np.int32), x)


def _cut_off(highs: highspy.Highs, problem: Problem, choice: Choice) -> None:
    """Forbid exactly this choice: not all of its ones together (a choice is determined by its running slots and depths)."""
    columns = np.array(columns_of(problem, choice), np.int32)
    highs.addRow(-np.inf, len(columns) - 1.0, len(columns), columns, np.ones(len(columns)))
