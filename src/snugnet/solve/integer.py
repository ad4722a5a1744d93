"""The joint integer optimum: depths and options together, additive worth, any number of budgets. Exact, with a proof.

First the sweep over Lagrangian losses (`sweep`), which settles most problems of this shape in milliseconds; what it leaves
open goes to HiGHS (`milp`) with the sweep's best as a start. Both bound what they have not seen, so every answer has a
gap. Whatever is returned fits: its exact costs have been summed. The answer does not depend on chance or on the machine,
unless the time limit stops it.
"""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from snugnet.errors import BadInput
from snugnet.solve.greedy import greedy
from snugnet.solve.joint import relax
from snugnet.solve.milp import programme
from snugnet.solve.problem import Choice, Objective, Problem
from snugnet.solve.solution import Outcome, Solution, Status
from snugnet.solve.sweep import Sweep, Swept

_SWEEP_SHARE: Final = 0.25  # of the time limit
_CLOSED: Final = 1e-8  # relative; the accuracy of the bounds


def best_choice(problem: Problem, values: Objective, *, time_limit: float = 10.0, gap: float = 0.0) -> Solution[Choice]:
    """The choice of greatest worth that meets every limit; see `best_choices`."""
    return best_choices(problem, values, count=1, time_limit=time_limit, gap=gap)


def best_choices(
    problem: Problem, values: Objective, *, count: int, time_limit: float = 10.0, gap: float = 0.0
) -> Solution[Choice]:
    """The `count` best different choices, best first, in `.found` (fewer only if fewer fit, or time ran out).

    `time_limit` is in seconds; `gap` is the relative distance from the optimum at which the first may stop being improved.
    Stats: value, bound (on any choice), gap, seconds, sweep (1 if the sweep alone proved it).
    """
    if count < 1 or not time_limit > 0 or not 0 <= gap < 1:
        raise BadInput(
            "count must be at least 1, time_limit positive, gap in [0, 1)",
            value=(count, time_limit, gap),
            remedy="Use e.g. count=1, time_limit=10, gap=0.",
        )
    begun = time.monotonic()
    relaxed = relax(problem, values)
    if relaxed is None:
        return Solution(found=(), status=Status(Outcome.INFEASIBLE, _nothing_fits(problem)))
    if gap > 0 and count == 1:  # a rounded relaxation is often near enough, in milliseconds
        quick = greedy(problem, values, relaxed.rounded)
        effect = problem.value(values, quick)
        if problem.is_feasible(quick) and _gap(effect, relaxed.bound) <= gap:
            return _report(problem, (quick,), effect, relaxed.bound, count, False, begun, sweep=False)
    swept = Sweep(problem, values, relaxed.prices, count=count, deadline=begun + time_limit * _SWEEP_SHARE).run()
    known = _known(problem, values, swept, relaxed.rounded, count)
    best = problem.value(values, known[0]) if known else -np.inf
    bound = max(swept.bound, best) if swept.proven else max(min(swept.bound, relaxed.bound), best)
    if swept.proven or (len(known) >= count and _gap(best, bound) <= gap and gap > 0):
        return _report(problem, known, best, bound, count, swept.proven, begun, sweep=True)
    solved = programme(problem, values, count=count, deadline=begun + time_limit, gap=gap, known=known)
    bound = max(min(bound, solved.bound), best)
    if solved.proven and (len(solved.choices) == count or solved.exhausted):
        chosen = solved.choices
    else:
        merged = {*known, *solved.choices}
        chosen = tuple(sorted(merged, key=lambda c: (-problem.value(values, c), c.depths, c.options))[:count])
    value = problem.value(values, chosen[0]) if chosen else -np.inf
    return _report(problem, chosen, value, max(bound, value), count, solved.proven, begun, sweep=False)


def _known(problem: Problem, values: Objective, swept: Swept, rounded: Choice, count: int) -> tuple[Choice, ...]:
    """What the sweep saw; if that proves nothing, also a rounding and light networks: time must not run out on nothing."""
    if swept.proven:
        return swept.choices
    repaired = greedy(problem, values, rounded)
    light = [repaired, problem.smallest(), *(problem.cheapest(name) for name in problem.limits)]
    fitting = {*swept.choices, *(c for c in light if problem.is_feasible(c))}
    return tuple(sorted(fitting, key=lambda c: (-problem.value(values, c), c.depths, c.options))[:count])


def _gap(value: float, bound: float) -> float:
    if bound <= value:
        return 0.0
    return (bound - value) / max(abs(value), 1e-12) if np.isfinite(value) else float("inf")


def _nothing_fits(problem: Problem) -> str:
    return f"no choice meets the limits on {', '.join(problem.limits)} together; `explain` says which to raise, and how far"


def _report(
    problem: Problem,
    chosen: tuple[Choice, ...],
    value: float,
    bound: float,
    count: int,
    proven: bool,
    begun: float,
    *,
    sweep: bool,
) -> Solution[Choice]:
    distance = _gap(value, bound)
    stats = {"seconds": time.monotonic() - begun, "sweep": float(sweep)}
    if chosen:
        stats |= {"value": value, "bound": bound, "gap": distance}
    if chosen and proven and distance <= _CLOSED:
        few = f"; only {len(chosen)} choices fit" if len(chosen) < count else ""
        status = Status(Outcome.OPTIMAL, f"proven best{few}")
    elif chosen:
        status = Status(
            Outcome.FEASIBLE, f"fits, within {distance:.2%} of the optimum; allow more time to close the gap"
        )
    elif proven and not chosen:
        status = Status(Outcome.INFEASIBLE, _nothing_fits(problem))
    else:
        status = Status(
            Outcome.UNDECIDED, "time ran out before a fitting choice was found or excluded; allow more time"
        )
    return Solution(found=chosen, status=status, stats=stats)
