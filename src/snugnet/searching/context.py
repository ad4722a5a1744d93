"""What every search method is given, and what it gives back.

A `Task` holds the super-network, the limits, the evaluator and a folder for what must survive a kill. A method is one file
with one frozen dataclass of options and a `run(task) -> Outcome`. Before a method runs, the limits have been found to
admit a network; after it, the result is checked against them once more. New methods join by passing the shared suite.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, final

from snugnet.budgets import Budget, FeasibleSet, Limits, cheapest, feasible_by_resolution, limits_of
from snugnet.budgets.limits import Tables
from snugnet.budgets.widths import narrowest_network
from snugnet.data.dataset import Data
from snugnet.errors import BadSpace, Infeasible
from snugnet.evaluate.evaluator import Evaluator
from snugnet.nets import Supernet
from snugnet.progress import Progress
from snugnet.searching.feasible_sampler import FeasibleSampler
from snugnet.solve import min_max_utilisation
from snugnet.space.architecture import Architecture
from snugnet.space.layout import Layout
from snugnet.space.sampling import smallest
from snugnet.space.space import SearchSpace


@final
@dataclass(frozen=True, kw_only=True)
class SearchContext:
    """The limits of a search, a network that meets them, and, where costs add up, the exact problems.

    With several input resolutions costs add up within each: a problem per resolution at which something fits."""

    limits: Limits
    start: Architecture
    problems: tuple[FeasibleSet, ...]

    @property
    def space(self) -> SearchSpace:
        return self.limits.space

    @property
    def exact_problems(self) -> tuple[FeasibleSet, ...]:
        """A problem per resolution; an error that names the alternatives where costs do not add up."""
        if not self.problems:
            raise self._not_additive()
        return self.problems

    @property
    def problem_set(self) -> FeasibleSet:
        """The one exact problem; an error that names the alternatives where the space has none or several."""
        if len(self.space.resolutions) > 1 or not self.problems:
            raise self._not_additive()
        return self.problems[0]

    def _not_additive(self) -> BadSpace:
        reason = Layout(self.space).why_not_additive or "nothing fits with middle widths at their start"
        return BadSpace(
            f"this method needs a space whose costs add up, but in {self.space.name!r} {reason}",
            remedy="Use --method adaptive, evolution or random.",
        )

    def fitting(self, networks: Sequence[Architecture]) -> list[Architecture]:
        """Those of `networks` that meet every limit, in their order."""
        if not networks:
            return []
        return [a for a, good in zip(networks, self.sampler.fits(Layout(self.space).encode(networks))) if good]

    @cached_property
    def sampler(self) -> FeasibleSampler:
        return FeasibleSampler(self.limits, self.start)


def search_context(
    space: SearchSpace, tables: Tables, budget: Budget, tighten: dict[str, float] | None = None
) -> SearchContext:
    """Decide feasibility exactly, before any work; raises `Infeasible` with the reason."""
    if not Layout(space).at(space.resolutions[0]).why_not_additive:
        try:
            problems = feasible_by_resolution(space, tables, budget, tighten=tighten)
        except Infeasible:
            if not any(stage.has_expand_range for stage in space.stages):
                raise
            # With free middle widths at their start nothing fits; narrower networks may.
            limits = limits_of(space, tables, budget, tighten=tighten)
            return SearchContext(limits=limits, start=narrowest_network(limits), problems=())
        start = problems[0].architecture(min_max_utilisation(problems[0].problem).value)
        return SearchContext(limits=problems[0].limits, start=start, problems=problems)
    limits = limits_of(space, tables, budget, tighten=tighten)
    fitting = [smallest(space)] if limits.fits(smallest(space)) else []
    if not fitting:  # the cheapest of all only then: a table that is measured on demand would have to be complete
        cheapest_ones = [cheapest(space, table).architecture for table in limits.tables.values()]
        fitting = [architecture for architecture in cheapest_ones if limits.fits(architecture)]
    if not fitting:
        raise Infeasible(
            f"the cheapest networks of space {space.name!r} must meet all limits together",
            value=str(budget),
            remedy="Raise one of the limits.",
        )
    return SearchContext(limits=limits, start=fitting[0], problems=())


@final
@dataclass(frozen=True, kw_only=True)
class Task:
    """All a method may use. `folder` is where it may keep state; None: nothing is kept."""

    supernet: Supernet
    data: Data
    context: SearchContext
    evaluator: Evaluator
    seed: int
    folder: Path | None
    progress: Progress
    alone: bool = False  # without what others have evaluated: to compare methods


@final
@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A network, how it was found, and what the method wants to tell."""

    architecture: Architecture
    images: int = 0  # beside those the evaluator counts
    expected: float | None = None  # accuracy the method expects of it; such a method has weighed all that is known
    error: float | None = None  # standard error of `expected`
    trace: list[dict[str, Any]] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SearchMethod(ABC):
    """Options of a method and how it runs."""

    name: ClassVar[str]
    separate: ClassVar[bool] = False  # also runs on a super-network of separate operations (`nets.MixedSupernet`)

    @abstractmethod
    def run(self, task: Task) -> Outcome:
        """The best network found within the task's limits. Deterministic for the task's seed."""

    def describe(self) -> dict[str, Any]:
        return {"method": self.name, **asdict(self)}
