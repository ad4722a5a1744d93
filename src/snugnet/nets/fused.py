"""Layers of a block in one step each: batch norm with its activation; depthwise convolution, batch norm and activation.

What is computed is what torch's layers compute one after the other, running statistics included, equal up to rounding.
In training, on a processor and in channels-last memory, `native` kernels do it: fewer passes over the maps, and nothing
kept of them but what batch norm saw. Everywhere else torch's own layers run. An elastic layer passes its full weights and
the number of channels that take part, the first ones.
"""

from __future__ import annotations

from typing import Any

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


def depthwise_unit(
    x: Tensor,
    weight: Tensor,
    norm: nn.BatchNorm2d,
    act: nn.Module | None,
    stride: int,
    rule: Padding = "symmetric",
    pool_from: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Depthwise convolution by the first kernels of `weight`, as many as x has channels, BN, activation; and the means
    over positions of the images from `pool_from` on, to be used together with the map (see `pool_tail`)."""
    x, padding = padded(x, weight.shape[-1], stride, rule)
    if _fused(x, norm, act) and native.has_kernel(weight, stride) and x.shape[1] <= len(weight):
        settings = norm, _code(act), stride, padding, pool_from
        out, pooled = _DepthwiseUnit.apply(x, weight, norm.weight, norm.bias, *settings)
        return out, pooled
    y = batch_norm(depthwise(x, weight[: x.shape[1]], stride, padding=padding), norm)
    y = y if act is None else act(y)
    return (y, None) if pool_from is None else pool_tail(y, pool_from)


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


class _DepthwiseUnit(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        kernels: Tensor,
        weight: Tensor,
        bias: Tensor,
        norm: nn.BatchNorm2d,
        act: int,
        stride: int,
        padding: int,
        pool_from: int | None,
    ) -> tuple[Tensor, Tensor | None]:
        n, channels, height, width = x.shape
        size = kernels.shape[-1]
        out_height, out_width = ((side + 2 * padding - size) // stride + 1 for side in (height, width))
        y = torch.empty((n, channels, out_height, out_width), memory_format=LAST)
        out, saved = torch.empty_like(y), x.new_empty(2, channels)
        pooled = None if pool_from is None else x.new_empty(n - pool_from, channels)
        ctx.sizes = native.Sizes(n, channels, height, width, out_height, out_width, size, stride, padding)
        ctx.act, ctx.pool_from = act, pool_from or 0
        maps = x.data_ptr(), kernels.data_ptr(), y.data_ptr(), out.data_ptr(), ctx.sizes
        native.loaded().depthwise_forward(*maps, *_norm(norm, act), *_rest(saved, pooled, ctx.pool_from))
        ctx.save_for_backward(x, kernels, weight, bias, y, saved)
        ctx.set_materialize_grads(False)
        return out, pooled

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor | None, by_pooled: Tensor | None) -> tuple[Tensor | None, ...]:
        x, kernels, weight, bias, y, saved = ctx.saved_tensors
        gradient = torch.zeros_like(y) if gradient is None else gradient.contiguous(memory_format=LAST)
        by_pooled = None if by_pooled is None else by_pooled.contiguous()
        channels = x.shape[1]
        by_x = torch.empty_like(x, memory_format=LAST) if ctx.needs_input_grad[0] else None
        by_kernels = _like(kernels, channels) if ctx.needs_input_grad[1] else None
        by_weight, by_bias = _like(weight, channels), _like(bias, channels)
        maps = x.data_ptr(), kernels.data_ptr(), y.data_ptr(), gradient.data_ptr(), _address(by_x), _address(by_kernels)
        norm = weight.data_ptr(), bias.data_ptr(), ctx.act, saved.data_ptr(), _address(by_pooled), ctx.pool_from
        grads = by_weight.data_ptr(), by_bias.data_ptr(), torch.get_num_threads()
        native.loaded().depthwise_backward(*maps, ctx.sizes, *norm, *grads)
        return by_x, by_kernels, by_weight, by_bias, None, None, None, None, None


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
