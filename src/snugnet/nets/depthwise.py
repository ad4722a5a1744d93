"""Depthwise convolution with gradients as fast as its forward pass, for any kernel on any map.

On a CPU, in channels-last memory, oneDNN leaves two gaps, which come to most of a training step of small images:

- the gradient of weights has a kernel for up to three columns and for maps as wide as the kernel; all else falls back to a
  dense convolution (5x5: 4.2 ms where 5x3 takes 0.36) or to reference code (5x5 on 4x4 maps: 9.2 ms where 0.6 will do). The
  gradient of a column does not depend on the others, so wide kernels get theirs three columns at a time, each on images
  shifted to where those columns look; on maps narrower than the kernel, where most of it looks at padding, all pairs of
  positions are correlated by one batched product per channel, and each tap adds up its own pairs;
- the gradient of images is up to three times as slow as the forward pass, which computes it as well at stride 1: the same
  convolution of the incoming gradient, with the kernel turned round.

Where there is a compiler, both gradients come from a kernel of our own instead (`native`), faster than either way around
the gaps. Results are the same up to rounding. Times by shape: docs/LOG.md.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from snugnet.nets import native
from snugnet.space.space import Padding

_COLUMNS = 3
_PAIRS = 36 * 36  # of positions: from here on their products cost more than reference code


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """TensorFlow's: max((ceil(n / stride) - 1) * stride + kernel - n, 0) in all, the smaller half before."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def padded(x: Tensor, kernel: int, stride: int, rule: Padding) -> tuple[Tensor, int]:
    """(x, the symmetric padding it still needs): where the rule pads one side more, x comes back padded.

    With `same` at stride 2 and even n the window stands one position further to the end than with symmetric padding."""
    if rule == "symmetric" or stride == 1:
        return x, kernel // 2
    sides: list[int] = []
    for size in (int(x.shape[-1]), int(x.shape[-2])):  # numbers also while a graph is traced
        sides += same_padding(size, kernel, stride)
    return (x, kernel // 2) if set(sides) == {kernel // 2} else (F.pad(x, sides), 0)


def depthwise(
    x: Tensor, weight: Tensor, stride: int, rule: Padding = "symmetric", padding: int | None = None
) -> Tensor:
    """Every channel of x with its own kernel, padded to keep the size (before `stride`); `padding`: x has had its share of
    the rule's, and this much is left on every side."""
    if padding is None:
        x, padding = padded(x, weight.shape[-1], stride, rule)
    if weight.requires_grad and torch.is_grad_enabled() and _helps(x):
        y: Tensor = _Depthwise.apply(x, weight, stride, padding)
        return y
    return F.conv2d(x, weight, stride=stride, padding=padding, groups=x.shape[1])


def _helps(x: Tensor) -> bool:
    plain = x.is_cpu and x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return plain and x.is_contiguous(memory_format=torch.channels_last)


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        return F.conv2d(x, weight, stride=stride, padding=padding, groups=x.shape[1])

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        if native.has_kernel(weight, ctx.stride) and native.fits(x):
            return *_native_gradients(ctx, gradient, x, weight), None, None
        by_x = _image_gradient(gradient, x, weight, ctx.stride, ctx.padding) if ctx.needs_input_grad[0] else None
        by_weight = _weight_gradient(gradient, x, weight, ctx.stride, ctx.padding) if ctx.needs_input_grad[1] else None
        return by_x, by_weight, None, None


def _native_gradients(ctx: Any, gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor | None, Tensor | None]:
    by_x = torch.empty_like(x, memory_format=torch.channels_last) if ctx.needs_input_grad[0] else None
    by_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
    maps = [None if t is None else t.data_ptr() for t in (x, weight, None, gradient, by_x, by_weight)]
    sizes = native.Sizes(*x.shape, *gradient.shape[2:], weight.shape[-1], ctx.stride, ctx.padding)
    no_norm = None, None, 0, None, None, 0, None, None
    native.loaded().depthwise_backward(*maps, sizes, *no_norm, torch.get_num_threads())
    return by_x, by_weight


def _image_gradient(gradient: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    if stride > 1:
        return _backward(gradient, x, weight, stride, (padding, padding), of_weight=False)
    turned = weight.flip(2, 3)
    return F.conv2d(gradient, turned, padding=weight.shape[-1] - 1 - padding, groups=len(weight))


def _weight_gradient(gradient: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    pairs = x.shape[2] * x.shape[3] * gradient.shape[2] * gradient.shape[3]
    if min(x.shape[2:]) < weight.shape[-1] and pairs <= _PAIRS:
        return _by_pairs(gradient, x, weight.shape[-1], stride, padding)
    if weight.shape[-1] <= _COLUMNS:
        return _backward(gradient, x, weight, stride, (padding, padding), of_weight=True)
    columns = []
    for first in range(0, weight.shape[-1], _COLUMNS):
        part = weight[..., first : first + _COLUMNS]
        reach = (gradient.shape[-1] - 1) * stride + part.shape[-1]  # columns of x that these ones look at
        left = padding - first
        if -left >= x.shape[-1] or reach <= left:  # they see nothing but padding
            columns.append(torch.zeros_like(part))
            continue
        seen = F.pad(x, (left, reach - left - x.shape[-1]))
        columns.append(_backward(gradient, seen, part, stride, (padding, 0), of_weight=True))
    return torch.cat(columns, dim=-1)


def _by_pairs(gradient: Tensor, x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """sum_n x[n, p] * gradient[n, q] of every channel and every pair of positions; a tap is the sum of its pairs."""
    pairs = torch.bmm(_by_channel(x).transpose(1, 2), _by_channel(gradient))
    sizes = x.shape[2], x.shape[3], gradient.shape[2], gradient.shape[3]
    return (pairs.flatten(1) @ _taps(*sizes, kernel, stride, padding)).reshape(-1, 1, kernel, kernel)


def _by_channel(x: Tensor) -> Tensor:
    """[N, C, H, W] -> [C, N, H * W]."""
    n, c, height, width = x.shape
    return x.permute(0, 2, 3, 1).reshape(-1, c).t().contiguous().view(c, n, height * width)


@lru_cache(maxsize=64)
def _taps(height: int, width: int, out_height: int, out_width: int, kernel: int, stride: int, padding: int) -> Tensor:
    """[pairs of positions, taps]: one where the tap takes the output position from the input position."""

    def axis(size: int, out: int) -> Tensor:  # [input, output, tap]
        looks_at = torch.arange(out)[:, None] * stride + torch.arange(kernel) - padding
        return (torch.arange(size)[:, None, None] == looks_at).float()

    both = torch.einsum("pai,qbj->pqabij", axis(height, out_height), axis(width, out_width))
    return both.reshape(-1, kernel * kernel)


def _backward(
    gradient: Tensor, x: Tensor, weight: Tensor, stride: int, padding: tuple[int, int], *, of_weight: bool
) -> Tensor:
    needed = [not of_weight, of_weight, False]
    both = torch.ops.aten.convolution_backward(
        gradient, x, weight, None, [stride, stride], list(padding), [1, 1], False, [0, 0], x.shape[1], needed
    )
    result: Tensor = both[int(of_weight)]
    return result
