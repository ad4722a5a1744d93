"""A sub-network's architecture trained on its own, from scratch, as its super-network was: the truth rankings are held to.

The settings of the super-network's last phase are kept (learning rate, augmentation, averaging); what belongs to sharing
weights is not. The start is the super-network's too: open gates where its phases open them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from snugnet.data.dataset import Data
from snugnet.nets.build import build
from snugnet.seeds import Seed
from snugnet.space.architecture import Architecture
from snugnet.space.space import SearchSpace
from snugnet.training import methods
from snugnet.training.method import Method
from snugnet.training.run import train

_KEPT = ("lr", "lr_per", "weight_decay", "label_smoothing", "mixup", "auto_augment", "crop_padding", "hflip", "ema")


def scratch_like(phase: Method, epochs: float) -> Method:
    """From scratch with what `phase` says of learning and of images; a fifth of the time, at most an epoch, warms up."""
    told = phase.describe()
    return methods.scratch(
        **{name: told[name] for name in _KEPT if name in told}, epochs=epochs, warmup_epochs=min(1.0, epochs / 5)
    )


def train_standalone(
    architecture: Architecture,
    space: SearchSpace,
    data: Data,
    phases: Sequence[Method],
    *,
    epochs: float,
    seed: int = 0,
    out: Path | None = None,
    **options: Any,
) -> nn.Module:
    """`architecture` built, trained like the last of `phases` and returned; `options` are those of `train`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Seed(seed).fold_in("stand-alone", str(architecture)).number())
        network = build(architecture, space)
    if any(phase.describe().get("se_bias_init") for phase in phases):
        methods.se_bias_init(network)
    train(network, data, scratch_like(phases[-1], epochs), seed=seed, out=out, evaluator=None, **options)
    return network.eval()
