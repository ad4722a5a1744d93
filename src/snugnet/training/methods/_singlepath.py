"""Singlepath: one random sub-network per batch, the same on all processes. The baseline of HardCoRe-NAS, figure 4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor, nn

from snugnet.space.sampling import largest, mutate, sample
from snugnet.training.method import Method, Rule, Step
from snugnet.training.methods._inplace import curriculum_rule, distillation_rules, paths_step
from snugnet.training.methods._preparing import prepare


@final
@dataclass(frozen=True, kw_only=True)
class Singlepath(Method):
    """A path per batch, uniform over the choices of every block and the depths of every stage."""

    name: ClassVar[str] = "singlepath"
    elastic: ClassVar[bool] = True
    epochs: int = 100
    sort_channels: bool = False
    inherit_kernels: bool = False  # small kernels start as the centre of the largest one
    distill: float = 0.0
    temperature: float = 1.0
    curriculum_epochs: float = 0.0

    def own_rules(self) -> list[Rule]:
        return [*distillation_rules(self.distill, self.temperature), curriculum_rule(self.curriculum_epochs)]

    def begin(self, model: nn.Module) -> None:
        prepare(model, sort=self.sort_channels, kernels=self.inherit_kernels)

    def step(self, step: Step) -> dict[str, Tensor]:
        rng, space = step.shared.fold_in("path").numpy(), step.net.space
        if step.epoch < self.curriculum_epochs:
            path = mutate(space, largest(space), rng, step.epoch / self.curriculum_epochs)
        else:
            path = sample(space, rng)
        return paths_step(step, path, self.label_smoothing, self.distill, self.temperature)
