"""The objective of Frank-Wolfe: loss and gradients of the relaxed super-network.

Every image takes a path sampled from the current point, the loss is differentiated with respect to the one-hot choices,
and the images' gradients are summed (`sampled`); or the mixture itself is differentiated (`expected`).

Mixed paths are far less sure of themselves than real networks, so the gradient of their plain cross entropy mostly asks for
surer answers, which is depth. Networks are compared with that taken out (`evaluate.scoring`), and so is this loss: logits
are multiplied by the scale that suits sampled paths best, fitted once and constant in the gradient (`calibrate`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugnet.evaluate.scoring import ImageCache, best_scale, device_of, resized
from snugnet.nets import Supernet
from snugnet.nets.network import fixed_weights
from snugnet.seeds import Seed
from snugnet.solve.problem import Floats as Floats

GradientKind = Literal["sampled", "expected"]
LossKind = Literal["calibrated", "plain"]
_CALIBRATION_IMAGES = 256  # whose sampled paths the scale of the logits is fitted to


@contextlib.contextmanager
def prepared(network: nn.Module) -> Iterator[None]:
    """Inside, the network is in evaluation mode with channels-last weights; afterwards as its owner left it."""
    modes = {module: module.training for module in network.modules()}
    weights = [(parameter, parameter.data) for parameter in network.parameters()]
    move: Any = network.eval().to  # the overload with a memory format is missing from torch's type stubs
    move(memory_format=torch.channels_last)
    try:
        yield
    finally:
        for parameter, data in weights:
            parameter.data = data
        for module, training in modes.items():
            module.training = training


@final
class RelaxedObjective:
    """Loss and gradient of a `prepared` relaxed super-network on validation batches chosen by the step's number."""

    def __init__(
        self,
        supernet: Supernet,
        images: ImageCache,
        *,
        split: str = "val",
        batch: int = 64,
        kind: GradientKind = "sampled",
        seed: int = 0,
        resolution: int | None = None,
    ) -> None:
        self.supernet, self._cache, self._split, self.kind = supernet, images, split, kind
        self._size, self._batch, self._seed = images.data.size(split), batch, Seed(seed).fold_in("relaxed")
        self._device, self._resolution = device_of(supernet), resolution
        self.images, self.scale = 0, 1.0

    def calibrate(self, alpha: Sequence[Floats], beta: Sequence[Floats]) -> float:
        """Fit the scale of the logits to paths sampled at this point, on the images of the first steps."""
        logits, labels = [], []
        for step in range(-(-min(_CALIBRATION_IMAGES, self._size) // min(self._batch, self._size))):
            images, truth = self._batch_of(step)
            rng = self._seed.fold_in("calibration", step).numpy()
            paths = [[self._weights(vector, len(truth), rng) for vector in vectors] for vectors in (alpha, beta)]
            with torch.no_grad():
                logits.append(self.supernet(images, *paths).float())
            labels.append(truth)
            self.images += len(truth)
        self.scale = best_scale(torch.cat(logits), torch.cat(labels))[0]
        return self.scale

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
            loss = F.cross_entropy(self.supernet(images, a, b) * self.scale, labels)
            gradients = torch.autograd.grad(loss, [*a, *b])
        self.images += len(labels)
        flat = [(g.sum(0) if g.dim() == 2 else g).double().cpu().numpy() for g in gradients]
        return float(loss.detach()), flat[: len(a)], flat[len(a) :]

    def _batch_of(self, step: int) -> tuple[Tensor, Tensor]:
        """Epochs of shuffled validation images; which ones is a function of the step alone."""
        size = min(self._batch, self._size)
        epoch, place = divmod(step, max(1, self._size // size))
        order = torch.from_numpy(self._seed.fold_in("order", epoch).numpy().permutation(self._size))
        images, labels = self._cache.take(self._split, order[place * size : (place + 1) * size], self._device)
        return resized(images, self._resolution), labels

    def _weights(self, vector: Floats, count: int | None, rng: np.random.Generator) -> Tensor:
        if count is None:
            return torch.tensor(vector, dtype=torch.float32, device=self._device, requires_grad=True)
        # The arg-max of Gumbel noise plus log-probabilities is a draw from the probabilities themselves.
        drawn = rng.choice(len(vector), size=count, p=vector / vector.sum())
        hot = F.one_hot(torch.from_numpy(drawn), len(vector)).float()
        return hot.to(self._device).requires_grad_()
