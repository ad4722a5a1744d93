"""Cheapest and dearest networks by dynamic programming, against every network of small spaces of every shape."""

import numpy as np
import pytest

from snugnet.budgets import cheapest, dearest, limits_of
from snugnet.costs.analytic import macs
from snugnet.costs.table import CostTable, exact_table
from snugnet.errors import Infeasible
from snugnet.space import plan, preset, sample
from snugnet.space.layout import Layout
from snugnet.space.space import BlockChoice, BlockRules, Head, SearchSpace, Stage, Stem

COUPLED = SearchSpace(
    name="coupled",
    classes=10,
    resolutions=(24, 32),
    stem=Stem(widths=(8, 16)),
    stages=(
        Stage.of((8, 16), depth=(1, 2), kernels=(3, 5), expands=(2,), per="stage", stride=2),
        Stage.of((16, 24), depth=(1, 2), kernels=(3,), expands=(1, 3), per="stage"),
    ),
    head=Head(kind="pool-conv", widths=(32, 48), hidden_expand=2),
    rules=BlockRules(shortcut="always"),
)
FREE = SearchSpace(
    name="free",
    classes=10,
    resolutions=(16,),
    stem=Stem(widths=(4,)),
    stages=(
        Stage(
            widths=(4,),
            depths=(1, 2),
            choices=(
                BlockChoice(kernel=3, expand=2, expand_range=(1.5, 3.0)),
                BlockChoice(kernel=5, expand=3, expand_range=(2.0, 3.0)),
            ),
        ),
    ),
    head=Head(kind="conv-pool", widths=(8,)),
)


def moody(space):
    """A table in which larger is not dearer: only looking everywhere helps."""
    rng = np.random.default_rng(0)
    return CostTable(resource="latency", costs={p: float(rng.uniform(1, 2)) for p in Layout(space).distinct_specs()})


TABLES = {
    "macs": lambda space: exact_table(space, "macs"),
    "params": lambda space: exact_table(space, "params"),
    "memory": lambda space: exact_table(space, "memory"),
    "moody": moody,
}


def everything(space):
    """All networks, by drawing until the exact count is reached."""
    rng, seen = np.random.default_rng(0), set()
    for _ in range(60 * space.count):
        seen.add(sample(space, rng))
        if len(seen) == space.count:
            return seen
    raise AssertionError(f"{len(seen)} of {space.count} seen")


# Of free middle widths a table measures some and interpolates: costs have to rise with the width, so nothing moody there.
CASES = [(COUPLED, kind) for kind in TABLES] + [(FREE, kind) for kind in TABLES if kind != "moody"]


@pytest.mark.parametrize(("space", "kind"), CASES, ids=lambda value: getattr(value, "name", value))
def test_extremes_are_those_of_all_networks(space, kind):
    table = TABLES[kind](space)
    costs = [table.of_network(plan(a, space)) for a in everything(space)]
    low, high = cheapest(space, table), dearest(space, table)
    assert low.cost == pytest.approx(min(costs))
    assert high.cost == pytest.approx(max(costs))
    assert table.of_network(plan(low.architecture, space)) == low.cost
    assert table.of_network(plan(high.architecture, space)) == high.cost


def test_limits_hold_for_spaces_that_do_not_add_up():
    space = preset("attentive")
    low, high = (f(space, exact_table(space, "macs")).cost for f in (cheapest, dearest))
    limits = limits_of(space, [], {"macs": "40%"})
    assert limits["macs"].effective == pytest.approx(0.4 * high)
    rng = np.random.default_rng(0)
    for _ in range(20):
        network = sample(space, rng)
        cost = macs(plan(network, space))
        assert low <= cost <= high
        assert limits.fits(network) == (cost <= limits["macs"].effective)
    with pytest.raises(Infeasible, match="cheapest network of space 'attentive'"):
        limits_of(space, [], {"macs": "1MMACs"})


def test_limits_are_values():
    limits = limits_of(COUPLED, [], {"macs": "60%"})
    assert limits == limits_of(COUPLED, [], {"macs": "60%"})
    assert limits != limits_of(COUPLED, [], {"macs": "61%"})
