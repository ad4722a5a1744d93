"""Frank-Wolfe steps of both blocks at once, in x = alpha * P(runs) and y = beta: there every limit is linear.

Steps of one block at a time leave the budget used up, so that depths and options can hardly trade it. In x and y the
feasible set is a convex polytope (the relaxation of `integer`), and one step moves both. The direction is that of the mean
of all gradients so far, from the balanced point on: noisy gradients average out, and there is no generator to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import highspy
import numpy as np

from snugnet.errors import Infeasible
from snugnet.solve.block_frank_wolfe import FrankWolfeState, Schedule, TraceRow, paper_schedule
from snugnet.solve.integer import HIGHS_FEASIBILITY, joint_model
from snugnet.solve.linear import quiet_highs
from snugnet.solve.problem import TOLERANCE, Floats, Point, Problem

JointGradient = Callable[[Point], tuple[float, Sequence[Floats], Sequence[Floats]]]
"""point -> (loss, its gradient by slot, its gradient by group)."""

_HARDLY_RUNS: Final = 1e-2  # share of runs below which a slot's gradient is not blown up further
_NEVER_RUNS: Final = 1e-12


def iterate_joint(
    gradient: JointGradient,
    problem: Problem,
    state: FrankWolfeState,
    *,
    steps: int,
    schedule: Schedule = paper_schedule,
) -> Iterator[tuple[FrankWolfeState, TraceRow]]:
    """Step by step: yields the state after each step, every one inside every limit."""
    if not problem.is_feasible(state.point):
        raise Infeasible(
            "Frank-Wolfe must start from a point inside every limit",
            value=problem.excess(state.point).tolist(),
            remedy="Use balanced_start.",
        )
    for _ in range(steps):
        loss, by_slot, by_group = gradient(state.point)
        lifted, slope = _lifted(problem, state.point, by_slot, by_group)
        mean = state.momentum.get("joint", np.zeros_like(slope))
        mean = mean + (slope - mean) / (state.step + 1)
        vertex = _vertex(problem, mean)
        gamma = float(schedule(state.step))
        point = _lowered(problem, state.point, lifted + gamma * (vertex - lifted))
        if not problem.is_feasible(point, TOLERANCE):
            raise ArithmeticError(f"a joint Frank-Wolfe step left its budgets by {problem.excess(point)}")
        row = TraceRow(
            step=state.step,
            block="joint",
            loss=float(loss),
            gamma=gamma,
            gap=float(mean @ (lifted - vertex)),
            costs=problem.expected_cost(point),
        )
        state = replace(state, step=state.step + 1, point=point, momentum={"joint": mean})
        yield state, row


def _vertex(problem: Problem, slope: Floats) -> Floats:
    """[N + M] x and y of the least <slope, .>; solved from scratch, so the answer depends on nothing else."""
    magnitude = max(float(np.abs(slope).max()), 1e-300)
    highs = quiet_highs(solver="simplex", presolve="off", primal_feasibility_tolerance=HIGHS_FEASIBILITY)
    highs.passModel(joint_model(problem, slope / magnitude, integer=False))
    highs.run()
    status = highs.getModelStatus()
    if status != highspy.HighsModelStatus.kOptimal:
        raise ArithmeticError(f"HiGHS left an LP of {len(slope)} columns as {highs.modelStatusToString(status)}")
    return np.array(highs.getSolution().col_value, float)


def _lifted(
    problem: Problem, point: Point, by_slot: Sequence[Floats], by_group: Sequence[Floats]
) -> tuple[Floats, Floats]:
    """The point as [x, y], and the gradient with respect to both: alpha = x / P(runs) depends on y too."""
    alpha, beta = problem.flat_alpha(point.alpha), problem.flat_beta(point.beta)
    slope_alpha, slope_beta = problem.flat_alpha(by_slot), problem.flat_beta(by_group)
    running = problem.runs @ beta
    share = np.maximum(running, _HARDLY_RUNS)
    own = np.add.reduceat(slope_alpha * alpha, problem.slot_starts) / share
    slope = np.concatenate([slope_alpha / share[problem.option_slot], slope_beta - own @ problem.runs])
    return np.concatenate([alpha * running[problem.option_slot], beta]), slope


def _lowered(problem: Problem, before: Point, lifted: Floats) -> Point:
    """[x, y] as alpha and beta; the options of a slot that no longer runs stay as they were."""
    n = len(problem.option_slot)
    x, beta = np.clip(lifted[:n], 0.0, 1.0), np.clip(lifted[n:], 0.0, 1.0)
    alpha = tuple(
        row / row.sum() if row.sum() > _NEVER_RUNS else old for row, old in zip(problem.split_alpha(x), before.alpha)
    )
    return Point(alpha, tuple(row / row.sum() for row in problem.split_beta(beta)))
