"""A folder of images with a folder for each class, in the ImageNet layout (PATH/train/CLASS/image.jpg and
PATH/val/CLASS/image.jpg) or without parts (PATH/CLASS/image.jpg).

`val/` is the published held-out part, so it becomes the `test` split; `train/` is cut 80/20 like any other set. Without
parts a quarter of each class, drawn from its files once and for all, is the `test` split and the rest stands for `train/`.
Images may have any size and be grey. A set that fits is read once (short side resized, centre cropped); a larger one is
read by threads as batches are asked for (decoding lets go of Python's lock), in training with a random crop of 8-100 % of
the image. Central crops are the same every time, so they are decoded once and kept, up to a limit of bytes: evaluating a
hundred networks reads the held-out files once. The threads live as long as the process. A file that is no image is
refused or skipped by choice, and named either way.
"""

from __future__ import annotations

import math
import os
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import final

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from snugnet.data.dataset import About, Data, InMemory, split_train_val
from snugnet.errors import BadInput, DamagedFile, DataMissing
from snugnet.seeds import Seed

ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
MEMORY_LIMIT = 2**30  # bytes of pixels up to which a set is read at once, and central crops of a larger one are kept
AHEAD = 2  # batches that are read before they are asked for
TEST_SHARE = 4  # of a folder without train/ and val/: one image of so many of each class is for the test
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CENTRE = 0.875  # of the short side: the central square an image is evaluated by, as is usual

Files = list[tuple[Path, int]]
"""Image files with the number of their class."""


def load_folder(
    path: Path, resolution: int, seed: int, *, on_corrupt: str, workers: int, in_memory: bool | None
) -> Data:
    """The set in `path`, in memory or read as it is asked for: by its size, or as `in_memory` says."""
    if on_corrupt not in ("refuse", "skip"):
        raise BadInput("on_corrupt must be 'refuse' or 'skip'", value=on_corrupt, remedy="Choose one of the two.")
    names, train, test = listing(path)
    about = About(
        name=f"folder:{path}",
        crop=CENTRE,
        class_names=names,
        resolution=resolution,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        hflip=True,
    )
    size = (len(train) + len(test)) * 3 * resolution**2
    skip = on_corrupt == "skip"
    if in_memory or (in_memory is None and size <= MEMORY_LIMIT):
        return _read_all(about, train, test, seed, skip)
    index = {**split_train_val(len(train), seed), "test": torch.arange(len(train), len(train) + len(test))}
    paths, labels = zip(*((str(file), label) for file, label in train + test))
    return Folder(about=about, index=index, paths=paths, labels=torch.tensor(labels), skip=skip, workers=workers)


