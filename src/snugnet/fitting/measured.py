"""The measured loop: search, measure the whole network, aim lower or higher by what was learnt, search again.

A table's sums are predictions; only a measured network is a promise. So the found network is measured on its devices
before anything is spent on it, and while it is over a limit the next search aims as much lower as the measurement was
over. A network that leaves more than a twentieth of its measured limits unused sends the search to aim higher: tables
keep a margin, and say too much of some networks. The loop takes functions (`search(factors)`, `measure(result)`), is
bounded, and keeps the best network that was measured within every limit, so that whatever else is tried can only improve
on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import final

from snugnet.budgets.limits import HIGHEST_AIM
from snugnet.errors import Infeasible
from snugnet.searching import SearchResult
from snugnet.store import Say

BACK_OFF = 0.995  # beyond what was learnt: the next network's own noise
USED = 0.95  # of a limit: a network that uses less may have a larger and better neighbour
AIM = 0.975  # of a limit: what the next network is meant to use where more room was seen

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
    """`MeasuredLoop(search, measure).run(rounds)`; `best` is the best network measured within all limits so far.

    `measured` names the limits that may be aimed above: those whose tables were measured. None: it only aims lower.
    `ceilings`: factors known beforehand to lead over a limit; it never aims as high again."""

    def __init__(
        self,
        search: Callable[[Factors], SearchResult],
        measure: Callable[[SearchResult], dict[str, float]],
        *,
        measured: Collection[str] = (),
        factors: Factors | None = None,
        ceilings: Factors | None = None,
        say: Say = lambda _: None,
    ) -> None:
        self._search, self._measure, self._say = search, measure, say
        self._measured = frozenset(measured)
        self.factors, self._ceilings = dict(factors or {}), dict(ceilings or {})
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
            if any(result.architecture == known.result.architecture and not known.over for known in self.rounds):
                break  # known to fit: aiming elsewhere finds nothing new
            self.rounds.append(Round(factors=dict(self.factors), result=result, shares=self._measure(result)))
            aims = self._next(self.rounds[-1])
            if aims == self.factors:
                break
            for name in aims:
                if aims[name] != self.factors.get(name):
                    share = self.rounds[-1].shares[name]
                    self._say(f"measured at {share:.1%} of the {name} limit; the next search aims at {aims[name]:.1%}")
            self.factors = aims
        return self.best

    def _next(self, last: Round) -> dict[str, float]:
        """Factors of the next search; the same again where nothing is left to learn."""
        if last.over:
            return lowered(self.factors, last.over)
        room = {name: share for name, share in last.shares.items() if name in self._measured and 0 < share < USED}
        if len(room) < len(self._measured):
            return dict(self.factors)  # a limit is used up
        # Never as high again as what was measured over: between the two lies what can still be found.
        ceilings = {
            name: min(
                [
                    self._ceilings.get(name, HIGHEST_AIM),
                    *(r.factors.get(name, 1.0) for r in self.rounds if name in r.over),
                ]
            )
            for name in room
        }
        return {
            **self.factors,
            **{n: min(self.factors.get(n, 1.0) * AIM / s, BACK_OFF * ceilings[n]) for n, s in room.items()},
        }


def lowered(factors: Factors, over: Mapping[str, float]) -> dict[str, float]:
    """`factors` after a network was measured at `over` (shares above 1) of some limits."""
    return {**factors, **{name: factors.get(name, 1.0) * BACK_OFF / share for name, share in over.items()}}
