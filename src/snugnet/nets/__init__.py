"""Torch modules: plain networks and the super-network they come from."""

from snugnet.nets.extraction import extract, extract_largest, recalibrate
from snugnet.nets.importance import sort_channels
from snugnet.nets.mixed_supernet import MixedSupernet
from snugnet.nets.network import Network, build, build_part, build_plan
from snugnet.nets.supernet import Supernet

__all__ = [
    "MixedSupernet",
    "Network",
    "Supernet",
    "build",
    "build_part",
    "build_plan",
    "extract",
    "extract_largest",
    "recalibrate",
    "sort_channels",
]
