"""The front: the best networks along one resource, each validated.

Budgets spaced evenly between the cheapest and the dearest network; each is searched, and what was evaluated for one is
evidence for the next. Every point then takes the best of all that the run has evaluated and that fits, by posterior mean
(`adaptive`) or by score (`instant`): it never falls along the front, and a search for the budget of a point gives the
network of that point.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from snugnet.budgets import Budget, cheapest, dearest
from snugnet.budgets.limits import Tables, limits_of
from snugnet.data.dataset import Data
from snugnet.errors import BadInput
from snugnet.evaluate.evaluator import Evaluator
from snugnet.nets import MixedSupernet, Supernet
from snugnet.progress import NullProgress, Progress
from snugnet.searching.adaptive import Adaptive
from snugnet.searching.context import SearchMethod
from snugnet.searching.known import Asked, best_of_known
from snugnet.searching.result import SearchResult
from snugnet.searching.search import search
from snugnet.searching.tfnas import Tfnas
from snugnet.units import parse, show, write


@final
@dataclass(frozen=True, kw_only=True)
class FrontPoint:
    """One budget along the resource and the network for it."""

    limit: float
    result: SearchResult

    def to_json(self) -> dict[str, Any]:
        return {
            "limit": self.limit,
            "predicted": self.result.predicted,
            "accuracy": self.result.accuracy,
            "loss": self.result.loss,
            "value": self.result.score,
            "architecture": str(self.result.architecture),
        }


def front(
    supernet: Supernet,
    data: Data,
    tables: Tables,
    resource: str,
    points: int = 20,
    *,
    method: SearchMethod | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    explore: bool = True,
    evaluator: Evaluator | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> list[FrontPoint]:
    """`points` networks along `resource`, cheapest budget first. `explore=False`: of the networks that were evaluated
    before, without a look at others."""
    if points < 2:
        raise BadInput("a front needs at least 2 points", value=points, remedy="Try 20.")
    # A budget nobody misses resolves the table, its margin and both ends of the range.
    limits = limits_of(supernet.space, tables, Budget({resource: "100%"}))
    table = limits.tables[resource]
    low, high = (table.upper(end(supernet.space, table).cost) for end in (cheapest, dearest))
    memory = None if out is None else Path(out) / "evaluations.jsonl"
    evaluator = evaluator or Evaluator(supernet, data, memory=memory, executor=executor)
    amounts = [float(amount) for amount in np.linspace(low, high, points)]
    budgets = [{resource: _text(amount, resource)} for amount in amounts]
    how = method or (Tfnas() if isinstance(supernet, MixedSupernet) else Adaptive())
    if explore:
        display = progress or NullProgress()
        display.start(f"front along {resource}", points)
        for number, budget in enumerate(budgets):
            result = search(supernet, data, limits.tables, budget, how, seed, out=out, evaluator=evaluator)
            display.update(number + 1, f"{show(amounts[number], resource)}: {result.accuracy:.1%}")
        display.stop()
    asked = [Asked(budget=Budget(budget), tables=limits.tables) for budget in budgets]
    folder = None if out is None else Path(out)
    results = best_of_known(supernet, data, asked, how, seed, evaluator, out=folder, settle=explore)
    if None in results:
        raise BadInput(
            f"a network within every budget along {resource} must have been evaluated", value=0, remedy="Search first."
        )
    return [FrontPoint(limit=amount, result=result) for amount, result in zip(amounts, results) if result is not None]


def _text(amount: float, resource: str) -> str:
    """`amount` written as a budget, rounded up so that the cheapest network still fits."""
    text = write(amount * (1 + 1e-9), resource, 12)
    assert parse(text, resource) >= amount * (1 - 1e-9)
    return text


def as_rows(points: list[FrontPoint]) -> list[dict[str, Any]]:
    return [point.to_json() for point in points]
