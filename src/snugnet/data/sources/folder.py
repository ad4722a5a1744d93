"""A folder of images in the ImageNet layout: PATH/train/CLASS/image.jpg and PATH/val/CLASS/image.jpg.

`val/` is the published held-out part, so it becomes the `test` split; `train/` is cut 80/20 like any other set.
Images may have any size. A set that fits is read once (short side resized, centre cropped); a larger one is read by
worker processes as batches are asked for, in training with a random crop of 8-100 % of the image. A file that is no
image is refused or skipped by choice, and named either way.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from snugnet.data.dataset import About, Data, InMemory, split_train_val
from snugnet.errors import BadInput, DamagedFile, DataMissing
from snugnet.progress import NullProgress, Progress
from snugnet.seeds import Seed

ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
MEMORY_LIMIT = 2**30  # bytes of pixels up to which a set is read at once
CHOICES = ("refuse", "skip")
CENTRE = 0.875  # of the short side: the central square an image is evaluated by


def load(
    path: Path,
    resolution: int,
    seed: int,
    *,
    on_corrupt: str,
    workers: int,
    in_memory: bool | None,
    progress: Progress | None = None,
) -> Data:
    if on_corrupt not in CHOICES:
        raise BadInput("on_corrupt must be 'refuse' or 'skip'", value=on_corrupt, remedy="Choose one of the two.")
    names = class_names(path)
    train, test = files(path / "train", names), files(path / "val", names)
    about = About(
        name=f"folder:{path}",
        crop=CENTRE,
        class_names=names,
        resolution=resolution,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        hflip=True,
    )
    size = (len(train) + len(test)) * 3 * resolution**2
    if in_memory or (in_memory is None and size <= MEMORY_LIMIT):
        return _read_all(about, train, test, seed, on_corrupt == "skip", progress or NullProgress())
    listed = train + test
    index = {**split_train_val(len(train), seed), "test": torch.arange(len(train), len(listed))}
    labels = torch.tensor([label for _, label in listed])
    return Folder(
        about=about,
        index=index,
        paths=tuple(str(file) for file, _ in listed),
        labels=labels,
        skip=on_corrupt == "skip",
        workers=workers,
    )


def class_names(path: Path) -> tuple[str, ...]:
    """The folders below train/, in alphabetical order; val/ must know the same ones."""
    for part in ("train", "val"):
        if not (path / part).is_dir():
            raise DataMissing(
                f"{path} must have the folders train/ and val/ with a folder for each class, {part}/ is missing",
                remedy=f"Make {path / part}/CLASS/image.jpg.",
            )
    names = [_folders(path / part) for part in ("train", "val")]
    if not names[0]:
        raise DataMissing(
            f"{path / 'train'} must have a folder for each class, it has none", remedy="Sort images by class."
        )
    if len(names[0]) < 2:
        raise BadInput(
            f"{path / 'train'} must have at least two classes", value=names[0][0], remedy="Add another class."
        )
    strange = sorted(set(names[1]) - set(names[0]))
    if strange:
        raise BadInput(
            f"{path / 'val'} must have the classes of train/", value=strange[0], remedy="Rename or remove it."
        )
    return tuple(names[0])


def files(folder: Path, names: Sequence[str]) -> list[tuple[Path, int]]:
    """All image files below the class folders with their class, sorted, so that positions never change."""
    found = []
    for label, name in enumerate(names):
        images = sorted(p for p in (folder / name).rglob("*") if p.suffix.lower() in ENDINGS and p.is_file())
        if not images and folder.name == "train":
            raise DataMissing(
                f"{folder / name} must hold images, it has none ending in {', '.join(sorted(ENDINGS))}",
                remedy="Add images, or remove the folder.",
            )
        found += [(image, label) for image in images]
    if not found:
        raise DataMissing(f"{folder} must hold images, it has none", remedy="Add images of every class.")
    return found


def read_image(path: str | Path, resolution: int, seed: Seed | None = None) -> Tensor:
    """uint8 [3, R, R]: the centre, or with seed a random part of 8-100 % of the area at an aspect of 3/4 to 4/3."""
    try:
        with Image.open(path) as image:
            picture = image.convert("RGB")
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise DamagedFile(f"{path} must be an image ({error})", remedy=_REMEDY) from error
    box = _centre(*picture.size) if seed is None else _random_part(*picture.size, seed.numpy())
    picture = picture.resize((resolution, resolution), Image.Resampling.BILINEAR, box=box)
    return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1)


@final
@dataclass(frozen=True, kw_only=True)
class Folder(Data):
    """Images too many for memory, read as they are asked for."""

    paths: tuple[str, ...] = field(repr=False)
    labels: Tensor = field(repr=False)
    skip: bool
    workers: int

    def fetch(self, batches: Sequence[Tensor], seed: Seed | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        reader = _Reader(self, seed)
        loader = DataLoader(
            reader,
            sampler=[batch.tolist() for batch in batches],
            batch_size=None,
            num_workers=self.workers,
            generator=torch.Generator(),
        )
        yield from loader


@final
class _Reader(Dataset[tuple[Tensor, Tensor]]):
    """A batch of positions -> its images. A damaged file is replaced by its next neighbour if skipping was chosen."""

    def __init__(self, data: Folder, seed: Seed | None) -> None:
        self.data, self.seed = data, seed

    def __getitem__(self, positions: list[int]) -> tuple[Tensor, Tensor]:
        pairs = [self._read(position) for position in positions]
        return torch.stack([image for image, _ in pairs]), torch.tensor([label for _, label in pairs])

    def _read(self, position: int) -> tuple[Tensor, int]:
        data = self.data
        for offset in range(len(data.paths)):
            at = (position + offset) % len(data.paths)
            try:
                seed = None if self.seed is None else self.seed.fold_in(position)
                return read_image(data.paths[at], data.about.resolution, seed), int(data.labels[at])
            except DamagedFile as error:
                if not data.skip:
                    raise
                warnings.warn(f"skipped: {error.rule}", stacklevel=2)
        raise DamagedFile(f"{data.about.name} must hold an image that can be read", remedy="Restore the files.")


def _read_all(
    about: About, train: list[tuple[Path, int]], test: list[tuple[Path, int]], seed: int, skip: bool, progress: Progress
) -> InMemory:
    images: list[Tensor] = []
    labels: list[int] = []
    counts = []
    progress.start(f"reading {about.name}", len(train) + len(test))
    for part in (train, test):
        for path, label in part:
            try:
                images.append(read_image(path, about.resolution))
                labels.append(label)
            except DamagedFile as error:
                if not skip:
                    raise
                warnings.warn(f"skipped: {error.rule}", stacklevel=3)
            progress.update(len(images))
        counts.append(len(images))
    progress.stop()
    if counts[0] == counts[1]:
        raise DataMissing(f"{about.name}: val/ must hold images that can be read", remedy="Restore the files.")
    index = {**split_train_val(counts[0], seed), "test": torch.arange(*counts)}
    return InMemory(about=about, index=index, images=torch.stack(images), labels=torch.tensor(labels))


def _folders(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))


def _centre(width: int, height: int) -> tuple[float, float, float, float]:
    """The central square with 7/8 of the short side, as is usual for evaluation."""
    side = min(width, height) * CENTRE
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def _random_part(width: int, height: int, rng: np.random.Generator) -> tuple[float, float, float, float]:
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1.0)
        aspect = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = math.sqrt(area * aspect), math.sqrt(area / aspect)
        if w <= width and h <= height:
            left, top = rng.uniform(0, width - w), rng.uniform(0, height - h)
            return left, top, left + w, top + h
    return _centre(width, height)


_REMEDY = 'Restore or remove the file, or choose on_corrupt="skip".'
