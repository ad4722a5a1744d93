"""Solvers that the product takes step by step, as single calls: for tests."""

from snugnet.solve import FrankWolfeState, LinearOracle, iterate
from snugnet.solve.problem import Solution


def best_alpha(problem, values, beta):
    """One LP over alpha at fixed beta (vectors per slot and per group)."""
    got = LinearOracle(problem).alpha(problem.flat_alpha(values), problem.flat_beta(beta))
    return Solution(found=tuple(problem.split_alpha(f) for f in got.found), status=got.status, stats=got.stats)


def best_beta(problem, values, alpha):
    """One LP over beta at fixed alpha (vectors per group and per slot)."""
    got = LinearOracle(problem).beta(problem.flat_beta(values), problem.flat_alpha(alpha))
    return Solution(found=tuple(problem.split_beta(f) for f in got.found), status=got.status, stats=got.stats)


def frank_wolfe(gradient, problem, start, **options):
    """The state after all steps from a point or from where a state left off, and what every step did."""
    state = start if isinstance(start, FrankWolfeState) else FrankWolfeState(step=0, point=start)
    taken = list(iterate(gradient, problem, state, **options))
    return taken[-1][0], tuple(row for _, row in taken)
