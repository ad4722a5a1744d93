"""What the networks of a space cost, before anything is trained: smallest, median, largest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from snugnet.costs.table import CostTable
from snugnet.costs.vectorised import CostLookup
from snugnet.space.layout import Layout
from snugnet.space.sampling import largest, sample_many, smallest
from snugnet.space.space import SearchSpace
from snugnet.units import show

_SAMPLES = 2000


@final
@dataclass(frozen=True, kw_only=True)
class CostRange:
    """Of one resource, in its base unit: the two ends of the space, and the median of networks uniform over choices."""

    resource: str
    smallest: float
    median: float
    largest: float

    def __str__(self) -> str:
        low, middle, high = (show(value, self.resource) for value in (self.smallest, self.median, self.largest))
        return f"{self.resource} from {low} to {high}, median {middle}"


def cost_range(space: SearchSpace, table: CostTable, *, seed: int = 0) -> CostRange:
    """What `table` says of the networks of `space`."""
    lookup = CostLookup(space, table.of_part, table.combine)
    low, high = lookup(Layout(space).encode([smallest(space), largest(space)])).tolist()
    drawn = lookup(sample_many(space, _SAMPLES, np.random.default_rng(seed)))
    return CostRange(resource=table.resource, smallest=low, median=float(np.median(drawn)), largest=high)
