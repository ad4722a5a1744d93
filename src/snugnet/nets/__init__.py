"""Torch modules: plain networks and the super-network they come from."""

from snugnet.nets.build import Network, build, build_part, build_plan

__all__ = ["Network", "build", "build_part", "build_plan"]
