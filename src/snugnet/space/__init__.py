"""What may be built: spaces, architectures, plans, published networks. Pure data, no torch."""

from snugnet.space.architecture import Architecture, Block, StageChoice, check, from_json, parse
from snugnet.space.plan import BlockPart, HeadPart, NetworkPlan, Part, StemPart, plan
from snugnet.space.presets import preset
from snugnet.space.sampling import crossover, heaviest, lightest, mutate, sample, sample_many, sample_where
from snugnet.space.space import BlockChoice, BlockRules, Head, SearchSpace, Stage, Stem

__all__ = [
    "Architecture",
    "Block",
    "BlockChoice",
    "BlockPart",
    "BlockRules",
    "Head",
    "HeadPart",
    "NetworkPlan",
    "Part",
    "SearchSpace",
    "Stage",
    "StageChoice",
    "Stem",
    "StemPart",
    "check",
    "crossover",
    "from_json",
    "heaviest",
    "lightest",
    "mutate",
    "parse",
    "plan",
    "preset",
    "sample",
    "sample_many",
    "sample_where",
]
