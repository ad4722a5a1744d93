"""Why nothing fits: exact statements about limits, decided on whole networks.

The smallest cost of each resource alone is a sum of minima, the smallest given the other limits is an integer optimum, and
the smallest common factor on all limits is the minimum over networks of the largest cost share: if the choice that attains
it does not fit, none does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import highspy
import numpy as np

from snugnet.solve.integer import best_choice, finest_highs, joint_model, read_choice
from snugnet.solve.problem import Choice, Floats, Outcome, Problem, Solution, Status


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Facts about the limits of a problem. Numbers are in the resources' units."""

    feasible: bool
    limits: dict[str, float]
    alone: dict[str, float]  # the smallest cost each resource could have, other limits aside
    conflict: tuple[str, ...]  # limits that no network meets together, none of them superfluous; () if there are none
    in_conflict: dict[str, float]  # the smallest cost of each of those with the rest of the conflict kept
    factor: float  # multiply every limit by this and a network starts to fit (at most 1 if one fits already)
    nearest: Choice  # the network that then fits


def explain(problem: Problem, *, time_limit: float = 30.0) -> Explanation:
    """All facts of `Explanation`; exact unless `time_limit` seconds run out, which raises `Undecided`."""
    names = [problem.names[k] for k in problem.limited]
    nearest = _least_share(problem, time_limit).value
    feasible = problem.is_feasible(nearest)
    conflict = () if feasible else _irreducible(problem, names, time_limit)
    return Explanation(
        feasible=feasible,
        limits={n: float(problem.limits[n]) for n in names},
        alone={n: _floor(problem, n) for n in names},
        conflict=conflict,
        in_conflict={n: _least(problem, n, [m for m in conflict if m != n], time_limit) for n in conflict},
        factor=_share(problem, nearest),
        nearest=nearest,
    )


def min_max_utilisation(problem: Problem, *, time_limit: float = 10.0) -> Solution[Choice]:
    """A network that fits with something to spare in every limit, or the proof that none fits.

    The smallest one if it fits; else the one whose largest cost share is smallest.
    """
    light = problem.smallest()
    if problem.is_feasible(light):
        return Solution(found=(light,), status=Status(Outcome.OPTIMAL, "the smallest network fits"))
    best = _least_share(problem, time_limit)
    if not best.ok or problem.is_feasible(best.value):
        return best
    least = ", ".join(f"{n} >= {_floor(problem, n):.6g} (limit {limit:.6g})" for n, limit in problem.limits.items())
    factor = f"the nearest needs every limit times {_share(problem, best.value):.6g}"
    return Solution(found=(), status=Status(Outcome.INFEASIBLE, f"no network meets the limits: {least}; {factor}"))


def _floor(problem: Problem, name: str) -> float:
    """The smallest cost of one resource, all limits aside."""
    return problem.cost(problem.cheapest(name))[name]


def _share(problem: Problem, choice: Choice) -> float:
    """The largest cost in units of its limit; a limit of zero is met by a cost of zero and by nothing else."""
    costs = problem.cost_vector(choice)[problem.limited]
    shares = [c / t if t > 0 else (0.0 if c == 0 else float("inf")) for c, t in zip(costs, problem.limit)]
    return float(max(shares, default=0.0))


def _least(problem: Problem, name: str, kept: list[str], time_limit: float) -> float:
    """The smallest cost of one resource under the `kept` limits; infinite if those conflict."""
    objective = np.zeros(problem.columns)
    objective[: len(problem.option_slot)] = -problem.theta[problem.names.index(name)]
    best = best_choice(_under(problem, kept), problem.split_objective(objective), time_limit=time_limit)
    if best.status.outcome is Outcome.INFEASIBLE:
        return float("inf")
    return problem.cost(best.value)[name]


def _under(problem: Problem, kept: list[str]) -> Problem:
    """The problem with only the `kept` ones of its limits."""
    return problem.with_limits({n: problem.limits[n] for n in kept})


