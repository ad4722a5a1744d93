"""The cheapest and the dearest network of any space by one table: exact, also where costs do not add up slot by slot.

A block's cost depends on its choice, on the width before it, on its own width and on the resolution. So the extreme over
a whole space is a walk from stem to head that remembers, for every width a stage may end with, the best way to get there:
dynamic programming, a few thousand table look-ups even for AttentiveNAS. Free middle widths are tried at both ends of their
range and at their start: costs rise with the middle width.
"""

from __future__ import annotations

from dataclasses import dataclass

from snugnet.costs.table import CostTable
from snugnet.space.architecture import Architecture, Block, StageChoice
from snugnet.space.layout import Layout
from snugnet.space.space import SearchSpace
from snugnet.space.spec import Place, plan

Way = tuple[float, tuple[StageChoice, ...]]


@dataclass(frozen=True)
class Extreme:
    """A network and what it costs."""

    cost: float
    architecture: Architecture


def cheapest(space: SearchSpace, table: CostTable) -> Extreme:
    """No network of `space` costs less by `table`."""
    return _extreme(space, table, 1.0)


def dearest(space: SearchSpace, table: CostTable) -> Extreme:
    """No network of `space` costs more by `table`."""
    return _extreme(space, table, -1.0)


def _extreme(space: SearchSpace, table: CostTable, sign: float) -> Extreme:
    """The network that minimises sign * cost."""
    layout, networks = Layout(space), []
    for resolution in space.resolutions:
        heads = layout.head_specs(resolution)
        for stem in layout.stem_specs(resolution):
            ways: dict[int, Way] = {stem.out_channels: (table.of_part(stem), ())}
            for index in range(len(space.stages)):
                ways = _through(layout, table, index, ways, resolution, sign)
            for before, (cost, stages) in ways.items():
                for width, head in zip(space.head.widths, heads[space.stages[-1].widths.index(before)]):
                    total = table.combined((cost, table.of_part(head)))
                    network = Architecture(resolution=resolution, stem=stem.out_channels, stages=stages, head=width)
                    networks.append((total, network))
    best = min(networks, key=lambda way: sign * way[0])
    # Summed once more in the network's own order, so that it equals what others get for this network.
    return Extreme(table.of_network(plan(best[1], space)), best[1])


def _through(
    layout: Layout, table: CostTable, index: int, ways: dict[int, Way], resolution: int, sign: float
) -> dict[int, Way]:
    """The best way to leave stage `index` with each of its widths."""
    stage = layout.space.stages[index]
    places = [p for p in layout.places(index, resolution) if p.position or p.in_channels in ways]
    blocks = {place: _blocks(layout, table, place, sign) for place in places}
    after: dict[int, Way] = {}
    for width in stage.widths:
        rest = [blocks[p] for p in places if p.position and p.out_channels == width]  # the last serves those behind it
        options: list[Way] = []
        for place in places:
            if place.position or place.out_channels != width:
                continue
            cost, stages = ways[place.in_channels]
            for choice, (price, block) in enumerate(blocks[place]):
                for depth in stage.depths:
                    later = [rest[min(position, len(rest) - 1)] for position in range(depth - 1)]
                    following = [
                        row[choice] if stage.per == "stage" else min(row, key=lambda r: sign * r[0]) for row in later
                    ]
                    total = table.combined((cost, price, *(c for c, _ in following)))
                    chosen = StageChoice(width=width, blocks=(block, *(b for _, b in following)))
                    options.append((total, (*stages, chosen)))
        after[width] = min(options, key=lambda way: sign * way[0])
    return after


def _blocks(layout: Layout, table: CostTable, place: Place, sign: float) -> list[tuple[float, Block]]:
    """(cost, block) of every choice at a place, each at its best middle width."""
    best = []
    for number, choice in enumerate(layout.choices(place.stage, place.position)):
        mid_channels: list[int | None] = [None]
        if choice.expand_range:
            mid_range, start = layout.mid_range(place, number), layout.block_spec(place, number).mid_channels
            mid_channels = [*sorted({mid_range.start, mid_range.stop - 1, start})]
        ways = [(table.of_part(layout.block_spec(place, number, m)), Block.of(choice, m)) for m in mid_channels]
        best.append(min(ways, key=lambda way: sign * way[0]))
    return best
