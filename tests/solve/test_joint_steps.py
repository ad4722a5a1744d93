"""Joint Frank-Wolfe steps on the lifted polytope: inside every limit, and past where steps of one block freeze."""

import numpy as np
import pytest
from random_problems import hardcore_shaped
from single_calls import frank_wolfe

from snugnet.solve import FrankWolfeState, balanced_start, best_choice, classic_schedule, iterate_joint


@pytest.mark.parametrize(("budgets", "seed"), [(1, 0), (2, 1), (3, 2)])
def test_a_linear_loss_of_whole_networks_is_brought_to_its_optimum(budgets, seed):
    """loss = -(expected sum of effects): bilinear in alpha and beta, linear in x and y, so joint steps must solve it."""
    problem, effects = hardcore_shaped(budgets, seed)

    def gradient(point):
        beta = problem.flat_beta(point.beta)
        running = problem.runs @ beta
        by_slot = np.array([v @ a for v, a in zip(effects.options, point.alpha)])
        by_depth = by_slot @ problem.runs + problem.flat_beta(effects.depths)
        by_option = [-v * share for v, share in zip(effects.options, running)]
        return -float(by_depth @ beta), by_option, list(problem.split_beta(-by_depth))

    def expected(point):
        return -gradient(point)[0]

    start = balanced_start(problem).value
    begin = FrankWolfeState(step=0, point=start)
    for state, _ in iterate_joint(gradient, problem, begin, steps=40, schedule=classic_schedule):
        assert problem.is_feasible(state.point)
    best = problem.value(effects, best_choice(problem, effects).value)
    assert (expected(state.point) - expected(start)) / (best - expected(start)) > 0.95

    def one(point, block):
        loss, by_option, by_depth = gradient(point)
        return loss, by_option if block == "alpha" else by_depth

    blocks = frank_wolfe(one, problem, start, steps=40, rng=np.random.default_rng(0))[0].point
    assert expected(state.point) >= expected(blocks) - 1e-6 * abs(best)