def _irreducible(problem: Problem, names: list[str], time_limit: float) -> tuple[str, ...]:
    """Drop limits one by one as long as the rest still conflicts: what stays cannot spare any."""
    for name in names:  # a limit below its own floor is the clearest explanation
        if not _under(problem, [name]).is_feasible(problem.cheapest(name)):
            return (name,)
    kept = list(names)
    for name in names:
        trial = [n for n in kept if n != name]
        if not fits(_under(problem, trial), time_limit=time_limit):
            kept = trial
    return tuple(kept)


def fits(problem: Problem, *, time_limit: float = 10.0) -> bool:
    """Does any network meet the limits? Exact; raises `Undecided` if time runs out."""
    found = min_max_utilisation(problem, time_limit=time_limit)
    return bool(found.value) if found.status.outcome is Outcome.UNDECIDED else found.ok


def _least_share(problem: Problem, time_limit: float) -> Solution[Choice]:
    """The choice that minimises the largest cost share. Zero limits cannot be scaled: they stay as they are, if they can."""
    positive = problem.limit > 0
    floors = [_floor(problem, problem.names[k]) for k in problem.limited]
    light = problem.smallest()
    lower = max((f / t for f, t in zip(floors, problem.limit) if t > 0), default=0.0)
    exact = Status(Outcome.OPTIMAL, "no network has a smaller largest share")
    if _share(problem, light) <= lower * (1 + 1e-12):
        return Solution(found=(light,), status=exact)
    for k, floor in zip(problem.limited, floors):
        if floor / max(problem.limits[problem.names[k]], 1e-300) == lower:
            single = problem.cheapest(problem.names[k])
            if _share(problem, single) <= lower * (1 + 1e-12):
                return Solution(found=(single,), status=exact)
    if not positive.all():
        zero = problem.with_limits({problem.names[k]: 0.0 for k in problem.limited[~positive]})
        if not zero.is_feasible(zero.least(zero.theta[zero.limited].sum(axis=0))):
            return Solution(
                found=(light,), status=Status(Outcome.OPTIMAL, "a limit of zero cannot be met by any factor")
            )
    return _min_max(problem, positive, light, time_limit)


def _min_max(problem: Problem, positive: np.ndarray, light: Choice, time_limit: float) -> Solution[Choice]:
    """minimise rho  subject to  cost_k <= rho * limit_k  for positive limits, cost_k <= 0 for zero limits."""
    highs = finest_highs(mip_rel_gap=0.0, mip_abs_gap=1e-11, time_limit=time_limit)
    highs.passModel(joint_model(problem, np.zeros(problem.columns), integer=True, cap=np.inf))
    rows = np.flatnonzero(positive).astype(np.int32)
    shares: Floats = problem.base[problem.limited] / problem.limit_scale
    for row in rows:
        highs.changeRowBounds(int(row), -np.inf, float(-shares[row]))
    highs.addCol(1.0, 0.0, np.inf, len(rows), rows, -np.ones(len(rows)))
    begun = time.monotonic()
    highs.run()
    solution = highs.getSolution()
    candidates = [light] if (problem.cost_vector(light)[problem.limited][~positive] == 0).all() else []
    if solution.value_valid:
        candidates.append(read_choice(problem, solution.col_value[: problem.columns]))
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        fitting = tuple(c for c in candidates if problem.is_feasible(c))[:1]
        status = Status(Outcome.FEASIBLE, "fits; time ran out before one with more to spare")
        if not fitting:
            seconds = time.monotonic() - begun
            status = Status(Outcome.UNDECIDED, f"no decision within {seconds:.1f} s; allow more time")
        return Solution(found=fitting, status=status)
    best = min(candidates, key=lambda c: (_share(problem, c), c.depths, c.options))
    return Solution(found=(best,), status=Status(Outcome.OPTIMAL, "no network has a smaller largest share"))
