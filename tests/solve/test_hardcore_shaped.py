"""Problems of the real size: optimality by two roads, time limits, determinism, vertices, and the balanced start."""

import time
from dataclasses import replace

import numpy as np
import pytest
from random_problems import hardcore_shaped, plain_problem, random_point

from snugnet.solve import (
    LinearOracle,
    Objective,
    Outcome,
    Point,
    Problem,
    argmax_baseline,
    balanced_start,
    best_choice,
    best_choices,
    project,
    project_alternating,
)
from snugnet.solve.integer import solve_milp


@pytest.mark.parametrize("budgets", [1, 2, 3])
def test_enumeration_and_milp_find_the_same_optimum(budgets):
    problem, values = hardcore_shaped(budgets, 3, share=0.3)
    enumerated = best_choice(problem, values)
    assert enumerated.stats["enumerated"] == 1.0
    solved = solve_milp(problem, values, count=1, deadline=np.inf, gap=0.0)
    assert solved.proven
    assert problem.value(values, enumerated.value) == pytest.approx(problem.value(values, solved.choices[0]), abs=1e-8)


def test_the_twenty_best_are_different_ordered_and_complete():
    problem, values = hardcore_shaped(2, 1)
    many = best_choices(problem, values, count=20)
    effect = [problem.value(values, c) for c in many.found]
    assert effect == sorted(effect, reverse=True)
    assert len(set(many.found)) == 20
    assert many.found[:5] == best_choices(problem, values, count=5).found
    assert all(problem.is_feasible(c) for c in many.found)


def test_answers_do_not_depend_on_chance():
    problem, values = hardcore_shaped(3, 5)
    assert best_choices(problem, values, count=4).found == best_choices(problem, values, count=4).found


def test_ties_everywhere_are_left_to_the_milp():
    """All values equal: the enumeration cannot tell anything apart and has to hand over."""
    problem, values = hardcore_shaped(3, 0, share=0.2)
    flat = Objective(tuple(np.zeros(12) for _ in values.options), tuple(np.zeros(3) for _ in values.depths))
    got = best_choice(problem, flat)
    assert got.status.outcome is Outcome.OPTIMAL
    assert problem.is_feasible(got.value)


@pytest.mark.parametrize("seconds", [0.05, 0.5])
def test_a_time_limit_returns_what_fits_and_its_gap(seconds):
    problem, values = hardcore_shaped(4, 0, slots=100, options=30, groups=25)
    begun = time.monotonic()
    got = best_choice(problem, values, time_limit=seconds)
    assert time.monotonic() - begun < seconds + 5
    assert got.status.outcome is Outcome.FEASIBLE
    assert problem.is_feasible(got.value)
    assert 0 < got.stats["gap"] < 0.05
    assert got.stats["bound"] >= got.stats["value"] == pytest.approx(problem.value(values, got.value))
    assert "more time" in got.status.message


def test_a_gap_stops_early_and_says_so():
    problem, values = hardcore_shaped(4, 0, slots=100, options=30, groups=25)
    got = best_choice(problem, values, gap=0.01)
    assert got.stats["gap"] <= 0.01
    assert got.status.outcome in (Outcome.FEASIBLE, Outcome.OPTIMAL)
    assert problem.is_feasible(got.value)


@pytest.mark.parametrize("budgets", [0, 1, 3])
def test_programmes_are_vertices_that_fit_without_any_tolerance(budgets):
    problem, _ = hardcore_shaped(budgets, 0, share=0.4)
    oracle, rng = LinearOracle(problem), np.random.default_rng(0)
    for _ in range(100):
        beta = np.concatenate([rng.dirichlet(np.ones(3)) for _ in problem.groups])
        alpha = oracle.alpha(rng.normal(size=240), beta).value
        assert problem.is_feasible(Point(problem.split_alpha(alpha), problem.split_beta(beta)), tolerance=0.0)
        assert sum(int((a > 0).sum()) - 1 for a in problem.split_alpha(alpha)) <= budgets
        beta = oracle.beta(rng.normal(size=15), alpha).value
        assert problem.is_feasible(Point(problem.split_alpha(alpha), problem.split_beta(beta)), tolerance=0.0)
        assert sum(int((b > 0).sum()) - 1 for b in problem.split_beta(beta)) <= budgets


