"""Singlepath: one random sub-network per batch, the same on all processes. The baseline of HardCoRe-NAS, figure 4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor, nn

from snugnet.space.sampling import heaviest, mutate, sample
from snugnet.train.method import Method, Rule, Step
from snugnet.train.methods._inplace import distillation_rules, paths_step, ramp_rule
from snugnet.train.methods._preparing import prepare


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
    ramp_epochs: float = 0.0

    def own_rules(self) -> list[Rule]:
        return [*distillation_rules(self.distill, self.temperature), ramp_rule(self.ramp_epochs)]

    def begin(self, model: nn.Module) -> None:
        prepare(model, sort=self.sort_channels, kernels=self.inherit_kernels)

    def step(self, step: Step) -> dict[str, Tensor]:
        rng, space = step.shared.at("path").numpy(), step.net.space
        if step.epoch < self.ramp_epochs:
            path = mutate(space, heaviest(space), rng, step.epoch / self.ramp_epochs)
        else:
            path = sample(space, rng)
        return paths_step(step, path, self.label_smoothing, self.distill, self.temperature)
