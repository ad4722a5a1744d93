"""Batch-norm statistics for one sub-network.

Statistics gathered over mixed paths fit no single sub-network: an extracted one must have its own before it is evaluated or
shipped. `recalibrate` replaces them by the cumulative average over a few batches (every batch weighs the same), which
needs no gradients and a fraction of an epoch. Everything but the statistics stays as it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn

from snugnet.errors import BadInput

M = TypeVar("M", bound=nn.Module)


def recalibrate(network: M, batches: Iterable[Tensor]) -> M:
    """Give every BN of `network` the statistics of `batches` (of images); returns the same network."""
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    if not norms:
        return network
    modes = {module: module.training for module in network.modules()}
    momenta = [norm.momentum for norm in norms]
    network.eval()  # dropout stays off
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # cumulative average
        norm.train()
    count = 0
    try:
        with torch.no_grad():
            for images in batches:
                network(images)
                count += 1
    finally:
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum
        for module, training in modes.items():
            module.training = training
    if count == 0:
        raise BadInput("recalibration needs at least one batch", value=0, remedy="Pass a few batches of images.")
    return network


@contextlib.contextmanager
def norm_momentum(network: nn.Module, momentum: float | None) -> Iterator[None]:
    """Inside, running statistics follow a batch by `momentum` (0: not at all); None leaves every layer its own."""
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    before = [norm.momentum for norm in norms]
    for norm in norms if momentum is not None else ():
        norm.momentum = momentum
    try:
        yield
    finally:
        for norm, own in zip(norms, before):
            norm.momentum = own
