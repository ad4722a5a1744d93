"""Sub-network -> plain network with the super-network's weights.

Every tensor of the plain network is a prefix slice of one of the super-network's, so the two give the same output. The
plain network shares nothing with its origin: training it leaves the super-network alone. Batch-norm statistics gathered over
mixed paths fit no single sub-network: an extracted one must have its own (`recalibrate`) before it is evaluated or shipped.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from snugnet.errors import BadInput
from snugnet.nets.blocks import ClassifierHead, InvertedResidual, SqueezeExcite
from snugnet.nets.elastic import ElasticOperation
from snugnet.nets.elastic_block import ElasticBlock
from snugnet.nets.mixed_supernet import MixedSupernet
from snugnet.nets.network import Network, build
from snugnet.nets.supernet import ElasticHead, Supernet
from snugnet.space.architecture import Architecture
from snugnet.space.sampling import largest

M = TypeVar("M", bound=nn.Module)


def extract(supernet: Supernet | MixedSupernet, architecture: Architecture) -> Network:
    """The plain network of `architecture` with inherited weights, in the super-network's mode and on its device."""
    if isinstance(supernet, MixedSupernet):
        return supernet.extract(architecture)
    network = build(architecture, supernet.trained_space)
    reference = next(supernet.parameters())
    network.to(device=reference.device, dtype=reference.dtype)
    with torch.no_grad():
        _copy_unit(network.stem, supernet.stem)
        numbers = supernet.layout.numbers(architecture)
        for index, (chosen, blocks) in enumerate(zip(architecture.stages, network.stages)):
            for block, plain, elastic, number in zip(chosen.blocks, blocks, supernet.stages[index], numbers[index]):  # type: ignore[arg-type,call-overload]
                _copy_block(plain, elastic, number, block.kernel)
        _copy_head(network.head, supernet.head)
    return network.train(supernet.training)


def extract_largest(supernet: Supernet) -> Network:
    """The largest network of the space with inherited weights: the usual teacher."""
    return extract(supernet, largest(supernet.space))


def folded(network: M) -> M:
    """A copy in evaluation mode whose BNs are part of the convolutions before them: the same answers, sooner (a teacher of
    50 images of 96 px: 0.10 s instead of 0.17 to 0.23)."""
    return fold(copy.deepcopy(network))


def fold(network: M) -> M:
    """`folded` without a copy, for who has no other use for the network."""
    network.eval()
    for unit in [module for module in network.modules() if isinstance(module, nn.Sequential)]:
        conv, norm = getattr(unit, "conv", None), getattr(unit, "norm", None)
        if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            statistics = (norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias)
            conv.weight, conv.bias = fuse_conv_bn_weights(conv.weight, conv.bias, *statistics)  # type: ignore[arg-type]
            unit.norm = nn.Identity()
    to: Any = network.to  # the overload with a memory format is missing from torch's type stubs
    to(memory_format=torch.channels_last)
    return network


def recalibrate(network: M, batches: Iterable[Tensor]) -> M:
    """Give every BN of `network` the statistics of `batches` (of images); returns the same network.

    The cumulative average over the batches, each of the same weight: no gradients, a fraction of an epoch. All else stays as
    it was."""
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


def _copy_block(plain: InvertedResidual, elastic: ElasticBlock, choice: int, kernel: int) -> None:
    operation = elastic.operations[elastic.operation_of[choice]]
    assert isinstance(operation, ElasticOperation)
    if operation.expand is not None:
        _copy_unit(plain.expand, operation.expand)
    stored = max(operation.kernels) if operation.crop else kernel
    _copy_unit(plain.depthwise, operation.depthwise[str(stored)])
    if isinstance(plain.se, SqueezeExcite):
        assert operation.se is not None
        _copy_layer(plain.se.reduce, operation.se.reduce)
        _copy_layer(plain.se.expand, operation.se.expand)
    _copy_unit(plain.project, operation.project)
    if plain.shortcut is not None:
        for layer in plain.shortcut.modules():
            if isinstance(layer, nn.Conv2d):
                assert elastic.shortcut is not None
                _copy_layer(layer, elastic.shortcut)


def _copy_head(plain: ClassifierHead, elastic: ElasticHead) -> None:
    _copy_unit(plain.conv, elastic.conv)
    if isinstance(plain.features, nn.Linear):
        assert elastic.features is not None
        _copy_layer(plain.features, elastic.features)
    _copy_layer(plain.classifier, elastic.classifier)


def _copy_unit(plain: nn.Module, elastic: nn.Module) -> None:
    _copy_layer(plain.conv, elastic.conv)  # type: ignore[arg-type]
    source, target = elastic.norm, plain.norm
    assert isinstance(source, nn.BatchNorm2d)
    assert isinstance(target, nn.BatchNorm2d)
    for name in ("weight", "bias", "running_mean", "running_var"):
        _copy_prefix(getattr(target, name), getattr(source, name))


def _copy_layer(plain: nn.Conv2d | nn.Linear, elastic: nn.Conv2d | nn.Linear) -> None:
    _copy_prefix(plain.weight, elastic.weight)
    if plain.bias is not None:
        assert elastic.bias is not None
        _copy_prefix(plain.bias, elastic.bias)


def _copy_prefix(target: Tensor, source: Tensor) -> None:
    """The first channels on the leading axes, the centre of a kernel on the spatial ones."""
    view = source[tuple(slice(size) for size in target.shape[:2])]
    if target.dim() == 4 and view.shape[2:] != target.shape[2:]:
        cut = (view.shape[-1] - target.shape[-1]) // 2
        view = view[:, :, cut : cut + target.shape[2], cut : cut + target.shape[3]]
    target.copy_(view)
