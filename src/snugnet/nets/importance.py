"""Channels sorted by importance, so that a prefix of them is the best part.

A middle channel's order is arbitrary for the full block: permuting it everywhere (expansion, depthwise, squeeze-excite,
projection) changes nothing. Smaller expansions use the first channels, so sorting them by the L1 norm of what the
projection does with them lets small sub-networks start from the most useful ones. Done once, between training the
largest network and training all paths.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from snugnet.nets.elastic import ElasticOperation
from snugnet.nets.supernet import Supernet


def sort_channels(supernet: Supernet) -> Supernet:
    """Sort the middle channels of every block, most important first, in place; the largest network stays the same."""
    with torch.no_grad():
        for block in supernet.blocks():
            for operation in block.operations:
                assert isinstance(operation, ElasticOperation)
                if operation.expand is not None:  # without one, middle channels are the block's input: not ours to move
                    permute_channels(operation, _order(operation))
    return supernet


def _order(operation: ElasticOperation) -> Tensor:
    weight: Tensor = operation.project.conv.weight  # type: ignore[union-attr,assignment]
    importance = weight.abs().sum((0, 2, 3))
    return torch.argsort(importance, descending=True, stable=True)


def permute_channels(operation: ElasticOperation, order: Tensor) -> None:
    """Put the middle channels of all layers of a block in `order`: what the block computes stays the same."""
    assert operation.expand is not None
    for unit in (operation.expand, *operation.depthwise.values()):
        conv, norm = unit.conv, unit.norm
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(norm, nn.BatchNorm2d)
        conv.weight.copy_(conv.weight[order])
        for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            assert tensor is not None
            tensor.copy_(tensor[order])
    if operation.se is not None:
        reduce, expand = operation.se.reduce, operation.se.expand
        assert expand.bias is not None
        reduce.weight.copy_(reduce.weight[:, order])
        expand.weight.copy_(expand.weight[order])
        expand.bias.copy_(expand.bias[order])
    project = operation.project.conv
    assert isinstance(project, nn.Conv2d)
    project.weight.copy_(project.weight[:, order])
