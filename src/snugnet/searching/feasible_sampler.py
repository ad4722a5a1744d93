"""Random networks that fit: sampled, mutated and crossed inside the limits, without a `while True`.

Uniform networks within the limits come by rejection while enough are accepted, and by a random walk otherwise: every
step redraws a few decisions and is undone if a limit breaks. Proposals are symmetric, so the walk's distribution is the
uniform one over what fits, however small that is; it starts at a network known to fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import final

import numpy as np
from numpy.typing import NDArray

from snugnet.budgets import Limits
from snugnet.costs.vectorised import CostLookup
from snugnet.solve import TOLERANCE
from snugnet.space.architecture import Architecture
from snugnet.space.layout import Genes, IntArray, Layout, concatenate
from snugnet.space.sampling import crossover_many, mutate_many, sample_many

_ROUNDS = 20  # of rejection, before the walk takes over
_WALK = 400  # steps of the walk
_TRIES = 50  # of a mutation or crossover before its parent is handed back


@final
class FeasibleSampler:
    """Networks of a space inside its limits."""

    def __init__(self, limits: Limits, start: Architecture) -> None:
        self.limits, self.space, self.start = limits, limits.space, start
        self.layout = Layout(limits.space)
        self._lookups = {
            name: CostLookup(self.space, table.of_part, table.combine, table.expect)
            for name, table in limits.tables.items()
        }

    def fits(self, genes: Genes) -> NDArray[np.bool_]:
        """Which rows meet every limit."""
        good = np.ones(len(genes), dtype=bool)
        for name, lookup in self._lookups.items():
            good &= lookup(genes) <= self.limits[name].effective * (1 + TOLERANCE)
        return good

    def sample(self, count: int, rng: np.random.Generator) -> list[Architecture]:
        """`count` independent random networks, uniform over the decisions of all that fit."""
        found: list[Genes] = []
        have, size = 0, max(64, 4 * count)
        for _ in range(_ROUNDS):
            drawn = sample_many(self.space, size, rng)
            good = np.flatnonzero(self.fits(drawn))
            found.append(drawn.take(good))
            have += len(good)
            if have >= count:
                return self.layout.decode(concatenate(found).take(slice(0, count)))
        return self.layout.decode(self._walk(count, rng))

    def mutate(self, parents: list[Architecture], rng: np.random.Generator, share: float = 0.2) -> list[Architecture]:
        """A changed copy of each parent, inside the limits; the parent itself where no change found room."""
        genes = self.layout.encode(parents)
        return self._until_fitting(genes, lambda rows: mutate_many(self.space, genes.take(rows), rng, share))

    def cross(
        self, ones: list[Architecture], others: list[Architecture], rng: np.random.Generator
    ) -> list[Architecture]:
        """A mixture of each pair, inside the limits; the first parent where no mixture found room."""
        a, b = self.layout.encode(ones), self.layout.encode(others)
        return self._until_fitting(a, lambda rows: crossover_many(self.space, a.take(rows), b.take(rows), rng))

    def _until_fitting(self, genes: Genes, change: Callable[[IntArray], Genes]) -> list[Architecture]:
        waiting = np.arange(len(genes))
        for _ in range(_TRIES):
            if not len(waiting):
                break
            drawn = change(waiting)
            good = self.fits(drawn)
            genes = _replaced(genes, waiting[good], drawn.take(np.flatnonzero(good)))
            waiting = waiting[~good]
        return self.layout.decode(genes)

    def _walk(self, count: int, rng: np.random.Generator) -> Genes:
        genes = self.layout.encode([self.start] * count)
        decisions = sum(stage.max_depth + 2 for stage in self.space.stages) + 3
        for _ in range(_WALK):
            drawn = mutate_many(self.space, genes, rng, 2.0 / decisions)
            good = np.flatnonzero(self.fits(drawn))
            genes = _replaced(genes, good, drawn.take(good))
        return genes


def _replaced(genes: Genes, rows: IntArray, by: Genes) -> Genes:
    """A copy of `genes` with `rows` taken from `by`."""
    copies = {f.name: getattr(genes, f.name).copy() for f in fields(Genes)}
    for name, column in copies.items():
        column[rows] = getattr(by, name)
    return Genes(**copies)
