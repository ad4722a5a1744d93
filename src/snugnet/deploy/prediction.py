"""What a network sees in an image: files in, class probabilities out, whichever file the network is in.

Images are prepared as the card says, so an exported network and a folder of pictures are enough. They are prepared as in
training: the central square, bilinear; small pictures grow to a whole multiple of their size by repetition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

import torch
from torch import Tensor

from snugnet.costs.graph import read_graph
from snugnet.data.folder import central_square, open_image
from snugnet.deploy.card import Card
from snugnet.deploy.export import card_in, checked_metadata, open_session, run_session
from snugnet.deploy.network_file import NetworkFile, read_network
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
    metadata: Mapping[str, str] = field(default_factory=dict)  # of an ONNX file

    @property
    def remark(self) -> str:
        """What a user should know before believing it; empty if all is known."""
        return "" if self.card.mean else "the file does not say how images are normalised: values from 0 to 1 are used"


def open_predictor(path: str | Path) -> Predictor:
    """The network in a .onnx or .safetensors file, or in a run folder."""
    ending = Path(path).suffix.lower()
    if ending == ".onnx":
        return open_onnx(path)
    if not Path(path).is_dir() and ending != ".safetensors":
        raise BadInput(
            "a network to predict with must be a .onnx or .safetensors file, or a run folder",
            value=str(path),
            remedy="Pickles are never read; `snugnet export` writes the others.",
        )
    return predictor_of(read_network(path))


def predictor_of(read: NetworkFile) -> Predictor:
    channels, resolution, classes = read.plan.stem.in_channels, read.plan.resolution, read.plan.head.classes
    return Predictor(card=read.card, channels=channels, resolution=resolution, classes=classes, logits=read.network)


def open_onnx(path: str | Path) -> Predictor:
    """The network in an ONNX file; one that was written here must be unchanged."""
    file = Path(path)
    model = read_graph(file)
    session = open_session(str(file), str(file))
    batch, channels, resolution, classes = _sizes(session, file)

    def logits(images: Tensor) -> Tensor:
        pieces = images.split(batch) if batch is not None else (images,)
        return torch.cat([run_session(session, piece) for piece in pieces])

    return Predictor(
        card=card_in(model, file),
        channels=channels,
        resolution=resolution,
        classes=classes,
        logits=logits,
        metadata=checked_metadata(model, file),
    )


def _sizes(session: Any, file: Path) -> tuple[int | None, int, int, int]:
    """Batch (None: any), channels, side and classes of a graph that classifies square images."""
    inputs, outputs = session.get_inputs(), session.get_outputs()
    shape, logits = inputs[0].shape, outputs[0].shape
    images = len(shape) == 4 and all(isinstance(size, int) for size in shape[1:]) and shape[2] == shape[3]
    if len(inputs) != 1 or not images or shape[1] not in (1, 3) or len(logits) != 2 or not isinstance(logits[1], int):
        raise BadInput(
            f"{file} must map images [N, 1 or 3, side, side] to logits [N, classes]",
            value=f"{shape} to {logits}",
            remedy="Export it for one input resolution.",
        )
    return (shape[0] if isinstance(shape[0], int) else None), shape[1], shape[2], logits[1]


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
