"""Layers of a block in one step each: batch norm with its activation; depthwise convolution, batch norm and activation.

What is computed is what torch's layers compute one after the other, running statistics included, equal up to rounding.
In training, on a processor and in channels-last memory, `native` kernels do it: fewer passes over the maps, and nothing
kept of them but what batch norm saw. Everywhere else torch's own layers run. An elastic layer passes its full weights and
the number of channels that take part, the first ones. Neighbouring images of a batch may each go through a depthwise
convolution of their own: the map that comes out is one, and so is the gradient of the one that went in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from snugnet.nets import native
from snugnet.nets.depthwise import depthwise, padded
from snugnet.nets.gather import pool_tail
from snugnet.space.space import Padding

LAST = torch.channels_last
ACTIVATIONS: dict[type[nn.Module], int] = {nn.ReLU: 1, nn.ReLU6: 2, nn.Hardswish: 3, nn.SiLU: 4}  # as in common.h


def norm_act(x: Tensor, norm: nn.BatchNorm2d, act: nn.Module | None = None) -> Tensor:
    """BN by the first channels of `norm`, as many as x has, then the activation."""
    if not _fused(x, norm, act):
        y = batch_norm(x, norm)
        return y if act is None else act(y)
    out: Tensor = _NormAct.apply(x, norm.weight, norm.bias, norm, _code(act))
    return out


@final
@dataclass(frozen=True, kw_only=True)
class Group:
    """Neighbouring images of a batch, and the convolution and batch norm they go through."""

    images: int
    weight: Tensor
    norm: nn.BatchNorm2d
    pool_from: int | None = None  # of these images: from here on their means over positions are wanted


def depthwise_unit(
    x: Tensor, group: Group, act: nn.Module | None, stride: int, rule: Padding = "symmetric"
) -> tuple[Tensor, Tensor | None]:
    """Depthwise convolution by the first kernels of the weight, as many as x has channels, BN, activation; and the means
    over positions of the images from `pool_from` on, to be used together with the map (see `pool_tail`)."""
    weight, norm = group.weight, group.norm
    x, padding = padded(x, weight.shape[-1], stride, rule)
    if _unit_fused(x, group, act, stride, padding):
        out, pooled = _fused_units(x, [group], [padding], act, stride)
        return out, pooled[0]
    y = batch_norm(depthwise(x, weight[: x.shape[1]], stride, padding=padding), norm)
    y = y if act is None else act(y)
    return (y, None) if group.pool_from is None else pool_tail(y, group.pool_from)


def depthwise_units(
    x: Tensor, groups: Sequence[Group], act: nn.Module | None, stride: int, rule: Padding = "symmetric"
) -> tuple[Tensor, list[Tensor | None]]:
    """The same for groups of images one behind the other: their map together, and the means of each."""
    if len(groups) == 1:
        out, pooled = depthwise_unit(x, groups[0], act, stride, rule)
        return out, [pooled]
    alike = rule == "symmetric" or stride == 1  # else each kernel wants another frame around its images
    paddings = [g.weight.shape[-1] // 2 for g in groups]
    if alike and all(_unit_fused(x, g, act, stride, padding) for g, padding in zip(groups, paddings)):
        return _fused_units(x, groups, paddings, act, stride)
    pairs = [depthwise_unit(part, g, act, stride, rule) for part, g in zip(x.split([g.images for g in groups]), groups)]
    return torch.cat([out for out, _ in pairs]), [pooled for _, pooled in pairs]


def _fused_units(
    x: Tensor, groups: Sequence[Group], paddings: Sequence[int], act: nn.Module | None, stride: int
) -> tuple[Tensor, list[Tensor | None]]:
    tensors = [tensor for g in groups for tensor in (g.weight, g.norm.weight, g.norm.bias)]
    out, *pooled = _DepthwiseUnits.apply(x, groups, paddings, _code(act), stride, *tensors)
    return out, pooled


def scaled(x: Tensor, gates: Tensor) -> Tensor:
    """Every channel of every image times its gate: [n, c, h, w] by [n, c]."""
    if not (gates.shape == x.shape[:2] and gates.dtype == x.dtype and native.fits(x)):
        return x * gates[:, :, None, None]
    out: Tensor = _Scaled.apply(x, gates)
    return out


def batch_norm(x: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """torch's BN by the first channels of `norm`; a single value per channel is normalised as in evaluation."""
    channels = x.shape[1]
    training = norm.training and x.numel() > channels
    mean, var = norm.running_mean, norm.running_var
    weight: Tensor = norm.weight
    bias: Tensor = norm.bias
    assert mean is not None
    assert var is not None
    if channels != norm.num_features:
        mean, var, weight, bias = mean[:channels], var[:channels], weight[:channels], bias[:channels]
    momentum = 0.0 if norm.momentum is None else norm.momentum
    return F.batch_norm(x, mean, var, weight, bias, training, momentum, norm.eps)


