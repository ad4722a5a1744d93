"""Multipath: every image of a batch takes a path of its own. Phase two of HardCoRe-NAS (100 epochs).

One step thus trains as many sub-networks as the batch has images, at about the price of an average one. With
`distill` the heaviest network runs on the same batch first, learns from the labels, and is the teacher of all paths:
the loss of the paths becomes (1 - distill) * cross entropy + distill * T^2 * KL(teacher || path).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from snugnet.train.method import Method, Net, Step, check_share
from snugnet.train.methods._inplace import paths_step
from snugnet.train.methods._sorting import sort_if_wanted


@final
@dataclass(frozen=True, kw_only=True)
class Multipath(Method):
    """A path per image, uniform over the choices of every block and the depths of every stage."""

    name: ClassVar[str] = "multipath"
    elastic: ClassVar[bool] = True
    epochs: int = 100
    sort_channels: bool = False  # order channels by importance first, so that narrow blocks keep the best ones
    distill: float = 0.0
    temperature: float = 1.0

    def begin(self, net: Net) -> None:
        check_share("distill", self.distill)
        sort_if_wanted(net, self.sort_channels)

    def step(self, step: Step) -> dict[str, Tensor]:
        paths = step.net.sample_paths(len(step.images), step.own.at("paths").numpy())
        return paths_step(step, paths, self.label_smoothing, self.distill, self.temperature)
