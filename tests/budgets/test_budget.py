"""Budgets in words, and the feasible set they leave of a space: numbers, ways back, refusals."""

import re
import subprocess
import sys

import numpy as np
import pytest

from brute_force import enumerate_choices
from snugnet import units
from snugnet.budgets import Budget, dearest, feasible, limits_of
from snugnet.costs.analytic import macs
from snugnet.costs.table import CostTable, exact_table
from snugnet.errors import (
    BadArchitecture,
    BadInput,
    BadSpace,
    BadUnit,
    Infeasible,
    SnugnetError,
    TableMismatch,
    UnknownName,
)
from snugnet.solve import balanced_start, best_choice, project
from snugnet.space.architecture import parse
from snugnet.space.layout import Layout
from snugnet.space.presets import preset
from snugnet.space.sampling import sample
from snugnet.space.space import Head, SearchSpace, Stage, Stem
from snugnet.space.spec import plan

HARDCORE = preset("hardcore")
SMALL = SearchSpace(
    name="small",
    classes=10,
    resolutions=(32,),
    stem=Stem(widths=(16,)),
    stages=(
        Stage.of(16, depth=(1, 2), kernels=(3, 5), expands=(2, 4), stride=2),
        Stage.of(32, depth=(1, 3), kernels=(3,), expands=(2, 6), stride=2),
    ),
    head=Head(kind="conv-pool", widths=(64,)),
)


def latency(space, *, per_mac=1e-7, extra=0.0, margin=0.0):
    origin = {"calibration": {"margin": margin}}
    costs = {part: per_mac * macs(part) + extra for part in Layout(space).distinct_specs()}
    return CostTable(resource="latency", costs=costs, origin=origin)


def everything(found):
    return [found.architecture(c) for c in enumerate_choices(found.problem)]


def test_limits_are_what_was_written():
    budget = Budget({"latency@phone": "0.04s"}, params="6M", macs="60%")
    assert dict(budget) == {"latency@phone": "0.04s", "params": "6M", "macs": "60%"}
    assert budget.amount("latency@phone", 0.0) == 40.0
    assert budget.amount("macs", 200.0) == 120.0
    assert Budget.from_json(budget.to_json()) == budget
    assert Budget(latency="40ms") == Budget(latency="0.04s") != Budget(latency="41ms")
    assert hash(Budget(latency="40ms")) == hash(Budget(latency="0.04s"))
    assert str(Budget()) == "no limit"


