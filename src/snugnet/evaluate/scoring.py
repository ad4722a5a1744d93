"""Scores: how good a network is on the images of a split, and how exactly that is known.

Networks are compared by their *score*: accuracy minus the cross entropy at the temperature that suits the network best.
Accuracy alone is coarse on few images; plain cross entropy is mostly about how sure a network is, which differs from
one to the next and changes no answer. The difference of both predicts accuracy on other images better than plain cross
entropy from 300 images to 12,000, and nearly as well as the better of the two at every size (docs/LOG.md).

`ImageCache` puts the images where the network is, once, and hands the same tensors to every network after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugnet.data.dataset import Data
from snugnet.errors import BadInput
from snugnet.nets import Network, Supernet, extract, recalibrate
from snugnet.nets.extraction import fold
from snugnet.seeds import Seed
from snugnet.space.architecture import Architecture

BATCH = 256  # images of a forward pass, about: those of a split are parted evenly
KEEP_BYTES = 2 << 30  # of images kept on a device; what does not fit is read anew for every network
_CALIBRATION_IMAGES, _CALIBRATION_BATCH = 384, 128
_SCALE_STEP = 1e-3  # how exactly the logarithm of the best scale is found

Net = Callable[[Tensor], Tensor]


@final
@dataclass(frozen=True)
class Score:
    """Share of right answers, mean cross entropy, and the latter at the network's best temperature."""

    accuracy: float
    loss: float
    calibrated_loss: float
    images: int
    error: float  # standard error of the score, from the spread over the images

    @property
    def score(self) -> float:
        """What networks are chosen by; greater is better."""
        return self.accuracy - self.calibrated_loss

    def to_json(self) -> dict[str, float]:
        return {
            "accuracy": self.accuracy,
            "loss": self.loss,
            "tempered": self.calibrated_loss,
            "value": self.score,
            "images": self.images,
            "error": self.error,
        }

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Score:
        return cls(
            accuracy=float(row["accuracy"]),
            loss=float(row["loss"]),
            calibrated_loss=float(row["tempered"]),
            images=int(row["images"]),
            error=float(row["error"]),
        )


@final
@dataclass(frozen=True)
class Answers:
    """What a network says of a number of images, in order: logits [N, classes], labels [N]."""

    logits: Tensor
    labels: Tensor

    @property
    def right(self) -> Tensor:
        """Whether the largest logit is the image's class: bool [N], on the CPU."""
        return (self.logits.argmax(-1) == self.labels).cpu()

    @property
    def accuracy(self) -> float:
        return float(self.right.double().mean())

    def score(self) -> Score:
        plain = float(F.cross_entropy(self.logits, self.labels))
        scale, calibrated = best_scale(self.logits, self.labels)
        if plain <= calibrated:
            scale, calibrated = 1.0, plain
        losses = F.cross_entropy(self.logits * scale, self.labels, reduction="none")
        by_image = self.right.double() - losses.cpu().double()
        count = len(by_image)
        error = float(by_image.std() / math.sqrt(count)) if count > 1 else math.inf
        return Score(accuracy=self.accuracy, loss=plain, calibrated_loss=calibrated, images=count, error=error)


