"""Which way is better? Gradients of the relaxed super-network, HardCoRe-NAS's question to it.

Every image takes a path sampled from the current point, the loss is differentiated with respect to the one-hot choices,
and the images' gradients are summed (`sampled`); or the mixture itself is differentiated (`expected`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal, final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from snugnet.data.dataset import Data
from snugnet.evaluate.evaluator import placed
from snugnet.nets import Supernet
from snugnet.seeds import Seed

Floats = NDArray[np.float64]
GradientKind = Literal["sampled", "expected"]


@contextlib.contextmanager
def fixed_weights(network: nn.Module) -> Iterator[None]:
    """Inside, nothing is recorded for gradients of the weights: only those of alpha and beta are wanted."""
    wanted = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for parameter in wanted:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in wanted:
            parameter.requires_grad_(True)


@final
class RelaxedObjective:
    """Loss and gradient of the relaxed super-network on validation batches chosen by the step's number."""

    def __init__(
        self,
        supernet: Supernet,
        data: Data,
        *,
        split: str = "val",
        batch: int = 64,
        kind: GradientKind = "sampled",
        seed: int = 0,
    ) -> None:
        move: Any = supernet.eval().to
        self.supernet, self.data, self.kind = move(memory_format=torch.channels_last), data, kind
        self._positions, self._batch, self._seed = data.positions(split), batch, Seed(seed).fold_in("relaxed")
        self._device = next(supernet.parameters()).device
        self.images = 0

    def __call__(
        self, alpha: Sequence[Floats], beta: Sequence[Floats], step: int
    ) -> tuple[float, list[Floats], list[Floats]]:
        """(mean loss, its gradient by block, its gradient by stage) at the probabilities `alpha`, `beta`."""
        images, labels = self._batch_of(step)
        rng = self._seed.fold_in("paths", step).numpy()
        count = len(labels) if self.kind == "sampled" else None
        a = [self._weights(vector, count, rng) for vector in alpha]
        b = [self._weights(vector, count, rng) for vector in beta]
        with fixed_weights(self.supernet):
            loss = F.cross_entropy(self.supernet(images, a, b), labels)
            gradients = torch.autograd.grad(loss, [*a, *b])
        self.images += len(labels)
        flat = [(g.sum(0) if g.dim() == 2 else g).double().cpu().numpy() for g in gradients]
        return float(loss.detach()), flat[: len(a)], flat[len(a) :]

    def _batch_of(self, step: int) -> tuple[Tensor, Tensor]:
        """Epochs of shuffled validation images; which ones is a function of the step alone."""
        size = min(self._batch, len(self._positions))
        per_epoch = max(1, len(self._positions) // size)
        epoch, place = divmod(step, per_epoch)
        order = torch.from_numpy(self._seed.fold_in("order", epoch).numpy().permutation(len(self._positions)))
        chosen = self._positions[order[place * size : (place + 1) * size]]
        images, labels = next(iter(self.data.fetch([chosen])))
        return placed(self.data.normalise(images.float() / 255), self._device), labels.to(self._device)

    def _weights(self, vector: Floats, count: int | None, rng: np.random.Generator) -> Tensor:
        if count is None:
            return torch.tensor(vector, dtype=torch.float32, device=self._device, requires_grad=True)
        # The arg-max of Gumbel noise plus log-probabilities is a draw from the probabilities themselves.
        drawn = rng.choice(len(vector), size=count, p=vector / vector.sum())
        hot = F.one_hot(torch.from_numpy(drawn), len(vector)).float()
        return hot.to(self._device).requires_grad_()
