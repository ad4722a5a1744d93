"""Costs of a million architectures at once.

Every decision of a `Genes` row selects an entry in small lookup arrays (stage x input width x output width x resolution
x choice x middle width), filled once from the cost of each part. Then a row's cost is a handful of gathers and a sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import numpy as np
from numpy.typing import NDArray

from snugnet.space.genes import Genes
from snugnet.space.plan import LayerSpec, block_part, head_part, stem_part
from snugnet.space.space import SearchSpace

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@final
class CostLookup:
    """The lookup arrays of one cost function over one space; call it with `Genes`."""

    def __init__(self, space: SearchSpace, cost: Callable[[LayerSpec], float], combine: str = "sum") -> None:
        self.space, self.add = space, np.add if combine == "sum" else np.maximum
        sizes = list(space.resolutions)
        self.stem = np.array([[cost(stem_part(space, w, s)) for w in space.stem.widths] for s in sizes], dtype=float)
        sizes = [-(-size // space.stem.stride) for size in sizes]
        self.blocks: list[list[FloatArray]] = []  # [stage][position]; the last serves those behind it
        for index, stage in enumerate(space.stages):
            after = [-(-size // stage.stride) for size in sizes]
            self.blocks.append(
                [_lookup(space, index, after if p else sizes, cost, position=p) for p in stage.distinct_positions]
            )
            sizes = after
        heads = [
            [[cost(head_part(space, w, c, s)) for w in space.head.widths] for c in space.stages[-1].widths]
            for s in sizes
        ]
        self.head = np.array(heads, dtype=float)

    def __call__(self, genes: Genes) -> FloatArray:
        """[n] costs of the architectures in `genes`."""
        total: FloatArray = self.stem[genes.resolution, genes.stem]
        before = genes.stem
        for index, stage in enumerate(self.space.stages):
            depth = np.array(stage.depths)[genes.depth[:, index]]
            width = genes.width[:, index]
            for d in range(stage.max_depth):
                slot = 0 if stage.per == "stage" else d
                choice = genes.choice[:, index, slot]
                tables = self.blocks[index]
                table, inputs = tables[min(d, len(tables) - 1)], width if d else before
                mid_channels = _middle_index(self.space, index, choice, inputs, genes.position[:, index, slot], d == 0)
                values = table[genes.resolution, inputs, width, choice, mid_channels]
                total = np.where(d < depth, self.add(total, values), total)
            before = width
        result: FloatArray = self.add(total, self.head[genes.resolution, before, genes.head])
        return result


def costs_of_many(
    space: SearchSpace, genes: Genes, cost: Callable[[LayerSpec], float], combine: str = "sum"
) -> FloatArray:
    """[n] costs of the architectures in `genes`; `combine` is "sum" or "max" over a network's parts."""
    return CostLookup(space, cost, combine)(genes)


def _inputs(space: SearchSpace, stage: int, first: bool) -> tuple[int, ...]:
    return space.in_widths(stage) if first else space.stages[stage].widths


def _lookup(
    space: SearchSpace, stage: int, sizes: list[int], cost: Callable[[LayerSpec], float], *, position: int
) -> FloatArray:
    """[resolution, input width, output width, choice, middle width] -> cost; later blocks keep their width."""
    row, inputs = space.stages[stage], _inputs(space, stage, position == 0)
    choices = row.choices_at(position)
    most = max(len(space.mid_range(choice, c)) for choice in choices for c in inputs)
    table = np.zeros((len(sizes), len(inputs), len(row.widths), len(choices), most))
    for r, size in enumerate(sizes):
        for i, channels in enumerate(inputs):
            for w, width in enumerate(row.widths):
                if position and channels != width:
                    continue
                for c, choice in enumerate(choices):
                    for m, mid_channels in enumerate(space.mid_range(choice, channels)):
                        part = block_part(
                            space,
                            stage,
                            c,
                            in_channels=channels,
                            width=width,
                            position=position,
                            resolution=size,
                            mid_channels=mid_channels,
                        )
                        table[r, i, w, c, m] = cost(part)
    return table


def _middle_index(
    space: SearchSpace, stage: int, choice: IntArray, inputs: IntArray, position: FloatArray, first: bool
) -> IntArray | int:
    row = space.stages[stage]
    if not row.has_expand_range:
        return 0
    cells = np.array([[len(space.mid_range(c, n)) for c in row.choices] for n in _inputs(space, stage, first)])
    index: IntArray = np.rint(position * (cells[inputs, choice] - 1)).astype(np.int64)
    return index
