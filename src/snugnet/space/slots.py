"""A space seen as slots: where one decision is taken, and which parts it chooses between.

`distinct_parts` lists every part that any network of the space can contain: what has to be measured. `slots` arranges
the blocks by stage, position and choice for spaces in which costs add up slot by slot: one resolution, one width a
stage, choices per block (HardCoRe-NAS, TF-NAS). Where widths and resolutions are chosen too (AttentiveNAS), a block's
cost depends on its neighbours and there is no such arrangement.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from snugnet.errors import BadSpace
from snugnet.space.plan import BlockSpec, HeadSpec, LayerSpec, StemSpec, block_part, head_part, stem_part
from snugnet.space.space import BlockChoice, SearchSpace


@dataclass(frozen=True, kw_only=True)
class Slots:
    """The parts of an additive space: fixed stem and head; blocks[stage][position][choice]."""

    stem: StemSpec
    head: HeadSpec
    blocks: tuple[tuple[tuple[BlockSpec, ...], ...], ...]


def why_not_additive(space: SearchSpace) -> str:
    """An empty text if costs of `space` add up slot by slot, else the reason why they do not."""
    if len(space.resolutions) > 1:
        return "it offers several input resolutions"
    if len(space.stem.widths) > 1 or len(space.head.widths) > 1:
        return "it offers several stem or head widths"
    for number, stage in enumerate(space.stages, 1):
        if len(stage.widths) > 1:
            return f"stage {number} offers several widths"
        if stage.per == "stage" and len(stage.choices) > 1 and stage.max_depth > 1:
            return f"stage {number} takes one choice for all its blocks"
    return ""


def slots(space: SearchSpace) -> Slots:
    """The arrangement by slots; an error that says why where the space has none. Spans stand at their starting width."""
    if reason := why_not_additive(space):
        raise BadSpace(
            f"costs of space {space.name!r} must add up slot by slot, but {reason}",
            remedy="Use a method that needs no such sum (evolution, random), or fix those choices in the space.",
        )
    stem = stem_part(space, space.stem.widths[0], space.resolutions[0])
    channels, resolution, stages = stem.out_channels, stem.out_resolution, []
    for index, stage in enumerate(space.stages):
        positions = []
        for position in range(stage.max_depth):
            parts = tuple(
                block_part(
                    space,
                    index,
                    choice,
                    in_channels=channels,
                    width=stage.widths[0],
                    position=position,
                    resolution=resolution,
                )
                for choice in range(len(stage.choices_at(position)))
            )
            positions.append(parts)
            channels, resolution = parts[0].out_channels, parts[0].out_resolution
        stages.append(tuple(positions))
    head = head_part(space, space.head.widths[0], channels, resolution)
    return Slots(stem=stem, head=head, blocks=tuple(stages))


def distinct_parts(space: SearchSpace, widths_per_range: int = 3) -> tuple[LayerSpec, ...]:
    """Every part a network of `space` can contain, each once, in order of appearance.

    Of a free middle width `widths_per_range` evenly spaced values are listed, both ends included.
    """
    found: dict[LayerSpec, None] = {}
    for size in space.resolutions:
        for width in space.stem.widths:
            found[stem_part(space, width, size)] = None
        resolution = -(-size // space.stem.stride)
        for index, stage in enumerate(space.stages):
            later = -(-resolution // stage.stride)
            rows = [stage.choices_at(position) for position in stage.distinct_positions]
            for choice, width in itertools.product(range(max(map(len, rows))), stage.widths):
                for position, row in enumerate(rows):
                    for before in (width,) if position else space.in_widths(index):
                        for mid_channels in _grid(space, row[choice : choice + 1], before, widths_per_range):
                            part = block_part(
                                space,
                                index,
                                choice,
                                in_channels=before,
                                width=width,
                                position=position,
                                resolution=later if position else resolution,
                                mid_channels=mid_channels,
                            )
                            found[part] = None
            resolution = later
        for before in space.stages[-1].widths:
            for width in space.head.widths:
                found[head_part(space, width, before, resolution)] = None
    return tuple(found)


def _grid(space: SearchSpace, offered: tuple[BlockChoice, ...], in_channels: int, count: int) -> list[int]:
    """Middle widths of the choice in `offered`; none where a position has fewer choices than another."""
    if not offered:
        return []
    mid_range = space.mid_range(offered[0], in_channels)
    if len(mid_range) <= count:
        return list(mid_range)
    return sorted({mid_range[round(step * (len(mid_range) - 1) / (count - 1))] for step in range(count)})
