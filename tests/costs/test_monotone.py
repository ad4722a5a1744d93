"""Measured curves over widths rise before anything is scaled by them."""

from dataclasses import replace

import pytest

from snugnet.budgets.widths import envelope
from snugnet.costs.measure import smoothed
from snugnet.costs.table import CostTable, exact_table
from snugnet.space import preset
from snugnet.space.layout import Layout


def test_curves_that_fall_are_pooled_and_others_kept():
    space = preset("tfnas-lowres", classes=10)
    table = exact_table(space, "macs")
    spec = Layout(space).slot_specs[1][4]  # with squeeze-excite: a curve of its own, of three widths
    low, middle, high = (replace(spec, mid_channels=m) for m in (32, 48, 64))
    costs = {**table.costs, low: 1.0, middle: 5.0, high: 3.0}
    rising = smoothed(costs)
    assert (rising[low], rising[middle], rising[high]) == pytest.approx((1.0, 4.0, 4.0))
    assert {p: c for p, c in rising.items() if p not in (low, middle, high)} == {
        p: c for p, c in table.costs.items() if p not in (low, middle, high)
    }


def test_the_envelope_never_lowers_an_entry():
    space = preset("tfnas-lowres", classes=10)
    table = exact_table(space, "macs")
    assert envelope(table) is table
    spec = Layout(space).slot_specs[1][4]
    low, middle, high = (replace(spec, mid_channels=m) for m in (32, 48, 64))
    noisy = CostTable(resource="latency", costs={**table.costs, low: 1.0, middle: 5.0, high: 3.0})
    rising = envelope(noisy)
    assert (rising.costs[low], rising.costs[middle], rising.costs[high]) == (1.0, 5.0, 5.0)
    assert all(rising.costs[part] >= cost for part, cost in noisy.costs.items())
