"""What a little more of each budget would be worth: shadow prices at the optimum, exact and at the margin.

"5 % more latency is worth 0.3; memory is not binding." The exact answer solves again with the limit relaxed; the LP's dual
price says the same at the margin, of the relaxation, where the integer optimum moves in steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from snugnet.errors import BadInput
from snugnet.solve.integer import best_choice
from snugnet.solve.joint import relax
from snugnet.solve.problem import Choice, Objective, Problem


@dataclass(frozen=True, kw_only=True)
class Price:
    """One budget at the optimum. Worths are in units of the objective, `dual` per unit of the resource."""

    name: str
    unit: str
    limit: float
    used: float
    relaxed_by: float  # e.g. 0.05
    gain: float  # what a limit relaxed by that much is worth: exact
    gain_if_free: float  # what no limit at all would be worth: exact
    dual: float  # the LP relaxation's price, per unit
    better: Choice  # the optimum under the relaxed limit

    @property
    def binding(self) -> bool:
        return self.gain_if_free > 0

    @property
    def message(self) -> str:
        if not self.binding:
            return f"{self.name} is not binding ({self.used:.6g} of {self.limit:.6g} {self.unit} used)"
        if self.gain == 0:
            return f"{self.relaxed_by:.0%} more {self.name} is worth nothing yet; without the limit: {self.gain_if_free:.4g}"
        return f"{self.relaxed_by:.0%} more {self.name} is worth {self.gain:.4g}"


def shadow_prices(
    problem: Problem, values: Objective, *, relax_by: float = 0.05, time_limit: float = 10.0
) -> tuple[Price, ...]:
    """A `Price` per limit. Raises what `best_choice(...).value` raises if nothing fits."""
    if not relax_by > 0:
        raise BadInput("a limit must be relaxed by a positive share", value=relax_by, remedy="Try 0.05.")
    best = best_choice(problem, values, time_limit=time_limit).value
    effect, used = problem.value(values, best), problem.cost(best)
    relaxed = relax(problem, values)
    duals = {} if relaxed is None else dict(zip((problem.names[k] for k in problem.limited), relaxed.prices.tolist()))
    found = []
    for k in problem.limited:
        resource = problem.resources[k]
        limit = float(problem.limits[resource.name])
        wider = problem.with_limits({**problem.limits, resource.name: limit * (1 + relax_by)})
        free = problem.with_limits({n: v for n, v in problem.limits.items() if n != resource.name})
        better = best_choice(wider, values, time_limit=time_limit).value
        freest = best_choice(free, values, time_limit=time_limit).value
        found.append(
            Price(
                name=resource.name,
                unit=resource.unit,
                limit=limit,
                used=used[resource.name],
                relaxed_by=relax_by,
                gain=max(problem.value(values, better) - effect, 0.0),
                gain_if_free=max(problem.value(values, freest) - effect, 0.0),
                dual=duals.get(resource.name, 0.0),
                better=better,
            )
        )
    return tuple(found)
