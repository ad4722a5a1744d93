"""What may be built: spaces, architectures, plans, published networks. Pure data, no torch."""

from snugnet.space.architecture import Architecture, check, from_json, parse
from snugnet.space.presets import preset
from snugnet.space.sampling import largest, mutate, sample, sample_many, smallest
from snugnet.space.space import BlockChoice, BlockRules, Head, SearchSpace, Stage, Stem
from snugnet.space.spec import plan

__all__ = [
    "Architecture",
    "BlockChoice",
    "BlockRules",
    "Head",
    "SearchSpace",
    "Stage",
    "Stem",
    "check",
    "from_json",
    "largest",
    "mutate",
    "parse",
    "plan",
    "preset",
    "sample",
    "sample_many",
    "smallest",
]
