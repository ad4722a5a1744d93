"""The solvers against brute force and against scipy, on random small problems: every claim of every solver."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import cases, random_point
from scipy.optimize import linprog
from single_calls import best_alpha, best_beta

from brute_force import best_by_enumeration, enumerate_choices
from snugnet.solve import (
    Outcome,
    Point,
    argmax_baseline,
    balanced_start,
    best_choices,
    explain,
    project,
    project_alternating,
    projection_objective,
)
from snugnet.solve.integer import solve_milp

NEAR = 1e-7


def effects(problem, values, choices):
    return [problem.value(values, c) for c in choices]


@settings(max_examples=1000)
@given(cases())
def test_integer_optimum_and_feasibility(case):
    problem, values, _ = case
    truth = best_by_enumeration(problem, values, count=3)
    got = best_choices(problem, values, count=3)
    assert (got.status.outcome is Outcome.INFEASIBLE) == (not truth)
    assert all(problem.is_feasible(c) for c in got.found)
    assert len(set(got.found)) == len(got.found) == len(truth)
    np.testing.assert_allclose(effects(problem, values, got.found), effects(problem, values, truth), atol=1e-9)
    if truth:
        assert got.status.outcome is Outcome.OPTIMAL
        assert got.stats["gap"] <= 1e-8
        assert got.stats["bound"] >= effects(problem, values, truth)[0] - 1e-9
        one = best_choices(problem, values, count=1)
        np.testing.assert_allclose(effects(problem, values, one.found), effects(problem, values, truth[:1]), atol=1e-9)


@settings(max_examples=150)
@given(cases())
def test_the_milp_alone_agrees_too(case):
    """What the Lagrangian enumeration leaves to HiGHS is as exact."""
    problem, values, _ = case
    truth = best_by_enumeration(problem, values, count=3)
    got = solve_milp(problem, values, count=3, deadline=np.inf, gap=0.0)
    assert got.proven
    assert all(problem.is_feasible(c) for c in got.choices)
    np.testing.assert_allclose(effects(problem, values, got.choices), effects(problem, values, truth), atol=1e-8)


@settings(max_examples=400)
@given(cases(budgets=st.integers(1, 3)))
def test_explanations(case):
    problem, _, _ = case
    everything = list(enumerate_choices(problem))
    costs = np.array([problem.cost_vector(c) for c in everything])
    limit = np.array([problem.limits[n] for n in problem.names])
    fits = costs <= limit * (1 + 1e-9)
    told = explain(problem)
    assert told.feasible == fits.all(axis=1).any()
    for k, name in enumerate(problem.names):
        assert told.alone[name] == pytest.approx(costs[:, k].min())
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(limit > 0, costs / limit, np.where(costs == 0, 0.0, np.inf)).max(axis=1)
    assert told.factor == pytest.approx(shares.min(), rel=1e-9)
    if told.feasible:
        assert told.conflict == ()
        return
    numbers = [problem.names.index(n) for n in told.conflict]
    assert not fits[:, numbers].all(axis=1).any(), "the named limits must conflict"
    for k in numbers:
        rest = fits[:, [j for j in numbers if j != k]].all(axis=1)
        assert rest.any(), "and none of them must be superfluous"
        assert told.in_conflict[problem.names[k]] == pytest.approx(costs[rest, k].min())
    if np.isfinite(told.factor):
        wider = problem.with_limits({n: v * told.factor for n, v in problem.limits.items()})
        assert wider.is_feasible(told.nearest)


def scipy_lp(values, rows, room, sizes, slack):
    """The LP by scipy, its limits moved by `slack`; -inf if infeasible."""
    blocks = np.zeros((len(sizes), int(sizes.sum())))
    for i, (start, n) in enumerate(zip(np.cumsum(sizes) - sizes, sizes)):
        blocks[i, start : start + n] = 1.0
    moved = room + slack if len(room) else None
    scale = np.maximum(np.abs(rows).max(axis=1), 1e-9) if len(room) else None
    got = linprog(
        -values,
        A_ub=rows / scale[:, None] if len(room) else None,
        b_ub=moved / scale if len(room) else None,
        A_eq=blocks,
        b_eq=np.ones(len(sizes)),
    )
    return -got.fun if got.status == 0 else -np.inf


def least_excess(rows, base, limit, sizes):
    """By scipy: the smallest share by which all limits would have to grow (negative if there is room)."""
    columns = int(sizes.sum())
    blocks = np.zeros((len(sizes), columns + 1))
    for i, (start, n) in enumerate(zip(np.cumsum(sizes) - sizes, sizes)):
        blocks[i, start : start + n] = 1.0
    scale = np.where(limit > 0, limit, np.maximum(rows.max(axis=1), 1.0))
    got = linprog(
        np.append(np.zeros(columns), 1.0),
        A_ub=np.column_stack([rows / scale[:, None], -np.ones(len(limit))]),
        b_ub=(limit - base) / scale,
        A_eq=blocks,
        b_eq=np.ones(len(sizes)),
        bounds=[(0, None)] * columns + [(None, None)],
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert got.status == 0
    return got.fun


@settings(max_examples=300)
@given(cases())
def test_linear_programmes_agree_with_scipy_and_are_vertices(case):
    problem, values, rng = case
    point = random_point(problem, rng)
    alpha, beta = problem.flat_alpha(point.alpha), problem.flat_beta(point.beta)
    room = (problem.limit - problem.base[problem.limited]).astype(float)
    blocks = (
        (
            best_alpha(problem, values.options, point.beta),
            problem.flat_alpha(values.options),
            problem.alpha_costs(beta),
        ),
        (best_beta(problem, values.depths, point.alpha), problem.flat_beta(values.depths), problem.beta_costs(alpha)),
    )
    for which, (got, effect, rows) in enumerate(blocks):
        sizes = problem.depth_sizes if which else problem.slot_sizes
        rows = rows[problem.limited]
        low, high = (scipy_lp(effect, rows, room, sizes, sign * 1e-6 * (1e-3 + problem.limit)) for sign in (-1, 1))
        if not got.ok:
            assert got.status.outcome is Outcome.INFEASIBLE
            assert least_excess(rows, problem.base[problem.limited], problem.limit, sizes) > 0.9e-9
            continue
        vectors = got.value
        ours = Point(point.alpha, vectors) if which else Point(vectors, point.beta)
        assert problem.is_feasible(ours)
        assert sum(int((v > 0).sum()) - 1 for v in vectors) <= len(problem.limits), "one fractional slot per budget"
        reached = float(effect @ np.concatenate(vectors))
        assert low - 1e-5 <= reached <= high + 1e-5


@settings(max_examples=300)
@given(cases(budgets=st.just(1), most=60))
def test_one_budget_lp_agrees_with_enumeration(case):
    """The optimum of the LP is the upper hull of all one-hot points, read off at the budget."""
    problem, values, rng = case
    point = random_point(problem, rng)
    rows = problem.alpha_costs(problem.flat_beta(point.beta))[0]
    effect = problem.flat_alpha(values.options)
    starts = problem.slot_starts
    corners = [starts + np.array(c) for c in itertools.product(*(range(n) for n in problem.slot_sizes))]
    if len(corners) > 400:
        return
    cost = np.array([problem.base[0] + rows[c].sum() for c in corners])
    value = np.array([effect[c].sum() for c in corners])
    limit = problem.limit[0] * (1 + 1e-9)
    got = best_alpha(problem, values.options, point.beta)
    inside = cost <= limit
    assert got.ok == inside.any()
    if not got.ok:
        return
    best = value[inside].max()
    if not inside.all():  # or on the way from a corner inside to one outside, where it meets the budget
        share = (limit - cost[inside][:, None]) / (cost[~inside] - cost[inside][:, None])
        best = max(best, (value[inside][:, None] * (1 - share) + share * value[~inside]).max())
    assert float(effect @ np.concatenate(got.value)) == pytest.approx(best, abs=1e-6)


@settings(max_examples=300)
@given(cases())
def test_projections_and_the_balanced_start(case):
    problem, _, rng = case
    fitting = [c for c in enumerate_choices(problem) if problem.is_feasible(c)]
    start = balanced_start(problem)
    assert start.ok == bool(fitting)
    point = random_point(problem, rng)
    exact = project(problem, point)
    assert exact.ok == bool(fitting)
    if not fitting:
        return
    assert problem.is_feasible(start.value)
    objective = projection_objective(problem, point)
    best = max(problem.value(objective, c) for c in fitting)
    assert problem.is_feasible(exact.value)
    assert problem.value(objective, exact.value) == pytest.approx(best, abs=1e-9)
    if problem.is_feasible(argmax_baseline(problem, point)):
        assert best == pytest.approx(problem.value(objective, argmax_baseline(problem, point)))
    if problem.is_feasible(point):
        turn = project_alternating(problem, point)
        assert problem.is_feasible(turn.value)
        assert problem.value(objective, turn.value) <= best + 1e-9
