"""Putting the images of a batch in another order, and pooling some of them, cheaply.

A permutation's gradient is the inverse permutation: no zeros to fill, nothing to add up. Both directions keep the memory
format; torch's own indexing hands back gradients in another one, and every layer behind then works on strided memory
(measured: BN's backward 1.8 times, ReLU's 3 times slower).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from snugnet.space.layout import IntArray as IntArray


def reorder(x: Tensor, rows: IntArray, target: IntArray) -> Tensor:
    """x holds the features of `rows`; the result holds those of `wanted`, a permutation of them."""
    if (rows == target).all():
        return x
    places, inverse = np.argsort(rows, kind="stable"), np.argsort(target, kind="stable")
    forward, backward = np.empty_like(rows), np.empty_like(rows)
    forward[inverse] = places  # sorted(target)[i] == sorted(rows)[i]
    backward[places] = inverse
    result: Tensor = _Permute.apply(x, torch.from_numpy(forward).to(x.device), torch.from_numpy(backward).to(x.device))
    return result


class _Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return _select(x, order)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (inverse,) = ctx.saved_tensors
        return _select(gradient, inverse), None, None


def pool_tail(x: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """(x, means over positions of the images from `start` on), to be used together: x in the product with its gates.

    Both gradients arrive at once and are joined in place; torch would fill, divide and add tensors as large as x.
    """
    same, pooled = _PoolTail.apply(x, start)
    return same, pooled


class _PoolTail(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, start: int) -> tuple[Tensor, Tensor]:
        ctx.start, ctx.positions = start, x.shape[2] * x.shape[3]
        return x.view_as(x), x[start:].mean((2, 3))

    @staticmethod
    def backward(ctx: Any, direct: Tensor, pooled: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        # `direct` was made by the product's backward for us alone, so it may be changed in place.
        direct[ctx.start :] += (pooled / ctx.positions)[:, :, None, None]
        return direct, None


def _select(x: Tensor, order: Tensor) -> Tensor:
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
        return x.permute(0, 2, 3, 1).index_select(0, order).permute(0, 3, 1, 2)
    return x.index_select(0, order)
