"""Quantities with units: "40ms", "300MMACs", "600MFLOPs", "6M", "8MiB" <-> numbers, once and for all.

Inside the house a quantity is a plain float in the base unit of its resource: milliseconds, MACs, parameters, bytes. Text
with a unit is turned into that at the edge and nowhere else. A bare number is refused: a seconds/milliseconds mix-up is
the loudest complaint about tools like this one. One MAC is two FLOPs, and that is said, not assumed.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final, Literal, get_args

from snugnet.errors import BadInput, BadUnit, UnknownName

Statistic = Literal["quiet", "median", "p90"]
"""Of measured times: the mean of the lowest tenth (the cost on an undisturbed machine), the median, the 90 % quantile."""
STATISTICS: Final[tuple[Statistic, ...]] = get_args(Statistic)

_SI: Final = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BINARY: Final = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


@dataclass(frozen=True, kw_only=True)
class Resource:
    """Something a network costs: its name, the base unit numbers are kept in, and what a user may write."""

    name: str
    unit: str  # of the plain numbers inside the house
    units: dict[str, float]  # what may be written -> size in base units
    example: str

    def __hash__(self) -> int:
        return hash(self.name)


def _counts(names: tuple[str, ...], size: float, prefixes: dict[str, float]) -> dict[str, float]:
    return {prefix + name: factor * size for name in names for prefix, factor in prefixes.items()}


_BYTES: Final = {**_counts(("B",), 1.0, _SI), **_counts(("B",), 1.0, _BINARY)}

RESOURCES: Final[dict[str, Resource]] = {
    r.name: r
    for r in (
        Resource(
            name="latency", unit="ms", units={"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}, example="40ms"
        ),
        Resource(
            name="macs",
            unit="MACs",
            units={**_counts(("MACs", "MAC"), 1.0, _SI), **_counts(("FLOPs", "FLOP"), 0.5, _SI)},
            example="300MMACs",
        ),
        Resource(
            name="params",
            unit="parameters",
            units={**{p: f for p, f in _SI.items() if p}, **_counts(("params", "parameters"), 1.0, _SI)},
            example="6M",
        ),
        Resource(name="model_size", unit="bytes", units=_BYTES, example="24MiB"),
        Resource(name="memory", unit="bytes", units=_BYTES, example="8MiB"),
    )
}
"""latency (ms), macs, params, model_size (bytes of the stored weights), memory (bytes of peak activations, batch 1)."""

_FORMER_NAMES: Final = {"weights": "model_size"}
_QUANTITY: Final = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\d\s].*?)?\s*")


def resource(name: str) -> Resource:
    """The resource called `name`; "latency@phone" is latency on a device of that label."""
    base = name.split("@")[0]
    if base in _FORMER_NAMES:
        new = _FORMER_NAMES[base]
        raise BadInput("a resource must be called by its name", value=base, remedy=f"It is {new!r} since 0.2.")
    if base not in RESOURCES:
        raise UnknownName("a resource", base, RESOURCES)
    return RESOURCES[base]


def parse(text: str | float, resource_name: str) -> float:
    """`parse("0.04s", "latency") == 40.0`: the number in the resource's base unit."""
    what = resource(resource_name)
    expected = f"{resource_name} must be a positive number with a unit"
    known = ", ".join(u for u in what.units)
    remedy = f"Write it like {what.example!r}; units: {known}."
    if not isinstance(text, str):
        raise BadUnit(expected, value=text, remedy=remedy)
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] is None:
        raise BadUnit(expected, value=text, remedy=remedy)
    number, unit = float(match[1]), match[2]
    if unit not in what.units:
        raise BadUnit(f"{resource_name} must have a unit of {what.name} (not {unit!r})", value=text, remedy=remedy)
    if not number > 0 or math.isinf(number):
        raise BadUnit(expected, value=text, remedy=remedy)
    return number * what.units[unit]


def percentage(text: str) -> float | None:
    """`percentage("60%") == 0.6`; None if `text` is not a percentage. Budgets may be relative to the largest network."""
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*%\s*", text) if isinstance(text, str) else None
    if match is None:
        return None
    share = float(match[1]) / 100
    if not share > 0:
        raise BadUnit("a relative budget must be above 0 %", value=text, remedy="Write it like '60%'.")
    return share


def show(value: float, resource_name: str) -> str:
    """Text a person reads and `parse` takes back: 40.0 -> "40ms", 3e8 -> "300MMACs"."""
    what = resource(resource_name)
    if what.name == "latency":
        return f"{_digits(value)}ms"
    if what.unit == "bytes":
        return _scaled(value, {"": 1.0, **_BINARY}, "B")
    prefixes = {p: f for p, f in _SI.items() if p != "K"}
    if what.name == "macs":
        return _scaled(value, prefixes, "MACs")
    scaled = _scaled(value, prefixes, "")
    return scaled if scaled[-1].isalpha() else scaled + "params"


def write(value: float, resource_name: str, digits: int = 6) -> str:
    """`value` in the resource's base unit as text that `parse` takes back to that many digits: 0.4203125 -> "0.420313ms"."""
    what = resource(resource_name)
    unit = next(unit for unit, size in what.units.items() if size == 1.0)
    return f"{value:.{digits}g}{unit}"


def _scaled(value: float, prefixes: dict[str, float], word: str) -> str:
    fitting = [(p, f) for p, f in prefixes.items() if abs(value) >= f] or [("", 1.0)]
    prefix, factor = max(fitting, key=lambda item: item[1])
    return f"{_digits(value / factor)}{prefix}{word}"


def _digits(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
