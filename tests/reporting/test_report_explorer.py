"""The explorer's solver against the house's exact one: never over a limit, and hardly ever short of the best."""

import json
from importlib import resources

import numpy as np
import pytest
from made_up_run import made_up_space, made_up_table, made_up_worths

from snugnet.budgets import cheapest, dearest, feasible
from snugnet.costs.table import exact_table
from snugnet.errors import Infeasible
from snugnet.reporting import build_report
from snugnet.solve import best_choice
from snugnet.space.architecture import parse
from snugnet.space.plan import plan

pytest_plugins = ["report_fixtures"]

COUNT = 40
NAMES = ("latency", "macs", "params", "memory")
UNITS = {"latency": "ms", "macs": "MACs", "params": "params", "memory": "B"}


@pytest.fixture(scope="module")
def space():
    return made_up_space()


@pytest.fixture(scope="module")
def tables(space):
    return {"latency": made_up_table(space)} | {name: exact_table(space, name) for name in NAMES[1:]}


@pytest.fixture(scope="module")
def limits(space, tables):
    """Random limits on all four resources, in what a user asks for; some are tight, some idle."""
    rng = np.random.default_rng(11)
    ends = [
        (cheapest(space, t).cost * (1 + t.margin), dearest(space, t).cost * (1 + t.margin)) for t in tables.values()
    ]
    shares = rng.beta(0.9, 0.9, size=(COUNT, len(ends)))
    return [[low + s * (high - low) for s, (low, high) in zip(row, ends)] for row in shares]


@pytest.fixture(scope="module")
def answers(browser, run_folder, limits, tables):
    browser.open(build_report(run_folder))
    rooms = [1 + table.margin for table in tables.values()]
    asked = [[limit / room for limit, room in zip(row, rooms)] for row in limits]
    return browser.evaluate(
        f"""(() => {{ const data = numbers.explorer; const problem = asProblem(data);
        return {json.dumps(asked)}.map((limits) => {{ const answer = solve(problem, limits);
          return answer.found ? {{...answer, text: asNetwork(data, answer).text}} : answer; }}); }})()"""
    )


def test_never_over_a_limit_and_costs_are_those_of_the_tables(answers, limits, tables, space):
    found = 0
    for answer, row in zip(answers, limits):
        if not answer["found"]:
            continue
        found += 1
        network = plan(parse(answer["text"], space), space)
        for told, limit, table in zip(answer["costs"], row, tables.values()):
            cost = table.of_network(network)
            assert cost == pytest.approx(told, rel=1e-9)
            assert cost * (1 + table.margin) <= limit * (1 + 1e-8)
    assert found > COUNT / 2


def test_within_a_small_gap_of_the_optimum(answers, limits, tables, space):
    effects = made_up_worths(space)
    gaps = []
    for answer, row in zip(answers, limits):
        budget = {name: f"{limit:.15g}{UNITS[name]}" for name, limit in zip(NAMES, row)}
        try:
            inside = feasible(space, tables, budget)
        except Infeasible:
            assert not answer["found"]
            continue
        assert answer["found"], f"{budget} leaves a network, but the page found none"
        values = effects.values(inside)
        best = best_choice(inside.problem, values)
        ours = inside.problem.value(values, inside.choice(parse(answer["text"], space)))
        assert ours == pytest.approx(answer["worth"], abs=1e-9)
        gap = best.stats["value"] - ours
        assert gap >= -1e-9
        assert answer["bound"] >= best.stats["value"] - 1e-6
        expand_range = effects.value.max() * len(space.stages)  # what choices can be worth at all, roughly
        gaps.append(gap / expand_range)
    assert len(gaps) > COUNT / 2
    assert max(gaps) < 0.02
    assert float(np.mean(np.array(gaps) < 1e-9)) > 0.5  # mostly the very best


def test_what_the_page_shows_is_within_its_sliders(browser, run_folder, space, tables):
    """By the sliders themselves, the margin of the table included; all at their least, and anywhere."""
    browser.open(build_report(run_folder))
    places = [[0, 0, 0, 0], *np.random.default_rng(5).integers(0, 401, size=(10, 4)).tolist()]
    shown = 0
    for place in places:
        moved = f"""[...document.querySelectorAll('input[type=range]')].forEach((s, k) => {{
            s.value = {place}[k]; s.dispatchEvent(new Event('input')); }})"""
        browser.evaluate(moved)
        browser.wait_frame()
        text, told, drawn = browser.evaluate(
            """[document.getElementById('explored-text').textContent, document.querySelector('.told').textContent,
            document.querySelectorAll('#explored svg').length]"""
        )
        if not text:
            assert drawn == 0 and "No network" in told
            continue
        shown += 1
        limits = browser.evaluate(
            """[...document.querySelectorAll('input[type=range]')].map(
            (s, k) => limitAt(numbers.explorer.resources[k], Number(s.value)))"""
        )
        network = plan(parse(text, space), space)
        for table, limit in zip(tables.values(), limits):
            assert table.of_network(network) * (1 + table.margin) <= limit * (1 + 1e-8)
    assert shown >= 8


def test_the_solver_needs_nothing_but_itself(browser, tmp_path):
    """Two slots, two resources, all cases by hand."""
    blank = tmp_path / "blank.html"
    blank.write_text("<!doctype html><title>blank</title>")
    browser.open(blank)
    browser.evaluate((resources.files("snugnet.reporting") / "solver.js").read_text() + "\n;undefined")
    slot = {"worth": [0, 2, 3], "cost": [[1, 1], [2, 5], [4, 2]]}
    group = {"depths": [1, 2], "depthWorth": [0, 0.5], "slots": [slot, slot]}
    problem = {"resources": [{"combine": "sum", "base": 1}, {"combine": "max", "base": 0}], "groups": [group]}
    cases = {
        (2, 9): [[0]],
        (3, 9): [[1]],
        (3, 4): [[0, 0]],
        (5, 9): [[1, 1]],
        (9, 9): [[2, 2]],
        (7, 4): [[2, 0]],
        (1.5, 9): None,
        (9, 0.5): None,
    }
    for limits, wanted in cases.items():
        answer = browser.evaluate(f"solve({json.dumps(problem)}, {json.dumps(list(limits))})")
        options = [sorted(row) for row in answer["options"]] if answer["found"] else None
        assert options == (None if wanted is None else [sorted(row) for row in wanted]), limits
