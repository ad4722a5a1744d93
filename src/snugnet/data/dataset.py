"""Data sets: images as bytes, split once and for all, normalised on the way to the network.

`load("digits")`, `load("fashion-mnist")`, `load("cifar10")`, `load("cifar100")`, `load("folder:/data/pets")`. Every
set has three splits: `train` and `val` (the published training images, cut 80/20 by a seed) and `test` (the published
test images). Small sets live in memory as uint8 tensors; large folders are read by threads as they are
needed. A caller says which images a batch consists of, never "the next ones": that is what makes a run resumable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import torch
from torch import Tensor

from snugnet.errors import BadInput, UnknownName
from snugnet.seeds import Seed
from snugnet.store import sha256

SPLITS = ("train", "val", "test", "train+val")
LEARNABLE = ("train", "val", "train+val")  # test images are for one look at the end
NAMES = ("digits", "fashion-mnist", "cifar10", "cifar100", "folder:PATH")
VAL_SHARE = 0.2


@final
@dataclass(frozen=True, kw_only=True)
class About:
    """What a network and a recipe need to know of a set."""

    name: str
    class_names: tuple[str, ...]
    resolution: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    hflip: bool  # does an image keep its class when mirrored?
    crop: float = 1.0  # share of the short side that an image's central square takes when it is evaluated
    part_of: int | None = None  # how many classes the whole set has, where these are a part of them

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def task_classes(self) -> int:
        """Those of the whole set: what the network that ships has to know, and what it costs."""
        return self.part_of or self.classes


@dataclass(frozen=True, kw_only=True)
class Data(ABC):
    """A set of labelled images in splits. Images come out as uint8 [N, 3, H, W], labels as int64 [N]."""

    about: About
    index: dict[str, Tensor] = field(repr=False)  # split -> positions in the set, int64

    @property
    def classes(self) -> int:
        return self.about.classes

    def size(self, split: str) -> int:
        return len(self.positions(split))

    def positions(self, split: str) -> Tensor:
        if split not in SPLITS:
            raise UnknownName("split", split, SPLITS)
        if split == "train+val":
            return torch.cat([self.index["train"], self.index["val"]])
        return self.index[split]

    @abstractmethod
    def fetch(self, batches: Sequence[Tensor], seed: Seed | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """The images and labels at the given positions, a batch at a time. `seed` asks for random crops where a set
        has larger images than the network; without it crops are central."""

    def normalise(self, images: Tensor) -> Tensor:
        """Floats in [0, 1] -> what a network is fed."""
        mean = torch.tensor(self.about.mean, device=images.device, dtype=images.dtype).view(1, 3, 1, 1)
        std = torch.tensor(self.about.std, device=images.device, dtype=images.dtype).view(1, 3, 1, 1)
        return (images - mean) / std

    def normalised_by(self, mean: Sequence[float], std: Sequence[float]) -> Self:
        """The same images, normalised as a network is used to; without numbers as they are."""
        return replace(self, about=replace(self.about, mean=tuple(mean), std=tuple(std))) if mean else self  # type: ignore[arg-type]

    def batches(self, split: str, batch: int, *, limit: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """A split in order, ready for evaluation: normalised float images and labels."""
        positions = self.positions(split)[:limit]
        for images, labels in self.fetch(list(positions.split(batch))):
            yield self.normalise(images.float() / 255), labels

    def identity(self) -> dict[str, Any]:
        """What must be the same for a run to be resumed on this set."""
        sizes = {split: self.size(split) for split in ("train", "val", "test")}
        split = np.ascontiguousarray(self.index["val"].numpy()).tobytes()
        return {
            "name": self.about.name,
            "resolution": self.about.resolution,
            "classes": self.classes,
            **sizes,
            "split": sha256(split)[:16],
        }


@final
@dataclass(frozen=True, kw_only=True)
class InMemory(Data):
    """A set that fits: uint8 [N, C, H, W] with one or three channels, and labels."""

    images: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)

    def fetch(self, batches: Sequence[Tensor], seed: Seed | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        for positions in batches:
            yield self.images[positions].expand(-1, 3, -1, -1), self.labels[positions]


def load(
    name: str,
    *,
    resolution: int | None = None,
    seed: int = 0,
    root: str | Path | None = None,
    on_corrupt: str = "refuse",
    workers: int = 2,
    in_memory: bool | None = None,
) -> Data:
    """A set by name. `resolution`: side of the images handed out (default: the set's own, 224 for folders). `seed`: of
    the 80/20 split. `root`: where the files are (default: the usual places). For folders: `on_corrupt` is "refuse" or
    "skip", `workers` read images of a set too large for memory, `in_memory` forces the choice."""
    from snugnet.data.folder import load_folder
    from snugnet.data.published import load_published

    if resolution is not None and not 4 <= resolution <= 1024:
        remedy = "Take the side of the images in pixels."
        raise BadInput("resolution must lie in 4..1024", value=resolution, remedy=remedy)
    path = _folder_of(name)
    if path is None:
        return load_published(name, resolution, seed, None if root is None else Path(root))
    return load_folder(path, resolution or 224, seed, on_corrupt=on_corrupt, workers=workers, in_memory=in_memory)


def native_sides(name: str) -> list[int]:
    """Short sides of the images as they are on the disk: of a sample of a folder's, or a published set's own."""
    from snugnet.data.folder import sample_sides
    from snugnet.data.published import PUBLISHED

    path = _folder_of(name)
    return [PUBLISHED[name].resolution] if path is None else sample_sides(path)


def _folder_of(name: str) -> Path | None:
    """The folder that "folder:PATH" names; None for a published set."""
    if name.startswith("folder:"):
        return Path(name.removeprefix("folder:")).expanduser()
    if name not in NAMES[:-1]:
        raise UnknownName("data set", name, NAMES)
    return None


def split_train_val(count: int, seed: int) -> dict[str, Tensor]:
    """Positions 0..count, cut 80/20 at random, each part in ascending order."""
    if count < 5:
        raise BadInput("a training set must have at least 5 images", value=count, remedy="Add images.")
    order = torch.from_numpy(Seed(seed).fold_in("split", count).numpy().permutation(count))
    held_out = max(1, round(count * VAL_SHARE))
    return {"val": order[:held_out].sort().values, "train": order[held_out:].sort().values}


def resize(images: Tensor, resolution: int | None) -> Tensor:
    """uint8 [N, C, H, W] -> the asked side: whole multiples by repetition, other sides bilinear with antialiasing."""
    side = images.shape[-1]
    if resolution is None or resolution == side:
        return images
    if resolution % side == 0:
        factor = resolution // side
        return images.repeat_interleave(factor, -1).repeat_interleave(factor, -2)
    parts = [
        torch.nn.functional.interpolate(part.float(), (resolution, resolution), mode="bilinear", antialias=True)
        .round()
        .clamp(0, 255)
        .to(torch.uint8)
        for part in images.split(4096)
    ]
    return torch.cat(parts)
