"""Depths and options in one model: the joint programme behind the integer optimum, its bounds and its prices.

    maximise  v'x + u'y
    x_sc = 1 if slot s runs with option c;   y_gd = 1 if group g has depth d
    sum_d y_gd = 1,    sum_c x_sc = sum over the depths at which slot s runs of y_gd,    base + t'x <= limit

Because x is zero in an idle slot, the product alpha' Theta beta has become linear and nothing is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import highspy
import numpy as np
import scipy.sparse as sp

from snugnet.errors import BadProblem
from snugnet.solve.problem import TOLERANCE, Choice, Floats, Objective, Problem
from snugnet.solve.warm_simplex import quiet_highs

HIGHS_FEASIBILITY: Final = 1e-10  # HiGHS's finest
_FAR_TOO_DEAR: Final = 10.0


def flat_values(problem: Problem, values: Objective) -> Floats:
    """[N + M] the worth of x and y, checked."""
    flat = np.concatenate([problem.flat_alpha(values.options), problem.flat_beta(values.depths)])
    if not np.isfinite(flat).all():
        raise BadProblem(
            "every value must be finite", value=float(flat[~np.isfinite(flat)][0]), remedy="Check what was estimated."
        )
    return flat


def joint_model(problem: Problem, objective: Floats, *, integer: bool, cap: float = _FAR_TOO_DEAR) -> highspy.HighsLp:
    """The model above, minimising `objective` [N + M]. Budget rows come first, each in units of its limit.

    Their right-hand side has half of TOLERANCE added: with HiGHS at its finest tolerance an architecture exactly at the
    limit is never lost, and whatever is let in still fits within TOLERANCE. Option costs are cut at `cap` limits: such an
    option is out either way, and enormous coefficients would only cost the solver its accuracy.
    """
    n, m, limited = len(problem.option_slot), problem.runs.shape[1], problem.limited
    slots, groups = len(problem.slot_sizes), len(problem.groups)
    scale = problem.limit_scale
    choose = sp.csr_matrix((np.ones(n), (problem.option_slot, np.arange(n))), shape=(slots, n))
    depth_group = np.repeat(np.arange(groups), problem.depth_sizes)
    simplex = sp.csr_matrix((np.ones(m), (depth_group, np.arange(m))), shape=(groups, m))
    shares = problem.theta[limited] / scale[:, None]
    budgets = sp.csr_matrix(np.minimum(shares, cap)) if len(limited) else sp.csr_matrix((0, n))
    matrix = sp.block_array([[budgets, None], [choose, sp.csr_matrix(-problem.runs)], [None, simplex]], format="csc")
    room = (problem.limit - problem.base[limited]) / scale + np.where(problem.limit > 0, TOLERANCE / 2, 0.0)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = n + m, len(limited) + slots + groups
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = objective, np.zeros(n + m), np.ones(n + m)
    lp.row_lower_ = np.concatenate([np.full(len(limited), -np.inf), np.zeros(slots), np.ones(groups)])
    lp.row_upper_ = np.concatenate([room, np.zeros(slots), np.ones(groups)])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = matrix.indptr, matrix.indices, matrix.data
    if integer:
        lp.integrality_ = [highspy.HighsVarType.kInteger] * (n + m)
    return lp


@dataclass(frozen=True)
class Relaxation:
    """The joint LP: a bound on every choice's worth, the price of each limit, and its optimum rounded to the light side."""

    bound: float
    prices: Floats  # [limited] worth per unit, >= 0
    rounded: Choice  # nearly optimal where it fits, which it mostly does: few slots of a vertex are fractional


def relax(problem: Problem, values: Objective) -> Relaxation | None:
    """Solve the LP relaxation; None means that not even fractions fit."""
    flat = flat_values(problem, values)
    expand_range = max(float(np.abs(flat).max()), 1e-300)
    highs = quiet_highs(solver="simplex", presolve="off", primal_feasibility_tolerance=HIGHS_FEASIBILITY)
    highs.passModel(joint_model(problem, -flat / expand_range, integer=False))
    highs.run()
    status = highs.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return None
    if status != highspy.HighsModelStatus.kOptimal:
        raise ArithmeticError(f"HiGHS left an LP of {len(flat)} columns as {highs.modelStatusToString(status)}")
    solution = highs.getSolution()
    duals = np.array(solution.row_dual[: len(problem.limited)])
    prices = np.maximum(-duals, 0.0) * expand_range / problem.limit_scale
    rounded = _to_the_light_side(problem, np.array(solution.col_value))
    return Relaxation(-highs.getInfo().objective_function_value * expand_range, prices, rounded)


def _to_the_light_side(problem: Problem, columns: Floats) -> Choice:
    """Of everything that carries weight, the shallowest depth and the smallest option."""
    n = len(problem.option_slot)
    depths = [
        min((d for d, y in zip(g.depths, ys) if y > 1e-6), default=min(g.depths))
        for g, ys in zip(problem.groups, problem.split_beta(columns[n:]))
    ]
    load = np.where(columns[:n] > 1e-6, problem.load(), np.inf)
    return problem.choice([int(np.argmin(part)) for part in problem.split_alpha(load)], depths)


def read_choice(problem: Problem, column_values: Floats) -> Choice:
    """The choice that an integer solution of the joint model stands for."""
    n = len(problem.option_slot)
    options = [int(np.argmax(x)) for x in problem.split_alpha(column_values[:n])]
    picks = [int(np.argmax(y)) for y in problem.split_beta(column_values[n:])]
    return problem.choice(options, [g.depths[i] for g, i in zip(problem.groups, picks)])


def columns_of(problem: Problem, choice: Choice) -> list[int]:
    """The columns of x and y that are one for this choice."""
    n = len(problem.option_slot)
    columns = [int(problem.slot_starts[s]) + choice.options[s] for s in problem.running(choice)]
    return columns + [
        n + int(start) + g.depths.index(d) for start, g, d in zip(problem.depth_starts, problem.groups, choice.depths)
    ]
