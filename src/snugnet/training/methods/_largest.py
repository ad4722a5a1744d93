"""Largest: train the largest network of the space alone. Phase one of HardCoRe-NAS (250 epochs)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor, nn

from snugnet.space.sampling import largest
from snugnet.training.losses import cross_entropy
from snugnet.training.method import Method, Rule, Step
from snugnet.training.methods._preparing import prepare


@final
@dataclass(frozen=True, kw_only=True)
class Largest(Method):
    """The network that holds all others, trained like any plain network."""

    name: ClassVar[str] = "largest"
    elastic: ClassVar[bool] = True
    epochs: int = 250
    se_bias_init: bool = False  # squeeze-excite gates start nearly open instead of half open

    def own_rules(self) -> list[Rule]:
        return []

    def begin(self, model: nn.Module) -> None:
        prepare(model, gates=self.se_bias_init)

    def step(self, step: Step) -> dict[str, Tensor]:
        logits = step.net(step.images, largest(step.net.space))
        loss = cross_entropy(logits, step.targets, self.label_smoothing)
        step.backward(loss)
        return {"loss": loss.detach()}
