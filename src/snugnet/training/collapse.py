"""A network that had learnt and falls back to chance: noticed, and stopped before the fallen weights are kept.

Users of sandwich training saw it within a few steps (AttentiveNAS#5, AlphaNet#9), and trained on for days. A network that
knows nothing has a cross entropy of log(classes), label smoothing or not. Once the smoothed loss has been well below that,
a stretch of steps at or above it is a collapse; a single bad batch is not. While a stretch lasts, nothing is saved.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

LEARNT = 0.75  # of the loss by chance: below this, smoothed, the network has learnt something
CHANCE = 0.97  # of the loss by chance: from here on it knows nothing
PATIENCE = 20  # steps in a row
_SMOOTH = 0.1


@final
class CollapseWatch:
    """Watches the largest network's loss; its memory is one tensor, so that a checkpoint can carry it."""

    def __init__(self, classes: int, device: torch.device | None = None) -> None:
        self._chance = math.log(classes)
        # smoothed loss, its lowest value, steps in a row at chance
        self.tensor: Tensor = torch.tensor([math.inf, math.inf, 0.0], dtype=torch.float64, device=device)

    @property
    def doubtful(self) -> bool:
        """Whether the last step was at chance though the network had learnt."""
        return bool(self.tensor[2] > 0)

    def collapsed(self, loss: float) -> bool:
        """Take the next step's loss; True at the end of a stretch that is too long."""
        smoothed, lowest, count = self.tensor.tolist()
        smoothed = loss if math.isinf(smoothed) else smoothed + _SMOOTH * (loss - smoothed)
        fallen = lowest < LEARNT * self._chance and loss >= CHANCE * self._chance
        count = count + 1 if fallen else 0
        self.tensor.copy_(torch.tensor([smoothed, min(lowest, smoothed), count], dtype=torch.float64))
        return count >= PATIENCE
