"""`finetune`: a plain network with inherited weights, taught by the heaviest one (HardCoRe-NAS, appendix G)."""

from __future__ import annotations

from typing import Any

from torch import nn

from snugnet.train import methods
from snugnet.train.data import Data
from snugnet.train.run import TrainResult, train

_OF_THE_LOOP = (
    "out",
    "seed",
    "batch",
    "threads",
    "device",
    "precision",
    "channels_last",
    "judge",
    "resume",
    "progress",
)


def finetune(
    net: nn.Module, data: Data, *, teacher: nn.Module | None = None, epochs: int = 10, **options: Any
) -> TrainResult:
    """Train `net` in place for `epochs`, distilled from `teacher` if there is one.

    `options` are those of the loop (out, seed, batch, threads, ...) and of the method (lr, distill, temperature, ...).
    """
    loop = {name: options.pop(name) for name in _OF_THE_LOOP if name in options}
    if teacher is None:
        options.setdefault("distill", 0.0)
    return train(net, data, methods.finetune(epochs=epochs, **options), teacher=teacher, **loop)
