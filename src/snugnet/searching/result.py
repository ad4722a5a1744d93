"""What a search comes to: the network, what it costs against each limit, how good it is, how it was found.

JSON both ways. A result whose network does not meet every limit cannot be made: the constructor refuses.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, final

from snugnet.budgets import Budget
from snugnet.errors import BudgetExceeded, DamagedFile
from snugnet.solve import TOLERANCE
from snugnet.space.architecture import Architecture, from_json
from snugnet.space.space import SearchSpace
from snugnet.store import read_json, write_json
from snugnet.units import show

FORMAT = "snugnet-search/1"
_NAMES = {"effective_limits": "aims", "score": "value"}  # in the file: as before these fields were renamed


@final
@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Costs and limits are in base units (ms, MACs, parameters, bytes); accuracy is a share of the images evaluated.

    `limits` is what was asked; `aims` what predictions were held to, less by the margin of a measured table."""

    method: str
    seed: int
    space: str
    budget: Budget
    architecture: Architecture
    predicted: dict[str, float]
    limits: dict[str, float]
    effective_limits: dict[str, float]
    accuracy: float
    loss: float
    score: float  # what networks are chosen by (`evaluator`): greater is better
    seconds: float
    images: int  # that went through a network during the search
    evaluated: int  # networks evaluated for real
    expected: float = 0.0  # accuracy: the posterior mean where the method has one, else as evaluated
    error: float = 0.0  # standard error of `expected` on images of the same kind
    trace: list[dict[str, Any]] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if over := self._over():
            name, cost = next(iter(over.items()))
            limit = min(self.limits[name], self.effective_limits[name])
            raise BudgetExceeded(
                f"a search must end within every limit ({name} <= {show(limit, name)})",
                value=show(cost, name),
                remedy="This is a fault of the search method; please report it.",
            )

    @property
    def slack(self) -> dict[str, float]:
        """What each limit leaves unused, in its base unit."""
        return {name: self.limits[name] - cost for name, cost in self.predicted.items()}

    @property
    def fits(self) -> bool:
        return not self._over()

    def _over(self) -> dict[str, float]:
        held = {name: min(self.limits[name], self.effective_limits[name]) * (1 + TOLERANCE) for name in self.predicted}
        return {name: cost for name, cost in self.predicted.items() if cost > held[name]}

    def to_json(self) -> dict[str, Any]:
        own = {_NAMES.get(f.name, f.name): getattr(self, f.name) for f in fields(self)}
        forms = {"architecture": str(self.architecture), "layers": self.architecture.to_json()}
        more = {"budget": self.budget.to_json(), "slack": self.slack, "fits": self.fits}
        return {"format": FORMAT, **own, **forms, **more}

    @classmethod
    def from_json(cls, value: Any, space: SearchSpace) -> SearchResult:
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise DamagedFile(f"a search result must be an object of format {FORMAT}", remedy="Search again.")
        names = {_NAMES.get(f.name, f.name): f.name for f in fields(cls)}
        older = {"expected": value.get("accuracy"), "error": 0.0}  # files from before these were known
        known = {**older, **value}
        missing = [name for name in (*names, "layers") if name not in known]
        if missing:
            raise DamagedFile("a search result lacks a field", value=missing[0], remedy="Search again.")
        own = {field: known[name] for name, field in names.items()}
        forms = {"budget": Budget.from_json(value["budget"]), "architecture": from_json(value["layers"], space)}
        return cls(**{**own, **forms})

    def save(self, path: str | Path) -> Path:
        return write_json(path, self.to_json())


def load_result(path: str | Path, space: SearchSpace) -> SearchResult:
    """The result in `path`, checked against the space it belongs to."""
    return SearchResult.from_json(read_json(path), space)
