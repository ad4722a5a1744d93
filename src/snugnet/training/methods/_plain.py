"""A plain network: fine-tuned with inherited weights, or trained from scratch.

With a teacher (for an extracted network: the largest one) the loss is (1 - distill) * cross entropy + distill * T^2
* KL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

from torch import Tensor, nn

from snugnet.errors import BadInput
from snugnet.training.losses import cross_entropy, distillation, distillation_rules
from snugnet.training.method import Method, MethodState, PhaseContext, Rule, Step


@final
@dataclass(frozen=True, kw_only=True)
class Plain(Method):
    """One network without choices; `distill` needs a teacher passed to `train`."""

    name: ClassVar[str] = "plain"
    elastic: ClassVar[bool] = False
    epochs: int = 10
    distill: float = 0.0
    temperature: float = 1.0
    dropout: float | None = None  # before the last layer; None: the network's own
    drop_connect: float = 0.0  # block i of n is left out, beside its shortcut, for this share of images times i / n

    def own_rules(self) -> list[Rule]:
        return [
            *distillation_rules(self.distill, self.temperature),
            ("dropout must lie in [0, 1)", self.dropout, self.dropout is None or 0 <= self.dropout < 1),
            ("drop_connect must lie in [0, 1)", self.drop_connect, 0 <= self.drop_connect < 1),
        ]

    def prepare(self, model: nn.Module) -> None:
        pass

    def start(self, context: PhaseContext) -> MethodState:
        net: Any = context.net
        if self.dropout is not None:
            net.head.dropout.p = self.dropout
        if self.drop_connect:
            blocks = [block for stage in net.stages for block in stage]
            for number, block in enumerate(blocks, 1):
                block.drop_connect = self.drop_connect * number / len(blocks)
        return MethodState()

    def step(self, step: Step, state: MethodState) -> dict[str, Tensor]:
        logits = step.net(step.images)
        if self.distill == 0:
            loss = cross_entropy(logits, step.targets, self.label_smoothing)
        else:
            if step.teacher is None:
                raise BadInput(f"distill={self.distill} needs a teacher", remedy="Pass teacher=..., or distill=0.")
            loss = distillation(
                logits,
                step.teacher(step.images),
                step.targets,
                weight=self.distill,
                temperature=self.temperature,
                smoothing=self.label_smoothing,
            )
        step.backward(loss)
        return {"loss": loss.detach()}


def finetune(**changes: Any) -> Plain:
    """From inherited weights, with distillation, as in HardCoRe-NAS, appendix G, which trains 10 or 50 epochs and gives
    neither the weight of the teacher nor the learning rate: 0.9 and a tenth of the usual rate are ours."""
    return Plain(**{"epochs": 10, "lr": 0.01, "distill": 0.9, **changes})


def scratch(**changes: Any) -> Plain:
    """From random weights: 250 epochs, five of them warming up (ours)."""
    return Plain(**{"epochs": 250, "warmup_epochs": 5.0, **changes})
