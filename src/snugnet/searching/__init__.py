"""Search inside the budget: one call, one file a method, one result."""

from snugnet.evaluate.evaluator import Evaluator
from snugnet.searching.bcsfw import Bcsfw
from snugnet.searching.context import SearchMethod
from snugnet.searching.evolution import Evolution
from snugnet.searching.front import FrontPoint, front
from snugnet.searching.instant import Instant
from snugnet.searching.random import Random
from snugnet.searching.result import SearchResult, load_result
from snugnet.searching.search import METHODS, search

__all__ = [
    "METHODS",
    "Bcsfw",
    "Evaluator",
    "Evolution",
    "FrontPoint",
    "Instant",
    "Random",
    "SearchMethod",
    "SearchResult",
    "front",
    "load_result",
    "search",
]
