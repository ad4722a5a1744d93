"""Evolution on inherited weights: mutation and crossover of a Pareto set, inside the limits by construction.

Starts from random networks that fit, keeps those no other beats in both cost and value, and breeds from them. Cost is
the largest share of a limit that a network uses (of its MACs where there is no limit). Children over a limit are
redrawn, a bounded number of times, before they are looked at; no network is evaluated twice; the Pareto set is written
after every round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from snugnet.costs.analytic import macs
from snugnet.errors import BadInput
from snugnet.evaluate.scoring import Score
from snugnet.searching.context import Outcome, SearchMethod, Task
from snugnet.seeds import Seed
from snugnet.space.architecture import Architecture
from snugnet.space.spec import plan
from snugnet.store import write_json


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

    def run(self, task: Task) -> Outcome:
        if min(self.population, self.rounds, self.mutations + self.crossovers) < 1:
            raise BadInput("population, rounds and children must be positive", value=self, remedy="Try the defaults.")
        rng, sampler = Seed(task.seed).fold_in("evolution").numpy(), task.context.sampler
        evaluated: dict[Architecture, Score] = {}
        trace: list[dict[str, Any]] = []
        total = self.population + self.rounds * (self.mutations + self.crossovers)
        task.progress.start("evolution", total)
        self._evaluator(task, evaluated, [task.context.start, *sampler.sample(self.population - 1, rng)])
        for number in range(self.rounds):
            parents = pareto(task, evaluated)
            picks = [parents[i] for i in rng.integers(len(parents), size=self.mutations)]
            children = sampler.mutate(picks, rng, self.share)
            pairs = rng.integers(len(parents), size=(2, self.crossovers))
            children += sampler.cross([parents[i] for i in pairs[0]], [parents[i] for i in pairs[1]], rng)
            self._evaluator(task, evaluated, children)
            best = max(evaluated.values(), key=lambda v: v.score)
            trace.append({"round": number + 1, **best.to_json(), "seen": len(evaluated)})
            self._keep(task, evaluated)
        task.progress.stop()
        found = task.evaluator.best(sorted(evaluated, key=str), task.progress)
        return Outcome(architecture=found, trace=trace, details={"pareto": self._rows(task, evaluated)})

    def _evaluator(self, task: Task, evaluated: dict[Architecture, Score], networks: list[Architecture]) -> None:
        for architecture in networks:
            if architecture not in evaluated:
                evaluated[architecture] = task.evaluator(architecture)
            task.progress.update(len(evaluated), f"best {max(v.score for v in evaluated.values()):.4f}")

    def _keep(self, task: Task, evaluated: dict[Architecture, Score]) -> None:
        if task.folder is not None:
            write_json(task.folder / "pareto.json", self._rows(task, evaluated))

    def _rows(self, task: Task, evaluated: dict[Architecture, Score]) -> list[dict[str, Any]]:
        return [
            {
                "architecture": str(a),
                **evaluated[a].to_json(),
                "predicted": task.context.limits.cost(a),
            }
            for a in pareto(task, evaluated)
        ]


def burden(task: Task, architecture: Architecture) -> float:
    """The largest share of a limit that the network uses; its MACs where nothing is limited."""
    limits = task.context.limits
    if not limits:
        return float(macs(plan(architecture, limits.space)))
    return max(cost / limits[name].effective for name, cost in limits.cost(architecture).items())


def pareto(task: Task, evaluated: dict[Architecture, Score]) -> list[Architecture]:
    """Those that no other network beats in both burden and value, by rising burden."""
    rows = sorted(((burden(task, a), -v.score, str(a), a) for a, v in evaluated.items()), key=lambda row: row[:3])
    kept, best = [], np.inf
    for _, regret, _, architecture in rows:
        if regret < best:
            kept.append(architecture)
            best = regret
    return kept
