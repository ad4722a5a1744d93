"""TF-NAS's derivation, with a hard finish: the network that a super-network of separate operations has come to.

The search itself happens in training (`methods.tfnas`); what is left is the strongest operation of every layer, the
strongest depth of every stage and widths scaled to the limits. Where those limits are others than the training's (another
budget, or the measured loop aiming lower or higher), the widths are scaled anew; where no width fits, depths and operations
are repaired by the exact solver (`budgets.widths.finish`). One network, evaluated with inherited weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, final

from snugnet.budgets.widths import Widths, finish
from snugnet.nets import MixedSupernet
from snugnet.searching.context import Outcome, SearchMethod, Task


@final
@dataclass(frozen=True, kw_only=True)
class Tfnas(SearchMethod):
    """`repair_seconds`: how long the exact solver may look for a network where widths alone do not fit."""

    name = "tfnas"
    separate: ClassVar[bool] = True
    repair_seconds: float = 10.0

    def run(self, task: Task) -> Outcome:
        net: Any = task.supernet
        assert isinstance(net, MixedSupernet)  # `search` has seen to it
        widths = Widths(task.context.limits)
        alpha, beta = net.probabilities()
        done = finish(widths, alpha, beta, net.widths(), time_limit=self.repair_seconds)
        score = task.evaluator.evaluate_full(done.architecture)
        likely = (score.accuracy * score.images + 1) / (score.images + 2)
        nested = net.layout.by_stage([row.tolist() for row in alpha])
        details: dict[str, Any] = {
            "alpha": nested,
            "beta": [row.tolist() for row in beta],
            "start_alpha": [[[1 / len(row)] * len(row) for row in stage] for stage in nested],
            "start_beta": [[1 / len(row)] * len(row) for row in beta],
            "usage": done.usage,
            "repaired": done.repaired,
            "message": done.message,
        }
        return Outcome(
            architecture=done.architecture,
            expected=score.accuracy,
            error=math.sqrt(likely * (1 - likely) / score.images),
            details=details,
        )
