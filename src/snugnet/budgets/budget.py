"""What a network may cost: any number of hard limits, each with its unit.

    Budget(latency="40ms", params="6M")                  Budget({"latency@phone": "30ms", "latency@server": "60%"})

A name may carry a label after `@`: the same resource on two devices is two limits with two tables. A percentage is a share
of the largest network by the same table, and becomes a number when a problem is built. Numbers without a unit are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from snugnet import units
from snugnet.errors import BadInput, BadUnit


class Budget(Mapping[str, str]):
    """An immutable mapping from resource to limit as written. No limit at all is allowed: anything fits."""

    def __init__(self, limits: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        self._limits: dict[str, str] = {}
        for name, text in [*(limits or {}).items(), *more.items()]:
            if name in self._limits:
                raise BadInput("a budget must limit a resource once", value=name, remedy="Drop one of the two.")
            self._limits[name] = _checked(name, text)

    def __getitem__(self, name: str) -> str:
        return self._limits[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._limits)

    def __len__(self) -> int:
        return len(self._limits)

    def __eq__(self, other: object) -> bool:
        """Equal limits, however written: 40ms is 0.04s."""
        if not isinstance(other, Budget):
            return NotImplemented
        return self._limits_of() == other._limits_of()

    def __hash__(self) -> int:
        return hash(frozenset(self._limits_of().items()))

    def __repr__(self) -> str:
        return f"Budget({self._limits!r})"

    def __str__(self) -> str:
        return ", ".join(f"{name} <= {text}" for name, text in self._limits.items()) or "no limit"

    def to_json(self) -> dict[str, str]:
        return dict(self._limits)

    @classmethod
    def from_json(cls, data: Any) -> Budget:
        if not isinstance(data, Mapping):
            raise BadInput(
                "a budget must map resources to limits", value=data, remedy='Write it like {"latency": "40ms"}.'
            )
        return cls({str(name): text for name, text in data.items()})

    def is_relative(self, name: str) -> bool:
        """Is this limit a share of the largest network?"""
        return units.percentage(self._limits[name]) is not None

    def amount(self, name: str, largest: float) -> float:
        """The limit on `name` in its base unit; `largest` is what the largest network costs by the same table."""
        share = units.percentage(self._limits[name])
        return units.parse(self._limits[name], name) if share is None else share * largest

    def _limits_of(self) -> dict[str, tuple[bool, float]]:
        return {name: (self.is_relative(name), self.amount(name, 1.0)) for name in self._limits}


def _checked(name: str, text: Any) -> str:
    """The limit, after its name and unit were understood."""
    what = units.resource(name)
    if "@" in name and not re.fullmatch(r"[\w.-]+", name.split("@", 1)[1]):
        raise BadInput(
            "a label of letters, digits, '.', '_' or '-' must follow the @ of a resource",
            value=name,
            remedy=f"Write {what.name}@phone.",
        )
    if not isinstance(text, str):
        raise BadUnit(
            f"the limit on {name} must be text with a unit or a percentage",
            value=text,
            remedy=f"Write it like {what.example!r} or '60%'.",
        )
    if units.percentage(text) is None:
        units.parse(text, name)
    return text
