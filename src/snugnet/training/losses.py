"""Losses of classification and distillation, all from logits and all in float32 or better.

Targets are probabilities [N, classes] (mixup makes them soft); results are means over the batch. The teacher's logits
are never differentiated. `Distillation` is what methods name: soft cross entropy, KL, or alpha. The last is AlphaNet's
adaptive alpha-divergence: of two divergences, one punishing a student that misses what the teacher sees and one punishing
a student that sees what the teacher does not, each sample takes the worse. `CollapseWatch` notices a network that had learnt
and falls back to chance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor
from torch.nn import functional

from snugnet.errors import BadInput


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross entropy to soft targets, with `smoothing` of the weight spread evenly over all classes."""
    if logits.shape[-1] != targets.shape[-1]:
        raise BadInput(
            "the network must have an output for each class of the data",
            value=f"{logits.shape[-1]} outputs for {targets.shape[-1]} classes",
            remedy=f"Build the space with classes={targets.shape[-1]}.",
        )
    log_q = _log_softmax(logits)
    smooth = (targets * (1 - smoothing) + smoothing / targets.shape[-1]).to(log_q.dtype)
    return -(smooth * log_q).sum(-1).mean()


def soft_cross_entropy(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """-sum p_T log q_T, the teacher's softened answer as target."""
    p = _log_softmax(teacher.detach(), temperature).exp()
    return -(p * _log_softmax(student, temperature)).sum(-1).mean()


def kl_divergence(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(p_T || q_T), without the factor T^2."""
    log_p = _log_softmax(teacher.detach(), temperature)
    log_q = _log_softmax(student, temperature)
    return (log_p.exp() * _gap(log_p, log_q)).sum(-1).mean()


def distillation(
    student: Tensor,
    teacher: Tensor,
    targets: Tensor,
    *,
    weight: float = 0.9,
    temperature: float = 1.0,
    smoothing: float = 0,
) -> Tensor:
    """(1 - b) * cross entropy + b * T^2 * KL(p_T || q_T)."""
    hard = cross_entropy(student, targets, smoothing)
    return (1 - weight) * hard + weight * temperature**2 * kl_divergence(student, teacher, temperature)


Divergence = Literal["soft-cross-entropy", "kl", "alpha"]


@final
@dataclass(frozen=True, kw_only=True)
class Distillation:
    """How a student hears its teacher: (1 - weight) * cross entropy to the labels + weight * T^2 * divergence.

    `soft-cross-entropy` and `kl` have the same gradient; `alpha` is AlphaNet's and has no temperature."""

    loss: Divergence = "kl"
    weight: float = 0.9
    temperature: float = 1.0
    alpha_min: float = -1.0
    alpha_max: float = 1.0
    clip: float = 5.0

    def __call__(
        self, student: Tensor, teacher: Tensor, targets: Tensor, smoothing: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """(loss to differentiate, the same for people to read): two values only where the first is a surrogate."""
        if self.weight == 0:
            hard = cross_entropy(student, targets, smoothing)
            return hard, hard.detach()
        if self.loss == "kl":
            mixed = distillation(
                student, teacher, targets, weight=self.weight, temperature=self.temperature, smoothing=smoothing
            )
            return mixed, mixed.detach()
        hard = (
            cross_entropy(student, targets, smoothing)
            if self.weight < 1
            else student.new_zeros((), dtype=torch.float32)
        )
        if self.loss == "alpha":
            bounds = {"alpha_min": self.alpha_min, "alpha_max": self.alpha_max, "clip": self.clip}
            soft, value = adaptive_alpha(student, teacher, **bounds)
        else:
            soft = self.temperature**2 * soft_cross_entropy(student, teacher, self.temperature)
            value = soft.detach()
        label = (1 - self.weight) * hard
        return label + self.weight * soft, label.detach() + self.weight * value

    def rules(self) -> list[tuple[str, float, bool]]:
        """What must hold, for `Method.own_rules`."""
        return [
            *distillation_rules(self.weight, self.temperature),
            ("loss 'alpha' has no temperature", self.temperature, self.loss != "alpha" or self.temperature == 1),
            ("alpha_clip must be greater than 1", self.clip, self.clip > 1),
            ("alpha_min must be below alpha_max", self.alpha_min, self.alpha_min < self.alpha_max),
        ]


def distillation_rules(weight: float, temperature: float) -> list[tuple[str, float, bool]]:
    """What a method's `distill` and `temperature` must satisfy."""
    return [
        ("distill must lie in [0, 1]", weight, 0 <= weight <= 1),
        ("temperature must be positive", temperature, temperature > 0),
    ]


def alpha_divergence(student: Tensor, teacher: Tensor, alpha: float, *, clip: float | None = 5.0) -> Tensor:
    """D_a(p || q) of every sample [N], with r^a = (p/q)^a cut at `clip` (never at a = 1, nor at a = 0)."""
    log_p, log_q = _log_softmax(teacher.detach()), _log_softmax(student)
    ratio = _gap(log_p, log_q)
    if _is(alpha, 1):
        return (log_p.exp() * ratio).sum(-1)
    if _is(alpha, 0):
        return -(log_q.exp() * ratio).sum(-1)
    return (_weighted_power(log_q, ratio, alpha, clip) - log_q.exp()).sum(-1) / (alpha * (alpha - 1))


def adaptive_alpha(
    student: Tensor, teacher: Tensor, *, alpha_min: float = -1.0, alpha_max: float = 1.0, clip: float = 5.0
) -> tuple[Tensor, Tensor]:
    """AlphaNet's loss: (surrogate to differentiate, true divergence to read), both means over the batch.

    A sample follows alpha_min where that divergence is the larger one, else alpha_max. The surrogate's value means nothing
    and may be negative; its gradient is the divergence's, with the clipped ratio held constant.
    """
    value_min = alpha_divergence(student.detach(), teacher, alpha_min, clip=clip)
    value_max = alpha_divergence(student.detach(), teacher, alpha_max, clip=clip)
    surrogate_min = _surrogate(student, teacher, alpha_min, clip)
    surrogate_max = _surrogate(student, teacher, alpha_max, clip)
    lower = value_min > value_max
    surrogate = torch.where(lower, surrogate_min, surrogate_max).mean()
    return surrogate, torch.maximum(value_min, value_max).mean()


def _surrogate(student: Tensor, teacher: Tensor, alpha: float, clip: float | None) -> Tensor:
    """-sum stop(q * rho) log q with rho = w/a + 1/(a (a-1)); rho = r at a = 1 and log r - 1 at a = 0."""
    log_p, log_q = _log_softmax(teacher.detach()), _log_softmax(student)
    fixed = log_q.detach()
    ratio = _gap(log_p, fixed)
    if _is(alpha, 1):
        factor = log_p.exp()  # q * r, without a division
    elif _is(alpha, 0):
        factor = fixed.exp() * (ratio - 1)
    else:
        factor = _weighted_power(fixed, ratio, alpha, clip) / alpha + fixed.exp() / (alpha * (alpha - 1))
    return -(factor * log_q.clamp(min=_FLOOR)).sum(-1)


_FLOOR = -1e30  # stands for the logarithm of zero, so that 0 * log 0 is 0
_LIMIT = 1e-3  # this near to 0 and 1 the family's limits are taken: its own formula loses all digits there


def _is(alpha: float, limit: int) -> bool:
    return abs(alpha - limit) < _LIMIT


def _log_softmax(logits: Tensor, temperature: float = 1.0) -> Tensor:
    precise = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    return functional.log_softmax((precise / temperature).clamp(_FLOOR, -_FLOOR), -1)


def _gap(log_p: Tensor, log_q: Tensor) -> Tensor:
    """log(p/q), finite for any finite logits."""
    return log_p.clamp(min=_FLOOR) - log_q.clamp(min=_FLOOR)


def _weighted_power(log_q: Tensor, ratio: Tensor, alpha: float, clip: float | None) -> Tensor:
    """q * min(r^a, clip), added in log space: neither factor is ever formed, so neither can overflow."""
    exponent = alpha * ratio
    return (log_q + (exponent if clip is None else exponent.clamp(max=math.log(clip)))).exp()


LEARNT = 0.75  # of the loss by chance: below this, smoothed, the network has learnt something
CHANCE = 0.97  # of the loss by chance: from here on it knows nothing
PATIENCE = 20  # steps in a row
_SMOOTH = 0.1


@final
class CollapseWatch:
    """Watches the largest network's loss for a fall back to chance, to stop before the fallen weights are kept.

    Users of sandwich training saw it within a few steps (AttentiveNAS#5, AlphaNet#9), and trained on for days. A network
    that knows nothing has a cross entropy of log(classes), label smoothing or not. Once the smoothed loss has been well
    below that, a stretch of steps at or above it is a collapse; a single bad batch is not. While a stretch lasts, nothing is
    saved. The memory is one tensor, so that a checkpoint can carry it."""

    def __init__(self, classes: int, device: torch.device | None = None) -> None:
        self._chance = math.log(classes)
        # smoothed loss, its lowest value, steps in a row at chance
        self.tensor: Tensor = torch.tensor([math.inf, math.inf, 0.0], dtype=torch.float64, device=device)

    @property
    def doubtful(self) -> bool:
        """Whether the last step was at chance though the network had learnt."""
        return bool(self.tensor[2] > 0)

    def collapsed(self, loss: float) -> bool:
        """Take the next step's loss; True at the end of a stretch that is too long."""
        smoothed, lowest, count = self.tensor.tolist()
        smoothed = loss if math.isinf(smoothed) else smoothed + _SMOOTH * (loss - smoothed)
        fallen = lowest < LEARNT * self._chance and loss >= CHANCE * self._chance
        count = count + 1 if fallen else 0
        self.tensor.copy_(torch.tensor([smoothed, min(lowest, smoothed), count], dtype=torch.float64))
        return count >= PATIENCE
