"""One change at a time: bring a choice inside its budgets, then use up what is left. Fast, never proven.

The exact solvers use it for a first answer, so that a time limit does not find them empty-handed. Depths stay as they are.
"""

from __future__ import annotations

import numpy as np

from snugnet.solve.problem import Choice, Floats, Objective, Problem


def greedy(problem: Problem, values: Objective, choice: Choice) -> Choice:
    """While over a budget, the change that saves most excess per worth; then the change that gains most worth per load."""
    for _ in range(4 * len(problem.option_slot)):
        step = _best_change(problem, values, choice)
        if step is None:
            break
        choice = step
    return choice


def _best_change(problem: Problem, values: Objective, choice: Choice) -> Choice | None:
    slots, effect, load = problem.option_slot, problem.flat_alpha(values.options), problem.load()
    now = (problem.slot_starts + np.array(choice.options))[slots]
    gain, heavier = effect - effect[now], load - load[now]
    costs = problem.theta[problem.limited] / problem.limit_scale[:, None]
    excess = problem.excess(choice) / problem.limit_scale
    after = excess[:, None] + costs - costs[:, now]
    rate: Floats
    if problem.is_feasible(choice):
        allowed = (after <= 0).all(axis=0) & (gain > 0)
        rate = gain / np.maximum(heavier, 1e-12)
    else:
        saved = np.maximum(excess, 0.0).sum() - np.maximum(after, 0.0).sum(axis=0)
        allowed = saved > 1e-12
        rate = saved / np.maximum(-gain, 1e-12)
    running = np.zeros(len(problem.slot_sizes), bool)
    running[problem.running(choice)] = True
    rate = np.where(allowed & running[slots], rate, 0.0)
    best = int(np.argmax(rate))
    if rate[best] <= 0:
        return None
    options = list(choice.options)
    options[slots[best]] = best - int(problem.slot_starts[slots[best]])
    return problem.choice(options, choice.depths)
