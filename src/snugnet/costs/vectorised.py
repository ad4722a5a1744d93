"""Costs of a million architectures at once.

Every decision of a `Genes` row selects an entry in small lookup arrays (stage x input width x output width x resolution
x choice x middle width), filled once from the cost of each part. Then a row's cost is a handful of gathers and a sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import numpy as np
from numpy.typing import NDArray

from snugnet.space.layout import Genes, Layout
from snugnet.space.space import SearchSpace
from snugnet.space.spec import LayerSpec
from snugnet.store import sha256

FloatArray = NDArray[np.float64]


@final
class CostLookup:
    """The lookup arrays of one cost function over one space; call it with `Genes`."""

    def __init__(self, space: SearchSpace, cost: Callable[[LayerSpec], float], combine: str = "sum") -> None:
        self.layout, self.add = Layout(space), np.add if combine == "sum" else np.maximum
        stems = [self.layout.stem_specs(size) for size in space.resolutions]
        self.stem = np.array([[cost(spec) for spec in row] for row in stems], dtype=float)
        self.blocks = [  # [stage][position]; the last serves those behind it
            [_lookup(self.layout, index, position, cost) for position in stage.distinct_positions]
            for index, stage in enumerate(space.stages)
        ]
        heads = [self.layout.head_specs(size) for size in space.resolutions]
        self.head = np.array([[[cost(spec) for spec in row] for row in rows] for rows in heads], dtype=float)

    def __call__(self, genes: Genes) -> FloatArray:
        """[n] costs of the architectures in `genes`."""
        total: FloatArray = self.stem[genes.resolution, genes.stem]
        for slot in self.layout.slots:
            depth = np.array(self.layout.space.stages[slot.stage].depths)[genes.depth[:, slot.stage]]
            tables = self.blocks[slot.stage]
            table = tables[min(slot.position, len(tables) - 1)]
            rows = self.layout.block_rows(genes, slot)
            values = table[genes.resolution, rows.in_width, rows.out_width, rows.choice, rows.mid]
            total = np.where(slot.position < depth, self.add(total, values), total)
        result: FloatArray = self.add(total, self.head[genes.resolution, genes.width[:, -1], genes.head])
        return result

    def bounds(self) -> tuple[float, float]:
        """No network of the space costs less than the first or more than the second; both may be out of reach."""
        low, high = self.stem.min(), self.stem.max()
        for index, stage in enumerate(self.layout.space.stages):
            tables = self.blocks[index]
            for position in range(stage.max_depth):
                table = tables[min(position, len(tables) - 1)]
                low = self.add(low, table[table > 0].min()) if position < stage.depths[0] else low
                high = self.add(high, table.max())
        return float(self.add(low, self.head.min())), float(self.add(high, self.head.max()))

    def identity(self) -> str:
        """What the costs depend on, in sixteen letters."""
        arrays = [self.stem, *(table for tables in self.blocks for table in tables), self.head]
        return sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays))[:16]


def costs_of_many(
    space: SearchSpace, genes: Genes, cost: Callable[[LayerSpec], float], combine: str = "sum"
) -> FloatArray:
    """[n] costs of the architectures in `genes`; `combine` is "sum" or "max" over a network's parts."""
    return CostLookup(space, cost, combine)(genes)


def _lookup(layout: Layout, stage: int, position: int, cost: Callable[[LayerSpec], float]) -> FloatArray:
    """[resolution, input width, output width, choice, middle width] -> cost; later blocks keep their width."""
    space, inputs = layout.space, layout.in_widths(stage, position)
    widths, choices = space.stages[stage].widths, range(len(layout.choices(stage, position)))
    most = int(layout.mid_cells(stage, position).max())
    table = np.zeros((len(space.resolutions), len(inputs), len(widths), len(choices), most))
    for r, resolution in enumerate(space.resolutions):
        for place in layout.places(stage, resolution):
            if place.position == position:
                at = r, inputs.index(place.in_channels), widths.index(place.out_channels)
                for c in choices:
                    for m, mid_channels in enumerate(layout.mid_range(place, c)):
                        table[(*at, c, m)] = cost(layout.block_spec(place, c, mid_channels))
    return table
