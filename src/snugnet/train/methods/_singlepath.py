"""Singlepath: one random sub-network per batch, the same on all processes. The baseline of HardCoRe-NAS, figure 4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor, nn

from snugnet.space.sampling import sample
from snugnet.train.method import Method, Step, check_share
from snugnet.train.methods._inplace import paths_step
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

    def begin(self, model: nn.Module) -> None:
        check_share("distill", self.distill)
        prepare(model, sort=self.sort_channels, kernels=self.inherit_kernels)

    def step(self, step: Step) -> dict[str, Tensor]:
        path = sample(step.net.space, step.shared.at("path").numpy())
        return paths_step(step, path, self.label_smoothing, self.distill, self.temperature)
