"""One position of a super-network: its choices, their shared weights, its shortcut.

The block knows the numbers (`BlockSpec`) of every choice behind every input and output width, and turns rows of `Genes`
into them for a batch in which every image has made its own decisions. Choices share one operation, or have one each
where the space says so (TF-NAS). Where widths are elastic, tensors keep the largest width and an image's missing
channels are zero, which is what slicing its weights would give.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugnet.errors import BadSpace
from snugnet.nets.elastic import ElasticOperation, prefix_mask, runs
from snugnet.nets.gather import IntArray
from snugnet.space.layout import Genes, Layout, Slot
from snugnet.space.spec import BlockSpec, Place


def drop_connect(branch: Tensor, rate: float) -> Tensor:
    """The branch of each image set to zero with probability `rate`; the others scaled so that the mean stays."""
    if rate == 0.0:
        return branch
    kept = torch.rand(len(branch), 1, 1, 1, device=branch.device) >= rate
    return branch * (kept.to(branch.dtype) / (1.0 - rate))


_NEAR = 0.7  # of the largest middle width: from here on an image counts as wide


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """What each image of a batch is at one block: [n] arrays."""

    operation: IntArray
    kernel: IntArray
    mid_channels: IntArray
    squeeze_channels: IntArray  # width of the squeeze layer, 0: none
    wide: IntArray  # 1 for middle widths near the block's largest
    c_in: IntArray
    c_out: IntArray

    def take(self, rows: IntArray | slice) -> Decisions:
        return Decisions(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def order(self, rows: IntArray, apart: bool) -> IntArray:
        """`rows` in the order in which `ElasticBlock.many` wants its images; `apart`: wide ones run by themselves."""
        key = (self.operation[rows] * 2 + (self.wide[rows] if apart else 0)) * 64 + self.kernel[rows]
        return rows[np.argsort(key * 2 + (self.squeeze_channels[rows] > 0), kind="stable")]


@final
class ElasticBlock(nn.Module):
    """All choices of the block at `position` of stage `stage`, in one set of weights."""

    def __init__(self, layout: Layout, slot: Slot) -> None:
        super().__init__()
        space, first = layout.space, slot.position == 0
        row = space.stages[slot.stage]
        self.layout, self.space, self.slot = layout, space, slot
        self.in_widths = layout.in_widths(*slot)
        self.widths = row.widths
        self.choices = layout.choices(*slot)
        self.stride = row.stride if first else 1
        self.elastic_width = len(self.in_widths) > 1 or len(self.widths) > 1
        self.always = space.rules.shortcut == "always"
        self.parts = tuple(self._spec(c, self.in_widths[-1], self.widths[-1]) for c in range(len(self.choices)))
        self._tables()
        self.operation_of, groups = self._group()
        self.operations = nn.ModuleList([self._operation(choices) for choices in groups])
        mixed = any(a != b for a in self.in_widths for b in self.widths) if first else False
        self.shortcut = nn.Conv2d(self.in_widths[-1], self.widths[-1], 1, bias=False) if self.always and mixed else None

    def one(self, x: Tensor, choice: int, part: BlockSpec, drop: float = 0.0) -> Tensor:
        """All images take `choice`, whose numbers are `part`. `drop`: the share of images that, in training, pass by an
        identity shortcut alone (stochastic depth)."""
        y: Tensor = self.operations[self.operation_of[choice]].one(x, part)  # type: ignore[operator]
        if part.shortcut == "none":
            return y
        if part.shortcut == "identity":
            return (drop_connect(y, drop) if self.training else y) + x
        short = self._pool(x)
        if part.in_channels != part.out_channels:
            assert self.shortcut is not None
            short = F.conv2d(short, self.shortcut.weight[: part.out_channels, : part.in_channels])
        return y + short

    def decisions(self, genes: Genes) -> Decisions:
        """What the rows of `genes` decide for this block (rows whose stage ends before it included)."""
        rows = self.layout.block_rows(genes, self.slot)
        mid_channels = self._low[rows.in_width, rows.choice] + rows.mid * self.space.rules.mid_divisor
        return Decisions(
            operation=self.operation_of[rows.choice],
            kernel=self._kernel[rows.choice],
            mid_channels=mid_channels,
            squeeze_channels=self._squeeze_channels[rows.in_width, rows.choice, rows.mid],
            wide=(mid_channels > _NEAR * self._widest).astype(np.int64),
            c_in=np.array(self.in_widths)[rows.in_width],
            c_out=np.array(self.widths)[rows.out_width],
        )

    def many(self, x: Tensor, decisions: Decisions, most: int, apart: bool) -> Tensor:
        """A choice per image; images come in the order of `Decisions.order`; `most` is the widest output among all."""
        pieces = []
        for operation, start, stop in runs(decisions.operation):
            d = decisions if stop - start == len(decisions.kernel) else decisions.take(slice(start, stop))
            part = x if d is decisions else x[start:stop]
            wide, widths = d.wide if apart else np.zeros_like(d.wide), (d.mid_channels, d.squeeze_channels)
            pieces.append(self.operations[operation].many(part, wide, d.kernel, *widths, most))  # type: ignore[operator]
        y = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        if not self.elastic_width:
            kind = self.parts[0].shortcut
            if kind == "none":
                return y
            short = x if kind == "identity" else self._pool(x)
            return y + (short if self.shortcut is None else F.conv2d(short, self.shortcut.weight))
        return self._add_elastic_shortcut(x, y, decisions, most)

    def relaxed(self, x: Tensor, weights: Tensor) -> Tensor:
        """The mixture of all choices with `weights` [C] or [N, C]."""
        if len(self.operations) == 1:
            y: Tensor = self.operations[0].relaxed(x, weights, self.parts)  # type: ignore[operator]
        else:
            terms = []
            for index, operation in enumerate(self.operations):
                mine = np.flatnonzero(self.operation_of == index).tolist()
                parts = tuple(self.parts[c] for c in mine)
                terms.append(operation.relaxed(x, weights[..., mine], parts))  # type: ignore[operator]
            y = torch.stack(terms).sum(0)
        kind = self.parts[0].shortcut
        if kind == "none":
            return y
        short = x if kind == "identity" else self._pool(x)
        return y + (short if self.shortcut is None else F.conv2d(short, self.shortcut.weight))

    def _add_elastic_shortcut(self, x: Tensor, y: Tensor, decisions: Decisions, most: int) -> Tensor:
        mask = prefix_mask(decisions.c_out, most, x)[:, :, None, None]
        y = y * mask
        same = decisions.c_in == decisions.c_out
        if not self.always and (self.stride > 1 or not same.any()):
            return y
        short = self._pool(x) if self.always else x
        kept = F.pad(short, (0, 0, 0, 0, 0, most - short.shape[1])) if short.shape[1] < most else short[:, :most]
        if same.all():
            return y + kept
        keep = torch.from_numpy(same).to(x)[:, None, None, None]
        if not self.always:
            return y + kept * keep
        assert self.shortcut is not None
        return y + kept * keep + F.conv2d(short, self.shortcut.weight[:most, : x.shape[1]]) * mask * (1 - keep)

    def _pool(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, self.stride, ceil_mode=True, count_include_pad=False) if self.stride > 1 else x

    def _spec(self, choice: int, in_channels: int, width: int) -> BlockSpec:
        place = Place(*self.slot, in_channels, width, self.space.resolutions[-1])
        return self.layout.block_spec(place, choice)

    def _group(self) -> tuple[IntArray, list[list[int]]]:
        """Which operation serves which choice: a shared one, or one each; choices without expansion stand apart."""
        choices = range(len(self.parts))
        if not self.space.rules.share:
            return np.arange(len(self.parts)), [[c] for c in choices]
        for c in choices:
            kinds = {self._spec(c, width, self.widths[-1]).expands for width in self.in_widths}
            if len(kinds) > 1:
                raise BadSpace(
                    f"stage {self.slot.stage + 1}: a choice must expand behind every input width or behind none",
                    value=self.choices[c].label,
                    remedy="Take widths that are multiples of rules.mid_divisor, or another expansion.",
                )
        groups = [g for e in (False, True) if (g := [c for c in choices if self.parts[c].expands == e])]
        operation_of = np.zeros(len(self.parts), dtype=np.int64)
        for index, group in enumerate(groups):
            operation_of[group] = index
        return operation_of, groups

    def _operation(self, choices: list[int]) -> ElasticOperation:
        row, rules = self.space.stages[self.slot.stage], self.space.rules
        parts = [self.parts[c] for c in choices]
        most = max(self.space.mid_range(self.choices[c], self.in_widths[-1])[-1] for c in choices)
        return ElasticOperation(
            in_channels=self.in_widths[-1],
            mid_channels=most,
            out_channels=self.widths[-1],
            kernels=tuple(sorted({part.kernel for part in parts})),
            stride=self.stride,
            act=row.act,
            squeeze_channels=int(self._squeeze_channels[:, choices].max()),
            se_act=parts[0].se_act,
            se_gate=parts[0].se_gate,
            expands=parts[0].expands,
            crop=rules.kernel_weights == "crop",
            padding=rules.padding,
            norm_eps=rules.norm_eps,
        )

    def _tables(self) -> None:
        """Numbers by [input width, choice] (and middle width), for whole batches at once."""
        choices = self.choices
        mid_range = [[self.space.mid_range(choice, n) for choice in choices] for n in self.in_widths]
        self._low = np.array([[m.start for m in line] for line in mid_range])
        self._cells = np.array([[len(m) for m in line] for line in mid_range])
        self._widest = max(m[-1] for line in mid_range for m in line)
        self._kernel = np.array([choice.kernel for choice in choices])
        # The squeeze layer's width follows the image's own middle width where the rules say so.
        rules = self.space.rules
        self._squeeze_channels = np.zeros((*self._cells.shape, int(self._cells.max())), dtype=np.int64)
        for i, (n, ranges) in enumerate(zip(self.in_widths, mid_range)):
            for c, (choice, widths) in enumerate(zip(choices, ranges)):
                self._squeeze_channels[i, c, : len(widths)] = [rules.se_width(choice, n, width) for width in widths]
