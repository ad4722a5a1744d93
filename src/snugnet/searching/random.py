"""The baseline: the best of a number of uniform random networks within the limits, each evaluated for real."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from snugnet.errors import BadInput
from snugnet.searching.context import Outcome, SearchMethod, Task
from snugnet.seeds import Seed


@final
@dataclass(frozen=True, kw_only=True)
class Random(SearchMethod):
    """`networks`: how many are tried."""

    name = "random"
    separate: ClassVar[bool] = True
    networks: int = 100

    def run(self, task: Task) -> Outcome:
        if self.networks < 1:
            raise BadInput("networks must be at least 1", value=self.networks, remedy="Try 100.")
        drawn = task.context.sampler.sample(self.networks, Seed(task.seed).fold_in("random search").numpy())
        task.progress.start("evaluating random networks", len(drawn))
        scores = []
        task.evaluator.prefetch(drawn)
        for number, architecture in enumerate(drawn):
            scores.append(task.evaluator(architecture))
            task.progress.update(number + 1, f"best {max(v.accuracy for v in scores):.1%}")
        task.progress.stop()
        accuracies = [score.accuracy for score in scores]
        trace = [{"network": str(a), **v.to_json()} for a, v in zip(drawn, scores)]
        return Outcome(
            architecture=task.evaluator.best(drawn, task.progress),
            trace=trace,
            details={"mean_accuracy": sum(accuracies) / len(accuracies), "best_accuracy": max(accuracies)},
        )
