"""The explorer's pool against the exact solver: never over a limit, monotone, near the best, at home where the run was."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from made_up_run import made_up_effects, made_up_space, made_up_table

from snugnet.budgets import cheapest, dearest, feasible
from snugnet.costs.table import exact_table
from snugnet.errors import Infeasible
from snugnet.evaluate.scoring import Score
from snugnet.reporting import build_report
from snugnet.reporting.page import make_report
from snugnet.reporting.pool import RunNetworks
from snugnet.reporting.reading import read_run
from snugnet.solve import best_choice
from snugnet.space.architecture import parse
from snugnet.space.spec import plan

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
def ends(space, tables):
    """The least and the most of each resource, in what a user asks for."""
    return [
        (cheapest(space, t).cost * (1 + t.margin), dearest(space, t).cost * (1 + t.margin)) for t in tables.values()
    ]


@pytest.fixture(scope="module")
def limits(ends):
    """Random limits on all four resources; some are tight, some idle."""
    shares = np.random.default_rng(11).beta(0.9, 0.9, size=(COUNT, len(ends)))
    return [[low + s * (high - low) for s, (low, high) in zip(row, ends)] for row in shares]


@pytest.fixture(scope="module")
def opened(browser, run_folder):
    browser.open(build_report(run_folder))
    return browser


def best_within(browser, rows):
    """For every row of limits the network the page would show: its place in the pool (0 is the best), or None."""
    return browser.evaluate(
        f"""{json.dumps(rows)}.map((limits) => {{ const network = bestWithin(numbers.explorer, limits);
        return network ? {{...network, place: numbers.explorer.networks.indexOf(network)}} : null; }})"""
    )


def test_never_over_a_limit_and_costs_are_those_of_the_tables(opened, limits, tables, space):
    answers = best_within(opened, limits)
    assert sum(answer is not None for answer in answers) > COUNT / 2
    for answer, row in zip(answers, limits):
        if answer is None:
            continue
        network = plan(parse(answer["text"], space), space)
        for stated, limit, table in zip(answer["costs"], row, tables.values()):
            cost = table.of_network(network)
            assert cost == pytest.approx(stated, rel=1e-9)
            assert cost * (1 + table.margin) <= limit * (1 + 1e-8)


def test_more_room_never_shows_a_worse_network(opened, ends):
    """Along every slider, the others anywhere."""
    rng = np.random.default_rng(3)
    for resource in range(len(ends)):
        for _ in range(5):
            shares = rng.uniform(0.2, 1.0, len(ends))
            rows = []
            for share in np.linspace(0, 1, 30):
                shares[resource] = share
                rows.append([low + s * (high - low) for s, (low, high) in zip(shares, ends)])
            places = [float("inf") if a is None else a["place"] for a in best_within(opened, rows)]
            assert places == sorted(places, reverse=True)


def test_near_the_exact_optimum_under_one_limit_and_under_two(opened, tables, space, ends):
    """Between the points of the grid a little is lost, on it nothing."""
    effects = made_up_effects(space)
    most = [high for _, high in ends]
    rows = []
    for share in np.linspace(0.03, 0.97, 12):
        low, high = ends[0]
        rows.append([low + share * (high - low), *most[1:]])
        rows.append([rows[-1][0], most[1], ends[2][0] + 0.5 * (ends[2][1] - ends[2][0]), most[3]])
    gaps = []
    for answer, row in zip(best_within(opened, rows), rows):
        try:
            inside = feasible(space, tables, {n: f"{limit:.15g}{UNITS[n]}" for n, limit in zip(NAMES, row)})
        except Infeasible:
            assert answer is None
            continue
        assert answer is not None
        objective = effects.values(inside)
        value = inside.problem.value(objective, inside.choice(parse(answer["text"], space)))
        gaps.append(best_choice(inside.problem, objective).stats["value"] - value)
    reach = effects.value.max() * len(space.stages)  # what choices can add at all, roughly
    assert len(gaps) > 12 and max(gaps) < 0.15 * reach and float(np.mean(gaps)) < 0.06 * reach


def test_what_the_page_shows_is_within_its_sliders(opened, space, tables):
    """By the sliders themselves, the margin of the table included; all at their least, and anywhere."""
    places = [[0, 0, 0, 0], *np.random.default_rng(5).integers(0, 401, size=(10, 4)).tolist()]
    shown = 0
    for place in places:
        moved = f"""[...document.querySelectorAll('input[type=range]')].forEach((s, k) => {{
            s.value = {place}[k]; s.dispatchEvent(new Event('input')); }})"""
        opened.evaluate(moved)
        opened.wait_frame()
        text, status, drawn = opened.evaluate(
            """[document.getElementById('explored-text').textContent, document.querySelector('.told').textContent,
            document.querySelectorAll('#explored svg').length]"""
        )
        if not text:
            assert drawn == 0 and "No network of the pool fits" in status and "needs a" in status
            continue
        shown += 1
        limits = opened.evaluate(
            """[...document.querySelectorAll('input[type=range]')].map(
            (s, k) => limitAt(numbers.explorer.resources[k], Number(s.value)))"""
        )
        network = plan(parse(text, space), space)
        for table, limit in zip(tables.values(), limits):
            assert table.of_network(network) * (1 + table.margin) <= limit * (1 + 1e-8)
    assert shown >= 6


def sliders_of(folder, embedded):
    return {row["name"]: row for row in embedded(make_report(folder).html)["explorer"]["resources"]}


def test_sliders_start_at_what_was_asked_and_hold_networks_to_what_the_search_held(run_folder, tmp_path, embedded):
    """With a certificate and without one: the margin comes off a limit once, and never goes on top of it."""
    search = json.loads((run_folder / "search.json").read_text())
    copy = shutil.copytree(run_folder, tmp_path / "run")
    for _ in range(2):
        sliders = sliders_of(copy, embedded)
        for name, limit in search["limits"].items():
            assert sliders[name]["start"] == pytest.approx(limit, rel=1e-9)
            assert sliders[name]["start"] * sliders[name]["ratio"] == pytest.approx(search["aims"][name], rel=1e-9)
        (copy / "certificate.json").unlink(missing_ok=True)


def test_after_a_tighter_search_the_sliders_hold_to_the_tighter_limit(run_folder, tmp_path, embedded):
    copy = shutil.copytree(run_folder, tmp_path / "run")
    search = json.loads((copy / "search.json").read_text())
    search["aims"]["latency"] *= 0.97
    (copy / "search.json").write_text(json.dumps(search))
    slider = sliders_of(copy, embedded)["latency"]
    assert slider["start"] * slider["ratio"] == pytest.approx(search["aims"]["latency"], rel=1e-9)


def test_an_evaluated_network_that_beats_the_chosen_one_is_explained(run_folder, tmp_path, space, tables, embedded):
    """As a front after the search can leave it: the page says which is better and what to do."""
    copy = shutil.copytree(run_folder, tmp_path / "run")
    files = read_run(copy)
    known = RunNetworks(files, space, tables)
    chosen = json.loads((copy / "search.json").read_text())
    other = next(row for row in known.pool if known.fits(row) and str(row.architecture) != chosen["architecture"])
    row = {"network": str(other.architecture), "accuracy": chosen["accuracy"] + 0.002, "loss": 0.0, "images": 9000}
    with (copy / "search" / "evaluations.jsonl").open("a") as stream:
        stream.write(json.dumps(row) + "\n")
    data = embedded(make_report(copy).html)
    assert "higher" in data["explorer"]["remark"] and "snugnet search" in data["explorer"]["remark"]
    assert "evaluated after the search" in data["front"]["remark"]
    before = embedded(make_report(run_folder).html)
    assert before["explorer"]["remark"] == "" and before["front"]["remark"] == ""


def test_evaluations_are_ranked_by_the_score_the_search_gave_them(run_folder, tmp_path, space, tables):
    """As `Score.to_json` writes a line: the calibrated loss counts, not how sure a network is."""
    copy = shutil.copytree(run_folder, tmp_path / "run")
    small = str(cheapest(space, tables["latency"]).architecture)
    score = Score(accuracy=0.9, loss=2.0, calibrated_loss=0.3, images=9000, error=0.01)
    with (copy / "search" / "evaluations.jsonl").open("a") as stream:
        stream.write(json.dumps({"network": small, **score.to_json()}) + "\n")
    assert RunNetworks(read_run(copy), space, tables).evaluated[small].score == pytest.approx(0.6)


def test_the_margin_of_a_limit_is_the_one_at_that_cost(run_folder, space, tables):
    """A table may be less sure of small networks than of large ones; without a search every limit has its own margin."""
    origin = {**tables["latency"].origin, "calibration": {"margin": 0.05, "margins": [[1.0, 0.2], [3.0, 0.02]]}}
    files = replace(read_run(run_folder), search=None, certificate=None)
    limit = RunNetworks(files, space, {"latency": replace(tables["latency"], origin=origin)}).limits["latency"]
    for cost, needed in ((0.5, 0.6), (1.0, 1.2), (3.0, 3.06)):
        assert limit.needed(cost) == pytest.approx(needed)
        assert limit.effective(needed) == pytest.approx(cost)


def test_more_right_answers_with_a_lower_score_are_explained(run_folder, tmp_path, space, tables, embedded):
    copy = shutil.copytree(run_folder, tmp_path / "run")
    files = read_run(copy)
    chosen = json.loads((copy / "search.json").read_text())
    small = str(cheapest(space, tables["latency"]).architecture)
    assert files.search is not None
    row = {"network": small, "accuracy": chosen["accuracy"] + 0.001, "loss": 0.9, "images": 9000}
    with (copy / "search" / "evaluations.jsonl").open("a") as stream:
        stream.write(json.dumps(row) + "\n")
    assert "by score none of them is better" in embedded(make_report(copy).html)["front"]["remark"]
