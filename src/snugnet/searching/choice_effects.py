"""What every choice is worth: a regression on random paths, corrected by real evaluations.

1. *Paths.* In a few validation passes every image takes random paths of its own. The loss of image i on path p, whether
   its answer is right, and the second minus the first (its value) are modelled as (difficulty of i) + sum of the worths of
   the choices taken. Every image takes several paths and its mean is removed from both sides, so its difficulty, by far
   the largest noise, is gone. Least squares gives a worth and a standard error for every choice in every position and
   for every depth.
2. *Evidence.* Mixed paths share batch-norm statistics, a shipped network has its own, and choices interact. So a few
   dozen networks are evaluated for real, and their scores y = a + b (x'w) + x'd + noise are fitted with the path
   worths w as prior: a and b free, d a normal correction of unknown size, all sizes by restricted maximum likelihood.
   More networks are evaluated until left-out ones are predicted well enough, or a bound is reached.

The result predicts the value of any network as a sum over its choices: under any budget the best one is an integer
programme. How well it predicts is stated beside it, with its standard error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
import torch.nn.functional as F

from snugnet.budgets import FeasibleSet
from snugnet.errors import DamagedFile
from snugnet.evaluate.scoring import ImageCache, device_of
from snugnet.nets import Supernet
from snugnet.searching.objective import prepared
from snugnet.seeds import Seed
from snugnet.solve import Objective
from snugnet.solve.problem import Floats
from snugnet.space.architecture import Architecture
from snugnet.space.layout import Layout
from snugnet.space.space import SearchSpace

_NUMBERS = ("value", "error", "loss", "loss_error", "right", "right_error")
_RIDGE = 1e-3  # of the mean diagonal: only settles directions the data leaves open (indicators of one slot sum to one)


@final
@dataclass(frozen=True, kw_only=True)
class Prediction:
    """How well predicted and true values of networks agree: correlation, its standard error, on how many networks."""

    correlation: float
    error: float
    networks: int

    def __str__(self) -> str:
        return f"correlation {self.correlation:.2f} +- {self.error:.2f} on {self.networks} networks"


@final
@dataclass(frozen=True, kw_only=True)
class ChoiceEffects:
    """Value added by every choice (positive is good), in the order of `Layout.features`; standard errors beside it."""

    value: Floats
    error: Floats
    loss: Floats  # added by every choice on mixed paths, before any evidence
    loss_error: Floats
    right: Floats  # share of right answers, likewise
    right_error: Floats
    paths: int
    images: int
    prior: Prediction | None = None  # of path worths alone, on the evaluated networks
    left_out: Prediction | None = None  # of the combination, each network predicted without itself

    def values(self, inside: FeasibleSet) -> Objective:
        """As the integer programme wants them: greater is better, positions and depths of the problem."""
        columns = inside.left.layout.split(self.value)
        return inside.objective(columns.options, columns.depths)

    def to_json(self) -> dict[str, Any]:
        checks = {n: None if p is None else vars(p) for n, p in (("prior", self.prior), ("left_out", self.left_out))}
        numbers = {name: getattr(self, name).tolist() for name in _NUMBERS}
        return {**numbers, "paths": self.paths, "images": self.images, **checks}

    @classmethod
    def from_json(cls, value: Any) -> ChoiceEffects:
        try:
            return cls(
                **{name: np.array(value[name], dtype=float) for name in _NUMBERS},
                paths=int(value["paths"]),
                images=int(value["images"]),
                prior=None if value["prior"] is None else Prediction(**value["prior"]),
                left_out=None if value["left_out"] is None else Prediction(**value["left_out"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedFile(
                f"saved worths must be whole ({error})", remedy="Delete the file; they are redone."
            ) from error


def from_paths(
    supernet: Supernet, images: ImageCache, *, paths: int, limit: int | None, seed: int, batch: int = 128
) -> ChoiceEffects:
    """Step 1: every validation image takes `paths` random paths; regression of its answers on what it took."""
    layout = Layout(supernet.space)
    size = layout.columns
    gram, moment, power, rows, count = np.zeros((size, size)), np.zeros((size, 3)), np.zeros(3), 0, 0
    with torch.no_grad(), prepared(supernet):
        for number, (pixels, labels) in enumerate(images.batches("val", device_of(supernet), limit, batch)):
            x, y = [], []
            for turn in range(paths):
                taken = supernet.sample_paths(len(labels), Seed(seed).fold_in("worths", number, turn).numpy())
                logits = supernet(pixels, taken)
                losses = F.cross_entropy(logits, labels, reduction="none")
                x.append(layout.features(taken))
                right = (logits.argmax(1) == labels).to(losses)
                y.append(torch.stack([losses, right, right - losses], dim=1).double().cpu().numpy())
            xs, ys = np.stack(x), np.stack(y)  # [paths, images, columns], [paths, images, (loss, right, value)]
            xs = (xs - xs.mean(0)).reshape(-1, size)
            ys = (ys - ys.mean(0)).reshape(-1, 3)
            gram += xs.T @ xs
            moment += xs.T @ ys
            power += (ys**2).sum(0)
            rows, count = rows + len(ys), count + len(labels)
    freedom = max(1, rows - count - np.linalg.matrix_rank(gram))
    inverse = np.linalg.inv(gram + _RIDGE * max(np.trace(gram) / size, 1e-12) * np.eye(size))
    effect = inverse @ moment  # [columns, (loss, right, value)]
    noise = np.maximum(power - 2 * (effect * moment).sum(0) + (effect * (gram @ effect)).sum(0), 0.0) / freedom
    error = np.sqrt(np.maximum(np.outer(np.diag(inverse @ gram @ inverse), noise), 0.0))
    return ChoiceEffects(
        value=effect[:, 2],
        error=error[:, 2],
        loss=effect[:, 0],
        loss_error=error[:, 0],
        right=effect[:, 1],
        right_error=error[:, 1],
        paths=paths,
        images=count * paths,
    )


def corrected(
    effects: ChoiceEffects, space: SearchSpace, networks: Sequence[Architecture], values: Sequence[float]
) -> ChoiceEffects:
    """Step 2: path worths as prior, real values as evidence; both kinds of prediction are evaluated."""
    layout = Layout(space)
    x = layout.features(layout.encode(networks))
    x = x - x.mean(0)
    y, prior = np.array(values), x @ effects.value
    with_prior, without = np.stack([np.ones(len(y)), prior - prior.mean()], axis=1), np.ones((len(y), 1))
    z, slope = without, 0.0
    if np.ptp(prior) >= 1e-12:
        slope = _slope(x, y, with_prior)
        # A prior of the wrong sign is dropped and everything fitted without it: a clipped slope beside a correction that
        # was fitted to the unclipped one would claim to predict what it does not.
        z, slope = (with_prior, slope) if slope > 0 else (without, 0.0)
    ratio = _ratio(x, y, z)
    _, projector = _kernel(x, z, ratio / x.shape[1])
    noise = float(y @ projector @ y) / max(1, len(y) - z.shape[1])
    spread = noise * ratio / x.shape[1]
    shift = (ratio / x.shape[1]) * x.T @ (projector @ y)
    doubt = spread * np.maximum(1 - (ratio / x.shape[1]) * np.einsum("ij,ik,kj->j", x, projector, x), 0.0)
    left_out = y - (projector @ y) / np.diag(projector)
    return replace(
        effects,
        value=slope * effects.value + shift,
        error=np.sqrt(doubt + (slope * effects.error) ** 2),
        prior=agreement(prior, y),
        left_out=agreement(left_out, y),
    )


def _ratio(x: Floats, y: Floats, z: Floats) -> float:
    """Variance of the corrections over that of the noise, of greatest restricted likelihood."""
    return float(max(np.geomspace(1e-4, 1e1, 26), key=lambda r: _likelihood(x, y, z, r / x.shape[1])))


def _slope(x: Floats, y: Floats, z: Floats) -> float:
    """How much of the prior (the second column of `z`) the scores show."""
    inverse, _ = _kernel(x, z, _ratio(x, y, z) / x.shape[1])
    return float(np.linalg.solve(z.T @ inverse @ z, z.T @ inverse @ y)[1])


def _kernel(x: Floats, z: Floats, ratio: float) -> tuple[Floats, Floats]:
    """K^-1 for K = I + ratio X X', and the projector that takes the free levels Z out of it."""
    inverse: Floats = np.linalg.inv(np.eye(len(x)) + ratio * x @ x.T).astype(np.float64)
    weighted = inverse @ z
    projector: Floats = inverse - weighted @ np.linalg.solve(z.T @ weighted, weighted.T).astype(np.float64)
    return inverse, projector


def _likelihood(x: Floats, y: Floats, z: Floats, ratio: float) -> float:
    """Restricted log likelihood with the noise profiled out."""
    inverse, projector = _kernel(x, z, ratio)
    freedom = len(y) - z.shape[1]
    residual = max(float(y @ projector @ y) / freedom, 1e-30)
    _, log_inverse = np.linalg.slogdet(inverse)
    _, log_levels = np.linalg.slogdet(z.T @ inverse @ z)
    return float(0.5 * log_inverse - 0.5 * log_levels - 0.5 * freedom * math.log(residual))


def agreement(predicted: Floats, true: Floats) -> Prediction:
    """Correlation and its standard error; nothing is claimed where one of the two does not vary."""
    if np.ptp(predicted) == 0 or np.ptp(true) == 0:
        return Prediction(correlation=0.0, error=1.0, networks=len(true))
    r = float(np.corrcoef(predicted, true)[0, 1])
    return Prediction(correlation=r, error=(1 - r * r) / math.sqrt(max(1, len(true) - 2)), networks=len(true))
