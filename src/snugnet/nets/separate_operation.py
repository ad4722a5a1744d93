"""One operation of a layer by itself: full-width weights, of which the channels it keeps are run and trained (TF-NAS).

The middle channels that an operation keeps are an index set into its full-width weights: rows of the expansion, the
depthwise kernels, columns of the projection; of the squeeze-excite layer columns of `reduce`, rows and bias of `expand`.
`keep(width)` chooses the set anew, by the L1 norm of the depthwise kernels, all channels competing with the weights they
have: a channel that was dropped comes back as it was. Batch norm has no parameters and no memory: always the batch's own
statistics.
"""

from __future__ import annotations

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugnet.nets.blocks import InvertedResidual, SqueezeExcite, activation, gate
from snugnet.nets.depthwise import depthwise
from snugnet.nets.elastic import pointwise
from snugnet.nets.gather import pool_tail
from snugnet.space.spec import BlockSpec


def normalised(x: Tensor, eps: float) -> Tensor:
    """By the statistics of the batch, in training and evaluation alike."""
    return F.batch_norm(x, None, None, None, None, True, 0.0, eps)


@final
class SeparateOperation(nn.Module):
    """The inverted residual of `part` at its full width, `start` channels of which are kept at first: the first ones."""

    channels: Tensor  # [full] the kept ones, rising, then the others
    width: Tensor  # how many are kept

    def __init__(self, part: BlockSpec, start: int) -> None:
        super().__init__()
        full = part.mid_channels
        self.part = part
        self.expand = nn.Conv2d(part.in_channels, full, 1, bias=False) if part.expands else None
        self.depthwise = nn.Conv2d(full, full, part.kernel, part.stride, part.kernel // 2, groups=full, bias=False)
        self.reduce = nn.Conv2d(full, part.se, 1) if part.se else None
        self.excite = nn.Conv2d(part.se, full, 1) if part.se else None
        self.project = nn.Conv2d(full, part.out_channels, 1, bias=False)
        self.act, self.se_act, self.gate = activation(part.act), activation(part.se_act), gate(part.se_gate)
        self.register_buffer("channels", torch.arange(full))
        self.register_buffer("width", torch.tensor(start))
        self._known: tuple[tuple[int, int, int], Tensor | None] | None = None

    @property
    def kept(self) -> Tensor:
        """The channels that run, rising."""
        return self.channels[: int(self.width)]

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, self._rows())

    def at_width(self, x: Tensor, width: int) -> Tensor:
        """With the channels that `keep(width)` would keep; nothing is changed."""
        return self.run(x, self.channels_at(width))

    def run(self, x: Tensor, rows: Tensor | None) -> Tensor:
        """With the channels `rows`; None: all."""
        eps = self.part.norm_eps
        if self.expand is not None:
            x = self.act(normalised(pointwise(x, _picked(self.expand.weight, rows)), eps))
        d = depthwise(x, _picked(self.depthwise.weight, rows), self.part.stride, self.part.padding)
        d = self.act(normalised(d, eps))
        if self.reduce is not None and self.excite is not None:
            d, pooled = pool_tail(d, 0)
            inner = F.linear(pooled, _picked(self.reduce.weight, rows, 1).flatten(1), self.reduce.bias)
            assert self.excite.bias is not None
            outer = F.linear(
                self.se_act(inner), _picked(self.excite.weight, rows).flatten(1), _picked(self.excite.bias, rows)
            )
            d = d * self.gate(outer)[:, :, None, None]
        return normalised(pointwise(d, _picked(self.project.weight, rows, 1)), eps)

    @torch.no_grad()
    def keep(self, width: int) -> None:
        """Choose `width` channels anew; the width it has already changes nothing."""
        if width == int(self.width):
            return
        kept = self.channels_at(width)
        dropped = torch.ones(self.part.mid_channels, dtype=torch.bool, device=kept.device)
        dropped[kept] = False
        self.channels.copy_(torch.cat([kept, dropped.nonzero().flatten()]))
        self.width.fill_(width)

    @torch.no_grad()
    def channels_at(self, width: int) -> Tensor:
        """The `width` channels of largest depthwise L1 norm, rising; at the present width those that are kept."""
        if width == int(self.width):
            return self.kept
        importance = self.depthwise.weight.abs().sum((1, 2, 3))
        return torch.argsort(importance, descending=True, stable=True)[:width].sort().values

    def decay(self) -> Tensor:
        """Half the squares of all weights that run: what weight decay is the gradient of. Dropped channels do not decay."""
        rows = self._rows()
        squares = (
            _picked(self.depthwise.weight, rows).square().sum() + _picked(self.project.weight, rows, 1).square().sum()
        )
        if self.expand is not None:
            squares = squares + _picked(self.expand.weight, rows).square().sum()
        if self.reduce is not None and self.excite is not None:
            assert self.reduce.bias is not None
            assert self.excite.bias is not None
            squares = squares + _picked(self.reduce.weight, rows, 1).square().sum() + self.reduce.bias.square().sum()
            squares = squares + _picked(self.excite.weight, rows).square().sum()
            squares = squares + _picked(self.excite.bias, rows).square().sum()
        return squares / 2

    @torch.no_grad()
    def copy_to(self, plain: InvertedResidual, width: int) -> None:
        """The weights of `width` channels into a plain block; its batch norms stay as they are."""
        rows = self.channels_at(width)
        if self.expand is not None:
            plain.expand.conv.weight.copy_(self.expand.weight[rows])  # type: ignore[union-attr,operator]
        plain.depthwise.conv.weight.copy_(self.depthwise.weight[rows])  # type: ignore[union-attr,operator]
        plain.project.conv.weight.copy_(self.project.weight[:, rows])  # type: ignore[union-attr,operator]
        if self.reduce is not None and self.excite is not None:
            assert isinstance(plain.se, SqueezeExcite)
            assert self.excite.bias is not None
            plain.se.reduce.weight.copy_(self.reduce.weight[:, rows])
            plain.se.reduce.bias.copy_(self.reduce.bias)  # type: ignore[union-attr,arg-type]
            plain.se.expand.weight.copy_(self.excite.weight[rows])
            plain.se.expand.bias.copy_(self.excite.bias[rows])  # type: ignore[union-attr]

    def _rows(self) -> Tensor | None:
        """`kept`, or None where that is all; looked up again whenever the buffers were written to, by whomever."""
        key = self.channels.data_ptr(), self.channels._version, self.width._version
        if self._known is None or self._known[0] != key:
            kept = self.kept
            self._known = key, None if len(kept) == self.part.mid_channels else kept
        return self._known[1]


def _picked(weight: Tensor, rows: Tensor | None, axis: int = 0) -> Tensor:
    return weight if rows is None else weight.index_select(axis, rows)
