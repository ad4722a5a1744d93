"""The best of what is known: several budgets choose among all that was evaluated, and agree.

Nothing new is looked for. The one thing that is evaluated are winners, on more images; that may change the posterior by
which the next budget chooses, so all budgets choose again until nothing is evaluated any more. After that a network that
fits a smaller budget has lost fairly against the one of the larger: posterior mean (`adaptive`) or score (other methods)
never falls from a budget to a larger one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from snugnet.budgets import Budget
from snugnet.budgets.limits import Tables
from snugnet.data.dataset import Data
from snugnet.evaluate.evaluator import Evaluator
from snugnet.nets import Supernet
from snugnet.searching.adaptive import Adaptive
from snugnet.searching.context import SearchContext, SearchMethod, search_context
from snugnet.searching.result import SearchResult
from snugnet.searching.search import best_known, search


@final
@dataclass(frozen=True, kw_only=True)
class Asked:
    """A budget, the tables of its costs, and factors on its limits that measuring taught."""

    budget: Budget
    tables: Tables
    tighten: Mapping[str, float] = field(default_factory=dict)

    def context(self, supernet: Supernet) -> SearchContext:
        return search_context(supernet.space, self.tables, self.budget, dict(self.tighten))


def best_of_known(
    supernet: Supernet,
    data: Data,
    asked: Sequence[Asked],
    method: SearchMethod,
    seed: int,
    evaluator: Evaluator,
    *,
    out: Path | None = None,
    settle: bool = True,
) -> list[SearchResult | None]:
    """A network for each of `asked`, None where none that was evaluated fits. `settle=False`: winners are taken as they are
    known, on few images or many; only `adaptive` may still evaluate the one it chooses."""
    contexts = [one.context(supernet) for one in asked]
    if not isinstance(method, Adaptive):
        for context in contexts if settle else ():
            if fitting := context.fitting(evaluator.known()):
                evaluator.best_known(fitting)
        full = evaluator.known(full=True)
        return [best_known(context, evaluator, seed) if context.fitting(full) else None for context in contexts]

    known = [bool(context.fitting(evaluator.known())) for context in contexts]
    choosing = replace(method, evaluations=0)

    def choose(one: Asked) -> SearchResult:
        options: dict[str, Any] = {"out": out, "evaluator": evaluator, "tighten": dict(one.tighten)}
        return search(supernet, data, one.tables, one.budget, choosing, seed, **options)

    while True:
        before = evaluator.evaluated
        results = [choose(one) if any_fits else None for one, any_fits in zip(asked, known)]
        if not settle or evaluator.evaluated == before:
            return results
