"""Hard limits in a user's words -> a problem of plain numbers, or a refusal that says what is possible."""

from snugnet.budgets.budget import Budget
from snugnet.budgets.feasible_set import FeasibleSet, feasible, feasible_by_resolution
from snugnet.budgets.limits import Limits, cheapest, dearest, limits_of

__all__ = ["Budget", "FeasibleSet", "Limits", "cheapest", "dearest", "feasible", "feasible_by_resolution", "limits_of"]
