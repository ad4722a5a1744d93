"""Architectures by the thousand: one row of small integers each.

`Genes` holds n architectures of one space as index arrays: column by column the same decisions an `Architecture` spells
out. A free middle width is kept as its position in [0, 1] between the ends of its range, so that a width survives when
a neighbouring decision changes the range. Blocks beyond a stage's depth keep genes too; they do not show in the
architecture, and mutation and crossover need not treat depths specially.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from snugnet.space.architecture import Architecture, Block, StageChoice, check, find_choice
from snugnet.space.space import SearchSpace

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Genes:
    """n architectures: indices into the space's lists. S stages, D the largest depth of any stage."""

    resolution: IntArray  # [n]
    stem: IntArray  # [n]
    head: IntArray  # [n]
    width: IntArray  # [n, S]
    depth: IntArray  # [n, S]
    choice: IntArray  # [n, S, D]; a stage with choices per stage uses [:, s, 0] for all
    position: FloatArray  # [n, S, D]; where in its range a free middle width lies

    def __len__(self) -> int:
        return len(self.resolution)

    def take(self, rows: IntArray | slice) -> Genes:
        return Genes(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def concatenate(parts: Sequence[Genes]) -> Genes:
    return Genes(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Genes)})


def shape(space: SearchSpace) -> tuple[int, int]:
    """(S, D): number of stages and largest depth."""
    return len(space.stages), max(stage.max_depth for stage in space.stages)


def encode(architectures: Sequence[Architecture], space: SearchSpace) -> Genes:
    """Rows for architectures of `space` (checked). Genes of absent blocks are 0."""
    n, (stages, depth) = len(architectures), shape(space)
    genes = Genes(
        resolution=np.zeros(n, dtype=np.int64),
        stem=np.zeros(n, dtype=np.int64),
        head=np.zeros(n, dtype=np.int64),
        width=np.zeros((n, stages), dtype=np.int64),
        depth=np.zeros((n, stages), dtype=np.int64),
        choice=np.zeros((n, stages, depth), dtype=np.int64),
        position=np.zeros((n, stages, depth)),
    )
    for row, architecture in enumerate(architectures):
        check(architecture, space)
        genes.resolution[row] = space.resolutions.index(architecture.resolution)
        genes.stem[row] = space.stem.widths.index(architecture.stem)
        genes.head[row] = space.head.widths.index(architecture.head)
        before = architecture.stem
        for s, (made, stage) in enumerate(zip(architecture.stages, space.stages)):
            genes.width[row, s] = stage.widths.index(made.width)
            genes.depth[row, s] = stage.depths.index(len(made.blocks))
            for d, block in enumerate(made.blocks):
                choices = stage.choices_at(d)
                choice = find_choice(block, choices)
                assert choice is not None
                genes.choice[row, s, d] = choices.index(choice)
                if block.mid_channels is not None:
                    mid_range = space.mid_range(choice, before if d == 0 else made.width)
                    genes.position[row, s, d] = (block.mid_channels - mid_range.start) / max(len(mid_range) - 1, 1)
            before = made.width
    return genes


def decode(genes: Genes, space: SearchSpace) -> list[Architecture]:
    """The architectures of all rows."""
    return [_decode_row(genes, row, space) for row in range(len(genes))]


def _decode_row(genes: Genes, row: int, space: SearchSpace) -> Architecture:
    stem = space.stem.widths[genes.stem[row]]
    before, made = stem, []
    for s, stage in enumerate(space.stages):
        width = stage.widths[genes.width[row, s]]
        blocks = []
        for d in range(stage.depths[genes.depth[row, s]]):
            slot = 0 if stage.per == "stage" else d
            choice = stage.choices_at(d)[genes.choice[row, s, slot]]
            mid_channels = None
            if choice.expand_range is not None:
                mid_range = space.mid_range(choice, before if d == 0 else width)
                mid_channels = mid_range[round(float(genes.position[row, s, slot]) * (len(mid_range) - 1))]
            blocks.append(
                Block(kernel=choice.kernel, expand=float(choice.expand), se=bool(choice.se), mid_channels=mid_channels)
            )
        made.append(StageChoice(width=width, blocks=tuple(blocks)))
        before = width
    return Architecture(
        resolution=space.resolutions[genes.resolution[row]],
        stem=stem,
        stages=tuple(made),
        head=space.head.widths[genes.head[row]],
    )
