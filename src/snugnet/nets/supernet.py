"""The super-network: every network of a space in one set of weights.

    logits = supernet(images, architecture)      # one sub-network, at the price of that sub-network
    logits = supernet(images, paths)             # a path per image (rows of `Genes`)
    logits = supernet(images, alpha, beta)       # the relaxed network, differentiable in alpha and beta

What to run is passed, never set: two calls never influence each other. A stage is left early by images (or networks)
of smaller depth. `alpha` holds, for every stage and position, weights over the choices ([C], or [N, C] for each image),
`beta` for every stage weights over its depths; with one-hot rows the gradient with respect to them is the inner product
of the loss's gradient with every choice's output, which is what HardCoRe-NAS's search needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugnet.errors import BadInput, BadSpace
from snugnet.nets.blocks import activation, conv_unit, initialise, stem_module
from snugnet.nets.depthwise import padded
from snugnet.nets.elastic import pointwise, prefix, prefix_mask
from snugnet.nets.elastic_block import ElasticBlock
from snugnet.nets.fused import norm_act
from snugnet.nets.gather import IntArray, reorder
from snugnet.space.architecture import Architecture
from snugnet.space.layout import Genes, Layout, Slot
from snugnet.space.sampling import sample_balanced
from snugnet.space.space import SearchSpace
from snugnet.space.spec import HeadSpec, head_spec, plan, stem_spec

Weights = Sequence[Tensor]
APART = 2048  # positions of a batch from which wide and narrow images of a block run in groups of their own


@final
@dataclass(frozen=True, kw_only=True)
class Regularisation:
    """What one call adds in training: dropout before the classifier, and stochastic depth in the last `drop_stages`
    stages. The rate of block i of all n blocks is drop_connect * i / n (AttentiveNAS: 0.2, the last two stages)."""

    dropout: float = 0.0
    drop_connect: float = 0.0
    drop_stages: int = 2

    def rates(self, space: SearchSpace) -> list[list[float]]:
        """[stage][position]: the share of images that skip the block's branch."""
        depths = [stage.max_depth for stage in space.stages]
        first = len(depths) - self.drop_stages
        return [
            [self.drop_connect * (sum(depths[:s]) + d) / sum(depths) if s >= first else 0.0 for d in range(depth)]
            for s, depth in enumerate(depths)
        ]


