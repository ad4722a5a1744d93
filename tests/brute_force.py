"""Brute force: every choice of a small problem, one after another. The reference that the solvers are held against."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from snugnet.errors import BadInput
from snugnet.solve.problem import Choice, Objective, Problem


def count_choices(problem: Problem) -> int:
    """How many different choices there are, limits aside."""
    return math.prod(sum(math.prod(group.options[:depth]) for depth in group.depths) for group in problem.groups)


def enumerate_choices(problem: Problem, *, at_most: int = 1_000_000) -> Iterator[Choice]:
    """Every canonical choice once, limits aside."""
    total = count_choices(problem)
    if total > at_most:
        raise BadInput(
            f"brute force must stay within {at_most} choices", value=total, remedy="Use best_choice, or raise at_most."
        )
    for depths in itertools.product(*(g.depths for g in problem.groups)):
        ranges = [
            range(size) if position < depth else range(1)
            for group, depth in zip(problem.groups, depths)
            for position, size in enumerate(group.options)
        ]
        for options in itertools.product(*ranges):
            yield Choice(options, depths)


def best_by_enumeration(problem: Problem, objective: Objective, *, count: int = 1) -> list[Choice]:
    """The `count` best fitting choices, best first (fewer if fewer fit); equal ones in order of depths and options."""
    fitting = [c for c in enumerate_choices(problem) if problem.is_feasible(c)]
    return sorted(fitting, key=lambda c: (-problem.value(objective, c), c.depths, c.options))[:count]
