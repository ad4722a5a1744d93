"""What a network sees in an image: files in, class probabilities out, whichever file the network is in.

Images are prepared as the card says, so an exported network and a folder of pictures are enough. They are prepared as in
training: the central square, bilinear; small pictures grow to a whole multiple of their size by repetition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

import torch
from torch import Tensor

from snugnet.data.folder import central_square, open_image
from snugnet.deploy.card import Card
from snugnet.deploy.network_file import read_network
from snugnet.deploy.onnx_file import open_onnx
from snugnet.errors import BadInput, FileTrouble

BATCH: Final = 32


@final
@dataclass(frozen=True, kw_only=True)
class Guess:
    """One class with its probability."""

    label: int
    name: str
    probability: float


@final
@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The most probable classes of one image, most probable first."""

    image: str
    guesses: tuple[Guess, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Predictor:
    """A network ready to look at image files."""

    card: Card
    channels: int
    resolution: int
    classes: int
    logits: Callable[[Tensor], Tensor] = field(repr=False)

    @property
    def remark(self) -> str:
        """What a user should know before believing it; empty if all is known."""
        return "" if self.card.mean else "the file does not say how images are normalised: values from 0 to 1 are used"


def open_predictor(path: str | Path, *, threads: int = 1) -> Predictor:
    """The network in a .onnx or .safetensors file, or in a run folder."""
    if Path(path).suffix.lower() == ".onnx":
        graph = open_onnx(path, threads=threads)
        return Predictor(
            card=graph.card,
            channels=graph.channels,
            resolution=graph.resolution,
            classes=graph.classes,
            logits=graph,
        )
    if not Path(path).is_dir() and Path(path).suffix.lower() != ".safetensors":
        raise BadInput(
            "a network to predict with must be a .onnx or .safetensors file, or a run folder",
            value=str(path),
            remedy="Pickles are never read; `snugnet export` writes the others.",
        )
    read = read_network(path)
    return Predictor(
        card=read.card,
        channels=read.plan.stem.in_channels,
        resolution=read.plan.resolution,
        classes=read.plan.head.classes,
        logits=read.network,
    )


def predict(predictor: Predictor, images: Sequence[str | Path], *, top: int | None = None) -> list[Prediction]:
    """The `top` classes of each image file (default: three, or all if there are fewer)."""
    count = min(3, predictor.classes) if top is None else top
    if not 1 <= count <= predictor.classes:
        raise BadInput(
            f"top must lie in 1..{predictor.classes}, the number of classes",
            value=top,
            remedy=f"Ask for 1 to {predictor.classes}.",
        )
    predictions = []
    for start in range(0, len(images), BATCH):
        part = images[start : start + BATCH]
        prepared = torch.stack([prepare(path, predictor) for path in part])
        with torch.inference_mode():
            shares = predictor.logits(prepared).float().softmax(1)
        values, labels = shares.topk(count, dim=1)
        for path, row, names in zip(part, values.tolist(), labels.tolist(), strict=True):
            guesses = tuple(
                Guess(label=label, name=predictor.card.name_of(label), probability=value)
                for label, value in zip(names, row, strict=True)
            )
            predictions.append(Prediction(image=str(path), guesses=guesses))
    return predictions


def prepare(path: str | Path, predictor: Predictor) -> Tensor:
    """An image file as the network's input, [channels, side, side]."""
    file, card = Path(path), predictor.card
    if not file.is_file():
        reason = "is a folder" if file.is_dir() else "no such file"
        raise FileTrouble(f"image {file} could not be read ({reason})", remedy="Give the paths of image files.")
    picture = open_image(file, "Restore the file, or leave it out.", "L" if predictor.channels == 1 else "RGB")
    values = central_square(picture, predictor.resolution, card.crop).float() / 255
    if card.mean:
        values = (values - torch.tensor(card.mean).view(-1, 1, 1)) / torch.tensor(card.std).view(-1, 1, 1)
    return values
