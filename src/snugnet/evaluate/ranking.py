"""Do sub-networks with inherited weights rank as they should?

Accuracies of sub-networks are compared with those of the same architectures elsewhere: in another run, or trained on
their own from scratch. Kendall's tau and Spearman's rho mean something only if the true spread of accuracies is
several times their standard error, so both are always given beside them. All accuracies are taken on the same images,
so differences between networks are paired: their standard error is that of the mean difference in right answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from snugnet.data.dataset import Data
from snugnet.errors import BadInput
from snugnet.evaluate.evaluator import Scorer
from snugnet.evaluate.scoring import ImageCache
from snugnet.executors import Shared, ordered, share
from snugnet.nets import Supernet
from snugnet.progress import NullProgress, Progress
from snugnet.seeds import Seed
from snugnet.space.architecture import Architecture
from snugnet.space.sampling import sample
from snugnet.space.space import SearchSpace
from snugnet.store import Journal


class _Figures:
    def to_json(self) -> dict[str, float]:
        return {name: round(value, 6) for name, value in vars(self).items()}


@final
@dataclass(frozen=True, kw_only=True)
class Spread(_Figures):
    """How far accuracies lie apart, and how exactly they are known; all as shares of 1."""

    mean: float
    lowest: float
    highest: float
    deviation: float  # standard deviation over the networks
    error: float  # typical standard error of the difference between two networks, on the same images


@final
@dataclass(frozen=True, kw_only=True)
class Agreement(_Figures):
    """How alike two rankings of the same networks are."""

    networks: int
    tau: float
    tau_p: float  # chance of such a tau between unrelated rankings
    rho: float


def random_architectures(space: SearchSpace, count: int, seed: int) -> list[Architecture]:
    """Different architectures, drawn uniformly over choices; the first n of a longer list are the shorter list."""
    if count < 1 or count > space.count:
        raise BadInput(f"count must lie in 1..{space.count}", value=count, remedy="Ask for fewer sub-networks.")
    found: dict[Architecture, None] = {}
    for number in range(count * 1000):
        found[sample(space, Seed(seed).fold_in("ranked", number).numpy())] = None
        if len(found) == count:
            return list(found)
    raise BadInput("the space is too small for so many different networks", value=count, remedy="Ask for fewer.")


def inherited(
    supernet: Supernet,
    data: Data,
    architectures: Sequence[Architecture],
    *,
    split: str = "val",
    limit: int | None = None,
    seed: int = 0,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """Right answers of each sub-network with inherited weights and recalibrated statistics: bool [networks, images]."""
    scorer = Scorer(supernet=supernet, cache=ImageCache(data), split=split, seed=seed)
    shared, display, rows = share(executor, scorer), progress or NullProgress(), []
    display.start("evaluating sub-networks", len(architectures))
    tasks = [partial(right_task, shared, architecture, limit) for architecture in architectures]
    for number, row in enumerate(ordered(executor, tasks)):
        rows.append(torch.tensor(row))
        display.update(number + 1, f"{float(rows[-1].double().mean()):.1%}")
    display.stop()
    return torch.stack(rows)


def right_task(scorer: Shared[Scorer], architecture: Architecture, images: int | None) -> list[bool]:
    right: list[bool] = scorer.get().answers(architecture, images).right.tolist()
    return right


def spread(right: Tensor) -> Spread:
    """What `inherited` found, in numbers. One network has no spread and no differences: both are 0."""
    answers = right.double()
    accuracies = answers.mean(1)
    if len(answers) < 2:
        deviation = error = 0.0
    else:
        deviation = float(accuracies.std())
        pairs = np.random.default_rng(0).integers(len(answers), size=(200, 2))
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]
        differences = answers[pairs[:, 0]] - answers[pairs[:, 1]]
        error = float(differences.std(1).mean()) / answers.shape[1] ** 0.5
    mean, lowest, highest = (float(value) for value in (accuracies.mean(), accuracies.min(), accuracies.max()))
    return Spread(mean=mean, lowest=lowest, highest=highest, deviation=deviation, error=error)


def agreement(ones: Sequence[float], others: Sequence[float]) -> Agreement:
    """Kendall's tau (with ties, tau-b) and Spearman's rho between two lists of accuracies."""
    if len(ones) != len(others) or len(ones) < 2:
        rule, counts = "a ranking needs two accuracies or more for the same networks", (len(ones), len(others))
        raise BadInput(rule, value=counts, remedy="Rank the same networks in both places.")
    if len(set(ones)) == 1 or len(set(others)) == 1:
        remedy = "Use a harder data set or narrower networks."
        raise BadInput("accuracies must differ to be ranked", value=ones[0], remedy=remedy)
    from scipy import stats  # here: half a second of imports

    tau: Any = stats.kendalltau(ones, others)
    rho: Any = stats.spearmanr(ones, others)
    return Agreement(networks=len(ones), tau=float(tau.statistic), tau_p=float(tau.pvalue), rho=float(rho.statistic))


def stand_alone(
    architectures: Sequence[Architecture],
    train_one: Callable[[Architecture], Tensor],
    journal: Journal,
    progress: Progress | None = None,
) -> Tensor:
    """Right answers of networks trained on their own. Rows of the journal (`architecture`, `right`) are taken as they are,
    and each new network adds one, so that a killed ranking goes on with the next network."""
    display = progress or NullProgress()
    display.start("training stand-alone networks", len(architectures))
    right = {row["architecture"]: row["right"] for row in journal.rows}
    for number, architecture in enumerate(architectures):
        if str(architecture) not in right:
            right[str(architecture)] = train_one(architecture).tolist()
            journal.append({"architecture": str(architecture), "right": right[str(architecture)]})
        display.update(number + 1)
    display.stop()
    return torch.tensor([right[str(architecture)] for architecture in architectures])
