"""Search inside the budget: a file per method, one result. The calls are `search.search` and `front.front`."""

from snugnet.searching.adaptive import Adaptive
from snugnet.searching.bcsfw import Bcsfw
from snugnet.searching.context import SearchMethod
from snugnet.searching.evolution import Evolution
from snugnet.searching.instant import Instant
from snugnet.searching.random import Random
from snugnet.searching.result import SearchResult, load_result
from snugnet.searching.tfnas import Tfnas

__all__ = [
    "Adaptive",
    "Bcsfw",
    "Evolution",
    "Instant",
    "Random",
    "SearchMethod",
    "SearchResult",
    "Tfnas",
    "load_result",
]
