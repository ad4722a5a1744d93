"""The one codec of a space: the order of its slots, every form an architecture can take, every layer it can hold.

A slot is a block's place: slot 0 is the first block of the first stage, and so on, each stage with as many slots as its
largest depth. From that order follow

    architecture   a value people read (`Architecture`)
    genes          rows of small integers, for architectures by the thousand (`Genes`)
    choice         plain tuples: the number of the choice in every slot (idle slots say 0), the depth of every stage
    relaxed point  probabilities: `alpha` a row per slot over the choices, `beta` a row per stage over its depths
    columns        indicators for linear models: [slot, choice], then [stage, depth], resolutions and widths (if several)

and `Layout` converts between them (`snugnet.budgets.feasible_set.Selection` where limits leave fewer choices or depths). The
layers of a space are walked here once as well: `places` says where a block can stand, `distinct_specs` lists what has to be
measured, `slot_specs` arranges the blocks where costs add up slot by slot.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from snugnet.errors import BadArchitecture, BadSpace
from snugnet.space.architecture import Architecture, Block, StageChoice, check, find_choice
from snugnet.space.space import BlockChoice, SearchSpace
from snugnet.space.spec import BlockSpec, HeadSpec, LayerSpec, Place, StemSpec, block_spec, head_spec, stem_spec

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Choices = tuple[tuple[int, ...], tuple[int, ...]]  # the number of the choice per slot, the depth per stage
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Genes:
    """n architectures: indices into the space's lists. S stages, D the largest depth of any stage.

    A free middle width is kept as its position in [0, 1] between the ends of its range, so that a width survives when a
    neighbouring decision changes the range. Blocks beyond a stage's depth keep genes too; they do not show in the
    architecture, and mutation and crossover need not treat depths specially.
    """

    resolution: IntArray  # [n]
    stem: IntArray  # [n]
    head: IntArray  # [n]
    width: IntArray  # [n, S]
    depth: IntArray  # [n, S]
    choice: IntArray  # [n, S, D]; a stage with choices per stage uses [:, s, 0] for all
    position: FloatArray  # [n, S, D]; where in its range a free middle width lies

    @classmethod
    def zeros(cls, n: int, stages: int, depth: int) -> Genes:
        """n times the first entry of every list."""
        blocks = (n, stages, depth)
        shapes = {"width": blocks[:2], "depth": blocks[:2], "choice": blocks, "position": blocks}
        zeros: dict[str, Any] = {f.name: np.zeros(shapes.get(f.name, n), np.int64) for f in fields(cls)}
        return cls(**{**zeros, "position": np.zeros(blocks)})

    def __len__(self) -> int:
        return len(self.resolution)

    def take(self, rows: IntArray | slice) -> Genes:
        return Genes(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def concatenate(parts: Sequence[Genes]) -> Genes:
    return Genes(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Genes)})


class Slot(NamedTuple):
    """A block's place in the order of all blocks."""

    stage: int
    position: int


class BlockRows(NamedTuple):
    """What n rows of genes decide for one block: [n] index arrays."""

    choice: IntArray
    in_width: IntArray  # into `Layout.in_widths`
    out_width: IntArray  # into the stage's widths
    mid: IntArray  # into the choice's range of middle widths; 0 where it has only one


class Columns(NamedTuple):
    """A vector over the columns, taken apart again."""

    options: list[FloatArray]  # per slot, over the stage's choices
    depths: list[FloatArray]  # per stage, over its depths
    resolutions: FloatArray  # empty where the space has one resolution
    widths: FloatArray  # of stem, stages and head, those with several, one after the other


