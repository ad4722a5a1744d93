"""The steps of a pipeline that only compute, as tasks: whoever does them, wherever, they come to the same.

A task gets the run's super-network and images (`Parts`, shared), the recipe and a folder that it writes to; it times
nothing. Who does tasks, and when a device may be timed: `fitting.work`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, final

from snugnet.budgets import Budget
from snugnet.costs.table import CostTable
from snugnet.data.dataset import Data
from snugnet.deploy.export import export
from snugnet.deploy.network_file import load
from snugnet.evaluate.evaluator import Evaluator
from snugnet.executors import Shared
from snugnet.fitting import runs
from snugnet.fitting.finetuning import card_of, finetune_found
from snugnet.fitting.recipe import Recipe
from snugnet.nets import Supernet
from snugnet.progress import Progress
from snugnet.searching import SearchResult
from snugnet.searching.known import Asked, best_of_known
from snugnet.searching.objective import prepared
from snugnet.searching.search import begin, make_method, search
from snugnet.space.architecture import Architecture
from snugnet.training import train
from snugnet.training.run import TrainResult

T = TypeVar("T")


@final
@dataclass(frozen=True, kw_only=True)
class Parts:
    """What all tasks of a run need."""

    supernet: Supernet
    data: Data


@final
@dataclass(frozen=True, kw_only=True)
class PartsOf(Shared[Parts]):
    """Those of a run folder: another process that sees it opens it."""

    folder: Path

    def _fetch(self) -> Parts:
        run = runs.open_run(self.folder)
        return Parts(supernet=run.supernet, data=run.data)


@final
@dataclass(frozen=True, kw_only=True)
class Goal:
    """What a search looks for: the budget in absolute units, and the tables its costs are read from."""

    recipe: Recipe
    budget: Budget
    tables: Mapping[str, CostTable]


def train_task(
    recipe: Recipe, folder: Path, costs: Mapping[str, Any], threads: int | None, progress: Progress
) -> TrainResult:
    """supernet.safetensors in `folder`; `costs`: tables and budget for methods that know them."""
    data = recipe.load_data()
    options: dict[str, Any] = {"threads": threads, "progress": progress, **costs}
    return train_recipe(recipe, runs.first_supernet(recipe, data), data, folder, **options)


def train_recipe(recipe: Recipe, supernet: Supernet, data: Data, out: Path, **options: Any) -> TrainResult:
    """Train a super-network as the recipe says; `options` (threads, device, resume, progress) go to `train`."""
    section = recipe.train
    return train(
        supernet,
        data,
        section.methods(),
        out=out,
        **{
            "seed": recipe.seed,
            "batch": section.batch,
            "accumulate": section.accumulate,
            "device": section.device,
            "precision": section.precision,
            "channels_last": section.channels_last,
            "eval_times": section.eval_times,
            "checkpoint_seconds": section.checkpoint_seconds,
            "trackers": recipe.trackers,
            **options,
        },
    )


def begin_task(parts: Shared[Parts], goal: Goal, folder: Path, progress: Progress) -> None:
    """What the recipe's method learns before it knows a budget, into `folder`."""
    run, section = parts.get(), goal.recipe.search
    options: dict[str, Any] = {"out": folder, "progress": progress, **section.options}
    begin(run.supernet, run.data, goal.tables, goal.budget, section.method, goal.recipe.seed, **options)


def search_task(
    parts: Shared[Parts], goal: Goal, factors: Mapping[str, float], folder: Path, progress: Progress
) -> SearchResult:
    run, section = parts.get(), goal.recipe.search
    return search(
        run.supernet,
        run.data,
        goal.tables,
        goal.budget,
        section.method,
        goal.recipe.seed,
        out=folder,
        tighten=dict(factors),
        progress=progress,
        **section.options,
    )


def known_task(parts: Shared[Parts], goal: Goal, factors: Mapping[str, float], folder: Path) -> SearchResult | None:
    """The best of what the search folder knows; None if nothing of that fits."""
    return _among_known(parts, [(goal, factors)], folder, settle=False)[0]


def settle_task(
    parts: Shared[Parts],
    goals: Sequence[tuple[Goal, Mapping[str, float]]],
    evidence: Path,
    sources: Sequence[Path],
    folder: Path,
) -> None:
    """Into `folder`, made anew: what `evidence` and the search folders `sources` know, winners evaluated until all agree."""
    shutil.rmtree(folder, ignore_errors=True)  # a worker that was lost may have begun
    shutil.copytree(evidence, folder)
    _among_known(parts, goals, folder, sources)


def _among_known(
    parts: Shared[Parts],
    goals: Sequence[tuple[Goal, Mapping[str, float]]],
    folder: Path,
    sources: Sequence[Path] = (),
    *,
    settle: bool = True,
) -> list[SearchResult | None]:
    run, recipe = parts.get(), goals[0][0].recipe
    evaluator, *others = (
        Evaluator(run.supernet, run.data, memory=place / "evaluations.jsonl") for place in (folder, *sources)
    )
    for other in others:
        evaluator.learn_from(other)
    method = make_method(recipe.search.method, recipe.search.options)
    asked = [Asked(budget=goal.budget, tables=goal.tables, tighten=factors) for goal, factors in goals]
    with prepared(run.supernet):
        return best_of_known(run.supernet, run.data, asked, method, recipe.seed, evaluator, out=folder, settle=settle)


def finetune_task(
    parts: Shared[Parts],
    goal: Goal,
    architecture: Architecture,
    folder: Path,
    threads: int | None,
    progress: Progress,
) -> str:
    """network.safetensors and accuracy.json in `folder`; what to tell."""
    run, recipe = parts.get(), goal.recipe
    section = recipe.finetune
    tuned = finetune_found(
        run.supernet,
        data_for(recipe, run.data, architecture),
        architecture,
        section,
        folder,
        seed=recipe.seed,
        channels_last=recipe.train.channels_last,
        threads=threads,
        device=recipe.train.device,
        progress=progress,
        budget=goal.budget.to_json(),
        origin=runs.first_supernet(recipe, run.data) if section.from_start and not section.scratch else None,
        trackers=recipe.trackers,
    )
    return str(tuned)


def export_task(parts: Shared[Parts], goal: Goal, architecture: Architecture, folder: Path) -> None:
    """network.onnx and network.pt2 in `folder`, from its network.safetensors."""
    run = parts.get()
    data = data_for(goal.recipe, run.data, architecture)
    images = next(data.batches("test", 8))[0]
    card = card_of(data, run.supernet, architecture, goal.budget.to_json())
    network = load(folder / "network.safetensors")
    export(network, folder / "network.onnx", card=card, images=images, program=folder / "network.pt2")


def data_for(recipe: Recipe, data: Data, architecture: Architecture) -> Data:
    """The images as the found network will be fed, also where the space has several resolutions; of all classes."""
    if architecture.resolution == data.about.resolution and recipe.data.subset is None:
        return data
    return recipe.load_data(architecture.resolution, whole=True)
