"""What a search asks of the super-network: how good is this network, and which way is better?

`Judge` evaluates networks for real: extract, give BN statistics of its own, look at held-out images. It remembers what
it has seen, in memory and, with a file, on disk: no network is ever evaluated twice, and because the methods are
deterministic, a killed search that is started again runs through its old steps for free and goes on.

`relaxed_gradient` is HardCoRe-NAS's: every image takes a path sampled from the current point, the loss is differentiated
with respect to the one-hot choices, and the images' gradients are summed (`sampled`); or the mixture itself is
differentiated (`expected`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from snugnet.errors import BadInput, DamagedFile
from snugnet.files import read_text, sha256, write_text
from snugnet.nets import Supernet, extract, recalibrate
from snugnet.space.architecture import Architecture
from snugnet.train.data import Data
from snugnet.train.dice import Dice
from snugnet.train.evaluate import calibration_batches

Floats = NDArray[np.float64]
GradientKind = Literal["sampled", "expected"]


@final
@dataclass(frozen=True)
class Verdict:
    """Share of right answers and mean cross entropy on the judged images."""

    accuracy: float
    loss: float


@final
class Judge:
    """Evaluates sub-networks with inherited weights on a split of `data`, each once."""

    def __init__(
        self,
        supernet: Supernet,
        data: Data,
        *,
        split: str = "val",
        limit: int | None = 2000,
        memory: str | Path | None = None,
        seed: int = 0,
    ) -> None:
        if data.size(split) == 0:
            raise BadInput(
                f"split {split!r} of {data.about.name} must hold images to judge networks by",
                value=0,
                remedy="Choose a data set with more images, or another split.",
            )
        self.supernet, self.data, self.split, self.limit = supernet, data, split, limit
        self.device = next(supernet.parameters()).device
        self._calibration = [placed(batch, self.device) for batch in calibration_batches(data, seed=seed)]
        self._seen: dict[str, Verdict] = {}
        self._memory = None if memory is None else Path(memory)
        self._origin = f"{weights_id(supernet)} {split} {limit} {seed} {data.identity()}"
        self.images = self.evaluated = 0
        self._remember()

    def __call__(self, architecture: Architecture) -> Verdict:
        key = str(architecture)
        if key not in self._seen:
            self._seen[key] = self._evaluate(architecture)
            self.evaluated += 1
            self._write(key, self._seen[key])
        return self._seen[key]

    def known(self, architecture: Architecture) -> bool:
        return str(architecture) in self._seen

    def _evaluate(self, architecture: Architecture) -> Verdict:
        network = extract(self.supernet, architecture)
        move: Any = network.to  # the overload with a memory format is missing from torch's type stubs
        move(memory_format=torch.channels_last)
        recalibrate(network, [_resized(batch, architecture.resolution) for batch in self._calibration]).eval()
        right, loss, count = 0, 0.0, 0
        with torch.no_grad():
            for images, labels in self.data.batches(self.split, 256, limit=self.limit):
                logits = network(_resized(placed(images, self.device), architecture.resolution))
                labels = labels.to(self.device)
                right += int((logits.argmax(1) == labels).sum())
                loss += float(F.cross_entropy(logits, labels, reduction="sum"))
                count += len(labels)
        self.images += count
        return Verdict(right / count, loss / count)

    def _remember(self) -> None:
        """Take over what an earlier search of the same weights and images has seen; a torn last line is dropped."""
        if self._memory is None or not self._memory.exists():
            return
        lines = read_text(self._memory).splitlines()
        if not lines or lines[0] != self._header():
            self._memory.unlink()  # of other weights or other images: worthless here
            return
        for number, line in enumerate(lines[1:], 2):
            try:
                entry = json.loads(line)
                self._seen[entry["network"]] = Verdict(float(entry["accuracy"]), float(entry["loss"]))
            except (ValueError, KeyError, TypeError) as error:
                if number < len(lines):
                    raise DamagedFile(
                        f"{self._memory} must hold one evaluation a line",
                        value=f"line {number}",
                        remedy="Delete the file; networks are then evaluated anew.",
                    ) from error

    def _write(self, key: str, verdict: Verdict) -> None:
        if self._memory is None:
            return
        if not self._memory.exists():
            write_text(self._memory, self._header() + "\n")
        entry = {"network": key, "accuracy": verdict.accuracy, "loss": verdict.loss}
        with self._memory.open("a") as stream:
            stream.write(json.dumps(entry) + "\n")

    def _header(self) -> str:
        return json.dumps({"format": "snugnet-evaluations/1", "of": sha256(self._origin.encode())})


def weights_id(supernet: Supernet) -> str:
    """A fingerprint of all weights and statistics."""
    parts = []
    for name, tensor in sorted(supernet.state_dict().items()):
        parts.append(name.encode())
        parts.append(tensor.detach().cpu().contiguous().numpy().tobytes())
    return sha256(b"".join(parts))


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
        self._positions, self._batch, self._dice = data.positions(split), batch, Dice(seed).at("relaxed")
        self._device = next(supernet.parameters()).device
        self.images = 0

    def __call__(
        self, alpha: Sequence[Floats], beta: Sequence[Floats], step: int
    ) -> tuple[float, list[Floats], list[Floats]]:
        """(mean loss, its gradient by block, its gradient by stage) at the probabilities `alpha`, `beta`."""
        images, labels = self._batch_of(step)
        rng = self._dice.at("paths", step).numpy()
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
        order = torch.from_numpy(self._dice.at("order", epoch).numpy().permutation(len(self._positions)))
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


def placed(images: Tensor, device: torch.device) -> Tensor:
    """On the device, channels last: a quarter faster on a CPU (docs/LOG.md)."""
    return images.to(device=device, memory_format=torch.channels_last)


def _resized(images: Tensor, size: int) -> Tensor:
    if images.shape[-1] == size:
        return images
    return F.interpolate(images, size=(size, size), mode="bicubic", align_corners=False)
