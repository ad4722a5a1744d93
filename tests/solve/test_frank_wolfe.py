"""Frank-Wolfe on quadratics: it converges, it never leaves the budgets, and it resumes bit for bit."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from random_problems import cases, hardcore_shaped, plain_problem, random_point
from single_calls import frank_wolfe

from snugnet.errors import BadInput, BadProblem, Infeasible
from snugnet.solve import (
    FrankWolfeState,
    Group,
    Point,
    Problem,
    balanced_start,
    classic_schedule,
    fixed_schedule,
    iterate,
    linear_schedule,
    paper_schedule,
)


def distance_to(target: Point, noise: float = 0.0, seed: int = 0):
    """|point - target|^2 with noisy gradients."""
    rng = np.random.default_rng(seed)

    def gradient(point, block):
        ours, theirs = getattr(point, block), getattr(target, block)
        loss = sum(((a - b) ** 2).sum() for a, b in zip(ours, theirs))
        return loss, [2 * (a - b) + noise * rng.normal(size=len(a)) for a, b in zip(ours, theirs)]

    return gradient


def far(point, target):
    return sum(((a - b) ** 2).sum() for a, b in zip((*point.alpha, *point.beta), (*target.alpha, *target.beta)))


@pytest.mark.parametrize("schedule", [paper_schedule, classic_schedule, fixed_schedule(0.05), linear_schedule(400)])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_reaches_a_target_inside_the_budgets(schedule, momentum):
    problem, _ = hardcore_shaped(2, 0, share=0.7)
    target = problem.uniform()
    start = problem.point(problem.smallest())
    assert problem.is_feasible(target)
    rng = np.random.default_rng(0)
    options = {"rng": rng, "schedule": schedule, "momentum": momentum}
    got, _ = frank_wolfe(distance_to(target), problem, start, steps=400, **options)
    assert far(got.point, target) < 0.15 * far(start, target)


def test_finds_the_optimum_on_the_budget():
    """Minimise |p - e_3|^2 over a simplex with a budget: known in closed form."""
    problem = plain_problem({"cost": [[1.0, 2.0, 4.0]]}, {"cost": 2.5})
    target = Point((np.array([0.0, 0.0, 1.0]),), (np.ones(1),))
    start = problem.point(problem.cheapest("cost"))
    rng = np.random.default_rng(0)
    got = frank_wolfe(distance_to(target), problem, start, steps=3000, rng=rng)[0].point.alpha[0]
    np.testing.assert_allclose(got, [12 / 28, 3 / 28, 13 / 28], atol=0.01)  # on the budget: b = 1.5 - 3c, a = 2c - 0.5


@settings(max_examples=150)
@given(cases())
def test_every_iterate_meets_every_budget(case):
    problem, _, rng = case
    start = balanced_start(problem)
    if not start.ok:
        return
    target = random_point(problem, rng)
    state = FrankWolfeState(step=0, point=start.value)
    strict = (problem.excess(start.value) < 0).all()
    for after, row in iterate(distance_to(target, 0.1), problem, state, steps=15, rng=rng):
        assert problem.is_feasible(after.point)
        if strict and len(problem.limits) == 1:  # several: HiGHS's vertices are exact to TOLERANCE
            assert (problem.excess(after.point) <= 1e-12 * problem.limit).all()
        assert row.costs == problem.expected_cost(after.point)


@pytest.mark.parametrize("budgets", [1, 3])
def test_resumes_bit_for_bit_through_json(budgets):
    """Half of the gradients are zero, so that the programmes have ties to break."""
    problem, _ = hardcore_shaped(budgets, 0, share=0.3)
    rng = np.random.default_rng(5)
    target = random_point(problem, rng)
    start = balanced_start(problem).value

    def gradient(point, block):
        loss, vectors = distance_to(target)(point, block)
        return loss, [v if i % 2 else np.zeros_like(v) for i, v in enumerate(vectors)]

    def run(state, steps, rng):
        return frank_wolfe(gradient, problem, state, steps=steps, rng=rng, momentum=0.3)

    whole, whole_trace = run(start, 60, np.random.default_rng(1))
    half, half_trace = run(start, 25, np.random.default_rng(1))
    stored = FrankWolfeState.from_json(json.loads(json.dumps(half.to_json())))
    rest, rest_trace = run(stored, 35, np.random.default_rng(999))
    for a, b in zip((*whole.point.alpha, *whole.point.beta), (*rest.point.alpha, *rest.point.beta)):
        assert (a == b).all()
    assert whole_trace == half_trace + rest_trace


def test_what_it_refuses():
    problem, _ = hardcore_shaped(1, 0, share=0.2)
    start = balanced_start(problem).value
    rng = np.random.default_rng(0)
    heavy = problem.point(problem.dearest("r0"))
    with pytest.raises(Infeasible, match="r0"):
        frank_wolfe(distance_to(heavy), problem, heavy, steps=1, rng=rng)
    with pytest.raises(BadInput, match=r"step at 0 must be in \[0, 1\]"):
        frank_wolfe(distance_to(heavy), problem, start, steps=1, rng=rng, schedule=lambda t: 2.0)
    with pytest.raises(BadInput, match="momentum"):
        frank_wolfe(distance_to(heavy), problem, start, steps=1, rng=rng, momentum=1.0)
    with pytest.raises(BadInput, match="fixed step"):
        fixed_schedule(0.0)
    broken = Point(tuple(a * np.nan for a in heavy.alpha), tuple(b * np.nan for b in heavy.beta))
    with pytest.raises(BadProblem, match="gradient"):
        frank_wolfe(distance_to(broken), problem, start, steps=1, rng=rng)


def test_without_budgets_it_is_plain_frank_wolfe():
    problem = Problem(groups=(Group(name="g", options=(3, 3), depths=(1, 2)),), resources=())
    target = problem.uniform()
    start = problem.point(problem.choice((0, 0), (1,)))
    got, _ = frank_wolfe(distance_to(target), problem, start, steps=500, rng=np.random.default_rng(0))
    assert far(got.point, target) < 0.01
