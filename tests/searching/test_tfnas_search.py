"""TF-NAS's derivation through the same door as every search: hard limits, repairs, refusals, the measured loop."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from snugnet.budgets import Budget, cheapest, dearest, limits_of
from snugnet.budgets.widths import Widths
from snugnet.errors import BadArchitecture, BadInput, BadSpace, Infeasible
from snugnet.fitting.measured import MeasuredLoop
from snugnet.nets import MixedSupernet
from snugnet.searching.context import search_context
from snugnet.searching.front import front
from snugnet.searching.search import search
from snugnet.space import preset
from snugnet.space.architecture import parse
from snugnet.space.layout import Layout
from snugnet.space.space import SearchSpace
from snugnet.units import write


@pytest.fixture(scope="module")
def net(digits):
    torch.manual_seed(0)
    net = MixedSupernet(preset("tfnas-thin-lowres", classes=10, resolution=8))
    rng = np.random.default_rng(0)
    strengths = [torch.tensor(rng.normal(size=n)).float().log_softmax(0) for n in net.choice_counts]
    depths = [torch.tensor(rng.normal(size=n)).float().log_softmax(0) for n in net.depth_counts]
    net.remember(torch.cat(strengths), torch.cat(depths))
    return net.eval()


def table_of(space: SearchSpace):
    from conftest import fake_latency

    return fake_latency(space)


@pytest.fixture(scope="module")
def table(net):
    return table_of(net.space)


def ms(value):
    return {"latency": write(value, "latency", 12)}


def strongest(net, table, target):
    """Cost of the strongest network with all widths at their bounds."""
    widths = Widths(limits_of(net.space, table, Budget(ms(target)), margin=False))
    numbers = widths.strongest(*net.probabilities())
    problem, _ = widths.problem(numbers)
    return numbers, [problem.cost(bound)["latency"] for bound in (problem.low, problem.high)]


def test_inside_its_range_the_strongest_network_lands_under_the_target(net, table, digits):
    numbers, (low, high) = strongest(net, table, 1e3)
    target = 0.4 * low + 0.6 * high
    result = search(net, digits, table, ms(target), "tfnas", eval_images=64, final_images=64)
    assert result.method == "tfnas" and not result.details["repaired"]
    assert 0.995 * target < result.predicted["latency"] <= target
    assert [len(stage.blocks) for stage in result.architecture.stages] == list(numbers[1])
    assert result.details["alpha"][1][0] == pytest.approx(net.probabilities()[0][1].tolist())


def test_where_widths_do_not_reach_depths_and_operations_are_repaired(net, table, digits):
    _, (low, _) = strongest(net, table, 1e3)
    least = cheapest(net.space, table).cost
    target = 0.5 * (low + least)
    result = search(net, digits, table, ms(target), "tfnas", eval_images=64, final_images=64)
    assert result.details["repaired"] and "lower bounds" in result.details["message"]
    assert result.predicted["latency"] <= target
    with pytest.raises(Infeasible, match="latency must be at least"):
        search(net, digits, table, ms(0.9 * least), "tfnas", eval_images=64)
    beyond = search(
        net, digits, table, ms(2 * dearest(net.space, table).cost), "tfnas", eval_images=64, final_images=64
    )
    assert "upper bound" in beyond.details["message"]


def test_several_limits_are_all_met(net, table, digits):
    _, (low, high) = strongest(net, table, 1e3)
    budget = {**ms(0.5 * (low + high)), "params": "40%", "macs": "35%", "memory": "90%"}
    result = search(net, digits, {"latency": table}, budget, "tfnas", eval_images=64, final_images=64)
    assert result.fits and set(result.predicted) == {"latency", "params", "macs", "memory"}
    assert max(result.predicted[n] / result.effective_limits[n] for n in result.predicted) > 0.98


def test_budgets_that_only_narrow_widths_meet_have_a_context(net, table):
    """At their starting widths no network fits: the start is a narrow one, and methods that need widths fixed say so."""
    least = cheapest(net.space, table).cost
    context = search_context(net.space, table, Budget(ms(1.002 * least)))
    assert context.limits.fits(context.start) and context.problems == ()
    with pytest.raises(Exception, match="middle widths at their start"):
        _ = context.problem_set


def test_the_measured_loop_goes_both_ways(net, table, digits):
    _, (low, high) = strongest(net, table, 1e3)
    budget = ms(0.5 * (low + high))
    kept_free = replace(table, origin={"kind": "measured", "calibration": {"margin": 0.1}, "device": {}})
    for truth in (1.15, 0.95):  # against the table: slower than its margin covers, and faster

        def find(factors):
            return search(
                net, digits, kept_free, budget, "tfnas", tighten=dict(factors), eval_images=64, final_images=64
            )

        def measured(result, truth=truth):
            return {"latency": truth * result.predicted["latency"] / result.limits["latency"]}

        loop = MeasuredLoop(find, measured, measured=("latency",))
        best = loop.run(5)
        assert best is not None and best.shares["latency"] <= 1 and len(loop.rounds) > 1
        first, last = loop.rounds[0].shares["latency"], loop.rounds[-1].shares["latency"]
        assert 0.94 < last <= 1 and (first > 1 if truth > 1 else first < 0.9)


def test_a_front_and_the_wrong_kinds(net, table, digits, tiny_supernet, tables):
    points = front(net, digits, table, "latency", 3)
    assert [p.result.predicted["latency"] <= p.limit for p in points] == [True] * 3
    with pytest.raises(BadInput, match="whose networks share weights"):
        search(net, digits, table, ms(1e3), "adaptive")
    with pytest.raises(BadInput, match="separate operations"):
        search(tiny_supernet, digits, tables, {"latency": "60%"}, "tfnas")
    found = search(net, digits, table, {"latency": "70%"}, "random", networks=3, eval_images=64, final_images=64)
    assert found.fits


def test_widths_in_multiples_of_eight_stay_so(digits):
    """Runtimes that pack channels want it: ONNX Runtime takes twice as long for odd widths."""
    space = preset("tfnas-thin-lowres", classes=10, resolution=8, width=2)
    space = replace(space, rules=replace(space.rules, mid_divisor=8))
    torch.manual_seed(0)
    net = MixedSupernet(space).eval()
    result = search(net, digits, {}, {"macs": "40%"}, "tfnas", eval_images=64, final_images=64)
    widths = [block.mid_channels for stage in result.architecture.stages[1:] for block in stage.blocks]
    assert result.fits and all(width % 8 == 0 for width in widths)
    layout = Layout(space)
    assert layout.decode(layout.encode([result.architecture])) == [result.architecture]
    with pytest.raises(BadArchitecture, match="in steps of 8"):
        parse(str(result.architecture).replace(f":{widths[0]}", f":{widths[0] - 1}", 1), space)
    with pytest.raises(BadSpace, match="multiples of mid_divisor"):
        replace(space, rules=replace(space.rules, mid_divisor=100))
