"""Recipes: a run as a YAML file, validated before anything happens; `digits` and `fashion-mnist` come with the package."""

from snugnet.fitting.reading import find, names, read
from snugnet.fitting.recipe import Recipe

__all__ = ["Recipe", "find", "names", "read"]
