"""A table measured as far as it is used: only what networks consist of, once, and as a complete table would say."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from test_table import QUICK, Pretended

from snugnet.budgets import Budget
from snugnet.costs.lazy import measure_lazily
from snugnet.costs.measure import measure
from snugnet.costs.table import load_table, save_table
from snugnet.data import load
from snugnet.errors import TableMismatch
from snugnet.nets import Supernet
from snugnet.searching.context import search_context
from snugnet.searching.search import search
from snugnet.space import largest, plan, preset, sample
from snugnet.space.layout import Layout

SPACE = preset("attentive-thin-lowres", classes=10, resolution=12)
SPEED = {"factor": 1.0}


@dataclass(frozen=True, kw_only=True)
class Counting(Pretended):
    """Counts what it prepares; all its times may be slower by a factor, as a machine's are from day to day."""

    def prepare(self, module, example):
        SPEED["prepared"] = SPEED.get("prepared", 0) + 1
        return super().prepare(module, example)

    def time(self, runnable, repetitions):
        return super().time(runnable, repetitions) * SPEED["factor"]


@pytest.fixture
def counted():
    SPEED.update(factor=1.0, prepared=0)
    return SPEED


def test_only_what_is_asked_for_is_measured_and_agrees_with_a_whole_table(counted):
    whole = measure(SPACE, Counting(), settings=QUICK, networks=5)
    counted["prepared"] = 0
    table = measure_lazily(SPACE, Counting(), settings=QUICK, networks=5)
    parts = len(Layout(SPACE).distinct_specs())
    first = len(table.costs)
    assert first < 0.6 * parts and counted["prepared"] == first + 5
    rng = np.random.default_rng(0)
    for network in [largest(SPACE), *(sample(SPACE, rng) for _ in range(5))]:
        network_plan = plan(network, SPACE)
        assert table.of_network(network_plan) == pytest.approx(whole.of_network(network_plan), rel=0.02)
    later = len(table.costs) - first
    assert 0 < later < parts - first
    before = counted["prepared"]
    assert table.of_network(plan(largest(SPACE), SPACE)) > 0 and counted["prepared"] == before


def test_a_slower_day_is_taken_out(counted):
    table = measure_lazily(SPACE, Counting(), settings=QUICK, networks=5)
    network = plan(sample(SPACE, np.random.default_rng(3)), SPACE)
    assert any(part not in table.costs for part in network.parts)
    counted["factor"] = 1.7
    slow = table.of_network(network)
    counted["factor"] = 1.0
    assert slow == pytest.approx(
        measure_lazily(SPACE, Counting(), settings=QUICK, networks=5).of_network(network), rel=1e-6
    )


def test_nothing_is_measured_twice_over_restarts(counted, tmp_path):
    path, network = tmp_path / "table.json", plan(sample(SPACE, np.random.default_rng(3)), SPACE)
    cost = measure_lazily(SPACE, Counting(), settings=QUICK, networks=5, out=path).of_network(network)
    before = counted["prepared"]
    again = measure_lazily(SPACE, Counting(), settings=QUICK, networks=5, out=path)
    assert again.of_network(network) == cost and counted["prepared"] == before
    save_table(again, tmp_path / "known.json")
    assert load_table(tmp_path / "known.json").of_network(network) == cost
    with pytest.raises(TableMismatch, match="batch"):
        measure_lazily(SPACE, Counting(), settings=QUICK, networks=5, out=path, batch=2)


def test_a_scaled_table_is_measured_on_demand_too(counted):
    table = measure_lazily(SPACE, Counting(), settings=QUICK, networks=5)
    half, network = table.scaled(0.5), plan(sample(SPACE, np.random.default_rng(3)), SPACE)
    assert half.of_network(network) == pytest.approx(0.5 * table.of_network(network))


def test_a_search_within_latency_and_params_measures_what_it_meets(counted):
    torch.manual_seed(0)
    supernet, data = Supernet(SPACE).eval(), load("digits", resolution=12)
    table = measure_lazily(SPACE, Counting(), settings=QUICK, networks=5)
    parts, limits = len(Layout(SPACE).distinct_specs()), {"latency": "60ms", "params": "40%"}
    context = search_context(SPACE, [table], Budget(limits))
    assert context.limits.fits(context.start) and len(table.costs) < 0.7 * parts
    found = search(supernet, data, [table], limits, "random", networks=3, eval_images=20, final_images=20)
    assert found.fits and found.predicted["latency"] <= 60
    before = counted["prepared"]
    shares = search_context(SPACE, [table], Budget({"latency": "40%"}))  # of the dearest network: all parts, at once
    assert len(table.costs) == parts and counted["prepared"] <= before + parts + 4
    assert shares.limits.fits(shares.start)
