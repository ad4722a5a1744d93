"""Costs of a million architectures at once.

Every decision of a `Genes` row selects an entry in small lookup arrays (stage x input width x output width x resolution
x choice x middle width) that holds the number of a part. Then a row's cost is a handful of gathers and a sum. Where parts
are measured on demand (`expect`), those that the rows of a call select are asked for together, and no others.
`cost_range`: what the networks of a space cost, before anything is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from snugnet.costs.table import CostTable
from snugnet.space.layout import FloatArray, Genes, IntArray, Layout
from snugnet.space.sampling import largest, sample_many, smallest
from snugnet.space.space import SearchSpace
from snugnet.space.spec import LayerSpec
from snugnet.store import sha256
from snugnet.units import show

_SAMPLES = 2000  # networks for a median


@final
class CostLookup:
    """The lookup arrays of one cost function over one space; call it with `Genes`."""

    def __init__(
        self,
        space: SearchSpace,
        cost: Callable[[LayerSpec], float],
        combine: str = "sum",
        expect: Callable[[list[LayerSpec]], None] | None = None,
    ) -> None:
        self.layout, self.add = Layout(space), np.add if combine == "sum" else np.maximum
        self._cost, self._expect = cost, expect
        numbers: dict[LayerSpec, int] = {}

        def number(part: LayerSpec) -> int:
            return numbers.setdefault(part, len(numbers))

        stems = [self.layout.stem_specs(size) for size in space.resolutions]
        self.stem = np.array([[number(part) for part in row] for row in stems])
        self.blocks = [  # [stage][position]; the last serves those behind it
            [_lookup(self.layout, index, position, number) for position in stage.distinct_positions]
            for index, stage in enumerate(space.stages)
        ]
        heads = [self.layout.head_specs(size) for size in space.resolutions]
        self.head = np.array([[[number(part) for part in row] for row in rows] for rows in heads])
        self._parts, self._costs = tuple(numbers), np.full(len(numbers), np.nan)
        if expect is None:
            self._fill(np.arange(len(numbers)))

    def __call__(self, genes: Genes) -> FloatArray:
        """[n] costs of the architectures in `genes`."""
        chosen = [*self._numbers(genes)]
        if self._expect is not None:
            self._fill(np.unique(np.concatenate([numbers[runs] for numbers, runs in chosen])))
        total: FloatArray = np.zeros(len(genes))
        for numbers, runs in chosen:
            total = np.where(runs, self.add(total, self._costs[numbers]), total)
        return total

    def _numbers(self, genes: Genes) -> Iterator[tuple[IntArray, NDArray[np.bool_]]]:
        """For the stem, every slot and the head: the number of each row's part, and whether it runs."""
        always = np.ones(len(genes), dtype=bool)
        yield self.stem[genes.resolution, genes.stem], always
        for slot in self.layout.slots:
            depth = np.array(self.layout.space.stages[slot.stage].depths)[genes.depth[:, slot.stage]]
            tables = self.blocks[slot.stage]
            table = tables[min(slot.position, len(tables) - 1)]
            rows = self.layout.block_rows(genes, slot)
            numbers = table[genes.resolution, rows.in_width, rows.out_width, rows.choice, rows.mid]
            yield numbers, slot.position < depth
        yield self.head[genes.resolution, genes.width[:, -1], genes.head], always

    def _fill(self, numbers: IntArray) -> None:
        """Have the costs of these parts ready."""
        missing = numbers[np.isnan(self._costs[numbers])].tolist()
        if missing and self._expect is not None:
            self._expect([self._parts[number] for number in missing])
        for number in missing:
            self._costs[number] = self._cost(self._parts[number])

    def bounds(self) -> tuple[float, float]:
        """No network of the space costs less than the first or more than the second; both may be out of reach."""
        self._fill(np.arange(len(self._parts)))
        costs = self._costs
        low, high = costs[self.stem].min(), costs[self.stem].max()
        for index, stage in enumerate(self.layout.space.stages):
            tables = self.blocks[index]
            for position in range(stage.max_depth):
                table = tables[min(position, len(tables) - 1)]
                possible = costs[table[table >= 0]]
                low = self.add(low, possible.min()) if position < stage.depths[0] else low
                high = self.add(high, possible.max())
        return float(self.add(low, costs[self.head].min())), float(self.add(high, costs[self.head].max()))

    def identity(self) -> str:
        """What the costs depend on, in sixteen letters."""
        self._fill(np.arange(len(self._parts)))
        arrays = [self.stem, *(table for tables in self.blocks for table in tables), self.head, self._costs]
        return sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays))[:16]


def costs_of_many(
    space: SearchSpace, genes: Genes, cost: Callable[[LayerSpec], float], combine: str = "sum"
) -> FloatArray:
    """[n] costs of the architectures in `genes`; `combine` is "sum" or "max" over a network's parts."""
    return CostLookup(space, cost, combine)(genes)


def _lookup(layout: Layout, stage: int, position: int, number: Callable[[LayerSpec], int]) -> IntArray:
    """[resolution, input width, output width, choice, middle width] -> the part's number, -1 where no block can be: later
    blocks keep their width."""
    space, inputs = layout.space, layout.in_widths(stage, position)
    widths, choices = space.stages[stage].widths, range(len(layout.choices(stage, position)))
    most = int(layout.mid_cells(stage, position).max())
    shape = (len(space.resolutions), len(inputs), len(widths), len(choices), most)
    table: IntArray = np.full(shape, -1, dtype=np.int64)
    for r, resolution in enumerate(space.resolutions):
        for place in layout.places(stage, resolution):
            if place.position == position:
                at = r, inputs.index(place.in_channels), widths.index(place.out_channels)
                for c in choices:
                    for m, mid_channels in enumerate(layout.mid_range(place, c)):
                        table[(*at, c, m)] = number(layout.block_spec(place, c, mid_channels))
    return table


@final
@dataclass(frozen=True, kw_only=True)
class CostRange:
    """Of one resource, in its base unit: the two ends of the space, and the median of networks uniform over choices."""

    resource: str
    smallest: float
    median: float
    largest: float

    def __str__(self) -> str:
        low, middle, high = (show(value, self.resource) for value in (self.smallest, self.median, self.largest))
        return f"{self.resource} from {low} to {high}, median {middle}"


def cost_range(space: SearchSpace, table: CostTable, *, seed: int = 0) -> CostRange:
    """What `table` says of the networks of `space`."""
    lookup = CostLookup(space, table.of_part, table.combine)
    low, high = lookup(Layout(space).encode([smallest(space), largest(space)])).tolist()
    drawn = lookup(sample_many(space, _SAMPLES, np.random.default_rng(seed)))
    return CostRange(resource=table.resource, smallest=low, median=float(np.median(drawn)), largest=high)
