"""What may be done to a super-network's weights before a phase, so that its sub-networks start close to each other.

Measured on digits (docs/LOG.md): with small kernels that start at random, a short multipath phase does not leave chance
level at all; with kernels taken from the large ones it does, and gates that start open help every method.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from snugnet.nets.importance import sort_channels


def prepare(model: Any, *, sort: bool = False, kernels: bool = False, gates: bool = False) -> None:
    """Sort channels by importance, give small kernels the centre of the largest one, open squeeze-excite gates."""
    if gates:
        se_bias_init(model)
    if kernels:
        inherit_kernels(model)
    if sort:
        sort_channels(model)


@torch.no_grad()
def inherit_kernels(supernet: Any) -> None:
    """Where kernels have weights of their own: the smaller start as the centre of the largest, BN included."""
    for block in supernet.blocks():
        for operation in block.operations:
            sizes = sorted(int(size) for size in operation.depthwise)
            large = operation.depthwise[str(sizes[-1])]
            for size in sizes[:-1]:
                edge = (sizes[-1] - size) // 2
                small = operation.depthwise[str(size)]
                small.conv.weight.copy_(large.conv.weight[:, :, edge : edge + size, edge : edge + size])
                small.norm.load_state_dict(large.norm.state_dict())


@torch.no_grad()
def se_bias_init(network: nn.Module) -> None:
    """Squeeze-excite gates start at 5/6 (hard sigmoid) or 0.88 (sigmoid) instead of a half: on and off start alike."""
    for layer in network.modules():
        if all(hasattr(layer, name) for name in ("reduce", "expand", "gate")):
            expand: Any = layer.expand
            expand.bias.fill_(2.0)
