"""Space + tables + budget -> the feasible set: one `Problem` of plain numbers, and the way back to architectures.

A stage is a group, a block a slot, a block's choice an option; stem and head are the base. Costs that add up (latency,
MACs, parameters, weights) become resources with limits. Peak memory is the largest part's, not a sum: a limit on it
simply rules out every choice that needs more, exactly, so those choices are left out of the problem. `feasible` returns
the set, or refuses before anything is trained, and says what is possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import numpy as np

from snugnet import units
from snugnet.budgets.budget import Budget
from snugnet.budgets.limits import Limits, Tables, at_least, limits_of, too_little
from snugnet.costs.table import CostTable
from snugnet.errors import BadArchitecture, Infeasible
from snugnet.solve import TOLERANCE, Choice, Group, Objective, Point, Problem, ResourceCosts, explain, fits
from snugnet.solve.problem import Floats
from snugnet.space.architecture import Architecture
from snugnet.space.layout import Choices, Layout, Slot
from snugnet.space.space import BlockChoice, SearchSpace
from snugnet.space.spec import LayerSpec


@final
@dataclass(frozen=True, kw_only=True)
class Selection:
    """What limits leave of an additive layout: the forms of a solver's problem, whose slots and options are fewer.

    `choices[stage][position]` lists the numbers of the choices that are left: option c of the problem's slot is choice
    `choices[stage][position][c]`. Positions that no allowed depth reaches are not listed.
    """

    layout: Layout
    choices: tuple[tuple[tuple[int, ...], ...], ...]
    depths: tuple[tuple[int, ...], ...]  # per stage

    @cached_property
    def slots(self) -> list[tuple[int, list[int]]]:
        """Per slot of the problem: its number in the layout, and the numbers of the choices that are left."""
        numbers = {slot: number for number, slot in enumerate(self.layout.slots)}
        return [
            (numbers[Slot(s, d)], list(left)) for s, stage in enumerate(self.choices) for d, left in enumerate(stage)
        ]

    @cached_property
    def depth_numbers(self) -> list[list[int]]:
        """Per stage: which of its depths are left."""
        stages = self.layout.space.stages
        return [[stage.depths.index(d) for d in left] for stage, left in zip(stages, self.depths)]

    def narrow(self, options: Sequence[Floats], depths: Sequence[Floats]) -> tuple[list[Floats], list[Floats]]:
        """Numbers per slot and per stage of the space, reduced to what is left."""
        return (
            [np.asarray(options[number], float)[left] for number, left in self.slots],
            [np.asarray(row, float)[left] for row, left in zip(depths, self.depth_numbers, strict=True)],
        )

    def widen(self, alpha: Sequence[Floats], beta: Sequence[Floats]) -> tuple[list[Floats], list[Floats]]:
        """A relaxed point over all of the space: a row per slot and one per stage.

        What was ruled out has probability zero; a slot that cannot run is uniform, for it never runs.
        """
        space = self.layout.space
        sizes = [len(self.layout.choices(*slot)) for slot in self.layout.slots]
        wide = [np.full(size, 1.0 / size) for size in sizes]
        for (number, left), row in zip(self.slots, alpha, strict=True):
            wide[number] = np.zeros(sizes[number])
            wide[number][left] = row
        depths = [np.zeros(len(stage.depths)) for stage in space.stages]
        for target, left, row in zip(depths, self.depth_numbers, beta, strict=True):
            target[left] = row
        return wide, depths

    def numbers(self, options: Sequence[int], depths: Sequence[int]) -> Choices:
        """A choice of the problem as one of the layout: the numbers of the choices, idle slots say 0."""
        numbers = [0] * len(self.layout.slots)
        for (number, left), option in zip(self.slots, options, strict=True):
            stage, position = self.layout.slots[number]
            numbers[number] = left[option] if position < depths[stage] else 0
        return tuple(numbers), tuple(depths)

    def architecture(self, options: Sequence[int], depths: Sequence[int]) -> Architecture:
        """The network that a choice of the problem stands for."""
        return self.layout.architecture(*self.numbers(options, depths))

    def choice(self, architecture: Architecture) -> Choices:
        """The choice of the problem that stands for an architecture; an error if it was ruled out."""
        numbers, depths = self.layout.choice(architecture)
        for stage, depth in enumerate(depths):
            if depth not in self.depths[stage]:
                raise _ruled_out(f"the depth of stage {stage + 1}", depth)
        options = []
        for number, left in self.slots:
            stage, position = self.layout.slots[number]
            runs = position < depths[stage]
            if runs and numbers[number] not in left:
                block = architecture.stages[stage].blocks[position]
                raise _ruled_out(f"stage {stage + 1}, block {position + 1}", str(block))
            options.append(left.index(numbers[number]) if runs else 0)
        return tuple(options), depths


def _ruled_out(what: str, value: object) -> BadArchitecture:
    return BadArchitecture(
        f"{what} must be left by the limit on memory", value=value, remedy="Choose smaller blocks, or raise the limit."
    )


@dataclass(frozen=True, kw_only=True)
class FeasibleSet:
    """The problem of a space under a budget, and the way between its choices and architectures.

    Groups are stages, in order; `left` says which choices and depths are options of the problem (all of them, unless a
    limit on peak memory rules some out).
    """

    limits: Limits  # every limit as a number, peak memory included
    problem: Problem
    left: Selection

    @property
    def space(self) -> SearchSpace:
        return self.limits.space

    def architecture(self, choice: Choice) -> Architecture:
        """The network a choice stands for; free middle widths stand at their starting value."""
        canonical = self.problem.choice(choice.options, choice.depths)
        return self.left.architecture(canonical.options, canonical.depths)

    def choice(self, architecture: Architecture) -> Choice:
        """The choice that stands for an architecture of the space; an error if a limit on memory rules it out."""
        return self.problem.choice(*self.left.choice(architecture))

    def cost(self, architecture: Architecture) -> dict[str, float]:
        """What an architecture costs by the tables, in base units: every limited resource, peak memory included."""
        return self.limits.cost(architecture)

    def fits(self, architecture: Architecture) -> bool:
        """Does it meet every limit by the tables?"""
        return self.limits.fits(architecture)

    def objective(self, options: Sequence[Floats], depths: Sequence[Floats]) -> Objective:
        """Effects of all choices (a row per slot of the space) and depths (a row per stage), as the problem wants them."""
        by_slot, by_stage = self.left.narrow(options, depths)
        return Objective(tuple(by_slot), tuple(by_stage))

    def spread(self, point: Point) -> tuple[list[Floats], list[Floats]]:
        """A relaxed point over all of the space: alpha, a row per slot, and beta, a row per stage."""
        return self.left.widen(point.alpha, point.beta)


def feasible(
    space: SearchSpace,
    tables: Tables,
    budget: Budget | Mapping[str, str],
    *,
    margin: bool = True,
    tighten: Mapping[str, float] | None = None,
    time_limit: float = 30.0,
) -> FeasibleSet:
    """The feasible set of `space` under `budget`; raises `Infeasible` with the reason and the way out.

    Arguments as in `limits_of`; spaces whose costs do not add up slot by slot are refused with the reason.
    """
    Layout(space).require_additive()
    limits = limits_of(space, tables, budget, margin=margin, tighten=tighten)
    return _feasible(Layout(space), limits, margin, time_limit)


def feasible_narrowest(limits: Limits) -> FeasibleSet:
    """The feasible set of an additive space with every free middle width at the lower end of its range: whatever fits at
    any widths fits here, so a refusal is final. Choices keep their numbers; architectures are of the narrow space."""
    return _feasible(Layout(narrowest_space(limits.space)), limits, True, 30.0)


def narrowest_space(space: SearchSpace) -> SearchSpace:
    """`space` with free middle widths fixed at their lower ends."""

    def narrow(choice: BlockChoice) -> BlockChoice:
        low = choice.expand_range
        return choice if low is None else replace(choice, expand=low[0], expand_range=None)

    stages = []
    for stage in space.stages:
        rows = None if stage.per_position is None else tuple(tuple(map(narrow, row)) for row in stage.per_position)
        stages.append(replace(stage, choices=tuple(map(narrow, stage.choices)), per_position=rows))
    return replace(space, stages=tuple(stages))


def feasible_by_resolution(
    space: SearchSpace, tables: Tables, budget: Budget, *, tighten: Mapping[str, float] | None = None
) -> tuple[FeasibleSet, ...]:
    """A feasible set per input resolution that leaves a network, where costs add up within each; the smallest resolution's
    refusal if none does."""
    layouts = [Layout(space).at(resolution) for resolution in space.resolutions]
    layouts[0].require_additive()
    limits = limits_of(space, tables, budget, tighten=tighten)
    sets, refusals = [], []
    for layout in layouts:
        try:
            sets.append(_feasible(layout, limits, True, 30.0))
        except Infeasible as refusal:
            refusals.append(refusal)
    if not sets:
        raise refusals[0]
    return tuple(sets)


def _feasible(layout: Layout, limits: Limits, margin: bool, time_limit: float) -> FeasibleSet:
    peaks = {name: table for name, table in limits.tables.items() if table.combine == "max"}
    left = _what_memory_leaves(layout, peaks, limits.effective)
    sums = {name: table for name, table in limits.tables.items() if name not in peaks}
    problem = _problem(left, sums, limits.effective)
    if not fits(problem, time_limit=time_limit):
        reserve = sums if margin else {}
        raise _refusal(limits.space, problem, _restrictions(left, peaks, limits.effective), reserve, time_limit)
    return FeasibleSet(limits=limits, problem=problem, left=left)


def _what_memory_leaves(layout: Layout, peaks: Mapping[str, CostTable], limits: Mapping[str, float]) -> Selection:
    """The choices and depths no limit on a largest layer rules out; refuses where nothing is left."""

    def admitted(spec: LayerSpec) -> bool:
        return all(table.of_part(spec) <= limits[name] * (1 + TOLERANCE) for name, table in peaks.items())

    choices, depths, space = [], [], layout.space
    for index, (stage, positions) in enumerate(zip(space.stages, layout.by_stage(layout.slot_specs)), 1):
        admissible = [tuple(c for c, spec in enumerate(specs) if admitted(spec)) for specs in positions]
        running = next((p for p, left in enumerate(admissible) if not left), len(admissible))
        possible = tuple(d for d in stage.depths if d <= running)
        if not possible:  # each limit alone has been found possible, so these are several together
            asked = ", ".join(f"{n} <= {units.show(limits[n], n)}" for n in peaks)
            rule = f"some choice of stage {index} must meet {asked} in space {space.name!r}"
            raise Infeasible(rule, remedy="Raise one of these limits or add smaller choices.")
        choices.append(tuple(admissible[: max(possible)]))
        depths.append(possible)
    return Selection(layout=layout, choices=tuple(choices), depths=tuple(depths))


def _problem(left: Selection, tables: Mapping[str, CostTable], limits: Mapping[str, float]) -> Problem:
    groups = tuple(
        Group(name=f"stage {index}", options=tuple(len(choices) for choices in stage), depths=allowed)
        for index, (stage, allowed) in enumerate(zip(left.choices, left.depths), 1)
    )
    specs, (stem, head) = left.layout.slot_specs, left.layout.ends
    resources = []
    for name, table in tables.items():
        costs = tuple(
            np.array([table.of_part(specs[number][c]) for c in choices], float) for number, choices in left.slots
        )
        base = table.of_part(stem) + table.of_part(head)
        resources.append(ResourceCosts(name=name, unit=table.unit, base=base, costs=costs))
    return Problem(groups=groups, resources=tuple(resources), limits={name: limits[name] for name in tables})


def _restrictions(left: Selection, peaks: Mapping[str, CostTable], effective: Mapping[str, float]) -> str:
    """What else narrows the space: limits on memory that ruled choices out, and free widths that stand at their start."""
    space = left.layout.space
    everything = sum(len(specs) for specs in left.layout.slot_specs)
    narrowed = sum(len(choices) for _, choices in left.slots) < everything
    reasons = [f"{name} <= {units.show(effective[name], name)}" for name in peaks] if narrowed else []
    reasons += ["middle widths at their start"] if any(stage.has_expand_range for stage in space.stages) else []
    return f" beside {' and '.join(reasons)}" if reasons else ""


def _refusal(
    space: SearchSpace, problem: Problem, beside: str, reserve: Mapping[str, CostTable], time_limit: float
) -> Infeasible:
    """What is wrong and what would do, in the units of the budget: `reserve` (tables) gives the margins back."""
    reasons = explain(problem, time_limit=time_limit)

    def asked(name: str, effective: float) -> float:
        return reserve[name].upper(effective) if name in reserve else effective

    if len(reasons.conflict) == 1:
        name = reasons.conflict[0]
        return too_little(space, name, asked(name, reasons.limits[name]), asked(name, reasons.alone[name]), beside)
    limits = " and ".join(f"{n} <= {units.show(asked(n, reasons.limits[n]), n)}" for n in reasons.conflict)
    least = "; ".join(
        f"{n} needs {at_least(asked(n, reasons.in_conflict[n]), n)} beside the rest "
        f"({at_least(asked(n, reasons.alone[n]), n)} alone)"
        for n in reasons.conflict
    )
    # Margins may grow with the cost, so the limits asked for may have to grow by more than the effective ones.
    factor = max(asked(n, reasons.limits[n] * reasons.factor) / asked(n, reasons.limits[n]) for n in reasons.conflict)
    return Infeasible(
        f"some network of space {space.name!r} must meet {limits} together{beside}, but none does: {least}",
        remedy=f"Raise one of them to that, or all limits by {np.ceil((factor - 1) * 1e4) / 100:g} %.",
    )
