"""Hard limits in a user's words -> a problem of plain numbers, or a refusal that says what is possible."""

from snugnet.budget.budget import Budget
from snugnet.budget.feasible import FeasibleSet, feasible

__all__ = ["Budget", "FeasibleSet", "feasible"]