@final
class Supernet(nn.Module):
    """All networks of `space`, sharing weights. `classes`: of its last layer, where it learns a part of the space's."""

    def __init__(self, space: SearchSpace, classes: int | None = None) -> None:
        super().__init__()
        self.space, self.layout = space, Layout(space)
        self.trained_space = space if classes is None else replace(space, classes=classes)
        self.stem = stem_module(stem_spec(space, space.stem.widths[-1], space.resolutions[-1]))
        self.stages = nn.ModuleList(
            [
                nn.ModuleList([ElasticBlock(self.layout, Slot(index, position)) for position in range(stage.max_depth)])
                for index, stage in enumerate(space.stages)
            ]
        )
        self.head = ElasticHead(self.trained_space)
        if space.rules.shortcut != "always":
            initialise(self)
        else:  # AttentiveNAS: PyTorch's own start, and every block begins as its shortcut
            for block in self.blocks():
                for operation in block.operations:
                    nn.init.zeros_(operation.project.norm.weight)  # type: ignore[union-attr,arg-type]

    def forward(
        self,
        images: Tensor,
        what: Architecture | Genes | Weights,
        beta: Weights | None = None,
        *,
        regularise: Regularisation | None = None,
    ) -> Tensor:
        """images [N, C, H, W] -> logits [N, classes] of the network(s) that `what` describes.

        `regularise` (one network only): dropout and stochastic depth of this call; None: the space's own dropout."""
        if isinstance(what, Architecture):
            return self._one(images, what, regularise)
        if regularise is not None:
            raise BadInput("regularise is for one network at a time", value=type(what).__name__, remedy="Leave it out.")
        if isinstance(what, Genes):
            return self._many(images, what)
        if beta is None:
            raise BadInput("a relaxed network needs alpha and beta", value="alpha alone", remedy="Pass both.")
        return self._relaxed(images, what, beta)

    def blocks(self) -> list[ElasticBlock]:
        """All elastic blocks, front to back: the order of `alpha`."""
        return [block for stage in self.stages for block in stage]  # type: ignore[attr-defined]

    def largest(self) -> nn.Module:
        """The largest network of the space as a plain network with these weights: the usual teacher."""
        from snugnet.nets.extraction import extract_largest  # it builds on this file

        return extract_largest(self)

    def sample_paths(self, count: int, rng: np.random.Generator) -> Genes:
        """A random path for each of `count` images: uniform over choices, balanced over the batch."""
        return sample_balanced(self.space, count, rng)

    def _one(self, images: Tensor, architecture: Architecture, regularise: Regularisation | None) -> Tensor:
        network = plan(architecture, self.trained_space)
        x = self._stem(self._resize(images, architecture.resolution), architecture.stem)
        rates = (regularise or _AS_THE_SPACE_SAYS).rates(self.space)
        for numbers, specs, blocks, drops in zip(self.layout.numbers(architecture), network.stages, self.stages, rates):
            for number, spec, block, drop in zip(numbers, specs, blocks, drops):  # type: ignore[arg-type,call-overload]
                x = block.one(x, number, spec, drop)
        logits: Tensor = self.head.one(x, network.head, None if regularise is None else regularise.dropout)
        return logits

    def _many(self, images: Tensor, paths: Genes) -> Tensor:
        if len(paths) != len(images):
            raise BadInput(
                "there must be a path for every image", value=(len(paths), len(images)), remedy="Sample as many."
            )
        if len(self.space.resolutions) == 1:
            return self._many_at_one_size(images, paths)
        pieces, rows = [], []
        for index, size in enumerate(self.space.resolutions):
            mine = np.flatnonzero(paths.resolution == index)
            if len(mine):
                chosen = self._resize(images[torch.from_numpy(mine)], size)
                pieces.append(self._many_at_one_size(chosen, paths.take(mine)))
                rows.append(mine)
        return _in_order(torch.cat(pieces), np.concatenate(rows))

    def _many_at_one_size(self, images: Tensor, paths: Genes) -> Tensor:
        # Channels that no image of the batch has are not computed at all.
        widths = np.array(self.space.stem.widths)[paths.stem]
        x = self._stem(images, int(widths.max()))
        if widths.min() < widths.max():
            x = x * prefix_mask(widths, x.shape[1], x)[:, :, None, None]
        rows = np.arange(len(images))  # rows[i]: whose features stand at position i of the batch
        for index, blocks in enumerate(self.stages):
            x, rows = self._many_through_stage(x, rows, paths, index, blocks)  # type: ignore[arg-type]
        return _in_order(self.head.many(x, paths.take(rows)), rows)

    def _many_through_stage(
        self, x: Tensor, rows: IntArray, paths: Genes, index: int, blocks: nn.ModuleList
    ) -> tuple[Tensor, IntArray]:
        """Images leave at their own depth; those that stay are ordered anew for each block (a narrow copy)."""
        depth = np.array(self.space.stages[index].depths)[paths.depth[:, index]]
        most = int(np.array(self.space.stages[index].widths)[paths.width[:, index]].max())
        left: list[Tensor] = []
        left_rows: list[IntArray] = []
        for position, block in enumerate(blocks):
            leaving = depth[rows] == position
            decisions = block.decisions(paths)  # type: ignore[operator]
            apart = int((~leaving).sum()) * x.shape[2] * x.shape[3] >= APART
            gone, staying = rows[leaving], decisions.order(rows[~leaving], apart)
            x = reorder(x, rows, np.concatenate([gone, staying]))
            if len(gone):
                parted, x = x.split([len(gone), len(staying)])
                left.append(parted)
                left_rows.append(gone)
            if not len(staying):
                return torch.cat(left), np.concatenate(left_rows)
            rows = staying
            x = block.many(x, decisions.take(rows), most, apart)  # type: ignore[operator]
        if not left:
            return x, rows
        return torch.cat([*left, x]), np.concatenate([*left_rows, rows])

    def _relaxed(self, images: Tensor, alpha: Weights, beta: Weights) -> Tensor:
        if reason := self.layout.at(self.space.resolutions[0]).why_not_additive:
            raise BadSpace(f"a space to relax must have choices per block only, but {reason}", remedy="Use evolution.")
        blocks = self.blocks()
        if len(alpha) != len(blocks) or len(beta) != len(self.stages):
            raise BadInput(
                f"alpha and beta must have {len(blocks)} and {len(self.stages)} entries",
                value=(len(alpha), len(beta)),
                remedy="One alpha per block, one beta per stage.",
            )
        x = self._stem(images, self.space.stem.widths[-1])
        number = 0
        for index, stage in enumerate(self.stages):
            depths, outputs = self.space.stages[index].depths, []
            for position, block in enumerate(stage):  # type: ignore[arg-type,var-annotated]
                x = block.relaxed(x, alpha[number + position])
                if position + 1 in depths:
                    outputs.append(x)
            number += len(stage)  # type: ignore[arg-type]
            x = _weighted(outputs, beta[index])
        logits: Tensor = self.head.full(x)
        return logits

    def _stem(self, images: Tensor, width: int) -> Tensor:
        conv, norm, act = self.stem.conv, self.stem.norm, self.stem.act
        assert isinstance(act, nn.Module)
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(norm, nn.BatchNorm2d)
        x, padding = padded(images, conv.kernel_size[0], conv.stride[0], self.space.rules.padding)
        y = F.conv2d(x, prefix(conv.weight, width), stride=conv.stride, padding=padding)
        return norm_act(y, norm, act)

    def _resize(self, images: Tensor, size: int) -> Tensor:
        if len(self.space.resolutions) == 1 or images.shape[-1] == size:
            return images
        return F.interpolate(images, size=(size, size), mode="bicubic", align_corners=False)


