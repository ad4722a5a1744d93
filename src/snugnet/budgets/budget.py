"""What a network may cost: any number of hard limits, each with its unit.

    Budget(latency="40ms", params="6M")                  Budget({"latency@phone": "30ms", "latency@server": "60%"})

A name may carry a label after `@`: the same resource on two devices is two limits with two tables. A percentage is a share
of the largest network by the same table, and becomes a number when a problem is built. Numbers without a unit are refused.

A latency is the cost on an undisturbed machine (`quiet`), unless the limit names another statistic; all of these say that
nine of ten calls take 5 ms at most: `{"latency": {"limit": "5ms", "statistic": "p90"}}`, `{"latency:p90": "5ms"}` and, as it
is kept and written, `{"latency": "5ms p90"}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from snugnet import units
from snugnet.errors import BadInput, BadUnit, UnknownName
from snugnet.units import STATISTICS, Statistic


class Budget(Mapping[str, str]):
    """An immutable mapping from resource to limit as written. No limit at all is allowed: anything fits."""

    def __init__(self, limits: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        self._limits: dict[str, str] = {}
        for key, text in [*(limits or {}).items(), *more.items()]:
            name, limit = _apart(key, text)
            if name in self._limits:
                raise BadInput("a budget must limit a resource once", value=name, remedy="Drop one of the two.")
            self._limits[name] = limit

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
            remedy = 'Write it like {"latency": "40ms"}.'
            raise BadInput("a budget must map resources to limits", value=data, remedy=remedy)
        return cls({str(name): text for name, text in data.items()})

    def is_relative(self, name: str) -> bool:
        """Is this limit a share of the largest network?"""
        return units.percentage(self._quantity(name)) is not None

    def amount(self, name: str, largest: float) -> float:
        """The limit on `name` in its base unit; `largest` is what the largest network costs by the same table."""
        share = units.percentage(self._quantity(name))
        return units.parse(self._quantity(name), name) if share is None else share * largest

    def statistic(self, name: str) -> Statistic:
        """Which statistic of the measured times is limited; `quiet` where nothing was said."""
        return _split(self._limits[name])[1]

    def absolute(self, name: str, amount: float) -> str:
        """The text of the limit on `name`, a percentage replaced by the `amount` it stands for."""
        return _text(units.write(amount, name), self.statistic(name)) if self.is_relative(name) else self[name]

    def _quantity(self, name: str) -> str:
        return _split(self._limits[name])[0]

    def _limits_of(self) -> dict[str, tuple[bool, float, str]]:
        return {name: (self.is_relative(name), self.amount(name, 1.0), self.statistic(name)) for name in self._limits}


_DEFAULT: Final[Statistic] = "quiet"


def _split(text: str) -> tuple[str, Statistic]:
    """ "5ms p90" -> ("5ms", "p90")."""
    quantity, _, last = text.strip().rpartition(" ")
    for statistic in STATISTICS:
        if quantity and last == statistic:
            return quantity.strip(), statistic
    return text, _DEFAULT


def _text(quantity: str, statistic: Statistic) -> str:
    return quantity if statistic == _DEFAULT else f"{quantity.strip()} {statistic}"


def _apart(key: str, value: Any) -> tuple[str, str]:
    """A limit as written -> its name (resource and label) and its text, after both were understood."""
    base, _, label = str(key).partition("@")
    label, _, after = label.partition(":")
    base, _, before = base.partition(":")
    name = f"{base}@{label}" if "@" in str(key) else base
    said = [word for word in (before, after) if word]
    if isinstance(value, Mapping):
        if "limit" not in value or set(value) - {"limit", "statistic"}:
            rule, keys = f"the limit on {name} must have 'limit' and may have 'statistic'", ", ".join(map(str, value))
            raise BadInput(rule, value=keys, remedy="Write it like {limit: 5ms, statistic: p90}.")
        said += [value["statistic"]] if "statistic" in value else []
        value = value["limit"]
    if isinstance(value, str) and (parts := _split(value)) and parts[0] != value:
        value = parts[0]
        said.append(parts[1])
    for word in said:
        if word not in STATISTICS:
            raise UnknownName("a statistic", str(word), STATISTICS)
    if len(set(said)) > 1:
        raise BadInput(f"the limit on {name} must name one statistic", value=", ".join(said), remedy="Drop one.")
    if said and units.resource(name).name != "latency":
        rule = f"{name} is counted, so its limit must not name a statistic"
        raise BadInput(rule, value=said[0], remedy="Drop the statistic.")
    statistic = next((known for known in STATISTICS if known in said), _DEFAULT)
    return name, _text(_checked(name, value), statistic)


def _checked(name: str, text: Any) -> str:
    """The limit, after its name and unit were understood."""
    what = units.resource(name)
    if "@" in name and not re.fullmatch(r"[\w.-]+", name.split("@", 1)[1]):
        rule = "a label of letters, digits, '.', '_' or '-' must follow the @ of a resource"
        raise BadInput(rule, value=name, remedy=f"Write {what.name}@phone.")
    if not isinstance(text, str):
        rule = f"the limit on {name} must be text with a unit or a percentage"
        raise BadUnit(rule, value=text, remedy=f"Write it like {what.example!r} or '60%'.")
    if units.percentage(text) is None:
        units.parse(text, name)
    return text
