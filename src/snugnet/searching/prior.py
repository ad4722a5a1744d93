"""What is believed of a super-network's choices before any evaluation, and how the noise of the images is shared.

*Effects*: the gradient of the calibrated loss at a balanced point, as a linear model of networks, for some backward passes.
The point costs a third of what the uniform one does above the cheapest network (`_PRIOR_AT`): gradients at the uniform
mixture itself say little of real networks (docs/LOG.md). Whatever the limits, it is the same point, so that one model
serves all budgets and a larger one is never worse.

*Noise*: networks are compared on the same images. The part of the noise that all share says nothing about which is better;
the part that goes with a choice, because these images happen to favour it in every network, does not become less by more
evaluations (`solve.effects`); what is left is an evaluation's own. A few random networks and mutations of them tell how much
there is of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch.nn.functional as F

from snugnet.budgets import feasible
from snugnet.evaluate.scoring import Answers, best_scale
from snugnet.searching.context import Task
from snugnet.searching.objective import Floats, RelaxedObjective
from snugnet.seeds import Seed
from snugnet.solve import balanced_start
from snugnet.space.layout import Layout
from snugnet.space.sampling import mutate, sample
from snugnet.space.space import SearchSpace

_PRIOR_AT = 0.35  # MACs of the balanced point: this share of the way from the cheapest network to the uniform mixture
_RARE = 0.1  # a slot that runs for a smaller share of images counts as if it ran for this one: hardly anything is known
_ALIKE, _ALIKE_SETS, _SHARED_IMAGES = 3, 2, 500  # networks of a set, sets, images: how much of the noise is shared
_LEAST_OWN = 1e-3  # of an evaluation's noise
_COUNTED = 0.3  # of the noise that goes with choices; all of it makes searches too timid on many images (docs/LOG.md)


@final
@dataclass(frozen=True, kw_only=True)
class Prior:
    """What is believed before any evaluation: effects per column (None: nothing), and how the images' noise is shared."""

    effects: list[float] | None
    noise: Noise


@final
@dataclass(frozen=True, kw_only=True)
class Noise:
    """Parts of the variance of an evaluation by its images: of every column that differs, of each network itself, and what
    alike networks have in common."""

    column: float
    own: float
    shared: float


def make_prior(task: Task, passes: int, batch: int) -> tuple[Prior, int]:
    """The calibrated gradient at the balanced point of the space, as effects of columns; and the images it took."""
    space, images = task.supernet.space, 0
    fill = -(-task.evaluator.first_images // batch)
    effects: list[float] | None = None
    if not Layout(space).at(space.resolutions[0]).why_not_additive:
        parts, losses = [], []
        for resolution in space.resolutions:
            objective = RelaxedObjective(
                task.supernet,
                task.evaluator.cache,
                batch=batch,
                kind="expected",
                seed=task.seed,
                resolution=resolution,
            )
            layout = Layout(space).at(resolution)
            loss, columns = gradient(objective, layout, balanced_point(layout.space), min(passes, fill))
            parts.append(columns)
            losses.append(loss)
            images += objective.images
        by_resolution = -np.array(losses) if len(losses) > 1 else np.zeros(0)
        effects = np.concatenate([np.mean(parts, axis=0), by_resolution]).tolist()
    noise, more = _noise(task)
    return Prior(effects=effects, noise=noise), images + more


def gradient(
    objective: RelaxedObjective,
    layout: Layout,
    point: tuple[list[Floats], list[Floats]],
    passes: int,
    *,
    calibrated: bool = True,
) -> tuple[float, Floats]:
    """Mean loss and effects of columns (greater is better) at a relaxed point: alpha and beta.

    An option's gradient is that of the share of images that run its slot: divided by it, its effect where it runs."""
    alpha, beta = point
    running = [float(beta[s][np.array(layout.space.stages[s].depths) > d].sum()) for s, d in layout.slots]
    if calibrated:
        objective.calibrate(alpha, beta)
    losses, totals = [], np.zeros(sum(map(len, alpha)) + sum(map(len, beta)))
    for step in range(passes):
        loss, by_slot, by_stage = objective(alpha, beta, step)
        options = [(g - float(g @ a)) / max(share, _RARE) for g, a, share in zip(by_slot, alpha, running)]
        totals += np.concatenate([*options, *by_stage])
        losses.append(loss)
    return float(np.mean(losses)), -totals / passes


def balanced_point(space: SearchSpace) -> tuple[list[Floats], list[Floats]]:
    """alpha and beta, balanced within the MACs of `_PRIOR_AT`; uniform where the space has no such point."""
    whole = feasible(space, [], {"macs": "100%"})
    uniform = whole.problem.uniform()
    low = whole.problem.cost(whole.problem.cheapest("macs"))["macs"]
    limit = low + _PRIOR_AT * (whole.problem.expected_cost(uniform)["macs"] - low)
    inside = whole.problem.with_limits({"macs": limit})
    return whole.spread(balanced_start(inside).value if limit > low else uniform)


def _noise(task: Task) -> tuple[Noise, int]:
    """From per-image scores of a few random networks and mutations of them: how far two of them differ from image to image
    (variance over the mean network's), by how many of their columns differ. And the images it took."""
    rng, space, evaluator = Seed(task.seed).fold_in("shared noise").numpy(), task.supernet.space, task.evaluator
    parents = [sample(space, rng) for _ in range(_ALIKE_SETS)]
    sets = [[parent, *(mutate(space, parent, rng) for _ in range(_ALIKE - 1))] for parent in parents]
    networks = [network for alike in sets for network in alike]
    count = min(_SHARED_IMAGES, evaluator.first_images)
    scores = np.array([_by_image(evaluator.scorer.answers(network, count)) for network in networks])
    rows = Layout(space).features(Layout(space).encode(networks))
    size = float(scores.var(axis=1).mean())
    if scores.shape[1] < 3 or size == 0:
        return Noise(column=0.0, own=1.0, shared=0.0), len(networks) * count
    pairs = [(i, j) for i in range(len(networks)) for j in range(i)]
    columns = np.array([np.sum((rows[i] - rows[j]) ** 2) for i, j in pairs])
    apart = np.array([np.var(scores[i] - scores[j]) / size for i, j in pairs])
    near = np.array([i // _ALIKE == j // _ALIKE for i, j in pairs])
    (few, little), (many, much) = ((columns[some].mean(), apart[some].mean()) for some in (near, ~near))
    by_column = min(max((much - little) / max(many - few, 1e-9), 0.0), much / max(many, 1e-9))
    own = min(max((little - by_column * few) / 2, _LEAST_OWN), 1.0)
    noise = Noise(
        column=float(_COUNTED * by_column),
        own=float(own + _COUNTED * little / 2),
        shared=float(max(1 - little / 2, 0.0)),
    )
    return noise, len(networks) * count


def _by_image(answers: Answers) -> Floats:
    scale = best_scale(answers.logits, answers.labels)[0]
    losses = F.cross_entropy(answers.logits * scale, answers.labels, reduction="none")
    values: Floats = (answers.right.double() - losses.cpu().double()).numpy()
    return values
