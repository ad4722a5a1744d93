"""Randomness as a function of where the run stands.

Every random decision of a run - which images, which crop, which path - is drawn from a generator whose seed is a hash
of (seed, phase, step, shard, purpose). Nothing has to be remembered between steps, so a run that was killed continues
exactly where it was, and a shard of a batch draws the same numbers whether a process of its own computes it or one
process computes all shards in turn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import numpy as np
import torch


@final
@dataclass(frozen=True)
class Seed:
    """A place in the tree of seeds; `at` goes deeper, the other methods draw there."""

    seed: int
    where: tuple[str | int, ...] = ()

    def fold_in(self, *names: str | int) -> Seed:
        return Seed(self.seed, (*self.where, *names))

    def number(self) -> int:
        """A seed of 63 bits that depends on nothing but the place."""
        text = repr((int(self.seed), *self.where))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1

    def torch(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.number())

    def numpy(self) -> np.random.Generator:
        return np.random.default_rng(self.number())

    @contextmanager
    def seed_globals(self) -> Iterator[None]:
        """Seed torch's own global generators inside the block (dropout, kornia) and restore them afterwards."""
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self.number())
            yield