@final
class ElasticHead(nn.Module):
    """The head at its largest widths; smaller ones use the first channels."""

    def __init__(self, space: SearchSpace) -> None:
        super().__init__()
        self.space = space
        largest = head_spec(space, space.head.widths[-1], space.stages[-1].widths[-1], 1)
        self.part = largest
        self.conv = conv_unit(largest.in_channels, largest.hidden, act=largest.act, norm_eps=largest.norm_eps)
        self.features = nn.Linear(largest.hidden, largest.pooled, bias=largest.pooled_bias) if largest.pooled else None
        self.act = activation(largest.act)
        self.dropout = nn.Dropout(largest.dropout)
        self.classifier = nn.Linear(largest.features, largest.classes)

    def one(self, x: Tensor, part: HeadSpec, dropout: float | None = None) -> Tensor:
        pooled = self._hidden(x, part.hidden).mean((2, 3))
        if self.features is not None:
            bias = None if self.features.bias is None else prefix(self.features.bias, part.pooled)
            pooled = self.act(F.linear(pooled, prefix(self.features.weight, part.pooled, part.hidden), bias))
        pooled = self.dropout(pooled) if dropout is None else F.dropout(pooled, dropout, self.training)
        return F.linear(pooled, prefix(self.classifier.weight, part.classes, part.features), self.classifier.bias)

    def full(self, x: Tensor) -> Tensor:
        return self.one(x, self.part)

    def many(self, x: Tensor, paths: Genes) -> Tensor:
        """A head width per image; features an image does not have are zero."""
        head, widths = self.space.head, self.space.stages[-1].widths
        if len(head.widths) == 1 and (len(widths) == 1 or not head.hidden_expand):
            return self.full(x)
        pooled_widths = np.array(head.widths)[paths.head]
        hidden = pooled_widths
        if self.features is not None:
            hidden = np.array([head.hidden_width(n) for n in widths])[paths.width[:, -1]]
        pooled = self._hidden(x, int(hidden.max())).mean((2, 3)) * prefix_mask(hidden, int(hidden.max()), x)
        if self.features is not None:
            weight, bias = self.features.weight[: pooled_widths.max(), : hidden.max()], self.features.bias
            pooled = self.act(F.linear(pooled, weight, None if bias is None else bias[: pooled_widths.max()]))
            pooled = pooled * prefix_mask(pooled_widths, int(pooled_widths.max()), x)
        return F.linear(self.dropout(pooled), self.classifier.weight[:, : pooled_widths.max()], self.classifier.bias)

    def _hidden(self, x: Tensor, width: int) -> Tensor:
        conv, norm, act = self.conv.conv, self.conv.norm, self.conv.act
        assert isinstance(act, nn.Module)
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(norm, nn.BatchNorm2d)
        return norm_act(pointwise(x, prefix(conv.weight, width, x.shape[1])), norm, act)


_AS_THE_SPACE_SAYS = Regularisation()


def _weighted(outputs: list[Tensor], weights: Tensor) -> Tensor:
    """sum_d weights_d * outputs_d for weights [D] or [N, D]."""
    if len(outputs) == 1:
        only: Tensor = outputs[0] * weights[..., 0].reshape(-1, 1, 1, 1)
        return only
    total = outputs[0] * weights[..., 0].reshape(-1, 1, 1, 1)
    for number, output in enumerate(outputs[1:], 1):
        total = total + output * weights[..., number].reshape(-1, 1, 1, 1)
    return total


def _in_order(x: Tensor, rows: IntArray) -> Tensor:
    """Undo the ordering: row r of the result is the entry whose row number is r."""
    return reorder(x, rows, np.arange(len(rows)))
