"""What a network file says of its network besides the weights: how images are prepared, what the classes are called, what
it was found for.

The plan knows sizes; the card knows meaning. It is plain data that travels inside `network.safetensors` and inside
`network.onnx`, so that either file can be used by somebody who has nothing else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, final

from pydantic import BaseModel, ConfigDict

from snugnet.errors import BadInput, DamagedFile
from snugnet.store import as_model


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


class _Fields(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    class_names: list[str]
    mean: list[float]
    std: list[float]
    crop: float
    space: str
    architecture: str
    budget: dict[str, str]
    certificate_sha256: str
    notes: dict[str, str]


def card_from_json(value: Any, origin: str) -> Card:
    """The card that `Card.to_json` wrote; a wrong field is named."""
    fields: dict[str, Any] = as_model(value, _Fields, f"{origin}: its card").model_dump()
    for name in ("class_names", "mean", "std"):
        fields[name] = tuple(fields[name])
    return Card(**fields)


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


def parse_json(text: str, origin: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DamagedFile(
            f"{origin}: its description must be whole JSON ({error.msg})",
            remedy="It was cut short or edited; restore it, or export it again.",
        ) from error
