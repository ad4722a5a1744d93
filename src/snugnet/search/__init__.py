"""Search inside the budget: one call, one file a method, one result."""

from snugnet.search.bcsfw import Bcsfw
from snugnet.search.evolution import Evolution
from snugnet.search.front import FrontPoint, front
from snugnet.search.instant import Instant
from snugnet.search.judge import Judge
from snugnet.search.method import SearchMethod
from snugnet.search.random import Random
from snugnet.search.result import SearchResult, load_result
from snugnet.search.search import METHODS, search

__all__ = [
    "METHODS",
    "Bcsfw",
    "Evolution",
    "FrontPoint",
    "Instant",
    "Judge",
    "Random",
    "SearchMethod",
    "SearchResult",
    "front",
    "load_result",
    "search",
]
