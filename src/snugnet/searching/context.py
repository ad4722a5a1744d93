"""What every search method is given, and what it gives back.

A `Task` holds the super-network, the limits, the evaluator and a folder for what must survive a kill. A method is one file
with one frozen dataclass of options and a `run(task) -> Outcome`. Before a method runs, the limits have been found to
admit a network; after it, the result is checked against them once more. New methods join by passing the shared suite.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from snugnet.budgets import Budget, FeasibleSet, Limits, cheapest, feasible_by_resolution, limits_of
from snugnet.budgets.limits import Tables
from snugnet.budgets.widths import narrowest_network
from snugnet.costs.vectorised import CostLookup
from snugnet.data.dataset import Data
from snugnet.errors import BadSpace, Infeasible
from snugnet.evaluate.evaluator import Evaluator
from snugnet.nets import Supernet
from snugnet.progress import Progress
from snugnet.solve import TOLERANCE, min_max_utilisation
from snugnet.space.architecture import Architecture
from snugnet.space.layout import Genes, IntArray, Layout, concatenate
from snugnet.space.sampling import crossover_many, mutate_many, sample_many, smallest
from snugnet.space.space import SearchSpace

_ROUNDS = 20  # of rejection, before the walk takes over
_WALK = 400  # steps of the walk
_TRIES = 50  # of a mutation or crossover before its parent is handed back


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

    def begin(self, task: Task) -> None:
        """Learn what depends on no budget, and keep it in the task's folder. Nothing, unless a method says otherwise."""
        return

    def describe(self) -> dict[str, Any]:
        return {"method": self.name, **asdict(self)}


@final
class FeasibleSampler:
    """Random networks of a space inside its limits: sampled, mutated and crossed, without a `while True`.

    Uniform ones come by rejection while enough are accepted, and by a random walk otherwise: every step redraws a few
    decisions and is undone if a limit breaks. Proposals are symmetric, so the walk's distribution is the uniform one over
    what fits, however small that is; it starts at a network known to fit."""

    def __init__(self, limits: Limits, start: Architecture) -> None:
        self.limits, self.space, self.start = limits, limits.space, start
        self.layout = Layout(limits.space)
        self._lookups = {
            name: CostLookup(self.space, table.of_part, table.combine, table.expect)
            for name, table in sorted(limits.tables.items(), key=lambda named: named[1].expect is not None)
        }

    def fits(self, genes: Genes) -> NDArray[np.bool_]:
        """Which rows meet every limit. Tables that are measured on demand come last, and see what met the others."""
        good = np.ones(len(genes), dtype=bool)
        for name, lookup in self._lookups.items():
            rows = np.flatnonzero(good)
            if len(rows):
                good[rows] = lookup(genes.take(rows)) <= self.limits[name].effective * (1 + TOLERANCE)
        return good

    def sample(self, count: int, rng: np.random.Generator) -> list[Architecture]:
        """`count` independent random networks, uniform over the decisions of all that fit."""
        found: list[Genes] = []
        have, size = 0, max(64, 4 * count)
        for _ in range(_ROUNDS):
            drawn = sample_many(self.space, size, rng)
            good = np.flatnonzero(self.fits(drawn))
            found.append(drawn.take(good))
            have += len(good)
            if have >= count:
                return self.layout.decode(concatenate(found).take(slice(0, count)))
        return self.layout.decode(self._walk(count, rng))

    def mutate(self, parents: list[Architecture], rng: np.random.Generator, share: float = 0.2) -> list[Architecture]:
        """A changed copy of each parent, inside the limits; the parent itself where no change found room."""
        genes = self.layout.encode(parents)
        return self._until_fitting(genes, lambda rows: mutate_many(self.space, genes.take(rows), rng, share))

    def cross(
        self, ones: list[Architecture], others: list[Architecture], rng: np.random.Generator
    ) -> list[Architecture]:
        """A mixture of each pair, inside the limits; the first parent where no mixture found room."""
        a, b = self.layout.encode(ones), self.layout.encode(others)
        return self._until_fitting(a, lambda rows: crossover_many(self.space, a.take(rows), b.take(rows), rng))

    def _until_fitting(self, genes: Genes, change: Callable[[IntArray], Genes]) -> list[Architecture]:
        waiting = np.arange(len(genes))
        for _ in range(_TRIES):
            if not len(waiting):
                break
            drawn = change(waiting)
            good = self.fits(drawn)
            genes = _replaced(genes, waiting[good], drawn.take(np.flatnonzero(good)))
            waiting = waiting[~good]
        return self.layout.decode(genes)

    def _walk(self, count: int, rng: np.random.Generator) -> Genes:
        genes = self.layout.encode([self.start] * count)
        decisions = sum(stage.max_depth + 2 for stage in self.space.stages) + 3
        for _ in range(_WALK):
            drawn = mutate_many(self.space, genes, rng, 2.0 / decisions)
            good = np.flatnonzero(self.fits(drawn))
            genes = _replaced(genes, good, drawn.take(good))
        return genes


def _replaced(genes: Genes, rows: IntArray, by: Genes) -> Genes:
    """A copy of `genes` with `rows` taken from `by`."""
    copies = {f.name: getattr(genes, f.name).copy() for f in fields(Genes)}
    for name, column in copies.items():
        column[rows] = getattr(by, name)
    return Genes(**copies)
