"""The baseline: the best of a number of uniform random networks within the limits, each judged for real."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from snugnet.errors import BadInput
from snugnet.search.method import Found, SearchMethod, Task
from snugnet.train.dice import Dice


@final
@dataclass(frozen=True, kw_only=True)
class Random(SearchMethod):
    """`networks`: how many are tried."""

    name = "random"
    networks: int = 100

    def run(self, task: Task) -> Found:
        if self.networks < 1:
            raise BadInput("networks must be at least 1", value=self.networks, remedy="Try 100.")
        drawn = task.arena.within.sample(self.networks, Dice(task.seed).at("random search").numpy())
        task.progress.start("judging random networks", len(drawn))
        verdicts = []
        for number, architecture in enumerate(drawn):
            verdicts.append(task.judge(architecture))
            task.progress.update(number + 1, f"best {max(v.accuracy for v in verdicts):.1%}")
        task.progress.stop()
        accuracies = [verdict.accuracy for verdict in verdicts]
        trace = [{"network": str(a), **v.to_json()} for a, v in zip(drawn, verdicts)]
        return Found(
            architecture=task.judge.best(drawn, task.progress),
            trace=trace,
            details={"mean_accuracy": sum(accuracies) / len(accuracies), "best_accuracy": max(accuracies)},
        )
