"""Evolution on inherited weights: mutation and crossover of a Pareto set, inside the limits by construction.

Starts from random networks that fit, keeps those no other beats in both cost and value, and breeds from them. Cost is
the largest share of a limit that a network uses (of its MACs where there is no limit). Children over a limit are
redrawn, a bounded number of times, before they are looked at; no network is evaluated twice; the Pareto set is written
after every round.

With `bin_width` parents are AttentiveNAS's: the best network of every bin of cost, each bin as likely as the others, and
no dominance; a mutated gene takes a different value, kernel and expansion are genes of their own, and children over a
limit are drawn anew from new parents. The paper's search is `population=512, rounds=20, mutations=128, crossovers=128,
bin_width="10MMACs"` within {macs: 1200MMACs}. (Its 20 rounds count the first population as one.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from snugnet.budgets.limits import EXACT
from snugnet.costs.analytic import macs
from snugnet.costs.bins import bin_number
from snugnet.costs.table import exact_table
from snugnet.errors import BadInput, BadSpace
from snugnet.evaluate.scoring import Score
from snugnet.searching.context import Outcome, SearchMethod, Task
from snugnet.seeds import Seed
from snugnet.space.architecture import Architecture
from snugnet.space.gene_columns import GeneColumns, Rows
from snugnet.space.spec import plan
from snugnet.store import write_json
from snugnet.units import parse

Evaluated = dict[Architecture, Score]
_TRIES = 50  # rounds of drawing children anew


@final
@dataclass(frozen=True, kw_only=True)
class Evolution(SearchMethod):
    """AttentiveNAS's search: population, rounds, and how many children of each kind a round has."""

    name = "evolution"
    separate: ClassVar[bool] = True
    population: int = 64
    rounds: int = 8
    mutations: int = 16
    crossovers: int = 16
    share: float = 0.2  # of a network's decisions that a mutation redraws
    bin_width: str | None = None  # such as 10MMACs: parents are the best of each bin; None: the Pareto set
    bin_resource: str = "macs"  # what bins are over; latency needs a limit or a table

    def run(self, task: Task) -> Outcome:
        if min(self.population, self.rounds, self.mutations + self.crossovers) < 1:
            raise BadInput("population, rounds and children must be positive", value=self, remedy="Try the defaults.")
        rng, sampler = Seed(task.seed).fold_in("evolution").numpy(), task.context.sampler
        evaluated: Evaluated = {}
        trace: list[dict[str, Any]] = []
        total = self.population + self.rounds * (self.mutations + self.crossovers)
        task.progress.start("evolution", total)
        bins = None if self.bin_width is None else Bins(task, self.bin_resource, self.bin_width)
        self._evaluator(task, evaluated, [task.context.start, *sampler.sample(self.population - 1, rng)])
        for number in range(self.rounds):
            children = self._bred(task, evaluated, rng) if bins is None else self._bred_in_bins(bins, evaluated, rng)
            self._evaluator(task, evaluated, children)
            best = max(evaluated.values(), key=lambda v: v.score)
            trace.append({"round": number + 1, **best.to_json(), "seen": len(evaluated)})
            kept = pareto(task, evaluated) if bins is None else bins.best(evaluated)
            rows = self._rows(task, evaluated, kept)
            if task.folder is not None:
                write_json(task.folder / "pareto.json", rows)
        task.progress.stop()
        found = task.evaluator.best(sorted(evaluated, key=str), task.progress)
        return Outcome(architecture=found, trace=trace, details={"pareto": rows})

    def _bred(self, task: Task, evaluated: Evaluated, rng: np.random.Generator) -> list[Architecture]:
        parents, sampler = pareto(task, evaluated), task.context.sampler
        picks = [parents[i] for i in rng.integers(len(parents), size=self.mutations)]
        children = sampler.mutate(picks, rng, self.share)
        pairs = rng.integers(len(parents), size=(2, self.crossovers))
        return children + sampler.cross([parents[i] for i in pairs[0]], [parents[i] for i in pairs[1]], rng)

    def _bred_in_bins(self, bins: Bins, evaluated: Evaluated, rng: np.random.Generator) -> list[Architecture]:
        parents = bins.columns.of(bins.best(evaluated))

        def picked(count: int) -> Rows:
            chosen: Rows = parents[rng.integers(len(parents), size=count)]
            return chosen

        children = bins.fitting(self.mutations, lambda n: bins.columns.mutated(picked(n), rng, self.share))
        return children + bins.fitting(self.crossovers, lambda n: bins.columns.crossed(picked(n), picked(n), rng))

    def _evaluator(self, task: Task, evaluated: Evaluated, networks: list[Architecture]) -> None:
        task.evaluator.prefetch(networks)
        for architecture in networks:
            if architecture not in evaluated:
                evaluated[architecture] = task.evaluator(architecture)
            task.progress.update(len(evaluated), f"best {max(v.score for v in evaluated.values()):.4f}")

    def _rows(self, task: Task, evaluated: Evaluated, kept: list[Architecture]) -> list[dict[str, Any]]:
        return [
            {
                "architecture": str(a),
                **evaluated[a].to_json(),
                "predicted": task.context.limits.cost(a),
            }
            for a in kept
        ]


