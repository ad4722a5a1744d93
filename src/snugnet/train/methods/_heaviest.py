"""Heaviest: train the largest network of the space alone. Phase one of HardCoRe-NAS (250 epochs)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from snugnet.space.sampling import heaviest
from snugnet.train.losses import cross_entropy
from snugnet.train.method import Method, Net, Step


@final
@dataclass(frozen=True, kw_only=True)
class Heaviest(Method):
    """The network that holds all others, trained like any plain network."""

    name: ClassVar[str] = "heaviest"
    elastic: ClassVar[bool] = True
    epochs: int = 250

    def begin(self, net: Net) -> None:
        pass

    def step(self, step: Step) -> dict[str, Tensor]:
        logits = step.net(step.images, heaviest(step.net.space))
        loss = cross_entropy(logits, step.targets, self.label_smoothing)
        step.backward(loss)
        return {"loss": loss.detach()}
