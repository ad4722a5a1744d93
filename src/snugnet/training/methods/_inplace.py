"""A step through given paths, alone or taught in place by the largest network of the same weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from snugnet.space.sampling import largest
from snugnet.training.losses import cross_entropy, distillation
from snugnet.training.method import Rule, Step


def paths_step(step: Step, paths: Any, smoothing: float, distill: float, temperature: float) -> dict[str, Tensor]:
    """Backward passes of one step; the teacher's pass, if any, comes first and learns from the labels only."""
    if distill == 0:
        loss = cross_entropy(step.net(step.images, paths), step.targets, smoothing)
        step.backward(loss)
        return {"loss": loss.detach()}
    teacher = step.net(step.images, largest(step.net.space))
    teacher_loss = cross_entropy(teacher, step.targets, smoothing)
    step.backward(teacher_loss)
    student = step.net(step.images, paths)
    loss = distillation(
        student, teacher.detach(), step.targets, weight=distill, temperature=temperature, smoothing=smoothing
    )
    step.backward(loss)
    return {"loss": loss.detach(), "teacher_loss": teacher_loss.detach()}


def distillation_rules(distill: float, temperature: float) -> list[Rule]:
    return [
        ("distill must lie in [0, 1]", distill, 0 <= distill <= 1),
        ("temperature must be positive", temperature, temperature > 0),
    ]


def curriculum_rule(epochs: float) -> Rule:
    return ("curriculum_epochs must not be negative", epochs, epochs >= 0)