def sample_sides(path: Path, most: int = 64) -> list[int]:
    """Short sides of up to `most` training images, evenly taken; those that cannot be read are passed over."""
    images = listing(path)[1]
    sides = []
    for file, _ in images[:: max(1, len(images) // most)]:
        try:
            with Image.open(file) as image:
                sides.append(min(image.size))
        except (OSError, ValueError, SyntaxError):
            continue
    if not sides:
        raise DataMissing(f"{path} must hold images that can be read", remedy="Restore the files.")
    return sides


def listing(path: Path) -> tuple[tuple[str, ...], Files, Files]:
    """Names of the classes, and the files for training and for the test, each with its class."""
    if (path / "train").is_dir() or (path / "val").is_dir() or not path.is_dir():
        names = class_names(path)
        return names, files(path / "train", names), files(path / "val", names)
    names = tuple(_folders(path))
    if len(names) < 2:
        rule = f"{path} must have a folder for each of two classes or more, or the folders train/ and val/ with those"
        raise DataMissing(rule, value=len(names), remedy=f"Make {path}/CLASS/image.jpg.")
    train: Files = []
    test: Files = []
    for label, name in enumerate(names):
        images = [(file, label) for file, _ in files(path, [name])]
        order = Seed(0).fold_in("test", name).numpy().permutation(len(images))
        count = len(images) // TEST_SHARE
        test += [images[i] for i in sorted(order[:count])]
        train += [images[i] for i in sorted(order[count:])]
    if not test:
        rule = f"a class of {path} must have at least {TEST_SHARE} images, to test by"
        raise DataMissing(rule, value=len(train), remedy="Add images, or make train/ and val/ by hand.")
    return names, train, test


def _folders(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))


def class_names(path: Path) -> tuple[str, ...]:
    """The folders below train/, in alphabetical order; val/ must know the same ones."""
    names = []
    for part in (path / "train", path / "val"):
        if not part.is_dir():
            rule = f"{path} must have the folders train/ and val/ with a folder for each class, {part.name}/ is missing"
            raise DataMissing(rule, remedy=f"Make {part}/CLASS/image.jpg.")
        names.append(_folders(part))
    train, val = names
    if not train:
        rule = f"{path / 'train'} must have a folder for each class, it has none"
        raise DataMissing(rule, remedy="Sort images by class.")
    if len(train) < 2:
        rule = f"{path / 'train'} must have at least two classes"
        raise BadInput(rule, value=train[0], remedy="Add another class.")
    if strange := sorted(set(val) - set(train)):
        rule = f"{path / 'val'} must have the classes of train/"
        raise BadInput(rule, value=strange[0], remedy="Rename or remove it.")
    return tuple(train)


def files(folder: Path, names: Sequence[str]) -> Files:
    """All image files below the class folders with their class, sorted, so that positions never change."""
    listed = []
    for label, name in enumerate(names):
        images = sorted(p for p in (folder / name).rglob("*") if p.suffix.lower() in ENDINGS and p.is_file())
        if not images and folder.name != "val":
            rule = f"{folder / name} must hold images, it has none ending in {', '.join(sorted(ENDINGS))}"
            raise DataMissing(rule, remedy="Add images, or remove the folder.")
        if len(images) == 1 and folder.name != "val":
            warning = f"class {name!r} has one training image: it is trained on or held out, never both; add images"
            warnings.warn(warning, stacklevel=2)
        listed += [(image, label) for image in images]
    if not listed:
        raise DataMissing(f"{folder} must hold images, it has none", remedy="Add images of every class.")
    return listed


def read_image(path: str | Path, resolution: int, seed: Seed | None = None) -> Tensor:
    """uint8 [3, R, R]: the centre, or with seed a random part of 8-100 % of the area at an aspect of 3/4 to 4/3."""
    picture = open_image(
        path, 'Restore or remove the file, or leave such files out: on_corrupt="skip" (`--set data.on_corrupt=skip`).'
    )
    if seed is None:
        return central_square(picture, resolution, CENTRE)
    box = _random_part(*picture.size, seed.numpy())
    return _pixels(picture.resize((resolution, resolution), Image.Resampling.BILINEAR, box=box))


def open_image(path: str | Path, remedy: str, mode: str = "RGB") -> Image.Image:
    """The picture in a file; grey ones of 16 bits are scaled to 8: Pillow alone would cut every value above 255."""
    try:
        with Image.open(path) as image:
            if not image.mode.startswith("I"):
                return image.convert(mode)
            values = np.asarray(image).astype(np.int64)
            return Image.fromarray((values.clip(0, 65535) // 257).astype(np.uint8)).convert(mode)
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise DamagedFile(f"{path} must be an image ({error})", remedy=remedy) from error


def central_square(picture: Image.Image, resolution: int, crop: float) -> Tensor:
    """uint8 [C, R, R]: the square with `crop` of the short side, bilinear; a whole picture grows to a multiple of its size
    by repetition, as `resize` does it for sets in memory."""
    box = _centre(*picture.size, crop)
    repeats = crop == 1 and resolution % int(box[2] - box[0]) == 0
    how = Image.Resampling.NEAREST if repeats else Image.Resampling.BILINEAR
    return _pixels(picture.resize((resolution, resolution), how, box=box))


def _pixels(picture: Image.Image) -> Tensor:
    values = torch.from_numpy(np.array(picture))
    return (values.unsqueeze(2) if values.dim() == 2 else values).permute(2, 0, 1)


@final
@dataclass(frozen=True, kw_only=True)
class Folder(Data):
    """Images too many for memory, read as they are asked for; a damaged file gives way to its next neighbour if skipping
    was chosen."""

    paths: tuple[str, ...] = field(repr=False)
    labels: Tensor = field(repr=False)
    skip: bool
    workers: int
    kept: dict[int, tuple[Tensor, int]] = field(default_factory=dict, repr=False, compare=False)  # central crops

    def fetch(self, batches: Sequence[Tensor], seed: Seed | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """A few batches are read ahead, image by image, by all threads."""
        left = iter(batches)
        queue = deque(self._begin(batch, seed) for batch in islice(left, 1 + AHEAD))
        try:
            while queue:
                positions, reads = queue.popleft()
                pairs = [read.result() if isinstance(read, Future) else read for read in reads]
                if seed is None:
                    self._keep(positions, pairs)
                queue.extend(self._begin(batch, seed) for batch in islice(left, 1))
                yield torch.stack([image for image, _ in pairs]), torch.tensor([label for _, label in pairs])
        finally:
            for _, reads in queue:
                for read in reads:
                    if isinstance(read, Future):
                        read.cancel()

    def _begin(self, batch: Tensor, seed: Seed | None) -> tuple[list[int], list[_Read]]:
        """What is kept already, and reading what is not."""
        positions: list[int] = batch.tolist()
        reads: list[_Read] = []
        for position in positions:
            if seed is None and position in self.kept:
                reads.append(self.kept[position])
            elif self.workers:
                reads.append(_threads(os.getpid(), self.workers).submit(self._read, position, seed))
            else:
                reads.append(self._read(position, seed))
        return positions, reads

    def _keep(self, positions: list[int], pairs: list[tuple[Tensor, int]]) -> None:
        room = MEMORY_LIMIT // (3 * self.about.resolution**2) - len(self.kept)
        fresh = [(position, pair) for position, pair in zip(positions, pairs) if position not in self.kept]
        self.kept.update(fresh[: max(0, room)])

    def _read(self, position: int, seed: Seed | None) -> tuple[Tensor, int]:
        for offset in range(len(self.paths)):
            at = (position + offset) % len(self.paths)
            try:
                own = None if seed is None else seed.fold_in(position)
                return read_image(self.paths[at], self.about.resolution, own), int(self.labels[at])
            except DamagedFile as error:
                if not self.skip:
                    raise
                warnings.warn(f"skipped: {error.rule}", stacklevel=2)
        raise DamagedFile(f"{self.about.name} must hold an image that can be read", remedy="Restore the files.")

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "kept": {}}  # another process reads for itself


_Read = Future[tuple[Tensor, int]] | tuple[Tensor, int]


@lru_cache(maxsize=4)
def _threads(process: int, count: int) -> ThreadPoolExecutor:
    """Reading threads of this process (a fork inherits none)."""
    return ThreadPoolExecutor(count, thread_name_prefix="images")


def _read_all(
    about: About, train: list[tuple[Path, int]], test: list[tuple[Path, int]], seed: int, skip: bool
) -> InMemory:
    images: list[Tensor] = []
    labels: list[int] = []
    counts = []
    for part in (train, test):
        for path, label in part:
            try:
                images.append(read_image(path, about.resolution))
                labels.append(label)
            except DamagedFile as error:
                if not skip:
                    raise
                warnings.warn(f"skipped: {error.rule}", stacklevel=3)
        counts.append(len(images))
    if counts[0] == counts[1]:
        raise DataMissing(f"{about.name}: val/ must hold images that can be read", remedy="Restore the files.")
    index = {**split_train_val(counts[0], seed), "test": torch.arange(*counts)}
    return InMemory(about=about, index=index, images=torch.stack(images), labels=torch.tensor(labels))


def _centre(width: int, height: int, crop: float = CENTRE) -> tuple[float, float, float, float]:
    side = min(width, height) * crop
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
