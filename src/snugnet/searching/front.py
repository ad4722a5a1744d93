"""The front: the best networks along one resource, each validated.

Budgets spaced evenly between the cheapest and the dearest network; the instant method answers each in milliseconds, and
its candidates are evaluated for real. A network that fits a smaller budget fits a larger one, so every point may take the
best of all that was evaluated before it: the value (`evaluator`) never falls along the front for want of looking.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from snugnet.budgets import Budget, cheapest, dearest
from snugnet.budgets.limits import Tables, limits_of
from snugnet.data.dataset import Data
from snugnet.errors import BadInput
from snugnet.evaluate.evaluator import Evaluator
from snugnet.nets import Supernet
from snugnet.progress import NullProgress, Progress
from snugnet.searching.instant import Instant
from snugnet.searching.result import SearchResult
from snugnet.searching.search import search
from snugnet.store import write_bytes
from snugnet.units import parse, show, write
from snugnet.units import resource as known_resource


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
    method: Instant | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    evaluator: Evaluator | None = None,
    progress: Progress | None = None,
) -> list[FrontPoint]:
    """`points` networks along `resource`, cheapest budget first."""
    if points < 2:
        raise BadInput("a front needs at least 2 points", value=points, remedy="Try 20.")
    # A budget nobody misses resolves the table, its margin and both ends of the range.
    limits = limits_of(supernet.space, tables, Budget({resource: "100%"}))
    table = limits.tables[resource]
    room = 1.0 + table.margin
    low, high = cheapest(supernet.space, table).cost * room, dearest(supernet.space, table).cost * room
    memory = None if out is None else Path(out) / "evaluations.jsonl"
    evaluator = evaluator or Evaluator(supernet, data, memory=memory)
    shown = progress or NullProgress()
    found: list[FrontPoint] = []
    shown.start(f"front along {resource}", points)
    for number, amount in enumerate(np.linspace(low, high, points)):
        text = _text(float(amount), resource)
        how = method or Instant()
        result = search(supernet, data, limits.tables, {resource: text}, how, seed, out=out, evaluator=evaluator)
        best = max([result, *(p.result for p in found)], key=lambda r: r.score)
        found.append(FrontPoint(limit=float(amount), result=best))
        shown.update(number + 1, f"{show(float(amount), resource)}: {best.accuracy:.1%}")
    shown.stop()
    return found


def _text(amount: float, resource: str) -> str:
    """`amount` written as a budget, rounded up so that the cheapest network still fits."""
    text = write(amount * (1 + 1e-9), resource, 12)
    assert parse(text, resource) >= amount * (1 - 1e-9)
    return text


def as_rows(found: list[FrontPoint]) -> list[dict[str, Any]]:
    return [point.to_json() for point in found]


def picture_of_front(found: list[FrontPoint], resource: str, path: str | Path) -> Path:
    """Accuracy against what the networks cost, drawn to `path` (.png, .svg or .pdf)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    costs = [point.result.predicted[resource] for point in found]
    axes.plot(costs, [100 * point.result.accuracy for point in found], marker="o", markersize=4)
    axes.set_xlabel(f"{resource} ({known_resource(resource).unit})")
    axes.set_ylabel("held-out accuracy (%)")
    axes.grid(alpha=0.3)
    drawn = io.BytesIO()
    figure.savefig(drawn, format=Path(path).suffix[1:].lower())
    return write_bytes(path, drawn.getvalue())