def _fused(x: Tensor, norm: nn.BatchNorm2d, act: nn.Module | None) -> bool:
    known = (act is None or type(act) in ACTIVATIONS) and norm.training
    return known and native.fits(x) and x.shape[1] <= norm.num_features and x.numel() > x.shape[1] and _float32(norm)


def _unit_fused(x: Tensor, group: Group, act: nn.Module | None, stride: int, padding: int) -> bool:
    size = group.weight.shape[-1]
    height, width = ((side + 2 * padding - size) // stride + 1 for side in x.shape[2:])
    several = group.images * height * width > 1  # a single value has no variance
    return (
        several
        and _fused(x, group.norm, act)
        and native.has_kernel(group.weight, stride)
        and x.shape[1] <= len(group.weight)
    )


def _float32(norm: nn.BatchNorm2d) -> bool:
    tensors = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    return all(t is not None and t.dtype == torch.float32 and t.is_contiguous() for t in tensors)


def _code(act: nn.Module | None) -> int:
    return 0 if act is None else ACTIVATIONS[type(act)]


class _NormAct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, norm: nn.BatchNorm2d, act: int) -> Tensor:
        n, channels, height, width = x.shape
        out, saved = torch.empty_like(x, memory_format=LAST), x.new_empty(2, channels)
        ctx.sizes, ctx.act = (n, height * width, channels), act
        native.loaded().norm_forward(
            x.data_ptr(), out.data_ptr(), *ctx.sizes, *_norm(norm, act), *_rest(saved, None, 0)
        )
        ctx.save_for_backward(x, weight, bias, saved)
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None, None]:
        x, weight, bias, saved = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=LAST)
        by_x = torch.empty_like(x, memory_format=LAST) if ctx.needs_input_grad[0] else None
        by_weight, by_bias = _like(weight, x.shape[1]), _like(bias, x.shape[1])
        maps = x.data_ptr(), gradient.data_ptr(), _address(by_x)
        norm = weight.data_ptr(), bias.data_ptr(), ctx.act, saved.data_ptr(), None, 0
        grads = by_weight.data_ptr(), by_bias.data_ptr(), torch.get_num_threads()
        native.loaded().norm_backward(*maps, *ctx.sizes, *norm, *grads)
        return by_x, by_weight, by_bias, None, None


