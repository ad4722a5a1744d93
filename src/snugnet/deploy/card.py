"""What a network file says of its network besides the weights: how images are prepared, what the classes are called, what
it was found for.

The plan knows sizes; the card knows meaning. It is plain data that travels inside `network.safetensors` and inside
`network.onnx`, so that either file can be used by somebody who has nothing else.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, final

import torch
from torch import Tensor

from snugnet.errors import BadInput, DamagedFile
from snugnet.store import sha256


@final
@dataclass(frozen=True, kw_only=True)
class Card:
    """All fields may stay empty: empty means not known.

    An image is cut to its central square of `crop` times the short side, brought to the network's resolution, scaled to
    0..1 and normalised: (value - mean) / std, a number for each channel.
    """

    class_names: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    crop: float = 1.0
    space: str = ""
    architecture: str = ""  # as text
    budget: Mapping[str, str] = field(default_factory=dict)
    certificate_sha256: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def name_of(self, label: int) -> str:
        return self.class_names[label] if self.class_names else str(label)


def card_from_json(value: Any, where: str) -> Card:
    """The card that `Card.to_json` wrote; a wrong field is named."""
    kinds = {item.name: item for item in fields(Card)}
    if not isinstance(value, dict) or set(value) != set(kinds):
        raise _damaged(where, f"its card must have the fields {', '.join(kinds)}")
    for name in ("class_names", "mean", "std"):
        wanted: Any = str if name == "class_names" else (int, float)
        if not isinstance(value[name], list) or not all(isinstance(item, wanted) for item in value[name]):
            raise _damaged(
                where, f"field {name} of its card must be a list of {'texts' if wanted is str else 'numbers'}"
            )
    for name in ("space", "architecture", "certificate_sha256"):
        if not isinstance(value[name], str):
            raise _damaged(where, f"field {name} of its card must be a text")
    for name in ("budget", "notes"):
        if not isinstance(value[name], dict) or not all(isinstance(item, str) for item in value[name].values()):
            raise _damaged(where, f"field {name} of its card must map names to texts")
    if not isinstance(value["crop"], int | float):
        raise _damaged(where, "field crop of its card must be a number")
    words: dict[str, Any] = {name: tuple(item) if isinstance(item, list) else item for name, item in value.items()}
    return Card(**words)


def check_card(card: Card, *, classes: int, channels: int) -> None:
    """Refuse a card that cannot be of a network with so many classes and input channels."""
    if card.class_names and len(card.class_names) != classes:
        raise BadInput(
            f"class names must be as many as the network's classes, {classes}",
            value=len(card.class_names),
            remedy="Give the names in the order of the labels.",
        )
    if bool(card.mean) != bool(card.std):
        raise BadInput("mean and std must be given together", value=(card.mean, card.std), remedy="Give both or none.")
    for name, numbers in (("mean", card.mean), ("std", card.std)):
        if numbers and len(numbers) != channels:
            raise BadInput(
                f"{name} must have a number for each of the {channels} input channels",
                value=numbers,
                remedy="Use those of the training images.",
            )
        if not all(math.isfinite(number) for number in numbers):
            raise BadInput(f"{name} must be finite", value=numbers, remedy="Use those of the training images.")
    if any(number <= 0 for number in card.std):
        raise BadInput("std must be positive", value=card.std, remedy="Use that of the training images.")
    if not 0 < card.crop <= 1:
        raise BadInput("crop must lie in (0, 1]", value=card.crop, remedy="1 takes the whole image.")


def weights_hash(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 over every tensor's name, shape, type and bytes, in order of name: the hash a certificate names."""
    mark = hashlib.sha256()
    for name, value in sorted(weights.items()):
        still = value.detach().cpu().contiguous()
        mark.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
        mark.update(
            still.reshape(-1).view(torch.uint8).numpy().tobytes() if value.dim() else str(value.item()).encode()
        )
    return mark.hexdigest()


def sealed(body: dict[str, Any]) -> dict[str, Any]:
    """`body` with a checksum over all of it."""
    return {**body, "sha256": sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode())}


def unsealed(value: Any, where: str) -> dict[str, Any]:
    """What was sealed, if nobody changed it."""
    if not isinstance(value, dict) or "sha256" not in value:
        raise _damaged(where, "its description must be an object with a checksum")
    body = {name: item for name, item in value.items() if name != "sha256"}
    if sealed(body)["sha256"] != value["sha256"]:
        raise _damaged(where, "its description must have the checksum it was written with")
    return body


def parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise _damaged(where, f"its description must be whole JSON ({error.msg})") from error


def _damaged(where: str, what: str) -> DamagedFile:
    return DamagedFile(f"{where}: {what}", remedy="It was cut short or edited; restore it, or export it again.")
