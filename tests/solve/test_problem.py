"""The problem itself: its costs, its canonical choices, and every input it refuses."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from random_problems import cases, hardcore_shaped, plain_problem, random_point

from brute_force import count_choices, enumerate_choices
from snugnet.errors import BadInput, BadProblem, Infeasible
from snugnet.solve import (
    Choice,
    Group,
    Objective,
    Problem,
    ResourceCosts,
    best_choice,
    best_choices,
    explain,
)

STAGE = Group(name="stage", options=(2, 2), depths=(1, 2))


def latency(*costs, base=0.0, unit="ms"):
    return ResourceCosts(name="latency", unit=unit, base=base, costs=tuple(np.array(c, float) for c in costs))


@settings(max_examples=200)
@given(cases())
def test_expected_cost_is_the_mean_cost_of_sampled_networks(case):
    """alpha' Theta beta against its meaning: the probability-weighted cost over all networks."""
    problem, _, rng = case
    point = random_point(problem, rng)
    mean, total = np.zeros(len(problem.names)), 0.0
    for choice in enumerate_choices(problem):
        p = np.prod([b[g.depths.index(d)] for b, g, d in zip(point.beta, problem.groups, choice.depths)])
        p *= np.prod([point.alpha[s][choice.options[s]] for s in problem.running(choice)])
        mean += p * problem.cost_vector(choice)
        total += p
    assert total == pytest.approx(1)
    np.testing.assert_allclose(problem.cost_vector(point), mean, rtol=1e-12, atol=1e-12)
    for choice in (problem.cheapest(n) for n in problem.names):
        np.testing.assert_allclose(problem.cost_vector(problem.point(choice)), problem.cost_vector(choice), rtol=1e-12)


def test_gradients_of_the_cost_are_its_rows():
    problem, _ = hardcore_shaped(2, 0)
    rng = np.random.default_rng(0)
    point = random_point(problem, rng)
    alpha, beta = problem.flat_alpha(point.alpha), problem.flat_beta(point.beta)
    cost = problem.cost_vector(point)
    np.testing.assert_allclose(problem.base + problem.alpha_costs(beta) @ alpha, cost)
    np.testing.assert_allclose(problem.base + problem.beta_costs(alpha) @ beta, cost)


def test_equal_networks_are_equal_values():
    problem = Problem(groups=(STAGE,), resources=())
    assert problem.choice((1, 0), (1,)) == problem.choice((1, 1), (1,))
    assert len(list(enumerate_choices(problem))) == len(set(enumerate_choices(problem))) == count_choices(problem) == 6


def test_no_budget_is_allowed_and_unconstrained():
    problem = Problem(groups=(STAGE,), resources=(latency([1, 2], [1, 2]),))
    values = Objective((np.array([0.0, 1.0]), np.array([0.0, 1.0])), (np.zeros(2),))
    assert best_choice(problem, values).value == Choice((1, 1), (2,))
    assert explain(problem).feasible


def test_plain_slots_are_a_special_case():
    problem = plain_problem({"cost": [[1, 5], [2, 3, 9]]}, {"cost": 8.0})
    values = Objective((np.array([0.0, 3.0]), np.array([0.0, 1.0, 5.0])), (np.zeros(1),))
    assert best_choice(problem, values).value == Choice((1, 1), (2,))


def test_ten_budgets():
    rng = np.random.default_rng(0)
    costs = {f"r{k}": rng.uniform(1, 2, (4, 3)) for k in range(10)}
    problem = plain_problem(costs, {name: float(c.mean() * 4 * 1.1) for name, c in costs.items()})
    values = Objective(tuple(rng.normal(size=(4, 3))), (np.zeros(1),))
    fitting = [c for c in enumerate_choices(problem) if problem.is_feasible(c)]
    best = max(problem.value(values, c) for c in fitting)
    assert problem.value(values, best_choice(problem, values).value) == pytest.approx(best)


