"""A plain network: fine-tuned with inherited weights, or trained from scratch.

With a teacher (for an extracted network: the largest one) the loss is (1 - distill) * cross entropy + distill * T^2
* KL. A teacher of other classes has nothing to say about these, but its features do: with `distill_features` the direction
of what the classifier sees is drawn towards the teacher's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

from torch import Tensor
from torch.nn import functional

from snugnet.errors import BadInput
from snugnet.training.losses import Distillation, cross_entropy, distillation_rules
from snugnet.training.method import Method, MethodState, PhaseContext, Rule, Step


@final
@dataclass(frozen=True, kw_only=True)
class Plain(Method):
    """One network without choices; `distill` needs a teacher passed to `train`."""

    name: ClassVar[str] = "plain"
    elastic: ClassVar[bool] = False
    epochs: int | float = 10
    distill: float = 0.0
    temperature: float = 1.0
    distill_features: float = (
        0.0  # weight of 1 - cosine between pooled features and the teacher's, whatever its classes
    )
    dropout: float | None = None  # before the last layer; None: the network's own
    drop_connect: float = 0.0  # block i of n is left out, beside its shortcut, for this share of images times i / n

    def own_rules(self) -> list[Rule]:
        return [
            *distillation_rules(self.distill, self.temperature),
            ("distill_features must not be negative", self.distill_features, self.distill_features >= 0),
            ("dropout must lie in [0, 1)", self.dropout, self.dropout is None or 0 <= self.dropout < 1),
            ("drop_connect must lie in [0, 1)", self.drop_connect, 0 <= self.drop_connect < 1),
        ]

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
        teacher: Any = step.teacher
        taught = Distillation(weight=self.distill, temperature=self.temperature)
        if self.distill == 0 and self.distill_features == 0:
            loss = cross_entropy(step.net(step.images), step.targets, self.label_smoothing)
        elif teacher is None:
            weights = f"distill={self.distill}, distill_features={self.distill_features}"
            raise BadInput(f"{weights} needs a teacher", remedy="Pass teacher=..., or set both to 0.")
        elif self.distill_features == 0:
            loss, _ = taught(step.net(step.images), teacher(step.images), step.targets, self.label_smoothing)
        else:
            logits, features = step.net.with_features(step.images)
            answers, seen = teacher(step.images, with_features=True)
            gap = 1 - functional.cosine_similarity(features.float(), seen.float().detach()).mean()
            loss, _ = taught(logits, answers, step.targets, self.label_smoothing)
            loss = loss + self.distill_features * gap
            step.backward(loss)
            return {"loss": loss.detach(), "feature_gap": gap.detach()}
        step.backward(loss)
        return {"loss": loss.detach()}


def finetune(**changes: Any) -> Plain:
    """From inherited weights, with distillation, as in HardCoRe-NAS, appendix G, which trains 10 or 50 epochs and gives
    neither the weight of the teacher nor the learning rate: 0.9 and a tenth of the usual rate are ours."""
    return Plain(**{"epochs": 10, "lr": 0.01, "distill": 0.9, **changes})


def scratch(**changes: Any) -> Plain:
    """From random weights: 250 epochs, five of them warming up (ours)."""
    return Plain(**{"epochs": 250, "warmup_epochs": 5.0, **changes})
