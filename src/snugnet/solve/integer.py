"""The joint integer optimum: depths and options together, additive objective, any number of budgets. Exact, with a proof.

    maximise  v'x + u'y
    x_sc = 1 if slot s runs with option c;   y_gd = 1 if group g has depth d
    sum_d y_gd = 1,    sum_c x_sc = sum over the depths at which slot s runs of y_gd,    base + t'x <= limit

Because x is zero in an idle slot, the product alpha' Theta beta has become linear and nothing is lost. First the enumeration
by Lagrangian losses (`lagrangian`), which settles most problems of this shape in milliseconds; what it leaves open goes to
HiGHS with the best known choice as a start. Both bound what they have not seen, so every answer has a gap. Whatever is
returned fits: its exact costs have been summed. The answer does not depend on chance or on the machine, unless the time
limit stops it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import highspy
import numpy as np

from snugnet.errors import BadInput
from snugnet.solve.lagrangian import EnumerationResult, LagrangianEnumeration
from snugnet.solve.linear import quiet_highs
from snugnet.solve.problem import TOLERANCE, Choice, Floats, Objective, Outcome, Problem, Solution, Status

HIGHS_FEASIBILITY: Final = 1e-10  # HiGHS's finest
_ENUMERATION_SHARE: Final = 0.25  # of the time limit
_COST_CAP: Final = 10.0  # limits; see `joint_model`
_MISFITS: Final = 1000
_CLOSED: Final = 1e-8  # relative; the accuracy of the bounds


def best_choice(
    problem: Problem, objective: Objective, *, time_limit: float = 10.0, gap: float = 0.0
) -> Solution[Choice]:
    """The choice of the greatest objective that meets every limit; see `best_choices`."""
    return best_choices(problem, objective, count=1, time_limit=time_limit, gap=gap)


def best_choices(
    problem: Problem, objective: Objective, *, count: int, time_limit: float = 10.0, gap: float = 0.0
) -> Solution[Choice]:
    """The `count` best different choices, best first, in `.found` (fewer only if fewer fit, or time ran out).

    `time_limit` is in seconds; `gap` is the relative distance from the optimum at which the first may stop being improved.
    Stats: value, bound (on any choice), gap, seconds, enumerated (1 if the enumeration alone proved it).
    """
    if count < 1 or not time_limit > 0 or not 0 <= gap < 1:
        rule, remedy = (
            "count must be at least 1, time_limit positive, gap in [0, 1)",
            "Try count=1, time_limit=10, gap=0.",
        )
        raise BadInput(rule, value=(count, time_limit, gap), remedy=remedy)
    begun = time.monotonic()
    relaxed = relax(problem, objective)
    if relaxed is None:
        return Solution(found=(), status=Status(Outcome.INFEASIBLE, _nothing_fits(problem)))
    if gap > 0 and count == 1:  # a rounded relaxation is often near enough, in milliseconds
        quick = greedy(problem, objective, relaxed.rounded)
        value = problem.value(objective, quick)
        if problem.is_feasible(quick) and _gap(value, relaxed.bound) <= gap:
            return _report(problem, objective, (quick,), relaxed.bound, count, False, begun)
    until = begun + time_limit * _ENUMERATION_SHARE
    enumerated = LagrangianEnumeration(problem, objective, relaxed.prices, count=count, deadline=until).run()
    known = _known(problem, objective, enumerated, relaxed.rounded, count)
    best = problem.value(objective, known[0]) if known else -np.inf
    bound = max(enumerated.bound, best) if enumerated.proven else max(min(enumerated.bound, relaxed.bound), best)
    if enumerated.proven or (len(known) >= count and _gap(best, bound) <= gap and gap > 0):
        return _report(problem, objective, known, bound, count, enumerated.proven, begun, enumerated=True)
    solved = solve_milp(problem, objective, count=count, deadline=begun + time_limit, gap=gap, known=known)
    chosen = solved.choices
    if not (solved.proven and (len(chosen) == count or solved.exhausted)):
        chosen = problem.best_first(objective, {*known, *chosen})[:count]
    return _report(problem, objective, chosen, max(min(bound, solved.bound), best), count, solved.proven, begun)


def _known(
    problem: Problem, objective: Objective, enumerated: EnumerationResult, rounded: Choice, count: int
) -> tuple[Choice, ...]:
    """What was enumerated; if that proves nothing, also a rounding and small networks: time must not run out on nothing."""
    if enumerated.proven:
        return enumerated.choices
    repaired = greedy(problem, objective, rounded)
    small = [repaired, problem.smallest(), *(problem.cheapest(name) for name in problem.limits)]
    return problem.best_first(objective, {*enumerated.choices, *(c for c in small if problem.is_feasible(c))})[:count]


def _gap(value: float, bound: float) -> float:
    if bound <= value:
        return 0.0
    return (bound - value) / max(abs(value), 1e-12) if np.isfinite(value) else float("inf")


def _nothing_fits(problem: Problem) -> str:
    return f"no choice meets the limits on {', '.join(problem.limits)} together; `explain` says which to raise, and how far"


def _report(
    problem: Problem,
    objective: Objective,
    chosen: tuple[Choice, ...],
    bound: float,
    count: int,
    proven: bool,
    begun: float,
    enumerated: bool = False,
) -> Solution[Choice]:
    stats = {"seconds": time.monotonic() - begun, "enumerated": float(enumerated)}
    if not chosen:
        late = "time ran out before a fitting choice was found or excluded; allow more time"
        status = Status(Outcome.INFEASIBLE, _nothing_fits(problem)) if proven else Status(Outcome.UNDECIDED, late)
        return Solution(found=(), status=status, stats=stats)
    value = problem.value(objective, chosen[0])
    bound = max(bound, value)
    distance = _gap(value, bound)
    few = f"; only {len(chosen)} choices fit" if len(chosen) < count else ""
    status = Status(Outcome.OPTIMAL, f"proven best{few}")
    if not proven or distance > _CLOSED:
        message = f"fits, within {distance:.2%} of the optimum; allow more time to close the gap"
        status = Status(Outcome.FEASIBLE, message)
    return Solution(found=chosen, status=status, stats={**stats, "value": value, "bound": bound, "gap": distance})


def joint_model(problem: Problem, minimised: Floats, *, integer: bool, cap: float = _COST_CAP) -> highspy.HighsLp:
    """The model of the first lines, minimising `minimised` [N + M]. Budget rows come first, each in units of its limit.

    Their right-hand side has half of TOLERANCE added: with HiGHS at its finest tolerance an architecture exactly at the
    limit is never lost, and whatever is let in still fits within TOLERANCE. Option costs are cut at `cap` limits: such an
    option is out either way, and enormous coefficients would only cost the solver its accuracy.
    """
    n, m, limited = len(problem.option_slot), problem.runs.shape[1], problem.limited
    slots, groups = len(problem.slot_sizes), len(problem.groups)
    scale = problem.limit_scale
    shares = problem.theta[limited] / scale[:, None]
    dense = np.zeros((n + m, len(limited) + slots + groups))  # a row per column of the model: HiGHS reads it by columns
    dense[:n, : len(limited)] = np.minimum(shares, cap).T
    dense[np.arange(n), len(limited) + problem.option_slot] = 1.0
    dense[n:, len(limited) : len(limited) + slots] = -problem.runs.T
    dense[np.arange(n, n + m), len(limited) + slots + problem.depth_group] = 1.0
    columns, rows = np.nonzero(dense)
    room = (problem.limit - problem.base[limited]) / scale + np.where(problem.limit > 0, TOLERANCE / 2, 0.0)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = n + m, len(limited) + slots + groups
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = minimised, np.zeros(n + m), np.ones(n + m)
    lp.row_lower_ = np.concatenate([np.full(len(limited), -np.inf), np.zeros(slots), np.ones(groups)])
    lp.row_upper_ = np.concatenate([room, np.zeros(slots), np.ones(groups)])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.searchsorted(columns, np.arange(n + m + 1)).astype(np.int32)
    lp.a_matrix_.index_, lp.a_matrix_.value_ = rows.astype(np.int32), dense[columns, rows]
    if integer:
        lp.integrality_ = [highspy.HighsVarType.kInteger] * (n + m)
    return lp


@dataclass(frozen=True)
class Relaxation:
    """The joint LP: a bound on every choice, the price of each limit, and its optimum rounded to the smaller side."""

    bound: float
    prices: Floats  # [limited] objective per unit, >= 0
    rounded: Choice  # nearly optimal where it fits, which it mostly does: few slots of a vertex are fractional


def relax(problem: Problem, objective: Objective) -> Relaxation | None:
    """Solve the LP relaxation; None means that not even fractions fit."""
    vertex = solve_joint_lp(problem, -problem.flat_objective(objective))
    if vertex is None:
        return None
    return Relaxation(-vertex.value, vertex.prices, _to_the_smaller_side(problem, vertex.x))


@dataclass(frozen=True)
class JointVertex:
    """x and y [N + M] of an optimal vertex, its value, and the price of each limit [limited]."""

    x: Floats
    value: float
    prices: Floats


def solve_joint_lp(problem: Problem, minimised: Floats) -> JointVertex | None:
    """The LP relaxation of the joint model, from scratch; None means that not even fractions fit."""
    magnitude = max(float(np.abs(minimised).max()), 1e-300)
    highs = quiet_highs(solver="simplex", presolve="off", primal_feasibility_tolerance=HIGHS_FEASIBILITY)
    highs.passModel(joint_model(problem, minimised / magnitude, integer=False))
    highs.run()
    status = highs.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return None
    if status != highspy.HighsModelStatus.kOptimal:
        raise ArithmeticError(f"HiGHS left an LP of {len(minimised)} columns as {highs.modelStatusToString(status)}")
    solution = highs.getSolution()
    duals = np.array(solution.row_dual[: len(problem.limited)])
    prices = np.maximum(-duals, 0.0) * magnitude / problem.limit_scale
    value = highs.getInfo().objective_function_value * magnitude
    return JointVertex(np.array(solution.col_value, float), value, prices)


def _to_the_smaller_side(problem: Problem, columns: Floats) -> Choice:
    """Of everything that carries weight, the shallowest depth and the smallest option."""
    n = len(problem.option_slot)
    depths = [
        min((d for d, y in zip(g.depths, ys) if y > 1e-6), default=min(g.depths))
        for g, ys in zip(problem.groups, problem.split_beta(columns[n:]))
    ]
    load = np.where(columns[:n] > 1e-6, problem.load(), np.inf)
    return problem.choice([int(np.argmin(part)) for part in problem.split_alpha(load)], depths)


def read_choice(problem: Problem, column_values: Sequence[float]) -> Choice:
    """The choice that an integer solution of the joint model stands for."""
    ones = problem.split_objective(np.round(np.array(column_values)))
    depths = [g.depths[int(np.argmax(y))] for g, y in zip(problem.groups, ones.depths)]
    return problem.choice([int(np.argmax(x)) for x in ones.options], depths)


@dataclass(frozen=True)
class MilpResult:
    """Choices best first; `proven` best; `bound` on all others; `exhausted` if no further choice fits."""

    choices: tuple[Choice, ...]
    proven: bool
    bound: float
    exhausted: bool


def finest_highs(**options: Any) -> highspy.Highs:
    """HiGHS for integer programmes, at the finest tolerances it has."""
    finest = {"mip_feasibility_tolerance": HIGHS_FEASIBILITY, "primal_feasibility_tolerance": HIGHS_FEASIBILITY}
    return quiet_highs(**finest, **options)


def solve_milp(
    problem: Problem, objective: Objective, *, count: int, deadline: float, gap: float, known: Sequence[Choice] = ()
) -> MilpResult:
    """The `count` best choices by repeated MILPs with cuts; `known` fitting choices warm-start the first.

    What HiGHS returns is believed only after the exact costs were summed. A choice that its tolerances let through although
    it does not fit is cut off like one that was already handed out, and the search goes on.
    """
    flat = problem.flat_objective(objective)
    magnitude = max(float(np.abs(flat).max()), 1e-300)
    highs = finest_highs(mip_rel_gap=gap, mip_abs_gap=1e-10)
    highs.passModel(joint_model(problem, -flat / magnitude, integer=True))
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
            return MilpResult(tuple(found), True, problem.value(objective, found[0]) if found else -np.inf, True)
        if not found and not misfits:
            bound = -highs.getInfo().mip_dual_bound * magnitude
        solution = highs.getSolution()
        if not solution.value_valid:
            return MilpResult(tuple(found), False, bound, False)
        choice = read_choice(problem, solution.col_value)
        if problem.is_feasible(choice):
            found.append(choice)
            if status != highspy.HighsModelStatus.kOptimal:
                return MilpResult(tuple(found), False, bound, False)
        else:
            misfits += 1
        _cut_off(highs, problem, choice)
    return MilpResult(tuple(found), misfits <= _MISFITS, bound, False)


def _start_from(highs: highspy.Highs, problem: Problem, known: Sequence[Choice]) -> None:
    if known:
        x = problem.indicators(known[0])
        highs.setSolution(len(x), np.arange(len(x), dtype=np.int32), x)


def _cut_off(highs: highspy.Highs, problem: Problem, choice: Choice) -> None:
    """Forbid exactly this choice: not all of its ones together (a choice is determined by its running slots and depths)."""
    columns = np.array(problem.ones(choice), np.int32)
    highs.addRow(-np.inf, len(columns) - 1.0, len(columns), columns, np.ones(len(columns)))


def greedy(problem: Problem, objective: Objective, choice: Choice) -> Choice:
    """One change at a time, depths as they are: a first answer, so that a time limit does not find nothing. Not proven.

    While over a budget, the change that saves most excess per effect lost; then the one that gains most per load.
    """
    for _ in range(4 * len(problem.option_slot)):
        step = _best_change(problem, objective, choice)
        if step is None:
            break
        choice = step
    return choice


def _best_change(problem: Problem, objective: Objective, choice: Choice) -> Choice | None:
    slots, effect, load = problem.option_slot, problem.flat_alpha(objective.options), problem.load()
    now = (problem.slot_starts + np.array(choice.options))[slots]
    gain, heavier = effect - effect[now], load - load[now]
    costs = problem.theta[problem.limited] / problem.limit_scale[:, None]
    excess = problem.excess(choice) / problem.limit_scale
    after = excess[:, None] + costs - costs[:, now]
    rate: Floats
    if problem.is_feasible(choice):
        allowed = (after <= 0).all(axis=0) & (gain > 0)
        rate = gain / np.maximum(heavier, 1e-12)
    else:
        saved = np.maximum(excess, 0.0).sum() - np.maximum(after, 0.0).sum(axis=0)
        allowed = saved > 1e-12
        rate = saved / np.maximum(-gain, 1e-12)
    running = np.zeros(len(problem.slot_sizes), bool)
    running[problem.running(choice)] = True
    rate = np.where(allowed & running[slots], rate, 0.0)
    best = int(np.argmax(rate))
    if rate[best] <= 0:
        return None
    options = list(choice.options)
    options[slots[best]] = best - int(problem.slot_starts[slots[best]])
    return problem.choice(options, choice.depths)
