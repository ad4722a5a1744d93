"""The mathematics of hard budgets, on plain numbers: numpy, HiGHS and Clarabel; knows no networks.

Start at `problem`, then `linear`, `integer` (with `lagrangian` inside), `quadratic`, `block_frank_wolfe`,
`joint_frank_wolfe` and `projection`; `infeasible` explains limits; `adaptive` spends evaluations,
with the `posterior` of effects.
"""

from snugnet.solve.adaptive import AdaptiveSearch, AdaptiveStep, Evaluation, adaptive_maximise, adaptive_steps
from snugnet.solve.block_frank_wolfe import (
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
from snugnet.solve.infeasible import Explanation, Price, explain, fits, min_max_utilisation, shadow_prices
from snugnet.solve.integer import best_choice, best_choices
from snugnet.solve.joint_frank_wolfe import iterate_joint
from snugnet.solve.linear import LinearOracle, best_alpha, best_beta
from snugnet.solve.posterior import EffectsPosterior
from snugnet.solve.problem import TOLERANCE, Choice, Group, Objective, Point, Problem, ResourceCosts
from snugnet.solve.projection import argmax_baseline, project, project_alternating, projection_objective
from snugnet.solve.quadratic import balanced_start
from snugnet.solve.solution import Outcome, Solution, Status, Undecided

__all__ = [
    "TOLERANCE",
    "AdaptiveSearch",
    "AdaptiveStep",
    "Block",
    "Choice",
    "EffectsPosterior",
    "Evaluation",
    "Explanation",
    "FrankWolfeResult",
    "FrankWolfeState",
    "Gradient",
    "Group",
    "LinearOracle",
    "Objective",
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
    "adaptive_maximise",
    "adaptive_steps",
    "argmax_baseline",
    "balanced_start",
    "best_alpha",
    "best_beta",
    "best_choice",
    "best_choices",
    "classic_schedule",
    "explain",
    "fits",
    "fixed_schedule",
    "frank_wolfe",
    "iterate",
    "iterate_joint",
    "linear_schedule",
    "min_max_utilisation",
    "paper_schedule",
    "project",
    "project_alternating",
    "projection_objective",
    "shadow_prices",
]
