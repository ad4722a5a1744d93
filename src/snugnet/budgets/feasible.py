"""Space + tables + budget -> the feasible set: one `Problem` of plain numbers, and the way back to architectures.

A stage is a group, a block a slot, a block's choice an option; stem and head are the base. Costs that add up (latency,
MACs, parameters, weights) become resources with limits. Peak memory is the largest part's, not a sum: a limit on it
simply rules out every choice that needs more, exactly, so those choices are left out of the problem. `feasible` returns
the set, or refuses before anything is trained, and says what is possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from snugnet import units
from snugnet.budgets.budget import Budget
from snugnet.budgets.limits import Limits, Tables, at_least, limits_of, too_little
from snugnet.costs.table import CostTable
from snugnet.errors import BadArchitecture, Infeasible
from snugnet.solve import TOLERANCE, Choice, Group, Objective, Point, Problem, ResourceCosts, explain, fits
from snugnet.space.architecture import Architecture, Block, StageChoice, check, find_choice
from snugnet.space.plan import LayerSpec
from snugnet.space.slots import Slots, slots
from snugnet.space.space import SearchSpace

Kept = tuple[tuple[tuple[int, ...], ...], ...]


@dataclass(frozen=True, kw_only=True)
class FeasibleSet:
    """The problem of a space under a budget, and the way between its choices and architectures.

    `kept[stage][position]` lists the numbers of the stage's choices that are options there (all of them, unless a limit on
    peak memory rules some out); option c of a slot is choice `kept[stage][position][c]`. Groups are stages, in order.
    """

    limits: Limits  # every limit as a number, peak memory included
    problem: Problem
    kept: Kept
    slots: Slots

    @property
    def space(self) -> SearchSpace:
        return self.limits.space

    def architecture(self, choice: Choice) -> Architecture:
        """The network a choice stands for; free middle widths stand at their starting value."""
        ours = self.problem.choice(choice.options, choice.depths)
        number, stages = 0, []
        for index, (stage, depth) in enumerate(zip(self.space.stages, ours.depths)):
            blocks = []
            for position, kept in enumerate(self.kept[index]):
                if position < depth:
                    pick = kept[ours.options[number]]
                    offered, part = stage.choices_at(position)[pick], self.slots.blocks[index][position][pick]
                    mid_channels = part.mid_channels if offered.expand_range else None
                    blocks.append(
                        Block(
                            kernel=offered.kernel, expand=offered.expand, se=bool(offered.se), mid_channels=mid_channels
                        )
                    )
                number += 1
            stages.append(StageChoice(width=stage.widths[0], blocks=tuple(blocks)))
        space = self.space
        return Architecture(
            resolution=space.resolutions[0], stem=space.stem.widths[0], stages=tuple(stages), head=space.head.widths[0]
        )

    def choice(self, architecture: Architecture) -> Choice:
        """The choice that stands for an architecture of the space; an error if a limit on memory rules it out."""
        check(architecture, self.space)
        options: list[int] = []
        for index, (made, stage) in enumerate(zip(architecture.stages, self.space.stages)):
            place = f"stage {index + 1}"
            if len(made.blocks) not in self.problem.groups[index].depths:
                raise _ruled_out(f"the depth of {place}", len(made.blocks))
            for position, kept in enumerate(self.kept[index]):
                if position >= len(made.blocks):
                    options.append(0)
                    continue
                block = made.blocks[position]
                offered = find_choice(block, stage.choices_at(position))
                assert offered is not None  # `check` has seen to it
                pick = stage.choices_at(position).index(offered)
                start = self.slots.blocks[index][position][pick].mid_channels
                if block.mid_channels not in (None, start):
                    raise BadArchitecture(
                        f"{place}, block {position + 1} must have its starting middle width {start} here",
                        value=block.mid_channels,
                        remedy="The problem counts one cost a choice; search widths afterwards.",
                    )
                if pick not in kept:
                    raise _ruled_out(f"{place}, block {position + 1}", str(block))
                options.append(kept.index(pick))
        return self.problem.choice(options, architecture.depths)

    def cost(self, architecture: Architecture) -> dict[str, float]:
        """What an architecture costs by the tables, in base units: every limited resource, peak memory included."""
        return self.limits.cost(architecture)

    def fits(self, architecture: Architecture) -> bool:
        """Does it meet every limit by the tables?"""
        return self.limits.fits(architecture)

    def values(self, options: Sequence[Sequence[Sequence[float]]], depths: Sequence[Sequence[float]]) -> Objective:
        """Worths given for all of the space, as the problem wants them.

        options[stage][position][choice] and depths[stage][number of the depth in `Stage.depths`].
        """
        picked = [
            np.asarray(options[index][position], float)[list(kept)]
            for index, positions in enumerate(self.kept)
            for position, kept in enumerate(positions)
        ]
        rows = []
        for index, group in enumerate(self.problem.groups):
            numbers = [self.space.stages[index].depths.index(d) for d in group.depths]
            rows.append(np.asarray(depths[index], float)[numbers])
        return Objective(tuple(picked), tuple(rows))

    def spread(self, point: Point) -> tuple[list[list[NDArray[np.float64]]], list[NDArray[np.float64]]]:
        """A relaxed point over all of the space: alpha [position][choice] and beta [depth] of every stage.

        What was ruled out has probability zero; a position that cannot run is uniform, for it never runs.
        """
        alphas, betas, number = [], [], 0
        for index, stage in enumerate(self.space.stages):
            sizes = [len(stage.choices_at(position)) for position in range(stage.max_depth)]
            alpha = [np.full(size, 1.0 / size) for size in sizes]
            for position, kept in enumerate(self.kept[index]):
                alpha[position][:] = 0.0
                alpha[position][list(kept)] = point.alpha[number]
                number += 1
            beta = np.zeros(len(stage.depths))
            for depth, probability in zip(self.problem.groups[index].depths, point.beta[index]):
                beta[stage.depths.index(depth)] = probability
            alphas.append(alpha)
            betas.append(beta)
        return alphas, betas


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
    arranged = slots(space)
    limits = limits_of(space, tables, budget, margin=margin, tighten=tighten)
    peaks = {name: table for name, table in limits.tables.items() if table.combine == "max"}
    kept, depths = _what_memory_leaves(space, arranged, peaks, limits.effective)
    sums = {name: table for name, table in limits.tables.items() if name not in peaks}
    problem = _problem(arranged, sums, kept, depths, limits.effective)
    if not fits(problem, time_limit=time_limit):
        reserve = {name: 1.0 + table.margin if margin else 1.0 for name, table in sums.items()}
        raise _refusal(space, problem, _restrictions(space, kept, peaks, limits.effective), reserve, time_limit)
    return FeasibleSet(limits=limits, problem=problem, kept=kept, slots=arranged)


def _what_memory_leaves(
    space: SearchSpace, arranged: Slots, peaks: Mapping[str, CostTable], limits: Mapping[str, float]
) -> tuple[Kept, list[tuple[int, ...]]]:
    """The choices and depths no limit on a largest part rules out; refuses where nothing is left."""

    def admitted(part: LayerSpec) -> bool:
        return all(table.of_part(part) <= limits[name] * (1 + TOLERANCE) for name, table in peaks.items())

    kept, depths = [], []
    for index, (stage, positions) in enumerate(zip(space.stages, arranged.blocks), 1):
        left = [tuple(c for c, part in enumerate(parts) if admitted(part)) for parts in positions]
        running = next((p for p, choices in enumerate(left) if not choices), len(left))
        possible = tuple(d for d in stage.depths if d <= running)
        if not possible:  # each limit alone has been found possible, so these are several together
            asked = ", ".join(f"{n} <= {units.show(limits[n], n)}" for n in peaks)
            raise Infeasible(
                f"some choice of stage {index} must meet {asked} in space {space.name!r}",
                remedy="Raise one of these limits or add smaller choices.",
            )
        kept.append(tuple(left[: max(possible)]))
        depths.append(possible)
    return tuple(kept), depths


def _problem(
    arranged: Slots,
    tables: Mapping[str, CostTable],
    kept: Kept,
    depths: Sequence[tuple[int, ...]],
    limits: Mapping[str, float],
) -> Problem:
    groups = tuple(
        Group(name=f"stage {index}", options=tuple(len(k) for k in stage), depths=allowed)
        for index, (stage, allowed) in enumerate(zip(kept, depths), 1)
    )
    resources = []
    for name, table in tables.items():
        costs = tuple(
            np.array([table.of_part(arranged.blocks[index][position][c]) for c in choices], float)
            for index, stage in enumerate(kept)
            for position, choices in enumerate(stage)
        )
        base = table.of_part(arranged.stem) + table.of_part(arranged.head)
        resources.append(ResourceCosts(name=name, unit=table.unit, base=base, costs=costs))
    return Problem(groups=groups, resources=tuple(resources), limits={name: limits[name] for name in tables})


def _restrictions(
    space: SearchSpace, kept: Kept, peaks: Mapping[str, CostTable], effective: Mapping[str, float]
) -> str:
    """What else narrows the space: limits on memory that ruled choices out, and free widths that stand at their start."""
    everything = sum(len(stage.choices_at(p)) for stage in space.stages for p in range(stage.max_depth))
    narrowed = sum(len(choices) for stage in kept for choices in stage) < everything
    words = [f"{name} <= {units.show(effective[name], name)}" for name in peaks] if narrowed else []
    words += ["middle widths at their start"] if any(stage.has_expand_range for stage in space.stages) else []
    return f" beside {' and '.join(words)}" if words else ""


def _refusal(
    space: SearchSpace, problem: Problem, beside: str, reserve: Mapping[str, float], time_limit: float
) -> Infeasible:
    """What is wrong and what would do, in the units of the budget; `reserve` gives the margins back that came off."""
    told = explain(problem, time_limit=time_limit)
    if len(told.conflict) == 1:
        name = told.conflict[0]
        return too_little(space, name, told.limits[name] * reserve[name], told.alone[name] * reserve[name], beside)
    asked = " and ".join(f"{n} <= {units.show(told.limits[n] * reserve[n], n)}" for n in told.conflict)
    least = "; ".join(
        f"{n} needs {at_least(told.in_conflict[n] * reserve[n], n)} beside the rest "
        f"({at_least(told.alone[n] * reserve[n], n)} alone)"
        for n in told.conflict
    )
    return Infeasible(
        f"some network of space {space.name!r} must meet {asked} together{beside}, but none does: {least}",
        remedy=f"Raise one of them to that, or all limits by {np.ceil((told.factor - 1) * 1e4) / 100:g} %.",
    )


def _ruled_out(what: str, value: object) -> BadArchitecture:
    return BadArchitecture(
        f"{what} must be left by the limit on memory", value=value, remedy="Choose smaller blocks, or raise the limit."
    )