class _DepthwiseUnits(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, groups: Sequence[Group], paddings: Sequence[int], act: int, stride: int, *tensors: Tensor
    ) -> tuple[Tensor | None, ...]:
        n, channels, height, width = x.shape
        size, pad = groups[0].weight.shape[-1], paddings[0]
        out_height, out_width = ((side + 2 * pad - size) // stride + 1 for side in (height, width))
        y = torch.empty((n, channels, out_height, out_width), memory_format=LAST)
        out, saved = torch.empty_like(y), x.new_empty(len(groups), 2, channels)
        means = [None if g.pool_from is None else x.new_empty(g.images - g.pool_from, channels) for g in groups]
        ctx.sizes = [
            native.Sizes(g.images, channels, height, width, out_height, out_width, g.weight.shape[-1], stride, padding)
            for g, padding in zip(groups, paddings)
        ]
        ctx.act, ctx.pool_from = act, [g.pool_from or 0 for g in groups]
        images = [g.images for g in groups]
        for g, sizes, numbers, pooled, maps in zip(groups, ctx.sizes, saved, means, _by_group(images, x, y, out)):
            inputs = maps[0], g.weight.data_ptr(), *maps[1:], sizes
            native.loaded().depthwise_forward(*inputs, *_norm(g.norm, act), *_rest(numbers, pooled, g.pool_from or 0))
        ctx.images = images
        ctx.save_for_backward(x, y, saved, *tensors)
        ctx.set_materialize_grads(False)
        return out, *means

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor | None, *by_means: Tensor | None) -> tuple[Tensor | None, ...]:
        x, y, saved, *tensors = ctx.saved_tensors
        gradient = torch.zeros_like(y) if gradient is None else gradient.contiguous(memory_format=LAST)
        by_x = torch.empty_like(x, memory_format=LAST) if ctx.needs_input_grad[0] else None
        by_tensors: list[Tensor | None] = []
        for i, maps in enumerate(_by_group(ctx.images, x, y, gradient, by_x)):
            kernels, weight, bias = tensors[3 * i : 3 * i + 3]
            by_mean = by_means[i]
            by_pooled = None if by_mean is None else by_mean.contiguous()
            by_kernels = _like(kernels, x.shape[1]) if ctx.needs_input_grad[5 + 3 * i] else None
            by_weight, by_bias = _like(weight, x.shape[1]), _like(bias, x.shape[1])
            sources = maps[0], kernels.data_ptr(), *maps[1:], _address(by_kernels), ctx.sizes[i]
            norm = weight.data_ptr(), bias.data_ptr(), ctx.act, saved[i].data_ptr()
            grads = by_weight.data_ptr(), by_bias.data_ptr(), torch.get_num_threads()
            native.loaded().depthwise_backward(*sources, *norm, _address(by_pooled), ctx.pool_from[i], *grads)
            by_tensors += [by_kernels, by_weight, by_bias]
        return by_x, None, None, None, None, *by_tensors


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gates: Tensor) -> Tensor:
        gates = gates.contiguous()
        ctx.save_for_backward(x, gates)
        n, channels, height, width = x.shape
        out, ctx.sizes = torch.empty_like(x, memory_format=LAST), (n, height * width, channels)
        native.loaded().scale_forward(
            x.data_ptr(), gates.data_ptr(), out.data_ptr(), *ctx.sizes, torch.get_num_threads()
        )
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        x, gates = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=LAST)
        by_x, by_gates = torch.empty_like(x, memory_format=LAST), torch.empty_like(gates)
        asked = by_gates if ctx.needs_input_grad[1] else None
        maps = x.data_ptr(), gates.data_ptr(), gradient.data_ptr(), by_x.data_ptr(), _address(asked)
        native.loaded().scale_backward(*maps, *ctx.sizes, torch.get_num_threads())
        return by_x, asked


def _by_group(images: Sequence[int], *maps: Tensor | None) -> Iterator[tuple[int | None, ...]]:
    """Where the images of each group begin in every map."""
    steps = [None if x is None else (x.data_ptr(), x[0].numel() * x.element_size()) for x in maps]
    first = 0
    for count in images:
        yield tuple(None if step is None else step[0] + first * step[1] for step in steps)
        first += count


def _norm(norm: nn.BatchNorm2d, act: int) -> tuple[object, ...]:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    addresses = (t.data_ptr() for t in (norm.weight, norm.bias, norm.running_mean, norm.running_var))
    return *addresses, 0.0 if norm.momentum is None else norm.momentum, norm.eps, act


def _rest(saved: Tensor, pooled: Tensor | None, pool_from: int) -> tuple[object, ...]:
    return saved.data_ptr(), _address(pooled), pool_from, torch.get_num_threads()


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _like(weight: Tensor, channels: int) -> Tensor:
    """Memory for a gradient of which the first channels will be written; the others are zero."""
    if channels == len(weight):
        return torch.empty_like(weight)
    gradient = torch.empty_like(weight)
    gradient[channels:].zero_()
    return gradient
