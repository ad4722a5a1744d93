"""What a solver hands back: the value, a status whose message is advice, and statistics.

An outcome never has to be guessed from None or False. `solution.value` is there or reading it raises the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from snugnet.errors import Infeasible, SnugnetError

T = TypeVar("T")


class Outcome(Enum):
    OPTIMAL = "optimal"  # proven
    FEASIBLE = "feasible"  # fits, but the gap is not closed
    INFEASIBLE = "infeasible"  # proven: nothing fits
    UNDECIDED = "undecided"  # time ran out before anything that fits was found


class Undecided(SnugnetError):
    """The time limit passed before a fitting choice was found or excluded."""

    exit_code = 1


@dataclass(frozen=True)
class Status:
    """How it ended, and what to do about it."""

    outcome: Outcome
    message: str

    def __str__(self) -> str:
        return f"{self.outcome.value}: {self.message}"


@dataclass(frozen=True, kw_only=True)
class Solution(Generic[T]):
    """`value` (raises the reason if there is none), `status`, `stats` (times in seconds, counts, bounds)."""

    found: tuple[T, ...]
    status: Status
    stats: dict[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return bool(self.found)

    @property
    def value(self) -> T:
        if self.found:
            return self.found[0]
        if self.status.outcome is Outcome.INFEASIBLE:
            raise Infeasible(
                "the limits must admit a choice", value=self.status.message, remedy="Raise a limit (see `explain`)."
            )
        raise Undecided("a choice must be found in time", value=self.status.message, remedy="Allow more time.")