def test_a_limit_at_a_networks_own_cost_admits_it_however_the_sum_was_rounded():
    costs = [[0.1], [0.2], [0.3], [0.7], [1e-3]]
    forwards = 0.1 + 0.2 + 0.3 + 0.7 + 1e-3
    backwards = 1e-3 + 0.7 + 0.3 + 0.2 + 0.1
    values = Objective(tuple(np.zeros(1) for _ in costs), (np.zeros(1),))
    for limit in (forwards, backwards):
        assert best_choice(plain_problem({"cost": costs}, {"cost": limit}), values).ok
    assert not best_choice(plain_problem({"cost": costs}, {"cost": forwards * (1 - 1e-8)}), values).ok


BAD = {
    "NaN cost": (
        lambda: Problem(groups=(STAGE,), resources=(latency([1, np.nan], [1, 1]),)),
        "latency of slot 0, option 1",
    ),
    "negative cost": (
        lambda: Problem(groups=(STAGE,), resources=(latency([1, 1], [-2, 1]),)),
        "latency of slot 1",
    ),
    "infinite cost": (lambda: Problem(groups=(STAGE,), resources=(latency([1, np.inf], [1, 1]),)), "latency of slot 0"),
    "negative base": (
        lambda: Problem(groups=(STAGE,), resources=(latency([1, 1], [1, 1], base=-1.0),)),
        "base of latency",
    ),
    "empty slot": (
        lambda: Problem(groups=(Group(name="x", options=(2, 0), depths=(1,)),), resources=()),
        "slot 1 of x",
    ),
    "no slots": (lambda: Problem(groups=(), resources=()), "at least one slot"),
    "no depths": (lambda: Problem(groups=(Group(name="x", options=(2,), depths=()),), resources=()), "depths of x"),
    "depth too deep": (
        lambda: Problem(groups=(Group(name="x", options=(2,), depths=(3,)),), resources=()),
        "depths of x",
    ),
    "missing option": (lambda: Problem(groups=(STAGE,), resources=(latency([1], [1, 1]),)), "latency must have a cost"),
    "resource without costs": (
        lambda: Problem(groups=(STAGE,), resources=(latency([1, 1], [1, 1]),), limits={"memory": 5.0}),
        "a limit on memory",
    ),
    "limit as text": (
        lambda: Problem(groups=(STAGE,), resources=(latency([1, 1], [1, 1]),), limits={"latency": "40ms"}),
        "limit on latency must be a finite number of ms",
    ),
    "limit NaN": (
        lambda: Problem(groups=(STAGE,), resources=(latency([1, 1], [1, 1]),), limits={"latency": np.nan}),
        "limit on latency",
    ),
    "negative limit": (
        lambda: Problem(groups=(STAGE,), resources=(latency([1, 1], [1, 1]),), limits={"latency": -1.0}),
        "limit on latency",
    ),
    "named twice": (
        lambda: Problem(groups=(STAGE,), resources=(latency([1, 1], [1, 1]), latency([1, 1], [1, 1]))),
        "named once",
    ),
    "unknown resource": (lambda: Problem(groups=(STAGE,), resources=()).cheapest("macs"), "macs"),
    "wrong depth": (lambda: Problem(groups=(STAGE,), resources=()).choice((0, 0), (3,)), "depth of stage"),
    "wrong option": (lambda: Problem(groups=(STAGE,), resources=()).choice((7, 0), (1,)), "slot 0 (stage)"),
    "NaN value": (
        lambda: best_choice(
            Problem(groups=(STAGE,), resources=()), Objective((np.array([0, np.nan]), np.zeros(2)), (np.zeros(2),))
        ),
        "every effect must be finite",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_named(what):
    make, says = BAD[what]
    with pytest.raises(BadProblem, match=re.escape(says)) as caught:
        make()
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


def test_bad_arguments():
    problem, values = hardcore_shaped(1, 0)
    with pytest.raises(BadInput):
        best_choices(problem, values, count=0)
    with pytest.raises(BadInput, match="brute force"):
        next(enumerate_choices(problem))


def test_reading_the_value_of_nothing_raises_the_reason():
    problem = plain_problem({"cost": [[1.0]]}, {"cost": 0.5})
    got = best_choice(problem, Objective((np.zeros(1),), (np.zeros(1),)))
    assert not got.ok
    with pytest.raises(Infeasible, match="cost"):
        _ = got.value
