"""Elasticity-scaling: whole widths of layers, moved together until the costs meet their limits (TF-NAS).

Layers stand in stages; each has a width between two bounds, and every resource a cost for each of its widths, which rises
with the width. What a network takes of its limits is one number, `usage` = max over resources of cost / limit; with one
resource that is latency / target. `scale_widths` is the paper's rule:

    pass 1, all stages: shrink while usage >= 1, or expand while usage <= 1 (usage = 1: nothing at all is done)
    pass k = 2, 3, ..., stages k and later: expand only

In a pass each layer moves by r = round(its width / smallest width in the pass) channels a step, all together, each clipped
to its range. Beyond the rule: single channels at last, wherever one still fits, so that less than the cheapest of them is
left; and an answer that says what came of it where no width could meet the limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from snugnet.errors import BadProblem
from snugnet.solve.problem import Floats, Ints, Outcome, Status

_FITS: Final = Status(
    Outcome.OPTIMAL, "within every limit, with room for no further channel; use the widths as they are"
)
_WIDEST: Final = Status(
    Outcome.FEASIBLE,
    "every width is at its upper bound and the limits leave room; choose larger operations or more depth",
)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class WidthCosts:
    """What one resource costs: `base` for all that has no width, `layers[l][w - low[l]]` for layer l at width w."""

    name: str
    base: float
    layers: tuple[Floats, ...]
    limit: float
    largest: bool = False  # the largest part counts, not the sum (peak memory)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class WidthProblem:
    """Layers front to back, the stage of each, the bounds of its width, and the costs of all resources with a limit."""

    stages: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    resources: tuple[WidthCosts, ...]

    def __post_init__(self) -> None:
        for resource in self.resources:
            sizes = [high - low + 1 for low, high in zip(self.low, self.high)]
            if [len(row) for row in resource.layers] != sizes:
                rule = f"{resource.name} must have a cost for every width of every layer ({sizes})"
                remedy = "Give one cost per whole width from low to high."
                raise BadProblem(rule, value=[len(row) for row in resource.layers], remedy=remedy)
            for layer, row in enumerate(resource.layers):
                if not (np.isfinite(row).all() and (row >= 0).all() and (np.diff(row) >= 0).all()):
                    rule = f"{resource.name} of layer {layer} must be finite, not negative and rise with the width"
                    remedy = "Make the table monotone first (budgets.widths.envelope)."
                    raise BadProblem(rule, value=np.round(row, 6).tolist(), remedy=remedy)
            if not resource.limit > 0:
                rule = f"the limit on {resource.name} must be positive"
                raise BadProblem(rule, value=resource.limit, remedy="Raise it.")

    def cost(self, widths: Sequence[int]) -> dict[str, float]:
        """What the widths cost of each resource."""
        return {r.name: float(self._costs(r, np.array([widths]))[0]) for r in self.resources}

    def usage(self, rows: Ints) -> Floats:
        """[n] the largest share of any limit for n rows of widths [n, layers]."""
        shares: Floats = np.max([self._costs(r, rows) / r.limit for r in self.resources], axis=0)
        return shares

    def _costs(self, resource: WidthCosts, rows: Ints) -> Floats:
        columns = [row[rows[:, layer] - self.low[layer]] for layer, row in enumerate(resource.layers)]
        parts = [np.full(len(rows), resource.base), *columns]
        costs: Floats = np.max(parts, axis=0) if resource.largest else np.sum(parts, axis=0)
        return costs


@final
@dataclass(frozen=True, kw_only=True)
class ScaledWidths:
    """The widths, what they take of the limits (over 1: too much), and what came of it."""

    widths: tuple[int, ...]
    usage: float
    status: Status

    @property
    def fits(self) -> bool:
        return self.usage <= 1.0


def scale_widths(problem: WidthProblem, widths: Sequence[int]) -> ScaledWidths:
    """The widths of elasticity-scaling, started from `widths`."""
    now = np.array(widths)
    _check_start(problem, now)
    if not problem.resources:
        return ScaledWidths(widths=tuple(problem.high), usage=0.0, status=_WIDEST)
    stages = sorted(set(problem.stages))
    start = float(problem.usage(now[None])[0])
    if start != 1.0:
        for number, first in enumerate(stages):
            moving = np.array([stage >= first for stage in problem.stages])
            shrinks = number == 0 and start > 1.0
            now = _shrunk(problem, now, moving) if shrinks else _expanded(problem, now, moving)
        now = _filled(problem, now)
    return _scaled(problem, now)


def _check_start(problem: WidthProblem, widths: Ints) -> None:
    if len(widths) != len(problem.low) or (widths < problem.low).any() or (widths > problem.high).any():
        remedy = f"Bounds are {list(zip(problem.low, problem.high))}."
        raise BadProblem("every layer must start with a width within its bounds", value=widths.tolist(), remedy=remedy)


def _way(problem: WidthProblem, widths: Ints, moving: Ints, sign: int) -> Ints:
    """[steps, layers] the widths after every step of a pass, the start first, until all that move are at a bound."""
    smallest = int(widths[moving].min())
    # Python's round is half to even, as the method has it.
    strides = np.array([round(int(w) / smallest) if m else 0 for w, m in zip(widths, moving)])
    reach = np.abs(np.array(problem.high if sign > 0 else problem.low) - widths)
    steps = max((-(-int(r) // int(s)) for r, s in zip(reach, strides) if s), default=0)
    rows = widths + sign * strides * np.arange(steps + 1)[:, None]
    clipped: Ints = np.clip(rows, problem.low, problem.high)
    return clipped


def _shrunk(problem: WidthProblem, widths: Ints, moving: Ints) -> Ints:
    """The first point under the limits, or all lower bounds."""
    rows = _way(problem, widths, moving, -1)
    under = np.flatnonzero(problem.usage(rows) < 1.0)
    last: Ints = rows[under[0] if len(under) else -1]
    return last


def _expanded(problem: WidthProblem, widths: Ints, moving: Ints) -> Ints:
    """The last point at or under the limits; the start where even that is over."""
    rows = _way(problem, widths, moving, +1)
    within = np.flatnonzero(problem.usage(rows) <= 1.0)
    last: Ints = rows[within[-1] if len(within) else 0]
    return last


def _filled(problem: WidthProblem, widths: Ints) -> Ints:
    """Single channels, late layers first, one each in turn, until none fits anywhere."""
    now, high = widths.copy(), np.array(problem.high)
    if problem.usage(now[None])[0] > 1.0:
        return now
    open_layers = [layer for layer in reversed(range(len(now))) if now[layer] < high[layer]]
    while open_layers:
        still = []
        for layer in open_layers:
            now[layer] += 1
            if problem.usage(now[None])[0] > 1.0:
                now[layer] -= 1  # costs only rise from here: it will not fit later either
            elif now[layer] < high[layer]:
                still.append(layer)
        open_layers = still
    return now


def _scaled(problem: WidthProblem, widths: Ints) -> ScaledWidths:
    usage = float(problem.usage(widths[None])[0])
    if usage > 1.0:
        status = Status(
            Outcome.INFEASIBLE,
            f"at their lower bounds the widths still take {usage:.4f} of the limits; take smaller operations or less depth",
        )
    else:
        status = _WIDEST if usage < 1.0 and (widths == np.array(problem.high)).all() else _FITS
    return ScaledWidths(widths=tuple(int(w) for w in widths), usage=usage, status=status)
