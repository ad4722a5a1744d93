"""What the networks of a space cost, before anything is trained: smallest, median, largest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from snugnet.costs import analytic
from snugnet.costs.table import CostTable
from snugnet.costs.vectorised import CostLookup
from snugnet.space.layout import Layout
from snugnet.space.sampling import largest, sample_many, smallest
from snugnet.space.space import SearchSpace


def describe_range(
    space: SearchSpace, tables: Mapping[str, CostTable] | None = None, *, samples: int = 2000, seed: int = 0
) -> dict[str, dict[str, float]]:
    """{"macs": {"smallest": ..., "median": ..., "largest": ...}, "params": ..., and each table's resource}.

    The ends are the smallest and the largest network; the median is that of `samples` networks, uniform over choices."""
    kinds: dict[str, tuple[Any, str]] = {"macs": (analytic.macs, "sum"), "params": (analytic.params, "sum")}
    for name, table in (tables or {}).items():
        kinds[name] = (table.of_part, table.combine)
    drawn = sample_many(space, samples, np.random.default_rng(seed))
    ends = Layout(space).encode([smallest(space), largest(space)])
    ranges = {}
    for name, (cost, combine) in kinds.items():
        lookup = CostLookup(space, cost, combine)
        low, high = lookup(ends).tolist()
        ranges[name] = {"smallest": low, "median": float(np.median(lookup(drawn))), "largest": high}
    return ranges
