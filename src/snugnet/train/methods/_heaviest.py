"""Heaviest: train the largest network of the space alone. Phase one of HardCoRe-NAS (250 epochs)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor, nn

from snugnet.space.sampling import heaviest
from snugnet.train.losses import cross_entropy
from snugnet.train.method import Method, Rule, Step
from snugnet.train.methods._preparing import prepare


@final
@dataclass(frozen=True, kw_only=True)
class Heaviest(Method):
    """The network that holds all others, trained like any plain network."""

    name: ClassVar[str] = "heaviest"
    elastic: ClassVar[bool] = True
    epochs: int = 250
    open_gates: bool = False  # squeeze-excite gates start nearly open instead of half open

    def own_rules(self) -> list[Rule]:
        return []

    def begin(self, model: nn.Module) -> None:
        prepare(model, gates=self.open_gates)

    def step(self, step: Step) -> dict[str, Tensor]:
        logits = step.net(step.images, heaviest(step.net.space))
        loss = cross_entropy(logits, step.targets, self.label_smoothing)
        step.backward(loss)
        return {"loss": loss.detach()}
