"""Costs that rise with the width: what scaling a network's widths takes for granted, and timing noise can break.

Entries of blocks that are alike except for their middle width form a curve. `smoothed` replaces a measured curve that falls
somewhere by the rising one nearest to it in squares (pool adjacent violators). `envelope` never lowers an entry: a network
that fits by it fits by the table it was made from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from scipy.optimize import isotonic_regression

from snugnet.costs.table import CostTable, width_curves
from snugnet.space.spec import LayerSpec


def smoothed(costs: Mapping[LayerSpec, float]) -> dict[LayerSpec, float]:
    """The costs with every curve over middle widths rising; those that rise already keep every bit."""
    rising = dict(costs)
    for parts in width_curves(costs).values():
        values = [costs[part] for part in parts]
        if (np.diff(values) < 0).any():
            rising |= dict(zip(parts, isotonic_regression(values).x.tolist()))
    return rising


def envelope(table: CostTable) -> CostTable:
    """The table with each entry raised to the dearest narrower one; the same object where nothing falls."""
    rising = dict(table.costs)
    for parts in width_curves(table.costs).values():
        rising |= dict(zip(parts, np.maximum.accumulate([table.costs[part] for part in parts]).tolist()))
    return table if rising == table.costs else replace(table, costs=rising)