def shuffled(problem: Problem, rng: np.random.Generator) -> tuple[Problem, list[np.ndarray]]:
    """The same problem with the options of every slot in another order."""
    orders = [rng.permutation(n) for n in problem.slot_sizes]
    resources = tuple(replace(r, costs=tuple(c[o] for c, o in zip(r.costs, orders))) for r in problem.resources)
    return replace(problem, resources=resources), orders


@pytest.mark.parametrize("budgets", [1, 3])
@pytest.mark.parametrize("share", [0.03, 0.1, 0.25, 0.6])
def test_balanced_start(budgets, share):
    problem, _ = hardcore_shaped(budgets, 0, share=share)
    start = balanced_start(problem)
    assert start.status.outcome is Outcome.OPTIMAL
    point = start.value
    assert (problem.excess(point) < 0).all(), "strictly inside"
    assert problem.is_feasible(point, tolerance=0.0)
    if share == 0.6:  # half-way between the extremes everything is allowed: nothing is flatter than uniform
        for vector in (*point.alpha, *point.beta):
            np.testing.assert_allclose(vector, 1 / len(vector))
    order = np.lexsort((problem.load(), problem.option_slot))
    flat = problem.flat_alpha(point.alpha)[order]
    for chain in problem.split_alpha(flat):  # ordered by cost: a chain of probabilities, then a chain of zeros
        gone = np.flatnonzero(chain == 0)
        assert not len(gone) or (chain[gone[0] :] < 1e-6).all()
    other, orders = shuffled(problem, np.random.default_rng(1))
    for ours, theirs, o in zip(point.alpha, balanced_start(other).value.alpha, orders):
        np.testing.assert_allclose(ours[o], theirs, atol=0.02)


def test_balanced_start_is_the_flattest_there_is():
    """One slot, one budget: eq. 26 against a fine grid over the simplex of three."""
    problem = plain_problem({"cost": [[1.0, 2.0, 4.0]]}, {"cost": 1.7})
    found = balanced_start(problem).value.alpha[0]
    grid = np.array([(a, b, 1 - a - b) for a in np.linspace(0, 1, 401) for b in np.linspace(0, 1 - a, 401)])
    grid = grid[grid @ [1.0, 2.0, 4.0] <= 1.7]
    steps = (np.diff(grid, axis=1) ** 2).sum(axis=1)
    assert (np.diff(found) ** 2).sum() == pytest.approx(steps.min(), abs=2e-3)
    np.testing.assert_allclose(found, grid[steps.argmin()], atol=0.02)


def test_where_only_one_network_fits_that_is_the_start():
    problem, _ = hardcore_shaped(1, 0)
    smallest = problem.cheapest("r0")
    exact = problem.with_limits({"r0": problem.cost(smallest)["r0"]})
    got = balanced_start(exact)
    assert project(exact, got.value).value == smallest
    below = problem.with_limits({"r0": problem.cost(smallest)["r0"] * (1 - 1e-8)})
    assert balanced_start(below).status.outcome is Outcome.INFEASIBLE


def test_argmax_breaks_budgets_and_projections_do_not():
    problem, _ = hardcore_shaped(1, 0, share=0.4)
    rng, broken = np.random.default_rng(0), 0
    for _ in range(30):
        point = random_point(problem, rng)
        broken += not problem.is_feasible(argmax_baseline(problem, point))
        assert problem.is_feasible(project(problem, point).value)
        if problem.is_feasible(point):
            assert problem.is_feasible(project_alternating(problem, point).value)
    assert broken > 0


def test_the_deadline_holds_for_all_programmes_together():
    problem, values = hardcore_shaped(4, 0, slots=100, options=30, groups=25)
    begun = time.monotonic()
    got = best_choices(problem, values, count=20, time_limit=2.0)
    assert time.monotonic() - begun < 2.0 + 1.5
    assert got.found
    assert all(problem.is_feasible(c) for c in got.found)