@final
class Bins:
    """Networks by their cost, to the nearest multiple of a width."""

    def __init__(self, task: Task, resource: str, width: str) -> None:
        self._task, self._space = task, task.context.space
        if any(stage.has_expand_range for stage in self._space.stages):
            raise BadSpace(
                f"bins need a space without free middle widths, but {self._space.name!r} has some",
                remedy="Leave out bin_width: parents are then the Pareto set.",
            )
        self.columns, self._width = GeneColumns(self._space), parse(width, resource)
        self._table = task.context.limits.tables.get(resource)
        if self._table is None:
            if resource not in EXACT:
                raise BadInput(
                    f"bins over {resource} need a limit on it",
                    value=str(task.context.limits.budget),
                    remedy="Add one, or take bin_resource=macs.",
                )
            self._table = exact_table(self._space, resource)

    def number(self, architecture: Architecture) -> int:
        assert self._table is not None
        cost = self._table.of_network(plan(architecture, self._space))
        return int(bin_number(np.array([cost]), self._width)[0])

    def best(self, evaluated: Evaluated) -> list[Architecture]:
        """The best of each bin, the cheapest first; only a strictly better network takes a place."""
        places: dict[int, Architecture] = {}
        for architecture, score in evaluated.items():
            number = self.number(architecture)
            if number not in places or score.score > evaluated[places[number]].score:
                places[number] = architecture
        return [places[number] for number in sorted(places)]

    def fitting(self, count: int, draw: Callable[[int], Rows]) -> list[Architecture]:
        """`count` children within the limits; fewer where hardly any is."""
        found: list[Architecture] = []
        sampler = self._task.context.sampler
        for _ in range(_TRIES):
            if len(found) == count:
                break
            genes = self.columns.genes_of(draw(count - len(found)))
            found += self.columns.layout.decode(genes.take(np.flatnonzero(sampler.fits(genes))))
        return found


def burden(task: Task, architecture: Architecture) -> float:
    """The largest share of a limit that the network uses; its MACs where nothing is limited."""
    limits = task.context.limits
    if not limits:
        return float(macs(plan(architecture, limits.space)))
    return max(cost / limits[name].effective for name, cost in limits.cost(architecture).items())


def pareto(task: Task, evaluated: Evaluated) -> list[Architecture]:
    """Those that no other network beats in both burden and value, by rising burden."""
    rows = sorted(((burden(task, a), -v.score, str(a), a) for a, v in evaluated.items()), key=lambda row: row[:3])
    kept, best = [], np.inf
    for _, regret, _, architecture in rows:
        if regret < best:
            kept.append(architecture)
            best = regret
    return kept
