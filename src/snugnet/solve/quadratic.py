"""A balanced start inside the budgets (HardCoRe-NAS, appendix E, eq. 26).

Frank-Wolfe started at the smallest network sees no gradient of anything else. So, from that network, beta first and then
alpha are moved in turn to the flattest distribution that the budgets allow,

    minimise  sum (p_{i+1} - p_i)^2    over the simplices and the budgets, the other block fixed,

options ordered from light to heavy by their costs, until both stand still: chains of equal probability up to where the
budget ends. A quadratic programme each, by Clarabel. The point is kept strictly inside: an interior-point answer is only
accurate to a tolerance, so the last bit of the way from a point known to fit is not walked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import clarabel
import numpy as np

from snugnet.solve.infeasible import min_max_utilisation
from snugnet.solve.problem import TOLERANCE, Choice, Floats, Ints, Outcome, Point, Problem, Solution, Status

_ROUNDS: Final = 50
_STILL: Final = 1e-4  # largest change of a probability in a round
_MARGIN: Final = 1e-7  # of a limit: what is left unused so that the point is strictly inside


def balanced_start(problem: Problem, *, time_limit: float = 10.0) -> Solution[Point]:
    """The point of eq. (26). Stats: rounds, seconds. Where the limits leave no room at all: the one network that fits."""
    begun = time.monotonic()
    start = min_max_utilisation(problem, time_limit=time_limit)
    if not start.ok:
        return Solution(found=(), status=start.status)
    smallest = _idle_slots_light(problem, start.value)
    spare = -problem.excess(smallest)
    if (spare <= TOLERANCE * problem.limit).any():
        status = Status(Outcome.OPTIMAL, "a limit is met with nothing to spare: the smallest network is all that fits")
        return Solution(found=(smallest,), status=status, stats={"rounds": 0.0, "seconds": time.monotonic() - begun})
    limit = problem.limit - np.minimum(_MARGIN * problem.limit, spare / 2)
    alpha, beta = problem.flat_alpha(smallest.alpha), problem.flat_beta(smallest.beta)
    # Slot by slot from light to heavy, group by group from shallow to deep.
    flat_alpha = _Flattest(problem.slot_sizes, np.lexsort((_load(problem), problem.option_slot)))
    depths = np.concatenate([g.depths for g in problem.groups])
    flat_beta = _Flattest(problem.depth_sizes, np.lexsort((depths, problem.depth_group)))
    base = problem.base[problem.limited]
    rounds, moved = 0, np.inf
    while moved > _STILL and rounds < _ROUNDS:
        rows = problem.beta_costs(alpha)[problem.limited]
        new_beta = flat_beta.solve(rows, limit - base, beta)
        if rounds and np.abs(new_beta - beta).max() <= _STILL:
            moved = 0.0  # beta stands still, so alpha's programme is the one just solved
            break
        rows = problem.alpha_costs(new_beta)[problem.limited]
        new_alpha = flat_alpha.solve(rows, limit - base, alpha)
        moved = float(max(np.abs(new_beta - beta).max(), np.abs(new_alpha - alpha).max()))
        alpha, beta = new_alpha, new_beta
        rounds += 1
    point = Point(problem.split_alpha(alpha), problem.split_beta(beta))
    if not problem.is_feasible(point, tolerance=0.0):
        raise ArithmeticError(f"a balanced start left its budgets by {problem.excess(point)}")
    status = Status(Outcome.OPTIMAL, "balanced, and strictly inside every limit")
    if moved > _STILL:
        message = f"fits, but still moved by {moved:.1e} after {rounds} rounds; good to start from"
        status = Status(Outcome.FEASIBLE, message)
    stats = {"rounds": float(rounds), "seconds": time.monotonic() - begun}
    return Solution(found=(point,), status=status, stats=stats)


def _idle_slots_light(problem: Problem, choice: Choice) -> Point:
    """The choice as a point, its idle slots on their smallest option (eq. 25): deepening must cost as little as it can."""
    load = problem.split_alpha(_load(problem))
    running = set(problem.running(choice))
    options = [o if s in running else int(np.argmin(load[s])) for s, o in enumerate(choice.options)]
    return problem.point(Choice(tuple(options), choice.depths))


def _load(problem: Problem) -> Floats:
    """[N] how heavy options are: by the limited costs, or by all of them if nothing is limited."""
    return problem.load() if len(problem.limited) else problem.theta.sum(axis=0)


class _Flattest:
    """The QP over one block: sum of squared differences of neighbours (in `order`), simplices, and rows x <= room."""

    def __init__(self, sizes: Ints, order: Ints) -> None:
        import scipy.sparse as sp  # here: a tenth of the imports of a verb that needs no start

        self._order, self._sizes = order, sizes
        self._starts = np.cumsum(sizes) - sizes
        n = int(sizes.sum())
        self._uniform = np.repeat(1.0 / sizes, sizes)
        block = np.repeat(np.arange(len(sizes)), sizes)
        neighbours = np.flatnonzero(block[1:] == block[:-1])
        rows, ones, shape = np.arange(len(neighbours)), np.ones(len(neighbours)), (len(neighbours), n)
        upper, lower = (sp.csr_matrix((ones, (rows, columns)), shape) for columns in (neighbours + 1, neighbours))
        difference = upper - lower
        self._quadratic = sp.triu(2.0 * difference.T @ difference, format="csc")
        self._simplices = sp.csc_matrix((np.ones(n), (block, np.arange(n))), shape=(len(sizes), n))
        self._settings = clarabel.DefaultSettings()
        self._settings.verbose = False
        self._settings.max_threads = 1

    def solve(self, rows: Floats, room: Floats, inside: Floats) -> Floats:
        """The flattest x with rows x <= room, seen from the fitting point `inside`; never outside."""
        import scipy.sparse as sp

        if (rows @ self._uniform <= room).all():
            return self._uniform
        n, blocks, scale = len(inside), len(self._sizes), np.maximum(room, 1e-300)
        budgets = sp.csc_matrix(rows[:, self._order] / scale[:, None])
        matrix = sp.vstack([self._simplices, budgets, -sp.identity(n, format="csc")], format="csc")
        rhs = np.concatenate([np.ones(blocks), room / scale, np.zeros(n)])
        cones = [clarabel.ZeroConeT(blocks), clarabel.NonnegativeConeT(len(rows) + n)]
        solver = clarabel.DefaultSolver(self._quadratic, np.zeros(n), matrix, rhs, cones, self._settings)
        answer = np.clip(np.array(solver.solve().x), 0.0, None)
        if not np.isfinite(answer).all():
            return inside
        x = np.empty(n)
        x[self._order] = np.where(answer < 1e-9, 0.0, answer)
        x /= np.repeat(np.add.reduceat(x, self._starts), self._sizes)
        return _as_far_as_fits(inside, x, lambda y: rows @ y - room)


def _as_far_as_fits(inside: Floats, target: Floats, excess: Callable[[Floats], Floats]) -> Floats:
    """The point nearest to `target` on the way from `inside` that does not exceed; the excess is linear on the way."""
    over, spare = excess(target), -excess(inside)
    if (over <= 0).all():
        return target
    share = float(np.min(np.where(over > 0, np.maximum(spare, 0.0) / np.maximum(spare + over, 1e-300), 1.0)))
    return inside + share * (target - inside)
