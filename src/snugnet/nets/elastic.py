"""The elastic inverted residual: one set of weights, every choice of a block.

Choices share the pointwise expansion, the projection and the squeeze-excite layer; a choice of middle width m uses the
first m channels. Kernel sizes have depthwise weights and BN of their own, or crop the largest one's centre where the
space says so. Three ways to run it, none of which leaves a trace:

- `one(x, part)`: all images take one choice; weights are sliced, so the price is that of the plain block;
- `many(x, ...)`: a choice per image. Channels do not mix before the projection, so the expansion and the depthwise layer
  run at full width and the channels an image does not have are zeroed once, together with its squeeze-excite gate, just
  before the projection. Images are ordered by kernel, so each depthwise kernel runs once on its own images only, all in
  one map (`fused.depthwise_units`);
- `relaxed(x, weights)`: the weighted mixture of all choices. Projection and BN are affine, so the mixture is taken
  before them: sum_c a_c * z_c = sum_k d_k * (sum_{c of kernel k} a_c * mask_c * gate_c), two depthwise results in all.

What BN normalises over (training mode): the images that run through a layer together, masked or not, because the values
before masking exist for all of them. The expansion's BN sees every image of the block, a depthwise BN every image of
its kernel. Where maps are large (see `supernet.APART`), images of large and of small expansions are computed apart, which
saves what the small ones do not need, and are normalised apart: paths are drawn at random, so each part is a fair sample
of the batch, of a hundred positions and more. The projection's BN always sees all images of the block. A batch in which
all images agree behaves as the plain block does.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugnet.devices.agent import processor
from snugnet.nets.blocks import activation, gate
from snugnet.nets.fused import Group, depthwise_unit, depthwise_units, norm_act, scaled
from snugnet.nets.gather import IntArray
from snugnet.space.space import Activation, Gate, Padding
from snugnet.space.spec import BlockSpec

Tail = tuple[int, Tensor]
"""(the first of some neighbouring images, a row of numbers for each of them)"""


def pointwise(x: Tensor, weight: Tensor) -> Tensor:
    """A 1x1 convolution: on a CPU, in channels-last memory, a matrix product of the same numbers.

    A convolution call prepares itself anew for its three kernels, which on batches of a few images costs as much as its
    arithmetic. But torch's products (MKL) run at less than half the speed of its convolutions (oneDNN) on processors that
    are not Intel's: there products are for small ones only, and a few images are cut into the sixteen pieces from which
    on torch hands a 1x1 convolution to oneDNN also on a single thread (docs/LOG.md)."""
    if not x.is_cpu or not x.is_contiguous(memory_format=torch.channels_last):
        return F.conv2d(x, weight)
    if x.numel() * weight.shape[0] < _FEW_MACS or not _slow_products():
        return F.linear(x.permute(0, 2, 3, 1), weight.flatten(1)).permute(0, 3, 1, 2)
    n, channels, height, width = x.shape
    pieces = _pieces(n, height * width)
    if pieces == 1:
        return F.conv2d(x, weight)
    rows = x.permute(0, 2, 3, 1).reshape(n * pieces, 1, -1, channels)
    y = F.conv2d(rows.permute(0, 3, 1, 2), weight)
    return y.permute(0, 2, 3, 1).reshape(n, height, width, -1).permute(0, 3, 1, 2)


_FEW_MACS = 4_000_000
_ONEDNN_FROM = 16  # images of a 1x1 convolution


def _pieces(images: int, positions: int) -> int:
    """Into how many equal pieces each image is cut: the fewest that come to `_ONEDNN_FROM` in all."""
    enough = (f for f in range(-(-_ONEDNN_FROM // images), positions + 1) if positions % f == 0)
    return next(enough, 1)


@functools.cache
def _slow_products() -> bool:
    return torch.backends.mkl.is_available() and "Intel" not in processor()


def prefix(weight: Tensor, *sizes: int) -> Tensor:
    """The first `sizes` of the leading axes; the weight itself where that is all of it.

    A slice's backward fills and copies a tensor of the weight's size, which shows where images are small."""
    for axis, size in enumerate(sizes):
        if size != weight.shape[axis]:
            weight = weight.narrow(axis, 0, size)
    return weight


def prefix_mask(widths: IntArray, most: int, like: Tensor) -> Tensor:
    """[n, most] ones for the first widths[n] channels, then zeros."""
    return torch.from_numpy(np.arange(most) < widths[:, None]).to(like)


def runs(values: IntArray) -> list[tuple[int, int, int]]:
    """(value, start, stop) of each stretch of equal values."""
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    return [(int(values[a]), a, b) for a, b in itertools.pairwise(edges) if b > a]


@final
class ElasticSqueeze(nn.Module):
    """A squeeze-excite layer of which smaller choices use the first channels and the first hidden units."""

    def __init__(self, channels: int, squeeze_channels: int, act: Activation, gate_name: Gate) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, squeeze_channels, 1)
        self.act = activation(act)
        self.expand = nn.Conv2d(squeeze_channels, channels, 1)
        self.gate = gate(gate_name)

    def gates(self, pooled: Tensor, squeeze_channels: int, units: Tensor | None = None) -> Tensor:
        """pooled [n, m] -> gates [n, m], with `hidden` hidden units, of which `units` [n, hidden] keeps some."""
        channels = pooled.shape[1]
        reduce, expand = self.reduce, self.expand
        assert reduce.bias is not None
        assert expand.bias is not None
        inner = F.linear(
            pooled, prefix(reduce.weight, squeeze_channels, channels).flatten(1), prefix(reduce.bias, squeeze_channels)
        )
        inner = self.act(inner)
        if units is not None:
            inner = inner * units
        outer = F.linear(
            inner, prefix(expand.weight, channels, squeeze_channels).flatten(1), prefix(expand.bias, channels)
        )
        opened: Tensor = self.gate(outer)
        return opened


@final
class ElasticOperation(nn.Module):
    """Expansion, depthwise, squeeze-excite and projection shared by a set of choices."""

    def __init__(
        self,
        *,
        in_channels: int,
        mid_channels: int,
        out_channels: int,
        kernels: tuple[int, ...],
        stride: int,
        act: Activation,
        squeeze_channels: int,
        se_act: Activation,
        se_gate: Gate,
        expands: bool,
        crop: bool,
        padding: Padding,
        norm_eps: float,
    ) -> None:
        super().__init__()
        self.stride, self.crop, self.kernels, self.padding = stride, crop, kernels, padding
        self.act = activation(act)
        self.expand = _unit(in_channels, mid_channels, 1, 1, norm_eps) if expands else None
        stored = (max(kernels),) if crop else kernels
        self.depthwise = nn.ModuleDict(
            {str(k): _unit(mid_channels, mid_channels, k, mid_channels, norm_eps, stride) for k in stored}
        )
        self.se = ElasticSqueeze(mid_channels, squeeze_channels, se_act, se_gate) if squeeze_channels else None
        self.project = _unit(mid_channels, out_channels, 1, 1, norm_eps)
        self.mid_channels, self.out_channels = mid_channels, out_channels

    def one(self, x: Tensor, part: BlockSpec) -> Tensor:
        """All images take `part`: slices of the weights, nothing more."""
        group = self._group(part.kernel, part.mid_channels, len(x), 0 if part.se else None)
        d, pooled = depthwise_unit(self._expand(x, part.mid_channels), group, self.act, self.stride, self.padding)
        if pooled is not None:
            assert self.se is not None
            d = scaled(d, self.se.gates(pooled, part.se))
        return self._project(d, part.mid_channels, part.out_channels)

    def many(
        self,
        x: Tensor,
        wide: IntArray,
        kernel: IntArray,
        mid_channels: IntArray,
        squeeze_channels: IntArray,
        out_channels: int,
    ) -> Tensor:
        """A choice per image; images come ordered by `wide`, in it by kernel, in it by SE off/on (0 or its width).

        Those of one `wide` are expanded and projected together, at their own largest width."""
        sides = [slice(start, stop) for _, start, stop in runs(wide)]
        maps, tails = [], []
        for mine, part in zip(sides, _parts(x, [side.stop - side.start for side in sides])):
            most = int(mid_channels[mine].max()) if self.expand is not None else x.shape[1]
            d, means = self._by_kernel(self._expand(part, most), kernel[mine], squeeze_channels[mine])
            maps.append(d)
            tails.append(means)
        maps = self._scaled(
            maps, tails, [mid_channels[mine] for mine in sides], [squeeze_channels[mine] for mine in sides]
        )
        pieces = [pointwise(d, self._projection(d.shape[1], out_channels)) for d in maps]
        return norm_act(pieces[0] if len(pieces) == 1 else torch.cat(pieces), self._norm(self.project))

    def relaxed(self, x: Tensor, weights: Tensor, parts: tuple[BlockSpec, ...]) -> Tensor:
        """sum_c weights_c * choice_c(x); `weights` is [C] for all images or [N, C] for each, C = len(parts)."""
        wide, mixture = self._expand(x, self.mid_channels), None
        for size in self.kernels:
            mine = [c for c, part in enumerate(parts) if part.kernel == size]
            if not mine:
                continue
            group = self._group(size, self.mid_channels, len(x))
            d, _ = depthwise_unit(wide, group, self.act, self.stride, self.padding)
            factor = self._mixed_scale(d, weights, mine, parts)
            term = d * factor[:, :, None, None]
            mixture = term if mixture is None else mixture + term
        assert mixture is not None
        norm = self._norm(self.project)
        y = norm_act(pointwise(mixture, self._projection(self.mid_channels, self.out_channels)), norm)
        if norm.training:
            return y
        # BN's shift belongs to every choice: weigh it too, so that the result is linear in the weights off the simplex.
        assert norm.running_mean is not None
        assert norm.running_var is not None
        shift = norm.bias - norm.weight * norm.running_mean * torch.rsqrt(norm.running_var + norm.eps)
        missing = weights.sum(-1).reshape(-1, 1) - 1
        return y + (missing * shift)[:, :, None, None]

    def _mixed_scale(self, d: Tensor, weights: Tensor, mine: list[int], parts: tuple[BlockSpec, ...]) -> Tensor:
        """[N or 1, M]: sum over the choices `mine` of weight * mask * gate."""
        mid_range = np.array([parts[c].mid_channels for c in mine])
        masks = prefix_mask(mid_range, self.mid_channels, d)
        plain = [i for i, c in enumerate(mine) if not parts[c].se]
        total = weights[..., [mine[i] for i in plain]] @ masks[plain] if plain else weights.new_zeros(self.mid_channels)
        gated = [i for i, c in enumerate(mine) if parts[c].se]
        if gated:
            assert self.se is not None
            pooled = d.mean((2, 3))
            for i in gated:
                part = parts[mine[i]]
                gates = self.se.gates(pooled[:, : part.mid_channels], part.se)
                term = weights[..., mine[i], None] * gates
                total = total + F.pad(term, (0, self.mid_channels - part.mid_channels))
        return total.reshape(-1, self.mid_channels)

    def _by_kernel(self, x: Tensor, kernel: IntArray, squeeze_channels: IntArray) -> tuple[Tensor, list[Tail]]:
        """The map, each image's by its own kernel, and the means over positions of those with squeeze-excite."""
        groups, starts = [], []
        for size, start, stop in runs(kernel):
            off = int(np.count_nonzero(squeeze_channels[start:stop] == 0))
            starts.append(start + off)
            groups.append(self._group(size, x.shape[1], stop - start, None if off == stop - start else off))
        d, means = depthwise_units(x, groups, self.act, self.stride, self.padding)
        return d, [(start, mean) for start, mean in zip(starts, means) if mean is not None]

    def _scaled(
        self,
        maps: list[Tensor],
        tails: list[list[Tail]],
        mid_channels: list[IntArray],
        squeeze_channels: list[IntArray],
    ) -> list[Tensor]:
        """Each image's channels times its mask and, where it has squeeze-excite, its gate; `tails`: means of these images.

        The gates of all come from one pass through the layer."""
        masks = [None if m.min() >= d.shape[1] else prefix_mask(m, d.shape[1], d) for d, m in zip(maps, mid_channels)]
        pooled, widths = [], []
        most = max((d.shape[1] for d, mine in zip(maps, tails) if mine), default=0)
        for mask, mine, squeezes in zip(masks, tails, squeeze_channels):
            for start, means in mine:
                means = means if mask is None else means * mask[start : start + len(means)]
                pooled.append(means if means.shape[1] == most else F.pad(means, (0, most - means.shape[1])))
                widths.append(squeezes[start : start + len(means)])
        gates = list(self._gates(pooled, np.concatenate(widths)).split([len(p) for p in pooled])) if pooled else []
        scaled_maps = []
        for d, mask, mine in zip(maps, masks, tails):
            opened, gates = gates[: len(mine)], gates[len(mine) :]
            factors = _factors(d, mask, [(start, g[:, : d.shape[1]]) for (start, _), g in zip(mine, opened)])
            scaled_maps.append(d if factors is None else scaled(d, factors))
        return scaled_maps

    def _gates(self, pooled: list[Tensor], widths: IntArray) -> Tensor:
        assert self.se is not None
        most = int(widths.max())
        means = pooled[0] if len(pooled) == 1 else torch.cat(pooled)
        units = None if int(widths.min()) == most else prefix_mask(widths, most, means)
        return self.se.gates(means, most, units)

    def _expand(self, x: Tensor, mid_channels: int) -> Tensor:
        if self.expand is None:
            return x
        conv = self._conv(self.expand)
        return norm_act(pointwise(x, prefix(conv, mid_channels, x.shape[1])), self._norm(self.expand), self.act)

    def _group(self, kernel: int, mid_channels: int, images: int, pool_from: int | None = None) -> Group:
        """The depthwise convolution of so many images by `kernel`, and its BN."""
        unit = self.depthwise[str(max(self.kernels) if self.crop else kernel)]
        weight = self._conv(unit)
        cut = (weight.shape[-1] - kernel) // 2
        if cut:
            weight = prefix(weight, mid_channels)[:, :, cut:-cut, cut:-cut].contiguous()
        return Group(images=images, weight=weight, norm=self._norm(unit), pool_from=pool_from)

    def _project(self, d: Tensor, mid_channels: int, out_channels: int) -> Tensor:
        return norm_act(pointwise(d, self._projection(mid_channels, out_channels)), self._norm(self.project))

    def _projection(self, mid_channels: int, out_channels: int) -> Tensor:
        return prefix(self._conv(self.project), out_channels, mid_channels)

    @staticmethod
    def _conv(unit: nn.Module) -> Tensor:
        weight: Tensor = unit.conv.weight  # type: ignore[union-attr,assignment]
        return weight

    @staticmethod
    def _norm(unit: nn.Module) -> nn.BatchNorm2d:
        norm: nn.BatchNorm2d = unit.norm  # type: ignore[assignment]
        return norm


def _parts(x: Tensor, sizes: list[int]) -> Sequence[Tensor]:
    return [x] if len(sizes) == 1 else x.split(sizes)


def _factors(d: Tensor, mask: Tensor | None, gates: list[Tail]) -> Tensor | None:
    """[n, c] what each image's channels are multiplied by: gates from their place on, else the mask; None: nothing."""
    if not gates:
        return mask
    rows, at = [], 0
    for start, opened in gates:
        if start > at:
            rows.append(d.new_ones(start - at, d.shape[1]) if mask is None else mask[at:start])
        at = start + len(opened)
        rows.append(opened if mask is None else opened * mask[start:at])
    if at < len(d):
        rows.append(d.new_ones(len(d) - at, d.shape[1]) if mask is None else mask[at:])
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def _unit(in_channels: int, out_channels: int, kernel: int, groups: int, eps: float, stride: int = 1) -> nn.Sequential:
    """Convolution and BN under the names a plain network gives them."""
    unit = nn.Sequential()
    padding = kernel // 2
    unit.add_module("conv", nn.Conv2d(in_channels, out_channels, kernel, stride, padding, groups=groups, bias=False))
    unit.add_module("norm", nn.BatchNorm2d(out_channels, eps=eps))
    return unit
