"""The whole way from data to a certified network: `fit`, the recipes it is told by, and the run folders it leaves."""

from snugnet.fitting.fit_data import FitResult, fit
from snugnet.fitting.recipe import Recipe, find, names, read

__all__ = ["FitResult", "Recipe", "find", "fit", "names", "read"]
