"""The cheapest and the dearest network of any space by one table: exact, also where costs do not add up slot by slot.

A block's cost depends on its choice, on the width before it, on its own width and on the resolution. So the extreme over
a whole space is a walk from stem to head that remembers, for every width a stage may end with, the best way to get there:
dynamic programming, a few thousand table look-ups even for AttentiveNAS. Free middle widths are tried at both ends of their
range and at their start: costs rise with the middle width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from snugnet.costs.table import CostTable
from snugnet.space.architecture import Architecture, Block, StageChoice
from snugnet.space.plan import block_part, head_part, plan, stem_part
from snugnet.space.space import SearchSpace

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
    found: list[tuple[float, Architecture]] = []
    for size in space.resolutions:
        for stem in space.stem.widths:
            first = stem_part(space, stem, size)
            ways: dict[int, Way] = {stem: (table.of_part(first), ())}
            resolution = first.out_resolution
            for index, stage in enumerate(space.stages):
                ways = _through(space, table, index, ways, resolution, sign)
                resolution = -(-resolution // stage.stride)
            for before, (cost, stages) in ways.items():
                for head in space.head.widths:
                    total = table.combined((cost, table.of_part(head_part(space, head, before, resolution))))
                    network = Architecture(resolution=size, stem=stem, stages=stages, head=head)
                    found.append((total, network))
    best = min(found, key=lambda way: sign * way[0])
    # Summed once more in the network's own order, so that it equals what others get for this network.
    return Extreme(table.of_network(plan(best[1], space)), best[1])


def _through(
    space: SearchSpace,
    table: CostTable,
    index: int,
    ways: dict[int, Way],
    resolution: int,
    sign: float,
) -> dict[int, Way]:
    """The best way to leave stage `index` with each of its widths."""
    stage = space.stages[index]
    later_resolution = -(-resolution // stage.stride)
    after: dict[int, Way] = {}
    for width in stage.widths:
        rest = [
            dict(_blocks(space, table, index, width, width, position, later_resolution, sign))
            for position in range(1, stage.max_depth)
        ]
        options: list[Way] = []
        for before, (cost, stages) in ways.items():
            for choice, (price, block) in _blocks(space, table, index, before, width, 0, resolution, sign):
                for depth in stage.depths:
                    follow = [
                        options_there[choice]
                        if stage.per == "stage"
                        else min(options_there.values(), key=lambda option: sign * option[0])
                        for options_there in rest[: depth - 1]
                    ]
                    total = table.combined((cost, price, *(price for price, _ in follow)))
                    made = StageChoice(width=width, blocks=(block, *(block for _, block in follow)))
                    options.append((total, (*stages, made)))
        after[width] = min(options, key=lambda way: sign * way[0])
    return after


def _blocks(
    space: SearchSpace,
    table: CostTable,
    index: int,
    before: int,
    width: int,
    position: int,
    resolution: int,
    sign: float,
) -> Iterator[tuple[int, tuple[float, Block]]]:
    """Every choice of a stage for one block, at its best middle width: (choice, (cost, block))."""
    for number, choice in enumerate(space.stages[index].choices_at(position)):
        mid_range = space.mid_range(choice, before)
        tried = (
            {mid_range.start, mid_range.stop - 1, space.rules.mid_channels(choice, before)}
            if choice.expand_range
            else {None}
        )
        ways = []
        for mid_channels in sorted(tried, key=lambda m: m or 0):
            part = block_part(
                space,
                index,
                number,
                in_channels=before,
                width=width,
                position=position,
                resolution=resolution,
                mid_channels=mid_channels,
            )
            block = Block(
                kernel=choice.kernel, expand=float(choice.expand), se=bool(choice.se), mid_channels=mid_channels
            )
            ways.append((table.of_part(part), block))
        yield number, min(ways, key=lambda way: sign * way[0])
