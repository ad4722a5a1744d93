"""Channels sorted by importance, so that a prefix of them is the best part.

A middle channel's order is arbitrary for the full block: permuting it everywhere (expansion, depthwise, squeeze-excite,
projection) changes nothing. Smaller expansions use the first channels, so sorting them by importance lets small
sub-networks start from the most useful ones. Done once, between training the largest network and training all paths.

Which channels are best: by the size of what the projection does with them (L1), or by what the loss would lose without
them to first order, |sum of gradient * activation| over images (Molchanov et al., arXiv 1906.10771). Measured, the latter
is better (docs/LOG.md); it needs images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugnet.errors import BadInput
from snugnet.nets.blocks import InvertedResidual
from snugnet.nets.elastic import ElasticOperation
from snugnet.nets.extraction import extract
from snugnet.nets.network import Network
from snugnet.nets.supernet import Supernet
from snugnet.space.sampling import largest

Batches = Iterable[Tensor | tuple[Tensor, Tensor]]


def sort_channels(supernet: Supernet, importances: Sequence[Tensor] | None = None) -> Supernet:
    """Sort the middle channels of every block, most important first, in place; the largest network stays the same.
    `importances`: of each block's channels, as `taylor_importance` gives them; without, the L1 norm of the projection."""
    with torch.no_grad():
        for number, block in enumerate(supernet.blocks()):
            for operation in block.operations:
                assert isinstance(operation, ElasticOperation)
                if operation.expand is None:  # without one, middle channels are the block's input: not ours to move
                    continue
                weight: Tensor = operation.project.conv.weight  # type: ignore[union-attr,assignment]
                values = weight.abs().sum((0, 2, 3)) if importances is None else importances[number].to(weight.device)
                permute_channels(operation, torch.argsort(values, descending=True, stable=True))
    return supernet


def sort_channels_by_images(supernet: Supernet, batches: Batches) -> Supernet:
    """The same by what the largest network's loss on images says of each channel."""
    if any(len(block.operations) > 1 for block in supernet.blocks()):
        raise BadInput(
            "the Taylor criterion needs blocks whose choices share one set of channels",
            value=supernet.space.name,
            remedy="Set sort_channels: true, which sorts by L1.",
        )
    return sort_channels(supernet, taylor_importance(extract(supernet, largest(supernet.space)), batches))


def taylor_importance(network: Network, batches: Batches) -> list[Tensor]:
    """For each block, the importance of its middle channels: sum over images of |sum over positions of gradient * input of
    the projection|. The loss is the cross-entropy with the labels, or with the network's own answers without labels."""
    blocks = [module for module in network.modules() if isinstance(module, InvertedResidual)]
    seen: dict[int, Tensor] = {}

    def keep(number: int) -> Any:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            inputs[0].retain_grad()
            seen[number] = inputs[0]

        return hook

    handles = [block.project.register_forward_pre_hook(keep(number)) for number, block in enumerate(blocks)]
    totals = [torch.zeros(block.project.conv.in_channels) for block in blocks]  # type: ignore[union-attr,arg-type]
    training, count = network.training, 0
    network.eval()
    try:
        with torch.enable_grad():
            for batch in batches:
                images, labels = batch if isinstance(batch, tuple | list) else (batch, None)
                logits = network(images)
                loss = F.cross_entropy(logits, logits.argmax(1) if labels is None else labels, reduction="sum")
                network.zero_grad(set_to_none=True)
                loss.backward()
                for number, total in enumerate(totals):
                    x = seen[number]
                    assert x.grad is not None
                    total += (x.detach() * x.grad).sum((2, 3)).abs().sum(0).cpu()
                count += 1
    finally:
        for handle in handles:
            handle.remove()
        network.zero_grad(set_to_none=True)
        network.train(training)
    if not count:
        raise BadInput("the Taylor criterion needs at least one batch", value=0, remedy="Pass batches=...")
    return totals


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
