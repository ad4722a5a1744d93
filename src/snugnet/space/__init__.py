"""What may be built: spaces, architectures, plans, published networks. Pure data, no torch."""

from snugnet.space.architecture import Architecture, Block, StageChoice, check, from_json, parse
from snugnet.space.presets import preset
from snugnet.space.sampling import crossover, largest, mutate, sample, sample_many, sample_where, smallest
from snugnet.space.space import BlockChoice, BlockRules, Head, SearchSpace, Stage, Stem
from snugnet.space.spec import BlockSpec, HeadSpec, LayerSpec, NetworkSpec, StemSpec, plan

__all__ = [
    "Architecture",
    "Block",
    "BlockChoice",
    "BlockRules",
    "BlockSpec",
    "Head",
    "HeadSpec",
    "LayerSpec",
    "NetworkSpec",
    "SearchSpace",
    "Stage",
    "StageChoice",
    "Stem",
    "StemSpec",
    "check",
    "crossover",
    "from_json",
    "largest",
    "mutate",
    "parse",
    "plan",
    "preset",
    "sample",
    "sample_many",
    "sample_where",
    "smallest",
]
