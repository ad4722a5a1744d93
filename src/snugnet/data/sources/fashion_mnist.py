"""Fashion-MNIST: 60,000 + 10,000 grey images of 28 x 28 in ten classes, as IDX files (plain or .gz).

IDX: two zero bytes, a type byte (8 = uint8), the number of dimensions, each dimension as a big-endian 32-bit number,
data.
"""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from snugnet.data.dataset import About, InMemory, in_memory
from snugnet.errors import DamagedFile, DataMissing
from snugnet.store import read_bytes

CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
PLACES = (Path("/usr/share/datasets/fashion-mnist"), Path("~/.cache/snugnet/fashion-mnist"))
COMMAND = "sudo apt-get install dataset-fashion-mnist"


def load(resolution: int | None, seed: int, root: Path | None) -> InMemory:
    folder = find(root)
    about = About(
        name="fashion-mnist",
        class_names=CLASSES,
        resolution=resolution or 28,
        mean=(0.286,) * 3,
        std=(0.353,) * 3,
        hflip=True,
    )
    return in_memory(about, part(folder, "train"), part(folder, "t10k"), resolution, seed)


def find(root: Path | None) -> Path:
    """The folder with the four files: `root`, else $SNUGNET_DATA/fashion-mnist, else the usual places."""
    data_home = os.environ.get("SNUGNET_DATA")
    usual = ([Path(data_home) / "fashion-mnist"] if data_home else []) + [place.expanduser() for place in PLACES]
    places = [root] if root is not None else usual
    for place in places:
        if any((place / f"train-images-idx3-ubyte{end}").is_file() for end in ("", ".gz")):
            return place
    folders = ", ".join(str(place) for place in places)
    raise DataMissing(
        f"fashion-mnist is not on the disk (looked in {folders})",
        remedy=f"Run `{COMMAND}` (Debian, Ubuntu), or put the four published IDX files into {places[-1]}.",
    )


def part(folder: Path, name: str) -> tuple[Tensor, Tensor]:
    images = read_idx(_either(folder / f"{name}-images-idx3-ubyte"), 3)
    labels = read_idx(_either(folder / f"{name}-labels-idx1-ubyte"), 1)
    if len(images) != len(labels) or int(labels.max()) > 9:
        raise DamagedFile(
            f"{folder}: {name} must have a label 0..9 for every image", value=(len(images), len(labels)), remedy=_REDO
        )
    return images.unsqueeze(1), labels.long()


def read_idx(path: Path, dimensions: int) -> Tensor:
    """The uint8 array in an IDX file; a damaged file is named."""
    raw = read_bytes(path)
    try:
        data = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DamagedFile(f"{path} must be a whole gzip file ({error})", remedy=_REDO) from error
    header = 4 + 4 * dimensions
    if len(data) < header or data[:4] != bytes((0, 0, 8, dimensions)):
        raise DamagedFile(f"{path} must be an IDX file of {dimensions} dimensions", value=data[:4], remedy=_REDO)
    shape = struct.unpack(f">{dimensions}I", data[4:header])
    if len(data) - header != int(np.prod(shape)):
        raise DamagedFile(f"{path} must hold {shape} bytes", value=len(data) - header, remedy=_REDO)
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=header).reshape(shape).copy())


_REDO = f"Fetch it again: `{COMMAND} --reinstall`."


def _either(path: Path) -> Path:
    packed = path.with_name(path.name + ".gz")
    return path if path.is_file() else packed
