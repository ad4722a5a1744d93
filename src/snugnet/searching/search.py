"""`search`: the best network of a super-network within a budget, by any method.

Feasibility is decided exactly before any work; the returned network meets every limit by the tables, whichever method
found it, or nothing is returned. No network is returned that another one of the run beats: all that were evaluated and
fit compete, so a larger budget never gets a lower score on the same evaluations.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from snugnet.budgets import Budget
from snugnet.budgets.limits import Tables
from snugnet.data.dataset import Data
from snugnet.errors import BadInput, UnknownName
from snugnet.evaluate.evaluator import Evaluator
from snugnet.nets import MixedSupernet, Supernet
from snugnet.progress import NullProgress, Progress
from snugnet.searching.adaptive import Adaptive
from snugnet.searching.bcsfw import Bcsfw
from snugnet.searching.context import SearchContext, SearchMethod, Task, search_context
from snugnet.searching.evolution import Evolution
from snugnet.searching.instant import Instant
from snugnet.searching.objective import prepared
from snugnet.searching.random import Random
from snugnet.searching.result import SearchResult
from snugnet.searching.tfnas import Tfnas
from snugnet.space.architecture import Architecture

METHODS: dict[str, type[SearchMethod]] = {m.name: m for m in (Adaptive, Bcsfw, Instant, Evolution, Random, Tfnas)}


def search(
    supernet: Supernet,
    data: Data,
    tables: Tables,
    budget: Budget | Mapping[str, str],
    method: str | SearchMethod = "adaptive",
    seed: int = 0,
    *,
    out: str | Path | None = None,
    eval_images: int | None = 2000,
    final_images: int | None = 10_000,
    tighten: dict[str, float] | None = None,
    compete: bool = True,
    evaluator: Evaluator | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> SearchResult:
    """Search `supernet` for the best network within `budget`.

    `tables`: cost tables for the limited resources (exact resources need none). `method`: a name with `options`, or a
    method object. With `out`, evaluations, effects and steps are kept there: a killed search goes on, a further budget
    reuses what is known. Every network that fits and was evaluated before, for whatever budget and by whatever method,
    competes with the method's own (`compete=False`: the method alone, to compare methods). Networks are evaluated on
    `eval_images` of the validation split, the best few of them again on `final_images` (None: all). `tighten`: factors
    on limits, after a network was measured over its budget. `executor`: who evaluates networks that are asked for together
    (all of `random`, a generation of `evolution`, the evidence of `instant`, finalists); the result is the same without.
    """
    how = make_method(method, options)
    require_kind(how, separate=isinstance(supernet, MixedSupernet))
    asked = budget if isinstance(budget, Budget) else Budget(budget)
    context = search_context(supernet.space, tables, asked, tighten)
    folder = None if out is None else Path(out)
    began = time.monotonic()
    memory = None if folder is None else folder / "evaluations.jsonl"
    evaluator = evaluator or Evaluator(
        supernet, data, limit=eval_images, closer=final_images, memory=memory, executor=executor
    )
    before = evaluator.images, evaluator.evaluated
    task = Task(
        supernet=supernet,
        data=data,
        context=context,
        evaluator=evaluator,
        seed=seed,
        folder=folder,
        progress=progress or NullProgress(),
        alone=not compete,
    )
    with prepared(supernet):
        outcome = how.run(task)
        chosen = outcome.architecture
        details = {"options": how.describe(), **outcome.details}
        if compete and outcome.expected is None:
            chosen = evaluator.best_known([chosen, *task.context.fitting(evaluator.known())])
            details["method_found"] = str(outcome.architecture)
    return _result(
        context,
        evaluator,
        chosen,
        method=how.name,
        seed=seed,
        seconds=time.monotonic() - began,
        images=outcome.images + evaluator.images - before[0],
        evaluated=evaluator.evaluated - before[1],
        trace=outcome.trace,
        details=details,
        **({} if outcome.expected is None else {"expected": outcome.expected, "error": outcome.error}),
    )


def begin(
    supernet: Supernet,
    data: Data,
    tables: Tables,
    budget: Budget | Mapping[str, str],
    method: str | SearchMethod = "adaptive",
    seed: int = 0,
    *,
    out: str | Path,
    progress: Progress | None = None,
    **options: Any,
) -> None:
    """What the method learns before it knows a budget, kept in `out`: several searches that begin with copies of that folder
    need not learn it again."""
    how = make_method(method, options)
    require_kind(how, separate=isinstance(supernet, MixedSupernet))
    task = Task(
        supernet=supernet,
        data=data,
        context=search_context(supernet.space, tables, Budget(budget)),
        evaluator=Evaluator(supernet, data, memory=Path(out) / "evaluations.jsonl"),
        seed=seed,
        folder=Path(out),
        progress=progress or NullProgress(),
    )
    with prepared(supernet):
        how.begin(task)


def best_known(context: SearchContext, evaluator: Evaluator, seed: int = 0) -> SearchResult:
    """The best network within the limits among those evaluated on all images; nothing is evaluated for it."""
    candidates = context.fitting(evaluator.known(full=True))
    if not candidates:
        raise BadInput(
            f"a network within {context.limits.budget} must have been evaluated", value=0, remedy="Search first."
        )
    chosen = max(candidates, key=lambda a: evaluator.evaluate_full(a).score)
    return _result(context, evaluator, chosen, method="known", seed=seed, seconds=0.0, images=0, evaluated=0)


def _result(context: SearchContext, evaluator: Evaluator, chosen: Architecture, **facts: Any) -> SearchResult:
    score, limits = evaluator.evaluate_full(chosen), context.limits
    likely = (score.accuracy * score.images + 1) / (score.images + 2)  # all right on few images is not certainty
    facts = {"expected": score.accuracy, "error": math.sqrt(likely * (1 - likely) / score.images), **facts}
    return SearchResult(
        space=context.space.name,
        budget=limits.budget,
        architecture=chosen,
        predicted=limits.cost(chosen),
        limits=limits.asked,
        effective_limits=limits.effective,
        accuracy=score.accuracy,
        loss=score.loss,
        score=score.score,
        **facts,
    )


def require_kind(how: SearchMethod, *, separate: bool) -> None:
    """Refuse a method that cannot search the kind of super-network there is."""
    if separate and not how.separate:
        fitting = ", ".join(name for name, method in METHODS.items() if method.separate)
        raise BadInput(
            f"method {how.name!r} needs a super-network whose networks share weights",
            value="separate operations",
            remedy=f"Use one of {fitting}, or train with multipath.",
        )
    if isinstance(how, Tfnas) and not separate:
        raise BadInput(
            "method 'tfnas' needs a super-network of separate operations, which learnt what they are worth",
            value="shared weights",
            remedy="Train one with the method tfnas (recipe tfnas-digits), or search with adaptive.",
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
        how: SearchMethod = TypeAdapter(METHODS[method]).validate_python(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        place = str(first["loc"][0]) if first["loc"] else "option"
        raise BadInput(
            f"option {place} of {method} cannot be used ({first['msg']})",
            value=first["input"],
            remedy="Give it the kind of value its default has (docs/guides/searching.md).",
        ) from error
    return how
