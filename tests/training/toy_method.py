"""A bi-level method in the manner of DARTS, as small as it gets: what a method with a state of its own looks like.

Logits over the space's networks-by-depth weigh one path per image; they learn on `val` with Adam, the weights on `train`
with the loop's SGD. The cost of a deep network, from the table it was given, is part of the logits' loss.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from snugnet.space.sampling import largest, smallest
from snugnet.training.losses import cross_entropy
from snugnet.training.method import Method, MethodState, Stream


@final
@dataclass(frozen=True, kw_only=True)
class Bilevel(Method):
    name: ClassVar[str] = "bilevel"
    elastic: ClassVar[bool] = True
    epochs: int = 3
    second_batch: int = 8

    def start(self, context):
        logits = torch.zeros(2, device=context.device, requires_grad=True)
        baseline = torch.zeros((), device=context.device)
        adam = torch.optim.Adam([logits], lr=0.05, betas=(0.5, 0.999))
        ends = (largest(context.space), smallest(context.space))
        costs = [float(sum(context.tables["depth"])), 1.0] if "depth" in context.tables else [2.0, 1.0]
        return MethodState(
            tensors={"logits": logits, "baseline": baseline},
            optimisers={"adam": adam},
            stream=Stream(split="val", batch=self.second_batch),
            constants=(ends, torch.tensor(costs, device=context.device)),
        )

    def step(self, step, state):
        logits, (ends, costs) = state.tensors["logits"], state.constants
        images, targets = step.second()
        shares = logits.softmax(0)
        losses = torch.stack([cross_entropy(step.net(images, end), targets) for end in ends])
        step.backward((shares * losses.detach()).sum() + 0.1 * (shares * costs).sum(), inputs=[logits])
        chosen = ends[int(step.shared.fold_in("end").numpy().random() > float(shares[0].detach()))]
        loss = cross_entropy(step.net(step.images, chosen), step.targets, self.label_smoothing)
        step.backward(loss)
        state.tensors["baseline"].mul_(0.9).add_(0.1 * step.epoch)
        return {"loss": loss.detach(), "share": shares[0].detach()}