@final
@dataclass(frozen=True)
class Layout:
    """Conversions and layers of one space; cheap to make, remembers what it worked out."""

    space: SearchSpace

    # --- order -----------------------------------------------------------------------------------------------------

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """All slots, front to back: the order of `alpha`, of choices and of columns."""
        return tuple(Slot(s, d) for s, stage in enumerate(self.space.stages) for d in range(stage.max_depth))

    @property
    def shape(self) -> tuple[int, int]:
        """(S, D): number of stages and largest depth."""
        return len(self.space.stages), max(stage.max_depth for stage in self.space.stages)

    def by_stage(self, rows: Sequence[T]) -> list[list[T]]:
        """Something per slot, arranged as [stage][position]."""
        nested: list[list[T]] = [[] for _ in self.space.stages]
        for slot, row in zip(self.slots, rows, strict=True):
            nested[slot.stage].append(row)
        return nested

    def in_widths(self, stage: int, position: int) -> tuple[int, ...]:
        """What a block may receive: the widths before its stage, or the stage's own."""
        return self.space.stages[stage].widths if position else self.space.in_widths(stage)

    def choices(self, stage: int, position: int) -> tuple[BlockChoice, ...]:
        """What a block may be."""
        return self.space.stages[stage].choices_at(position)

    def at(self, resolution: int) -> Layout:
        """The layout of the same space at one input resolution: for each, costs add up by themselves."""
        return Layout(self.space.with_resolution(resolution))

    # --- architecture <-> genes --------------------------------------------------------------------------------------

    def numbers(self, architecture: Architecture) -> list[list[int]]:
        """[stage][block]: the number of each block's choice; `architecture` must belong to the space."""
        check(architecture, self.space)
        numbers: list[list[int]] = [[] for _ in architecture.stages]
        for placed in architecture.placed_blocks():
            numbers[placed.stage].append(find_choice(placed, self.space))
        return numbers

    def encode(self, architectures: Sequence[Architecture]) -> Genes:
        """Rows for architectures of the space (checked). Genes of absent blocks are 0."""
        space, genes = self.space, Genes.zeros(len(architectures), *self.shape)
        for row, architecture in enumerate(architectures):
            check(architecture, space)
            genes.resolution[row] = space.resolutions.index(architecture.resolution)
            genes.stem[row] = space.stem.widths.index(architecture.stem)
            genes.head[row] = space.head.widths.index(architecture.head)
            for s, (chosen, stage) in enumerate(zip(architecture.stages, space.stages)):
                genes.width[row, s] = stage.widths.index(chosen.width)
                genes.depth[row, s] = stage.depths.index(len(chosen.blocks))
            for placed in architecture.placed_blocks():
                s, d, in_channels, block = placed
                genes.choice[row, s, d] = number = find_choice(placed, space)
                if block.mid_channels is not None:
                    mid_range = space.mid_range(self.choices(s, d)[number], in_channels)
                    genes.position[row, s, d] = mid_range.index(block.mid_channels) / max(len(mid_range) - 1, 1)
        return genes

    def decode(self, genes: Genes) -> list[Architecture]:
        """The architectures of all rows."""
        return [self._decode_row(genes, row) for row in range(len(genes))]

    def _decode_row(self, genes: Genes, row: int) -> Architecture:
        def block(slot: Slot, in_channels: int) -> Block:
            s, d = slot
            cell = row, s, 0 if self.space.stages[s].per == "stage" else d
            choice = self.choices(s, d)[genes.choice[cell]]
            if choice.expand_range is None:
                return Block.of(choice)
            mid_range = self.space.mid_range(choice, in_channels)
            return Block.of(choice, mid_range[round(float(genes.position[cell]) * (len(mid_range) - 1))])

        ends = genes.resolution[row], genes.stem[row], genes.head[row]
        return self.assemble(*ends, genes.width[row], genes.depth[row], block)

    def assemble(
        self,
        resolution: int,
        stem: int,
        head: int,
        widths: Sequence[int] | IntArray,
        depths: Sequence[int] | IntArray,
        block: Callable[[Slot, int], Block],
    ) -> Architecture:
        """The architecture of these entries in the space's lists; `block` says what stands in a slot, behind how many
        channels."""
        space, stages = self.space, []
        before = space.stem.widths[stem]
        for s, stage in enumerate(space.stages):
            width = stage.widths[widths[s]]
            slots = [(Slot(s, d), width if d else before) for d in range(stage.depths[depths[s]])]
            stages.append(StageChoice(width=width, blocks=tuple(block(*slot) for slot in slots)))
            before = width
        return Architecture(
            resolution=space.resolutions[resolution],
            stem=space.stem.widths[stem],
            stages=tuple(stages),
            head=space.head.widths[head],
        )

    def block_rows(self, genes: Genes, slot: Slot) -> BlockRows:
        """What every row decides for the block at `slot` (rows whose stage ends before it included)."""
        s, d = slot
        stage = self.space.stages[s]
        choice = genes.choice[:, s, 0 if stage.per == "stage" else d]
        out = genes.width[:, s]
        before = out if d else (genes.width[:, s - 1] if s else genes.stem)
        mid = np.zeros(len(genes), dtype=np.int64)
        if stage.has_expand_range:
            cells = self.mid_cells(s, d)[before, choice]
            mid = np.rint(genes.position[:, s, d] * (cells - 1)).astype(np.int64)
        return BlockRows(choice, before, out, mid)

    def mid_cells(self, stage: int, position: int) -> IntArray:
        """[input width, choice]: how many middle widths a choice offers."""
        choices, inputs = self.choices(stage, position), self.in_widths(stage, position)
        return np.array([[len(self.space.mid_range(choice, n)) for choice in choices] for n in inputs])

    # --- architecture <-> choice -------------------------------------------------------------------------------------

    def choice(self, architecture: Architecture) -> Choices:
        """The choice that stands for an architecture of an additive space: free middle widths must stand at their start."""
        check(architecture, self.space)
        options = dict.fromkeys(self.slots, 0)
        for placed in architecture.placed_blocks():
            s, d, in_channels, block = placed
            options[Slot(s, d)] = number = find_choice(placed, self.space)
            start = self.space.rules.mid_channels(self.choices(s, d)[number], in_channels)
            if block.mid_channels not in (None, start):
                rule = f"stage {s + 1}, block {d + 1} must have its starting middle width {start} here"
                remedy = "The problem counts one cost per choice; search widths afterwards."
                raise BadArchitecture(rule, value=block.mid_channels, remedy=remedy)
        return tuple(options.values()), architecture.depths

    def architecture(
        self, options: Sequence[int], depths: Sequence[int], widths: Mapping[int, int] | None = None
    ) -> Architecture:
        """The network of an additive space that a choice stands for; free middle widths as `widths` has them, by number of
        the slot, or at their start."""
        self.require_additive()
        numbers, given = {slot: number for number, slot in enumerate(self.slots)}, widths or {}

        def block(slot: Slot, in_channels: int) -> Block:
            choice = self.choices(*slot)[options[numbers[slot]]]
            if choice.expand_range is None:
                return Block.of(choice)
            return Block.of(choice, given.get(numbers[slot]) or self.space.rules.mid_channels(choice, in_channels))

        places = [stage.depths.index(depth) for stage, depth in zip(self.space.stages, depths)]
        return self.assemble(0, 0, 0, [0] * len(places), places, block)

    # --- columns of linear models ------------------------------------------------------------------------------------

    @property
    def columns(self) -> int:
        """How many columns `features` has."""
        depths = sum(len(stage.depths) for stage in self.space.stages)
        others = self._resolution_columns + sum(size for _, size in self._chosen_widths)
        return sum(len(self.choices(*slot)) for slot in self.slots) + depths + others

    @property
    def _resolution_columns(self) -> int:
        return len(self.space.resolutions) if len(self.space.resolutions) > 1 else 0

    @property
    def _chosen_widths(self) -> list[tuple[str | int, int]]:
        """Where there are several widths: the stem, a stage's number or the head, and how many."""
        stages = [(s, len(stage.widths)) for s, stage in enumerate(self.space.stages)]
        rows: list[tuple[str | int, int]] = [
            ("stem", len(self.space.stem.widths)),
            *stages,
            ("head", len(self.space.head.widths)),
        ]
        return [(place, size) for place, size in rows if size > 1]

    def features(self, genes: Genes) -> FloatArray:
        """[n, columns]: whether a choice runs in a slot; whether a stage has a depth; the resolution; the widths."""
        indicators = []
        for slot in self.slots:
            stage = self.space.stages[slot.stage]
            runs = slot.position < np.array(stage.depths)[genes.depth[:, slot.stage]]
            hot = self.block_rows(genes, slot).choice[:, None] == np.arange(len(self.choices(*slot)))
            indicators.append(hot & runs[:, None])
        for s, stage in enumerate(self.space.stages):
            indicators.append(genes.depth[:, s, None] == np.arange(len(stage.depths)))
        indicators.append(genes.resolution[:, None] == np.arange(self._resolution_columns))
        for place, size in self._chosen_widths:
            chosen = genes.width[:, place] if isinstance(place, int) else getattr(genes, place)
            indicators.append(chosen[:, None] == np.arange(size))
        return np.concatenate(indicators, axis=1).astype(np.float64)

    def split(self, vector: FloatArray) -> Columns:
        """A vector over the columns, as options per slot, depths per stage, resolutions and widths."""
        sizes = [len(self.choices(*slot)) for slot in self.slots]
        sizes += [len(stage.depths) for stage in self.space.stages]
        *parts, others = np.split(vector, np.cumsum(sizes))
        resolutions, widths = np.split(others, [self._resolution_columns])
        return Columns(parts[: len(self.slots)], parts[len(self.slots) :], resolutions, widths)

    # --- layers ------------------------------------------------------------------------------------------------------

    def resolutions(self, resolution: int) -> tuple[int, ...]:
        """The resolution each stage receives at this input resolution, and last the one that the head receives."""
        sizes = [-(-resolution // self.space.stem.stride)]
        for stage in self.space.stages:
            sizes.append(-(-sizes[-1] // stage.stride))
        return tuple(sizes)

    def stem_specs(self, resolution: int) -> list[StemSpec]:
        """One per stem width."""
        return [stem_spec(self.space, width, resolution) for width in self.space.stem.widths]

    def head_specs(self, resolution: int) -> list[list[HeadSpec]]:
        """[width of the last stage][head width]."""
        size = self.resolutions(resolution)[-1]
        widths = self.space.stages[-1].widths
        return [[head_spec(self.space, width, before, size) for width in self.space.head.widths] for before in widths]

    def places(self, stage: int, resolution: int) -> Iterator[Place]:
        """Every place for a block of `stage`, per output width: behind each input width, then behind the stage's own.

        Positions that offer what the one before them offers are not repeated (`Stage.distinct_positions`).
        """
        size, later = self.resolutions(resolution)[stage : stage + 2]
        for width in self.space.stages[stage].widths:
            for position in self.space.stages[stage].distinct_positions:
                for before in (width,) if position else self.space.in_widths(stage):
                    yield Place(stage, position, before, width, later if position else size)

    def block_spec(self, place: Place, choice: int, mid_channels: int | None = None) -> BlockSpec:
        """The layers of a choice at a place; without `mid_channels` at its starting middle width."""
        return block_spec(self.space, place, choice, mid_channels)

    def mid_range(self, place: Place, choice: int) -> range:
        """The middle widths a choice offers at a place."""
        return self.space.mid_range(self.choices(place.stage, place.position)[choice], place.in_channels)

    def distinct_specs(self, widths_per_range: int = 3) -> tuple[LayerSpec, ...]:
        """Every layer a network of the space can contain, each once, in order of appearance: what has to be measured.

        Of a free middle width `widths_per_range` evenly spaced values are listed, both ends included.
        """
        specs: dict[LayerSpec, None] = {}
        for resolution in self.space.resolutions:
            specs |= dict.fromkeys(self.stem_specs(resolution))
            for index, stage in enumerate(self.space.stages):
                most = max(len(self.choices(index, position)) for position in stage.distinct_positions)
                for choice, place in itertools.product(range(most), [*self.places(index, resolution)]):
                    if choice < len(self.choices(index, place.position)):
                        for mid_channels in _evenly(self.mid_range(place, choice), widths_per_range):
                            specs[self.block_spec(place, choice, mid_channels)] = None
            for row in self.head_specs(resolution):
                specs |= dict.fromkeys(row)
        return tuple(specs)

    # --- spaces whose costs add up -------------------------------------------------------------------------------------

    @property
    def why_not_additive(self) -> str:
        """An empty text if costs add up slot by slot, else the reason why they do not.

        They do with one resolution, one width per stage and choices per block (HardCoRe-NAS, TF-NAS). Where widths are
        chosen too (AttentiveNAS), a block's cost depends on its neighbours.
        """
        space = self.space
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

    def require_additive(self) -> None:
        if reason := self.why_not_additive:
            remedy = "Use a method that needs no such sum (evolution, random), or fix those choices in the space."
            raise BadSpace(f"costs of space {self.space.name!r} must add up slot by slot, but {reason}", remedy=remedy)

    @cached_property
    def slot_places(self) -> tuple[Place, ...]:
        """Per slot of an additive space: where its block stands."""
        self.require_additive()
        resolution, stages = self.space.resolutions[0], range(len(self.space.stages))
        places = [[*self.places(stage, resolution)] for stage in stages]  # one per distinct position
        return tuple(places[s][min(d, len(places[s]) - 1)] for s, d in self.slots)

    @cached_property
    def slot_specs(self) -> tuple[tuple[BlockSpec, ...], ...]:
        """[slot][choice]: the blocks of an additive space; free middle widths stand at their start."""
        choices = [range(len(self.choices(*slot))) for slot in self.slots]
        return tuple(tuple(self.block_spec(p, c) for c in numbers) for p, numbers in zip(self.slot_places, choices))

    @property
    def ends(self) -> tuple[StemSpec, HeadSpec]:
        """Stem and head of an additive space: what every network of it has."""
        self.require_additive()
        resolution = self.space.resolutions[0]
        return self.stem_specs(resolution)[0], self.head_specs(resolution)[0][0]


def _evenly(mid_range: range, count: int) -> list[int]:
    """`count` values of a range, both ends included; all where it has no more."""
    if len(mid_range) <= count:
        return list(mid_range)
    return sorted({mid_range[round(step * (len(mid_range) - 1) / (count - 1))] for step in range(count)})
