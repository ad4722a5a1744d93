"""Hard limits in a user's words -> a problem of plain numbers, or a refusal that says what is possible."""

from snugnet.budget.budget import Budget
from snugnet.budget.extremes import Extreme, cheapest, dearest
from snugnet.budget.feasible import FeasibleSet, feasible
from snugnet.budget.limits import Limits, limits_of

__all__ = ["Budget", "Extreme", "FeasibleSet", "Limits", "cheapest", "dearest", "feasible", "limits_of"]
