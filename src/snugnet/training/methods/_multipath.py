"""Multipath: every image of a batch takes a path of its own. Phase two of HardCoRe-NAS (100 epochs).

One step thus trains as many sub-networks as the batch has images, at about the price of an average one. With
`distill` the largest network runs on the same batch first, learns from the labels, and is the teacher of all paths:
the loss of the paths becomes (1 - distill) * cross entropy + distill * T^2 * KL(teacher || path).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from torch import Tensor, nn

from snugnet.space.genes import encode
from snugnet.space.sampling import largest, mutate_many
from snugnet.training.method import Method, Rule, Step
from snugnet.training.methods._inplace import curriculum_rule, distillation_rules, paths_step
from snugnet.training.methods._preparing import prepare


@final
@dataclass(frozen=True, kw_only=True)
class Multipath(Method):
    """A path per image, uniform over the choices of every block and the depths of every stage."""

    name: ClassVar[str] = "multipath"
    elastic: ClassVar[bool] = True
    epochs: int = 100
    sort_channels: bool = False  # order channels by importance first, so that narrow blocks keep the best ones
    inherit_kernels: bool = False  # small kernels start as the centre of the largest one
    distill: float = 0.0
    temperature: float = 1.0
    curriculum_epochs: float = (
        0.0  # paths leave the largest network step by step over this time; 0: uniform from the start
    )

    def own_rules(self) -> list[Rule]:
        return [*distillation_rules(self.distill, self.temperature), curriculum_rule(self.curriculum_epochs)]

    def begin(self, model: nn.Module) -> None:
        prepare(model, sort=self.sort_channels, kernels=self.inherit_kernels)

    def step(self, step: Step) -> dict[str, Tensor]:
        rng = step.own.fold_in("paths").numpy()
        if step.epoch < self.curriculum_epochs:
            space = step.net.space
            start = encode([largest(space)], space).take(np.zeros(len(step.images), dtype=np.int64))
            paths = mutate_many(space, start, rng, step.epoch / self.curriculum_epochs)
        else:
            paths = step.net.sample_paths(len(step.images), rng)
        return paths_step(step, paths, self.label_smoothing, self.distill, self.temperature)
