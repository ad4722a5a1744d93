"""Hard limits in a user's words -> a problem of plain numbers, or a refusal that says what is possible."""

from snugnet.budgets.budget import Budget
from snugnet.budgets.extremes import Extreme, cheapest, dearest
from snugnet.budgets.feasible_set import FeasibleSet, feasible, feasible_by_resolution, feasible_narrowest
from snugnet.budgets.limits import Limit, Limits, limits_of

__all__ = [
    "Budget",
    "Extreme",
    "FeasibleSet",
    "Limit",
    "Limits",
    "cheapest",
    "dearest",
    "feasible",
    "feasible_by_resolution",
    "feasible_narrowest",
    "limits_of",
]