BAD = {
    "no unit": (lambda: Budget(latency="40"), BadUnit, "latency"),
    "a bare number": (lambda: Budget(latency=40), BadUnit, "latency"),
    "another unit": (lambda: Budget(latency="40MB"), BadUnit, "latency"),
    "seconds for parameters": (lambda: Budget(params="6s"), BadUnit, "params"),
    "nothing": (lambda: Budget(params="0M"), BadUnit, "params"),
    "no percent": (lambda: Budget(params="0%"), BadUnit, "0 %"),
    "unknown resource": (lambda: Budget(latencie="40ms"), UnknownName, "latency"),
    "no label": (lambda: Budget({"latency@": "40ms"}), BadInput, "label"),
    "twice": (lambda: Budget({"latency": "40ms"}, latency="30ms"), BadInput, "once"),
    "not a mapping": (lambda: Budget.from_json(["40ms"]), BadInput, "map"),
    "no table": (lambda: feasible(HARDCORE, [], Budget(latency="40ms")), BadInput, "latency"),
    "no table of that device": (
        lambda: feasible(SMALL, latency(SMALL), {"latency@phone": "40ms"}),
        BadInput,
        "latency@phone",
    ),
    "two tables of one name": (lambda: feasible(SMALL, [latency(SMALL)] * 2, {}), BadInput, "told apart"),
    "a table of something else": (
        lambda: feasible(SMALL, {"latency": exact_table(SMALL, "macs")}, Budget(latency="40ms")),
        BadInput,
        "table of latency",
    ),
    "a table of another space": (
        lambda: feasible(SMALL, latency(HARDCORE), Budget(latency="40ms")),
        TableMismatch,
        "latency",
    ),
    "attentive": (lambda: feasible(preset("attentive"), [], Budget(macs="60%")), BadSpace, "evolution"),
    "tighten": (lambda: feasible(SMALL, [], Budget(macs="60%"), tighten={"macs": 1.5}), BadInput, "tighten"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_clear_line(what):
    make, kind, says = BAD[what]
    with pytest.raises(kind, match=says) as caught:
        make()
    assert isinstance(caught.value, SnugnetError)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_the_problem_costs_what_the_tables_say():
    found = feasible(HARDCORE, latency(HARDCORE), Budget(latency="1s", macs="90%", params="20M", model_size="100MiB"))
    rng = np.random.default_rng(0)
    for _ in range(50):
        network = sample(HARDCORE, rng)
        choice = found.choice(network)
        assert found.architecture(choice) == network
        ours, tables = found.problem.cost(choice), found.cost(network)
        assert ours == pytest.approx(tables)
        assert found.limits.tables["params"].of_network(plan(network, HARDCORE)) == ours["params"]


def test_everything_of_a_small_space_fits_or_not_exactly_as_its_networks_do():
    loose = feasible(SMALL, [], {})
    networks = everything(loose)
    assert len(set(networks)) == SMALL.count
    tight = feasible(SMALL, latency(SMALL, extra=0.01), Budget(latency="70%", memory="60KiB", params="80%"))
    fitting = {a for a in networks if tight.fits(a)}
    assert 0 < len(fitting) < len(networks)
    ours = {tight.architecture(c) for c in enumerate_choices(tight.problem) if tight.problem.is_feasible(c)}
    assert ours == fitting


def test_peak_memory_rules_out_choices_and_depths_exactly():
    networks = everything(feasible(SMALL, [], {}))
    peaks = sorted({exact_table(SMALL, "memory").of_network(plan(a, SMALL)) for a in networks})
    for peak in peaks:
        found = feasible(SMALL, [], {"memory": f"{peak:.0f}B"})
        expected = {a for a in networks if exact_table(SMALL, "memory").of_network(plan(a, SMALL)) <= peak}
        assert set(everything(found)) == expected
        left_out = next((a for a in networks if a not in expected), None)
        if left_out is not None:
            with pytest.raises(BadArchitecture, match="memory"):
                found.choice(left_out)
    with pytest.raises(Infeasible, match=r"memory must be at least"):
        feasible(SMALL, [], {"memory": f"{peaks[0] - 1:.0f}B"})


def test_percentages_are_of_the_largest_network_by_the_same_table():
    networks = everything(feasible(SMALL, [], {}))
    for name in ("macs", "params", "memory"):
        table = exact_table(SMALL, name)
        largest = max(table.of_network(plan(a, SMALL)) for a in networks)
        assert feasible(SMALL, [], {name: "100%"}).limits[name].effective == largest


def test_two_devices():
    phone, server = latency(SMALL, per_mac=2e-7, extra=0.001), latency(SMALL, per_mac=1e-8, extra=0.02)
    budget = Budget({"latency@phone": "60%", "latency@server": "80%"})
    found = feasible(SMALL, {"latency@phone": phone, "latency@server": server}, budget)
    assert set(found.problem.limits) == {"latency@phone", "latency@server"}
    start = balanced_start(found.problem).value
    network = found.architecture(project(found.problem, start).value)
    assert found.fits(network)


def test_ten_budgets():
    tables = {f"latency@d{i}": latency(SMALL, extra=0.001 * i) for i in range(10)}
    found = feasible(SMALL, tables, dict.fromkeys(tables, "70%"))
    assert len(found.problem.limits) == 10
    assert found.fits(found.architecture(project(found.problem, found.problem.uniform()).value))


def test_no_budget_at_all():
    found = feasible(HARDCORE, [], Budget())
    layout = Layout(HARDCORE)
    effect = found.objective(
        layout.split(np.zeros(layout.columns)).options, [np.array(s.depths) for s in HARDCORE.stages]
    )
    assert found.architecture(best_choice(found.problem, effect).value).depths == tuple(
        s.max_depth for s in HARDCORE.stages
    )


def test_margin_and_tightening_come_off_the_limit():
    table = latency(SMALL, margin=0.25)
    assert feasible(SMALL, table, Budget(latency="10ms")).limits["latency"].effective == pytest.approx(8.0)
    assert feasible(SMALL, table, Budget(latency="10ms"), margin=False).limits["latency"].effective == pytest.approx(
        10.0
    )
    found = feasible(SMALL, table, Budget(latency="10ms"), tighten={"latency": 0.5})
    assert found.limits["latency"].effective == pytest.approx(4.0)


def test_a_limit_may_name_its_statistic():
    ways = [
        {"latency": {"limit": "5ms", "statistic": "p90"}},
        {"latency:p90": "5ms"},
        {"latency": "0.005s p90"},
    ]
    assert len({Budget(way) for way in ways}) == 1
    budget = Budget(ways[0])
    assert dict(budget) == {"latency": "5ms p90"}
    assert (budget.amount("latency", 0.0), budget.statistic("latency")) == (5.0, "p90")
    assert Budget.from_json(budget.to_json()) == budget != Budget(latency="5ms")
    assert Budget({"latency:quiet": "5ms"}) == Budget(latency="5ms")
    assert Budget({"latency@phone:median": "60%"}) == Budget({"latency:median@phone": "60%"})
    assert Budget({"latency@phone:median": "60%"}).is_relative("latency@phone")
    for wrong, message in (
        ({"latency:p95": "5ms"}, "p95"),
        ({"macs:p90": "5MMACs"}, "is counted"),
        ({"latency:p90": "5ms median"}, "one statistic"),
        ({"latency": {"statistic": "p90"}}, "must have 'limit'"),
        ({"latency": {"limit": "5", "statistic": "p90"}}, "unit"),
        ({"latency:p90": "5ms", "latency": "4ms"}, "once"),
    ):
        with pytest.raises(SnugnetError, match=message):
            Budget(wrong)


def test_limits_use_the_tables_own_estimates_of_their_statistic():
    quiet = latency(SMALL)
    slow = {part: 1.5 * cost for part, cost in quiet.costs.items()}
    origin = {"calibration": {"margin": 0.0}, "calibrations": {"p90": {"margin": 0.25}}, "networks": []}
    table = CostTable(resource="latency", costs=quiet.costs, origin=origin, by_statistic={"p90": slow})
    limits = limits_of(SMALL, table, Budget({"latency:p90": "60%"}))
    assert limits["latency"].asked == pytest.approx(0.6 * 1.5 * dearest(SMALL, quiet).cost)
    assert limits["latency"].effective == pytest.approx(limits["latency"].asked / 1.25)
    assert limits.absolute().statistic("latency") == "p90"
    assert limits_of(SMALL, limits.tables, Budget(latency="60%"))["latency"].table.costs == quiet.costs
    with pytest.raises(TableMismatch, match="snugnet measure"):
        limits_of(SMALL, table, Budget({"latency:median": "60%"}))


def margin_at(table, cost):
    return table.upper(cost) / cost - 1.0


def test_margins_follow_the_cost():
    """The effective limit is the largest predicted cost whose bound is within what was asked, all along the curve."""
    costs = latency(SMALL).costs
    curve = [[1.0, 0.02], [4.0, 0.03], [10.0, 0.25]]
    table = CostTable(resource="latency", costs=costs, origin={"calibration": {"margin": 0.1, "margins": curve}})
    for cost, margin in curve:
        assert margin_at(table, cost) == pytest.approx(margin)
        assert table.within(cost * (1 + margin)) == pytest.approx(cost)
    assert margin_at(table, 0.1) == pytest.approx(0.02)
    assert margin_at(table, 100.0) == pytest.approx(0.25)
    before = 0.0
    for asked in np.geomspace(0.5, 50, 60):
        limit = limits_of(SMALL, table, Budget(latency=f"{asked:.9g}ms"))["latency"]
        assert limit.effective > before
        assert limit.effective * (1 + margin_at(table, limit.effective)) == pytest.approx(asked)
        before = limit.effective
    assert table.margin == 0.1


def test_refusals_say_what_would_do():
    """The remedy, copied into the budget, is enough; a little less is not."""
    networks = everything(feasible(SMALL, [], {}))
    for name in ("macs", "params", "model_size", "memory"):
        least = min(exact_table(SMALL, name).of_network(plan(a, SMALL)) for a in networks)
        with pytest.raises(Infeasible) as caught:
            feasible(SMALL, [], {name: units.show(least * 0.9, name)})
        enough = caught.value.remedy.split("to ")[1].split(" or")[0]
        assert units.parse(enough, name) == pytest.approx(least, rel=2e-3)
        feasible(SMALL, [], {name: enough})


def test_a_conflict_names_all_and_only_what_conflicts():
    """Two devices that like opposite choices, and a third limit that has nothing to do with it."""
    parts = Layout(SMALL).distinct_specs()
    one = CostTable(resource="latency", costs={p: 1.0 + (getattr(p, "kernel", 3) == 3) for p in parts})
    two = CostTable(resource="latency", costs={p: 1.0 + (getattr(p, "kernel", 3) == 5) for p in parts})
    loose = feasible(SMALL, {"latency@a": one, "latency@b": two}, {"latency@a": "1s", "latency@b": "1s"})
    costs = [loose.cost(a) for a in everything(loose)]
    a, b = (min(c[f"latency@{x}"] for c in costs) for x in "ab")
    together = {"latency@a": f"{a}ms", "latency@b": f"{b}ms", "params": "99%"}
    with pytest.raises(Infeasible, match=r"latency@a.*latency@b") as caught:
        feasible(SMALL, {"latency@a": one, "latency@b": two}, together)
    assert "params" not in str(caught.value)
    assert "all limits by" in caught.value.remedy


def test_free_middle_widths_stand_at_their_start():
    space = preset("tfnas")
    found = feasible(space, [], Budget(macs="50%"))
    network = found.architecture(project(found.problem, found.problem.uniform()).value)
    assert found.choice(network) == found.choice(parse(str(network), space))
    assert found.fits(network)
    assert found.problem.cost(found.choice(network))["macs"] == found.cost(network)["macs"]
    start = re.search(r":(\d+)", str(network))
    wider = str(network).replace(start[0], f":{int(start[1]) + 1}", 1)
    with pytest.raises(BadArchitecture, match="starting middle width"):
        found.choice(parse(wider, space))


def test_a_refusal_names_the_memory_limit_that_took_the_cheap_choices():
    """The quick choice needs much memory: with that ruled out, no network is quick enough."""
    parts = Layout(SMALL).distinct_specs()
    quick_when_wide = CostTable(
        resource="latency", costs={p: 1.0 + (getattr(p, "mid_channels", 99) < 40) for p in parts}
    )
    budget = {"latency": "4.5ms"}
    assert feasible(SMALL, quick_when_wide, budget)
    with pytest.raises(Infeasible, match=r"latency must be at least 5ms.* beside memory <= 60KiB, got 4.5ms"):
        feasible(SMALL, quick_when_wide, {**budget, "memory": "60KiB"})


def test_points_spread_over_the_whole_space():
    found = feasible(SMALL, [], {"memory": "60KiB", "macs": "60%"})
    alphas, betas = found.spread(balanced_start(found.problem).value)
    for stage, rows, beta in zip(SMALL.stages, Layout(SMALL).by_stage(alphas), betas):
        alpha = np.stack(rows)
        assert alpha.shape == (stage.max_depth, len(stage.choices))
        np.testing.assert_allclose(alpha.sum(axis=1), 1)
        assert beta.shape == (len(stage.depths),)
        assert beta.sum() == pytest.approx(1)


def test_no_torch():
    code = "import sys, snugnet.budgets, snugnet.solve; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_limit_knows_its_amounts_its_table_and_its_device():
    phone = {"device": "a phone", "threads": "2"}
    origin = {"kind": "measured", "device": phone, "batch": 1, "resolutions": [32], "calibration": {"margin": 0.25}}
    table = CostTable(resource="latency", costs=dict(exact_table(SMALL, "macs").costs), origin=origin)
    limits = limits_of(
        SMALL, {"latency@phone": table}, {"latency@phone": "50%", "params": "1M"}, tighten={"params": 0.5}
    )
    limit = limits["latency@phone"]
    assert (limit.label, limit.device, limits["params"].device) == ("phone", phone, None)
    assert limit.asked == pytest.approx(dearest(SMALL, table).cost / 2)
    assert limit.effective == pytest.approx(limit.asked / 1.25)
    assert (limits["params"].asked, limits["params"].effective) == (1e6, 5e5)
    assert limit.admits(limit.effective) and not limit.admits(limit.asked)
    promise = limits.absolute()
    assert promise["params"] == "1M"
    assert promise.amount("latency@phone", 0.0) == pytest.approx(limit.asked, rel=1e-5)


def test_aiming_higher_gives_the_margin_back_and_never_more():
    origin = {"kind": "measured", "device": {}, "batch": 1, "resolutions": [32], "calibration": {"margin": 0.25}}
    table = CostTable(resource="latency", costs=dict(exact_table(SMALL, "macs").costs), origin=origin)
    amounts = [
        limits_of(SMALL, table, {"latency": "50%"}, tighten={"latency": factor})["latency"]
        for factor in (1.0, 1.1, 1.5)
    ]
    assert amounts[0].effective < amounts[1].effective < amounts[2].effective == amounts[2].asked
    with pytest.raises(BadInput, match=r"\(0, 1\]"):
        limits_of(SMALL, [], {"params": "50%"}, tighten={"params": 1.1})  # what is counted has no margin to give back
