"""Networks to hold a table against: spread over the space's whole range of cost.

Random architectures crowd around the middle, but budgets are asked for everywhere. So candidates are drawn between the
smallest, random and largest networks, and those are kept whose MACs stand evenly between the ends.
"""

from __future__ import annotations

import numpy as np

from snugnet.costs import analytic
from snugnet.costs.vectorised import costs_of_many
from snugnet.errors import BadInput
from snugnet.space.architecture import Architecture
from snugnet.space.genes import concatenate, decode, encode
from snugnet.space.sampling import largest, mutate_many, sample_many, smallest
from snugnet.space.space import SearchSpace

_PER_KIND = 400  # candidates a degree of randomness


def spread_networks(
    space: SearchSpace, count: int, rng: np.random.Generator, *, without: frozenset[Architecture] = frozenset()
) -> tuple[Architecture, ...]:
    """`count` different architectures evenly spread over the range of MACs, none of them in `without`."""
    if count < 1:
        raise BadInput("the number of networks must be at least 1", value=count, remedy="Ask for 16 or 24.")
    ends = [encode([end(space)] * _PER_KIND, space) for end in (smallest, largest)]
    drawn = [mutate_many(space, end, rng, share) for end in ends for share in (0.15, 0.35, 0.6)]
    genes = concatenate([*drawn, sample_many(space, _PER_KIND, rng)])
    size = costs_of_many(space, genes, analytic.macs)
    targets = np.linspace(size.min(), size.max(), 2 * count + 1)[1::2]
    candidates = decode(genes, space)
    taken: dict[Architecture, None] = {}
    for target in rng.permutation(targets):
        for index in np.argsort(np.abs(size - target)):
            candidate = candidates[index]
            if candidate not in taken and candidate not in without:
                taken[candidate] = None
                break
    if len(taken) < count:
        raise BadInput(
            f"space {space.name!r} must hold enough different networks",
            value=f"{len(taken)} of {count}",
            remedy=f"Ask for {len(taken)} at most.",
        )
    return tuple(taken)
