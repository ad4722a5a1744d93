"""The mathematics of hard budgets, on plain numbers: numpy, HiGHS and Clarabel; knows no networks.

Start at `problem` (what is solved), then `linear`, `integer`, `quadratic`, `frank_wolfe`, `projection`; `infeasible` and
`prices` explain, `enumeration` is the reference.
"""

from snugnet.solve.enumeration import best_by_enumeration, count_choices, enumerate_choices
from snugnet.solve.frank_wolfe import (
    Block,
    FrankWolfeResult,
    FrankWolfeState,
    Gradient,
    Schedule,
    TraceRow,
    classic_schedule,
    fixed_schedule,
    frank_wolfe,
    iterate,
    linear_schedule,
    paper_schedule,
)
from snugnet.solve.infeasible import Explanation, explain, fits, roomiest
from snugnet.solve.integer import best_choice, best_choices
from snugnet.solve.linear import LinearOracle, best_alpha, best_beta
from snugnet.solve.prices import Price, shadow_prices
from snugnet.solve.problem import TOLERANCE, Choice, Group, Point, Problem, ResourceCosts, Values
from snugnet.solve.projection import argmax_baseline, credit, project, project_alternating
from snugnet.solve.quadratic import balanced_start
from snugnet.solve.solution import Outcome, Solution, Status, Undecided

__all__ = [
    "TOLERANCE",
    "Block",
    "Choice",
    "Explanation",
    "FrankWolfeResult",
    "FrankWolfeState",
    "Gradient",
    "Group",
    "LinearOracle",
    "Outcome",
    "Point",
    "Price",
    "Problem",
    "ResourceCosts",
    "Schedule",
    "Solution",
    "Status",
    "TraceRow",
    "Undecided",
    "Values",
    "argmax_baseline",
    "balanced_start",
    "best_alpha",
    "best_beta",
    "best_by_enumeration",
    "best_choice",
    "best_choices",
    "classic_schedule",
    "count_choices",
    "credit",
    "enumerate_choices",
    "explain",
    "fits",
    "fixed_schedule",
    "frank_wolfe",
    "iterate",
    "linear_schedule",
    "paper_schedule",
    "project",
    "project_alternating",
    "roomiest",
    "shadow_prices",
]
