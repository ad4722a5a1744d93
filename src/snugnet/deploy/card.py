"""The papers of a network: the card, which travels inside its file, and the certificate, which stands beside it.

The plan knows sizes; the *card* knows meaning: how images are prepared, what the classes are called, what the network was
found for. It is plain data inside `network.safetensors` and inside `network.onnx`, so that either file can be used by
somebody who has nothing else. A *certificate* says what was promised and what was measured (`snugnet.deploy.certificate`
makes it). Both are read strictly: a field that is not what it should be is named.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal, final

from pydantic import BaseModel, ConfigDict, Field

from snugnet.errors import BadInput
from snugnet.store import as_model, read_json, read_sealed, sealed
from snugnet.units import Statistic

Names = Annotated[tuple[str, ...], Field(strict=False)]  # JSON has lists for them
Numbers = Annotated[tuple[float, ...], Field(strict=False)]


class _Paper(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


@final
class Card(_Paper):
    """All fields may stay empty: empty means not known.

    An image is cut to its central square of `crop` times the short side, brought to the network's resolution, scaled to
    0..1 and normalised: (value - mean) / std, a number for each channel.
    """

    class_names: Names = ()
    mean: Numbers = ()
    std: Numbers = ()
    crop: float = 1.0
    space: str = ""
    architecture: str = ""  # as text
    budget: dict[str, str] = {}
    certificate_sha256: str = ""
    notes: dict[str, str] = {}

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def name_of(self, label: int) -> str:
        return self.class_names[label] if self.class_names else str(label)

    def check(self, *, classes: int, channels: int) -> None:
        """Refuse a card that cannot be of a network with so many classes and input channels."""
        rules: list[tuple[bool, str, Any, str]] = [
            (
                len(self.class_names) in (0, classes),
                f"class names must be as many as the network's classes, {classes}",
                len(self.class_names),
                "Give the names in the order of the labels.",
            ),
            (
                bool(self.mean) == bool(self.std),
                "mean and std must be given together",
                (self.mean, self.std),
                "Give both or none.",
            ),
        ]
        usual = "Use those of the training images."
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            each = f"{name} must have a number for each of the {channels} input channels"
            rules.append((len(numbers) in (0, channels), each, numbers, usual))
            rules.append((all(map(math.isfinite, numbers)), f"{name} must be finite", numbers, usual))
        rules.append((all(number > 0 for number in self.std), "std must be positive", self.std, usual))
        rules.append((0 < self.crop <= 1, "crop must lie in (0, 1]", self.crop, "1 takes the whole image."))
        for holds, rule, value, remedy in rules:
            if not holds:
                raise BadInput(rule, value=value, remedy=remedy)


def card_from_json(value: Any, origin: str) -> Card:
    """The card that `Card.to_json` wrote; a wrong field is named."""
    return as_model(value, Card, f"{origin}: its card")


@final
class Line(_Paper):
    """One limit of a budget, held against the network. Numbers are in `unit`; what follows `exact` is of latency only."""

    name: str = Field(exclude=True)  # in the file it is the line's key
    unit: str
    limit: float
    predicted: float | None
    measured: float
    interval: Annotated[tuple[float, float], Field(strict=False)]
    slack: float  # of the interval's upper end
    fits: bool
    exact: bool
    device: dict[str, str] = {}
    while_measuring: dict[str, float] = {}  # median, 90 % quantile and number of passes
    statistic: Statistic | None = None
    clock: str | None = None  # "thread", "wall", or the device's own word
    wall_median: float | None = None
    wall_p90: float | None = None
    sessions: Numbers = ()  # the statistic in each session


@final
class CertifiedNetwork(_Paper):
    name: str
    form: str  # module, onnx, safetensors, architecture, published
    weights_sha256: str
    architecture: str = ""  # as the network's file tells it, to tie the certificate to the search; empty if it does not


@final
class StatedAccuracy(_Paper):
    """How accurate a network of few bits is, and what it was in float, on the same test images."""

    precision: str
    test: float
    float32: float
    images: int

    @property
    def lost(self) -> float:
        """The share of the images; below zero if it gained."""
        return self.float32 - self.test


@final
class Certificate(_Paper):
    """Every limit, held against one network."""

    certificate: Literal[1]  # the version of the format
    fits: bool
    network: CertifiedNetwork
    batch: int
    input_shape: Annotated[tuple[int, ...], Field(strict=False)]
    budgets: dict[str, Line]
    date: str
    versions: dict[str, str]
    message: str
    accuracy: StatedAccuracy | None = None  # of a quantised network

    @property
    def lines(self) -> tuple[Line, ...]:
        return tuple(self.budgets.values())

    @property
    def weights_sha256(self) -> str:
        return self.network.weights_sha256

    def to_json(self) -> dict[str, Any]:
        lines = {line.name: line.model_dump(mode="json", exclude_defaults=True) for line in self.lines}
        own = set() if self.accuracy is not None else {"accuracy"}
        return sealed(self.model_dump(mode="json", exclude=own) | {"budgets": lines})


def open_certificate(path: str | Path) -> Certificate:
    """The certificate in `path`, if nobody changed it."""
    body = read_sealed(path, "a certificate")
    lines = body.get("budgets")
    if isinstance(lines, dict):
        named = {name: {**line, "name": name} if isinstance(line, dict) else line for name, line in lines.items()}
        body = {**body, "budgets": named}
    return as_model(body, Certificate, str(path))


def read_certificate(path: str | Path) -> dict[str, Any]:
    """The same as JSON, its seal included."""
    open_certificate(path)
    value: dict[str, Any] = read_json(path)
    return value
