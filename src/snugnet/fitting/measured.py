"""The measured loop: search, measure the whole network, aim lower by what was learnt, search again.

A table's sums are predictions; only a measured network is a promise. So the found network is measured on its devices
before anything is spent on it, and while it is over a limit the next search aims as much lower as the measurement was
over. The loop takes functions (`search(factors)`, `measure(result)`), is bounded, and keeps the best network that was
measured within every limit, so that whatever else is tried can only improve on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

from snugnet.errors import Infeasible
from snugnet.searching import SearchResult
from snugnet.store import Say

BACK_OFF = 0.995  # beyond what was learnt: the next network's own noise

Factors = Mapping[str, float]
"""What share of each limit a search aims at, beside the table's margin; a limit that is not named: all of it."""


@final
@dataclass(frozen=True, kw_only=True)
class Round:
    """A network, the factors it was searched with, and the share of every limit it takes as measured."""

    factors: dict[str, float]
    result: SearchResult
    shares: dict[str, float]

    @property
    def over(self) -> dict[str, float]:
        """The limits it breaks."""
        return {name: share for name, share in self.shares.items() if share > 1.0}


@final
class MeasuredLoop:
    """`MeasuredLoop(search, measure).run(rounds)`; `best` is the best network measured within all limits so far."""

    def __init__(
        self,
        search: Callable[[Factors], SearchResult],
        measure: Callable[[SearchResult], dict[str, float]],
        *,
        factors: Factors | None = None,
        say: Say = lambda _: None,
    ) -> None:
        self._search, self._measure, self._say = search, measure, say
        self.factors = dict(factors or {})
        self.rounds: list[Round] = []

    @property
    def best(self) -> Round | None:
        """Of the networks that fit as measured, the one of greatest score; the earlier wins a tie."""
        fitting = [round_ for round_ in self.rounds if not round_.over]
        return max(fitting, key=lambda round_: round_.result.score, default=None)

    @property
    def nearest(self) -> Round:
        """The round that came nearest to its limits: what a refusal tells."""
        return min(self.rounds, key=lambda round_: max(round_.over.values(), default=0.0))

    def run(self, rounds: int) -> Round | None:
        """The best network after at most `rounds` searches; None if none fits, or nothing smaller is left."""
        for _ in range(rounds):
            try:
                result = self._search(self.factors)
            except Infeasible:
                if not self.rounds and not self.factors:
                    raise  # what was asked for is impossible; nothing was measured yet
                break
            self.rounds.append(Round(factors=dict(self.factors), result=result, shares=self._measure(result)))
            if not self.rounds[-1].over:
                break
            self.factors = lowered(self.factors, self.rounds[-1].over)
            for name, share in self.rounds[-1].over.items():
                aim = self.factors[name]
                self._say(f"measured at {share:.1%} of the {name} limit; the next search aims at {aim:.1%} of it")
        return self.best


def lowered(factors: Factors, over: Mapping[str, float]) -> dict[str, float]:
    """`factors` after a network was measured at `over` (shares above 1) of some limits."""
    return {**factors, **{name: factors.get(name, 1.0) * BACK_OFF / share for name, share in over.items()}}


def factors_of(result: SearchResult, margins: Mapping[str, float]) -> dict[str, float]:
    """The factors a result was searched with, from what its predictions were held to."""
    aims = {n: result.effective_limits[n] * (1 + margins[n]) / asked for n, asked in result.limits.items()}
    return {name: factor for name, factor in aims.items() if factor < 1.0 - 1e-9}
