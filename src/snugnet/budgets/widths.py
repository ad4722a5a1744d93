"""Networks with free middle widths, brought inside every limit: elasticity-scaling on real tables, and a hard finish.

`Widths` knows what every choice costs at every width of its range (tables interpolated, made to rise). It turns numbers of
choices, depths and widths into architectures and back, and scales widths to the limits. `finish` takes a search's last
probabilities: the strongest choice in every block and the strongest depth in every stage, widths scaled. Where widths alone
cannot meet the limits, the exact solver looks for the most probable network that fits at its narrowest (HardCoRe-NAS's
projection), and its widths are scaled; where there is none, the refusal says which limit would have to give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from snugnet.budgets.feasible_set import FeasibleSet, feasible_narrowest
from snugnet.budgets.limits import Limits
from snugnet.costs.table import CostTable, width_curves
from snugnet.errors import BadSpace
from snugnet.solve import Point, min_max_utilisation, project
from snugnet.solve.elasticity import ScaledWidths, WidthCosts, WidthProblem, scale_widths
from snugnet.solve.problem import Floats
from snugnet.space.architecture import Architecture
from snugnet.space.layout import Choices, Layout

WidthTable = Sequence[Sequence[int]]
"""[slot][choice]: the middle width a choice has now."""


@final
class Widths:
    """Costs of all widths of an additive space under `limits`."""

    def __init__(self, limits: Limits) -> None:
        layout = Layout(limits.space)
        layout.require_additive()
        self.limits, self.layout, self.space = limits, layout, limits.space
        self._tables = {name: envelope(table) for name, table in limits.tables.items()}
        self._step = limits.space.rules.mid_divisor
        self._curves: dict[tuple[str, int, int], Floats] = {}

    def mid_range(self, slot: int, choice: int) -> range:
        return self.layout.mid_range(self.layout.slot_places[slot], choice)

    def starts(self) -> list[list[int]]:
        """[slot][choice]: the widths a search starts with."""
        return [[spec.mid_channels for spec in row] for row in self.layout.slot_specs]

    def curve(self, name: str, slot: int, choice: int) -> Floats:
        """What a choice costs at every width of its range, narrowest first."""
        key = name, slot, choice
        if key not in self._curves:
            place = self.layout.slot_places[slot]
            specs = [self.layout.block_spec(place, choice, m) for m in self.mid_range(slot, choice)]
            costs = [self._tables[name].of_part(spec) for spec in specs]
            self._curves[key] = np.maximum.accumulate(np.array(costs, float))
        return self._curves[key]

    def base(self, name: str) -> float:
        """Stem and head."""
        table, ends = self._tables[name], self.layout.ends
        return table.combined(table.of_part(end) for end in ends)

    def costs(self, name: str, widths: WidthTable) -> list[Floats]:
        """Per slot: what every choice costs at its present width."""
        return [
            np.array([self.curve(name, s, c)[self.mid_range(s, c).index(w)] for c, w in enumerate(row)])
            for s, row in enumerate(widths)
        ]

    def running(self, numbers: Choices) -> list[int]:
        """The slots that run, front to back."""
        return [n for n, slot in enumerate(self.layout.slots) if slot.position < numbers[1][slot.stage]]

    def problem(self, numbers: Choices) -> tuple[WidthProblem, list[int]]:
        """The widths of a network as numbers, and the slots they belong to; blocks without a range are part of the base.

        A width counts steps of `rules.mid_divisor` channels (the paper's is 1)."""
        running = self.running(numbers)
        free = [s for s in running if len(self.mid_range(s, numbers[0][s])) > 1]
        if not free:
            rule = f"a block of space {self.space.name!r} must have a range of middle widths to be scaled"
            raise BadSpace(rule, remedy="Give its choices an expand_range, or use another method.")
        resources = []
        for name, limit in self.limits.items():
            fixed = [float(self.curve(name, s, numbers[0][s])[0]) for s in running if s not in free]
            resources.append(
                WidthCosts(
                    name=name,
                    base=limit.table.combined([self.base(name), *fixed]),
                    layers=tuple(self.curve(name, s, numbers[0][s]) for s in free),
                    limit=limit.effective,
                    largest=limit.table.combine == "max",
                )
            )
        ranges = [self.mid_range(s, numbers[0][s]) for s in free]
        problem = WidthProblem(
            stages=tuple(self.layout.slots[s].stage for s in free),
            low=tuple(r[0] // self._step for r in ranges),
            high=tuple(r[-1] // self._step for r in ranges),
            resources=tuple(resources),
        )
        return problem, free

    def scaled(self, numbers: Choices, widths: WidthTable) -> tuple[ScaledWidths, dict[int, int]]:
        """Elasticity-scaling of one network; the new width of every slot that has one."""
        problem, free = self.problem(numbers)
        result = scale_widths(problem, [widths[s][numbers[0][s]] // self._step for s in free])
        return result, {s: width * self._step for s, width in zip(free, result.widths)}

    def architecture(self, numbers: Choices, widths: WidthTable | dict[int, int]) -> Architecture:
        """The network of these choices; `widths` by slot and choice, or by slot."""
        if not isinstance(widths, dict):
            widths = {s: widths[s][numbers[0][s]] for s in self.running(numbers)}
        return self.layout.architecture(*numbers, widths)

    def strongest(self, alpha: Sequence[Floats], beta: Sequence[Floats]) -> Choices:
        """The strongest choice of every slot and depth of every stage; the first wins a tie. Idle slots say 0."""
        depths = tuple(int(stage.depths[int(np.argmax(row))]) for stage, row in zip(self.space.stages, beta))
        options = [int(np.argmax(row)) for row in alpha]
        slots = self.layout.slots
        return tuple(o if slot.position < depths[slot.stage] else 0 for o, slot in zip(options, slots)), depths


def narrowest_network(limits: Limits) -> Architecture:
    """A network inside every limit, if there is one at all, each free width at its lower bound; else the refusal."""
    inside, widths = feasible_narrowest(limits), Widths(limits)
    choice = min_max_utilisation(inside.problem).value
    numbers = inside.left.numbers(choice.options, choice.depths)
    return widths.architecture(numbers, {s: widths.mid_range(s, numbers[0][s])[0] for s in widths.running(numbers)})


@final
@dataclass(frozen=True, kw_only=True)
class Finished:
    """A network inside every limit, and how it got there."""

    architecture: Architecture
    numbers: Choices
    widths: dict[int, int]  # by slot
    usage: float  # the largest share of any limit
    repaired: bool  # depths or operations are not the strongest ones: at those no width would fit
    message: str


def finish(
    widths: Widths, alpha: Sequence[Floats], beta: Sequence[Floats], now: WidthTable, *, time_limit: float = 10.0
) -> Finished:
    """The network that probabilities `alpha` (per slot) and `beta` (per stage) stand for, inside every limit.

    Raises `Infeasible`, with the reason, where no network of the space is inside."""
    numbers = widths.strongest(alpha, beta)
    scaled, by_slot = widths.scaled(numbers, now)
    repaired = not scaled.fits
    message = str(scaled.status.message)
    if repaired:
        numbers = _repaired(feasible_narrowest(widths.limits), alpha, beta, time_limit)
        scaled, by_slot = widths.scaled(numbers, now)
        message = f"at the strongest choices {message}; so the most probable network that fits was taken instead"
    return Finished(
        architecture=widths.architecture(numbers, by_slot),
        numbers=numbers,
        widths=by_slot,
        usage=scaled.usage,
        repaired=repaired,
        message=message,
    )


def _repaired(inside: FeasibleSet, alpha: Sequence[Floats], beta: Sequence[Floats], time_limit: float) -> Choices:
    """The most probable network that fits at its narrowest widths: exact, depths and choices jointly."""
    by_slot, by_stage = inside.left.narrow(alpha, beta)
    choice = project(inside.problem, Point(tuple(by_slot), tuple(by_stage)), time_limit=time_limit).value
    return inside.left.numbers(choice.options, choice.depths)


def envelope(table: CostTable) -> CostTable:
    """The table with each entry raised to the dearest narrower one, so that costs rise with the width; the same object where
    nothing falls. No entry is lowered: a network that fits by it fits by the table it was made from."""
    rising = dict(table.costs)
    for parts in width_curves(table.costs).values():
        rising |= dict(zip(parts, np.maximum.accumulate([table.costs[part] for part in parts]).tolist()))
    return table if rising == table.costs else replace(table, costs=rising)
