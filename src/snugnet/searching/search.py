"""`search`: the best network of a super-network within a budget, by any method.

Feasibility is decided exactly before any work; the returned network meets every limit by the tables, whichever method
found it, or nothing is returned.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from snugnet.budgets import Budget
from snugnet.budgets.limits import Tables
from snugnet.data.dataset import Data
from snugnet.errors import BadInput, UnknownName
from snugnet.evaluate.evaluator import Evaluator
from snugnet.nets import Supernet
from snugnet.progress import NullProgress, Progress
from snugnet.searching.bcsfw import Bcsfw
from snugnet.searching.context import SearchMethod, Task, search_context
from snugnet.searching.evolution import Evolution
from snugnet.searching.instant import Instant
from snugnet.searching.random import Random
from snugnet.searching.result import SearchResult

METHODS: dict[str, type[SearchMethod]] = {m.name: m for m in (Bcsfw, Instant, Evolution, Random)}


def search(
    supernet: Supernet,
    data: Data,
    tables: Tables,
    budget: Budget | Mapping[str, str],
    method: str | SearchMethod = "bcsfw",
    seed: int = 0,
    *,
    out: str | Path | None = None,
    eval_images: int | None = 2000,
    final_images: int | None = 10_000,
    tighten: dict[str, float] | None = None,
    evaluator: Evaluator | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> SearchResult:
    """Search `supernet` for the best network within `budget`.

    `tables`: cost tables for the limited resources (exact resources need none). `method`: a name with `options`, or a
    method object. With `out`, evaluations, worths and steps are kept there: a killed search goes on, a further budget
    reuses what is known. Networks are evaluated on `eval_images` of the validation split, the best few of them again
    on `final_images` (None: all). `tighten`: factors on limits, after a network was measured over its budget.
    """
    how = make_method(method, options)
    asked = budget if isinstance(budget, Budget) else Budget(budget)
    field = search_context(supernet.space, tables, asked, tighten)
    folder = None if out is None else Path(out)
    began = time.monotonic()
    memory = None if folder is None else folder / "evaluations.jsonl"
    evaluator = evaluator or Evaluator(supernet, data, limit=eval_images, closer=final_images, memory=memory)
    before = evaluator.images, evaluator.evaluated
    task = Task(
        supernet=supernet,
        data=data,
        context=field,
        evaluator=evaluator,
        seed=seed,
        folder=folder,
        progress=progress or NullProgress(),
    )
    found = how.run(task)
    score = evaluator.evaluate_full(found.architecture)
    return SearchResult(
        method=how.name,
        seed=seed,
        space=supernet.space.name,
        budget=asked,
        architecture=found.architecture,
        predicted=field.limits.cost(found.architecture),
        limits=field.limits.asked,
        effective_limits=field.limits.effective,
        accuracy=score.accuracy,
        loss=score.loss,
        score=score.score,
        seconds=time.monotonic() - began,
        images=found.images + evaluator.images - before[0],
        evaluated=evaluator.evaluated - before[1],
        trace=found.trace,
        details={"options": how.describe(), **found.details},
    )


def make_method(method: str | SearchMethod, options: Mapping[str, Any]) -> SearchMethod:
    """The method of that name with these options; unknown names are answered with the nearest."""
    if isinstance(method, SearchMethod):
        if options:
            raise BadInput(
                "a method object has its options already", value=", ".join(options), remedy="Set them on the object."
            )
        return method
    if method not in METHODS:
        raise UnknownName("a search method", method, METHODS)
    known = [f.name for f in fields(METHODS[method])]
    for name in options:
        if name not in known:
            raise UnknownName(f"an option of {method}", name, known)
    try:
        made: SearchMethod = TypeAdapter(METHODS[method]).validate_python(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        place = str(first["loc"][0]) if first["loc"] else "option"
        raise BadInput(
            f"option {place} of {method} cannot be used ({first['msg']})", value=first["input"], remedy="Correct it."
        ) from error
    return made
