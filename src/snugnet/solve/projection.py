"""From a relaxed point to a network: what is chosen as probable as the budgets allow (HardCoRe-NAS, eq. 13).

    maximise  alpha' alpha* + beta' beta*      over networks (alpha, beta) within every budget

`project` solves it jointly and exactly (the default). `project_alternating` is the paper's way: a linear programme for one
block at the other's value, in turn, with the fractional slot of theorem 3.1 resolved downwards. Both never exceed a budget.
`argmax_baseline` takes the most probable of everything, as most methods do, and exceeds budgets freely: only to compare.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Final

import numpy as np

from snugnet.errors import Infeasible
from snugnet.solve.integer import best_choice
from snugnet.solve.linear import LinearOracle
from snugnet.solve.problem import Choice, Floats, Objective, Outcome, Point, Problem, Solution, Status

_ROUNDS: Final = 20
_ROUNDINGS: Final = 4096


def projection_objective(problem: Problem, point: Point) -> Objective:
    """The joint objective of eq. (13) as additive effects.

    An idle slot takes its most probable option for free, so a slot that runs is charged for what it gives up against that:
    depth is neither rewarded nor punished by the number of slots it brings along.
    """
    return Objective(tuple(a - a.max() for a in point.alpha), tuple(np.asarray(b, float) for b in point.beta))


def project(problem: Problem, point: Point, *, time_limit: float = 10.0) -> Solution[Choice]:
    """The network of greatest probability within every budget: exact, depths and options jointly."""
    return best_choice(problem, projection_objective(problem, point), time_limit=time_limit)


def argmax_baseline(problem: Problem, point: Point) -> Choice:
    """Eq. (12): the most probable option and depth of everything. May exceed every budget; a baseline, not a projection."""
    depths = [g.depths[int(np.argmax(b))] for g, b in zip(problem.groups, point.beta)]
    return problem.choice([int(np.argmax(a)) for a in point.alpha], depths)


def project_alternating(problem: Problem, point: Point) -> Solution[Choice]:
    """Eq. (13) by linear programmes in turn: depths at the options' value, options at those depths, until nothing improves.

    The relaxed point must fit. A fractional group takes its shallower depth and a fractional slot the cheaper option, which
    costs no more than the programme's own answer; with several budgets the roundings are tried out, and if none fits the
    exact projection at these depths decides.
    """
    if not problem.is_feasible(point):
        rule = "the relaxed point must fit before it is projected"
        raise Infeasible(rule, value=problem.over(point), remedy="Use project instead.")
    oracle = LinearOracle(problem)
    objective = projection_objective(problem, point)
    alpha_objective, beta_objective = problem.flat_alpha(point.alpha), problem.flat_beta(point.beta)
    alpha, best, rounds = alpha_objective, None, 0
    while rounds < _ROUNDS:
        rounds += 1
        depths = _shallower(problem, oracle.beta(beta_objective, alpha).value)
        beta = problem.flat_beta(problem.point(Choice((0,) * len(problem.slot_sizes), depths)).beta)
        resolved = _rounded(problem, objective, oracle.alpha(alpha_objective, beta).value, depths)
        if not resolved.ok:
            return resolved
        choice = resolved.value
        if best is not None and problem.value(objective, choice) <= problem.value(objective, best) + 1e-12:
            break
        best = choice
        alpha = problem.flat_alpha(problem.point(choice).alpha)
    if best is None or not problem.is_feasible(best):
        raise ArithmeticError(f"a projection left its budgets: {best}")
    message = "fits; a local optimum of the two programmes in turn, `project` gives the joint one"
    stats = {"rounds": float(rounds), "value": problem.value(objective, best)}
    return Solution(found=(best,), status=Status(Outcome.FEASIBLE, message), stats=stats)


def _shallower(problem: Problem, beta: Floats) -> tuple[int, ...]:
    """The smallest depth that carries probability: it costs no more of anything than the mixture does."""
    return tuple(
        min(d for d, probability in zip(g.depths, b) if probability > 0)
        for g, b in zip(problem.groups, problem.split_beta(beta))
    )


def _rounded(problem: Problem, objective: Objective, alpha: Floats, depths: tuple[int, ...]) -> Solution[Choice]:
    """The best fitting way to resolve the fractional slots of a vertex; else the best at these depths, else at any."""
    support = [np.flatnonzero(a > 0) for a in problem.split_alpha(alpha)]
    if np.prod([float(len(s)) for s in support]) <= _ROUNDINGS:
        ways = {problem.choice(options, depths) for options in itertools.product(*(s.tolist() for s in support))}
        fitting = [c for c in ways if problem.is_feasible(c)]
        if fitting:
            best = min(fitting, key=lambda c: (-problem.value(objective, c), c.options))
            return Solution(found=(best,), status=Status(Outcome.FEASIBLE, "a rounding of the vertex fits"))
    groups = tuple(replace(g, depths=(d,)) for g, d in zip(problem.groups, depths))
    at_depths = Objective(objective.options, tuple(np.zeros(1) for _ in groups))
    here = best_choice(replace(problem, groups=groups), at_depths)
    return here if here.ok else best_choice(problem, objective)
