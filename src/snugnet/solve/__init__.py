"""The mathematics of hard budgets, on plain numbers: numpy, HiGHS and Clarabel; knows no networks.

Start at `problem`, then `linear`, `integer` (with `lagrangian` inside), `quadratic`, `frank_wolfe_steps` and `projection`;
`infeasible` explains limits; `adaptive` spends evaluations, by the posterior of effects.
"""

from snugnet.solve.adaptive import CALM, INITIAL_WITH_PRIOR, AdaptiveSearch, Evaluation, adaptive_maximise, neighbours
from snugnet.solve.effects import Beliefs, EffectsPosterior
from snugnet.solve.frank_wolfe_steps import (
    Block,
    FrankWolfeState,
    Schedule,
    classic_schedule,
    fixed_schedule,
    iterate,
    iterate_joint,
    linear_schedule,
    paper_schedule,
)
from snugnet.solve.infeasible import explain, fits, min_max_utilisation
from snugnet.solve.integer import best_choice, best_choices
from snugnet.solve.linear import LinearOracle
from snugnet.solve.problem import TOLERANCE, Choice, Group, Objective, Outcome, Point, Problem, ResourceCosts
from snugnet.solve.projection import argmax_baseline, project, project_alternating, projection_objective
from snugnet.solve.quadratic import balanced_start

__all__ = [
    "CALM",
    "INITIAL_WITH_PRIOR",
    "TOLERANCE",
    "AdaptiveSearch",
    "Beliefs",
    "Block",
    "Choice",
    "EffectsPosterior",
    "Evaluation",
    "FrankWolfeState",
    "Group",
    "LinearOracle",
    "Objective",
    "Outcome",
    "Point",
    "Problem",
    "ResourceCosts",
    "Schedule",
    "adaptive_maximise",
    "argmax_baseline",
    "balanced_start",
    "best_choice",
    "best_choices",
    "classic_schedule",
    "explain",
    "fits",
    "fixed_schedule",
    "iterate",
    "iterate_joint",
    "linear_schedule",
    "min_max_utilisation",
    "neighbours",
    "paper_schedule",
    "project",
    "project_alternating",
    "projection_objective",
]
