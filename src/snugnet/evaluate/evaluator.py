"""The evaluator: sub-networks of a super-network scored once each, and remembered.

Many networks are scored on a few images; the best few again on more before one is chosen. No network is evaluated twice
on the same images, in one process or, with a journal, in a whole run: because methods are deterministic, a killed search
that is started again runs through its old steps for free. Everything the journal holds competes for later budgets.

Several networks at once (`prefetch`) are scored side by side where there is an `executor`; what is remembered, and in
which order, is the same without one.

`training_curves` watches a model in training with the same scores; its weights change, so nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

from torch import nn

from snugnet.budgets import Budget
from snugnet.budgets.limits import Limits
from snugnet.budgets.widths import Widths
from snugnet.data.dataset import Data
from snugnet.errors import DamagedFile, SnugnetError
from snugnet.evaluate.scoring import Answers, ImageCache, Score, accuracy, require_images, subnetwork_answers
from snugnet.evaluate.shared_blocks import SharedBlocks
from snugnet.executors import Shared, share
from snugnet.nets import MixedSupernet, Supernet
from snugnet.progress import NullProgress, Progress
from snugnet.seeds import Seed
from snugnet.space.architecture import Architecture, parse
from snugnet.space.sampling import largest, sample, smallest
from snugnet.store import Journal, fingerprint, tensors_fingerprint

RERANK_TOP_K = 6  # networks that are evaluated again on more images

Curves = Callable[[nn.Module], Mapping[str, float]]


@final
@dataclass(frozen=True, kw_only=True)
class Scorer:
    """All that the answers of a sub-network depend on, beside the network: what a worker is sent."""

    supernet: Supernet
    cache: ImageCache
    split: str
    seed: int

    def answers(self, architecture: Architecture, images: int | None) -> Answers:
        return self._shared_blocks.answers(architecture, images)

    @cached_property
    def _shared_blocks(self) -> SharedBlocks:
        return SharedBlocks(self.supernet, self.cache, self.split, self.seed)


def score_task(scorer: Shared[Scorer], architecture: Architecture, images: int) -> Score:
    return scorer.get().answers(architecture, images).score()


@final
class Evaluator:
    """Scores of sub-networks with inherited weights on a split of `data`, each taken once.

    `limit`: images for every network; `closer`: for the last few, where the split has more. `memory`: the journal.
    `executor`: who computes where several networks are asked for at once."""

    def __init__(
        self,
        supernet: Supernet,
        data: Data,
        *,
        split: str = "val",
        limit: int | None = 2000,
        closer: int | None = 10_000,
        memory: str | Path | None = None,
        seed: int = 0,
        cache: ImageCache | None = None,
        executor: Executor | None = None,
    ) -> None:
        size = require_images(data, split)
        self.executor = executor
        self.supernet, self.data, self.split, self.seed = supernet, data, split, seed
        self.cache = cache or ImageCache(data)
        self.first_images = min(size, limit or size)
        self.full_images = max(self.first_images, min(size, closer or size))
        self.images = self.evaluated = 0
        self._scores: dict[tuple[Architecture, int], Score] = {}
        self._journal = None if memory is None else Journal(memory, self.identity(), ("network", "images"))
        self._take_over()

    def __call__(self, architecture: Architecture) -> Score:
        return self._score(architecture, self.first_images)

    def evaluate_full(self, architecture: Architecture) -> Score:
        """On all images there are for the last few."""
        return self._score(architecture, self.full_images)

    def prefetch(self, networks: Iterable[Architecture], images: int | None = None) -> None:
        """Evaluate those not known yet side by side, on the first `images` (None: as many as a call takes). Nothing without
        an executor: who asks for them one by one then computes them."""
        count = self.first_images if images is None else max(1, min(images, self.full_images))
        missing = [network for network in dict.fromkeys(networks) if (network, count) not in self._scores]
        if self.executor is None or len(missing) < 2:
            return
        futures = [self.executor.submit(score_task, self._shared, network, count) for network in missing]
        for network, future in zip(missing, futures):  # in their order, whoever is done first
            self._remember(network, count, future.result())

    def known(self, *, full: bool = False) -> list[Architecture]:
        """Every network evaluated so far (on all images, if `full`), the earliest first."""
        counts = (self.full_images,) if full else (self.first_images, self.full_images)
        return list(dict.fromkeys(network for network, images in self._scores if images in counts))

    def evaluate_on(self, architecture: Architecture, images: int) -> Score:
        """On the first `images` of the split: the same ones for every network."""
        return self._score(architecture, max(1, min(images, self.full_images)))

    def history(self) -> list[tuple[Architecture, Score]]:
        """Every evaluation so far, the earliest first; a network may have several, each on more images."""
        return [(network, score) for (network, _), score in self._scores.items()]

    def best(self, networks: Iterable[Architecture], progress: Progress | None = None) -> Architecture:
        """The one of greatest score; the best few are evaluated again on more images first. The earlier wins a tie."""
        candidates, display = list(dict.fromkeys(networks)), progress or NullProgress()
        display.start("evaluating candidates", len(candidates) + min(RERANK_TOP_K, len(candidates)))
        self.prefetch(candidates)
        for number, network in enumerate(candidates, 1):
            display.update(number, f"{self(network).accuracy:.1%}")
        ranked = sorted(candidates, key=lambda a: -self(a).score)[:RERANK_TOP_K]
        self.prefetch(ranked, self.full_images)
        for number, network in enumerate(ranked, len(candidates) + 1):
            display.update(number, f"{self.evaluate_full(network).accuracy:.1%} on {self.full_images} images")
        display.stop()
        return max(ranked, key=lambda a: self.evaluate_full(a).score)

    def best_known(self, networks: Iterable[Architecture], progress: Progress | None = None) -> Architecture:
        """`best`, but every one of `networks` that was ever evaluated on all images competes to the end.

        So more networks to choose from never give a lower score."""
        candidates = list(dict.fromkeys(networks))
        chosen = self.best(candidates, progress)
        full = [a for a in candidates if (a, self.full_images) in self._scores]
        return max([chosen, *full], key=lambda a: self.evaluate_full(a).score)

    def learn_from(self, other: Evaluator) -> None:
        """Remember what another one of the same weights and images has evaluated."""
        for (network, images), score in other._scores.items():
            if (network, images) not in self._scores:
                self._remember(network, images, score)

    def identity(self) -> str:
        """What scores depend on, apart from the network and the number of images; the weights are those it began with."""
        return self._identity

    @cached_property
    def _identity(self) -> str:
        weights = tensors_fingerprint(self.supernet.state_dict())
        return fingerprint([weights, self.split, self.seed, self.data.identity()])

    @cached_property
    def scorer(self) -> Scorer:
        return Scorer(supernet=self.supernet, cache=self.cache, split=self.split, seed=self.seed)

    @cached_property
    def _shared(self) -> Shared[Scorer]:
        return share(self.executor, self.scorer)

    def _score(self, architecture: Architecture, images: int) -> Score:
        if (architecture, images) not in self._scores:
            self._remember(architecture, images, self._evaluate(architecture, images))
        return self._scores[architecture, images]

    def _evaluate(self, architecture: Architecture, images: int) -> Score:
        return self.scorer.answers(architecture, images).score()

    def _remember(self, architecture: Architecture, images: int, score: Score) -> None:
        self._scores[architecture, images] = score
        self.images += images
        self.evaluated += 1
        if self._journal is not None:
            self._journal.append({"network": str(architecture), **score.to_json()})

    def _take_over(self) -> None:
        """What earlier searches of the same weights and images have evaluated."""
        for row in self._journal.rows if self._journal is not None else ():
            try:
                score = Score.from_json(row)
                self._scores[parse(row["network"], self.supernet.space), score.images] = score
            except (SnugnetError, KeyError, TypeError, ValueError) as error:
                raise DamagedFile(
                    f"{self._journal.path if self._journal else ''} must hold one evaluation per line ({error})",
                    value=row.get("network"),
                    remedy="Delete the file; networks are then evaluated anew.",
                ) from error


def training_curves(
    model: nn.Module, data: Data, *, split: str = "val", limit: int | None = 2000, randoms: int = 3, seed: int = 0
) -> Curves:
    """What training watches: the accuracy of a plain network, or those of a super-network's largest, smallest and (their
    mean) a few random sub-networks, each recalibrated; of separate operations, that of the strongest network."""
    images = ImageCache(data)
    if not hasattr(model, "space"):
        return lambda net: {"accuracy": accuracy(net, images, split, limit=limit)}

    def one(supernet: Supernet, architecture: Architecture) -> float:
        return subnetwork_answers(supernet, architecture, images, split, limit=limit, seed=seed).accuracy

    def curves(model: nn.Module) -> dict[str, float]:
        supernet: Any = model
        if isinstance(supernet, MixedSupernet):
            widths = Widths(Limits(supernet.space, Budget({}), []))
            numbers = widths.strongest(*supernet.probabilities())
            strongest: Any = supernet
            return {"strongest": one(strongest, widths.architecture(numbers, supernet.widths()))}
        rng = Seed(seed).fold_in("evaluated sub-networks").numpy()
        drawn = [one(supernet, sample(supernet.space, rng)) for _ in range(randoms)]
        ends = {"largest": largest(supernet.space), "smallest": smallest(supernet.space)}
        found = {name: one(supernet, architecture) for name, architecture in ends.items()}
        return {**found, "random": sum(drawn) / len(drawn)} if drawn else found

    return curves