def best_scale(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """The inverse temperature of least cross entropy, from e^-3 to e^3, and that cross entropy.

    It is convex, so halving by the sign of its slope finds it; scipy's search would be a tenth of a verb's imports."""
    right = logits.gather(1, labels[:, None]).mean()
    low, high = -3.0, 3.0
    while high - low > _SCALE_STEP:
        middle = (low + high) / 2
        expected = (F.softmax(logits * math.exp(middle), 1) * logits).sum(1).mean()  # slope: expected - right
        low, high = (low, middle) if expected > right else (middle, high)
    scale = math.exp((low + high) / 2)
    return scale, float(F.cross_entropy(logits * scale, labels))


@final
class ImageCache:
    """Images of a data set where the networks are: normalised, channels last, placed once.

    The first `keep_bytes` stay on the device; images beyond them are read and placed anew on every pass."""

    def __init__(self, data: Data, *, keep_bytes: int = KEEP_BYTES) -> None:
        self.data, self._room, self._keep_bytes = data, keep_bytes, keep_bytes
        self._kept: dict[tuple[str, torch.device], list[tuple[Tensor, Tensor]]] = {}
        self._rows: dict[tuple[str, torch.device], dict[int, tuple[Tensor, Tensor]]] = {}
        self._calibration: dict[tuple[int, torch.device], list[Tensor]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """To a worker's process go the images' origin and the rules, not what is kept here."""
        return partial(ImageCache, keep_bytes=self._keep_bytes), (self.data,)

    def batches(
        self, split: str, device: torch.device, limit: int | None = None, batch: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The first `limit` images of a split, in order, with their labels."""
        positions = self.data.positions(split)
        left = min(len(positions), len(positions) if limit is None else limit)
        kept = self._kept.setdefault((split, device), [])
        # A small remainder costs nearly as much as a whole batch: kernels are made for every size anew.
        size = -(-len(positions) // max(1, round(len(positions) / BATCH)))
        chunks = list(positions.split(size))[: -(-left // size)]
        for images, labels in self._chunks(kept, chunks, device):
            yield from zip(images[:left].split(batch or size), labels[:left].split(batch or size))
            left -= len(labels)

    def take(self, split: str, rows: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """Chosen images of a split and their labels, by their places in it."""
        kept = self._rows.setdefault((split, device), {})
        places = [int(row) for row in rows]
        missing = [place for place in places if place not in kept]
        fresh: dict[int, tuple[Tensor, Tensor]] = {}
        if missing:
            raw, labels = next(iter(self.data.fetch([self.data.positions(split)[missing]])))
            fresh = dict(zip(missing, zip(self._placed(raw, device), labels.to(device))))
        for place, entry in fresh.items():
            size = entry[0].numel() * entry[0].element_size()
            if size <= self._room:
                kept[place] = entry[0].clone(), entry[1]  # a view would keep its whole batch
                self._room -= size
        chosen = [fresh.get(place) or kept[place] for place in places]
        images = torch.stack([image for image, _ in chosen])
        return images.contiguous(memory_format=torch.channels_last), torch.stack([label for _, label in chosen])

    def calibration(self, device: torch.device, seed: int = 0) -> list[Tensor]:
        """Training images for batch-norm statistics, drawn once: normalised, not augmented."""
        key = seed, device
        if key not in self._calibration:
            positions = self.data.positions("train")
            order = Seed(seed).fold_in("calibration").numpy().permutation(len(positions))[:_CALIBRATION_IMAGES]
            chunks = list(positions[torch.from_numpy(order)].split(_CALIBRATION_BATCH))
            self._calibration[key] = [self._placed(images, device) for images, _ in self.data.fetch(chunks)]
        return self._calibration[key]

    def _chunks(
        self, kept: list[tuple[Tensor, Tensor]], chunks: list[Tensor], device: torch.device
    ) -> Iterator[tuple[Tensor, Tensor]]:
        yield from kept[: len(chunks)]
        missing = chunks[len(kept) :]
        for number, (raw, labels) in enumerate(self.data.fetch(missing) if missing else (), len(kept)):
            entry = self._placed(raw, device), labels.to(device)
            size = entry[0].numel() * entry[0].element_size()
            if size <= self._room and number == len(kept):  # nothing behind a gap: what is kept stays a prefix
                kept.append(entry)
                self._room -= size
            yield entry

    def _placed(self, images: Tensor, device: torch.device) -> Tensor:
        """Channels last: a quarter faster on a CPU (docs/LOG.md)."""
        ready: Tensor = self.data.normalise(images.float() / 255)
        return ready.to(device=device, memory_format=torch.channels_last)


def require_images(data: Data, split: str) -> int:
    """How many images a split holds to evaluate networks by; a split without any is refused."""
    if size := data.size(split):
        return size
    rule = f"split {split!r} of {data.about.name} must hold images to evaluate networks by"
    raise BadInput(rule, value=0, remedy="Choose a data set with more images, or another split.")


def answers(
    net: Net, images: ImageCache, split: str = "val", *, limit: int | None = None, resolution: int | None = None
) -> Answers:
    """Answers of a network, fed where its weights are. A module is run in evaluation mode and left in its own."""
    require_images(images.data, split)
    device = device_of(net)
    was_training = isinstance(net, nn.Module) and net.training
    if isinstance(net, nn.Module):
        net.eval()
    logits, labels = [], []
    with torch.no_grad():
        for batch, truth in images.batches(split, device, limit):
            logits.append(net(resized(batch, resolution)).float())
            labels.append(truth)
    if isinstance(net, nn.Module):
        net.train(was_training)
    return Answers(torch.cat(logits), torch.cat(labels))


def accuracy(net: Net, data: Data | ImageCache, split: str = "val", *, limit: int | None = None) -> float:
    """Share of images whose class gets the largest logit."""
    return answers(net, data if isinstance(data, ImageCache) else ImageCache(data), split, limit=limit).accuracy


def subnetwork(supernet: Supernet, architecture: Architecture, images: ImageCache, *, seed: int = 0) -> Network:
    """A sub-network with inherited weights and batch-norm statistics of its own; the super-network stays as it was.

    Statistics gathered over mixed paths fit no single network."""
    network = extract(supernet, architecture)
    move: Any = network.to  # the overload with a memory format is missing from torch's type stubs
    move(memory_format=torch.channels_last)
    batches = images.calibration(device_of(supernet), seed)
    return recalibrate(network, [resized(batch, architecture.resolution) for batch in batches]).eval()


def subnetwork_answers(
    supernet: Supernet,
    architecture: Architecture,
    images: ImageCache,
    split: str = "val",
    *,
    limit: int | None = None,
    seed: int = 0,
) -> Answers:
    """Answers of one sub-network, recalibrated and fed at its own resolution."""
    network = fold(subnetwork(supernet, architecture, images, seed=seed))
    return answers(network, images, split, limit=limit, resolution=architecture.resolution)


def device_of(net: Net) -> torch.device:
    """Where a module's weights are; the CPU for a plain function."""
    first = next(net.parameters(), None) if isinstance(net, nn.Module) else None
    return torch.device("cpu") if first is None else first.device


def resized(images: Tensor, side: int | None) -> Tensor:
    """Bicubic, as the super-network does it for spaces with several resolutions."""
    if side is None or images.shape[-1] == side:
        return images
    return F.interpolate(images, size=(side, side), mode="bicubic", align_corners=False)
