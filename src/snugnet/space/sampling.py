"""Random architectures: sampled, mutated, crossed. Seeded by the caller, bounded, vectorised.

Two kinds of "uniform": over *choices* (every decision drawn on its own: what HardCoRe-NAS and AttentiveNAS do; shallow
stages are then as frequent as deep ones although there are far fewer of them), or over *networks* (every architecture of
the space equally likely, by exact counting).
"""

from __future__ import annotations

from dataclasses import fields
from typing import Literal

import numpy as np

from snugnet.errors import BadInput
from snugnet.space.architecture import Architecture, Block
from snugnet.space.layout import FloatArray, Genes, IntArray, Layout, Slot
from snugnet.space.space import BlockChoice, SearchSpace

Over = Literal["choices", "networks"]


def sample(space: SearchSpace, rng: np.random.Generator, over: Over = "choices") -> Architecture:
    """One random architecture."""
    return Layout(space).decode(sample_many(space, 1, rng, over))[0]


def sample_many(space: SearchSpace, n: int, rng: np.random.Generator, over: Over = "choices") -> Genes:
    """n random architectures as genes."""
    genes = Genes(
        resolution=rng.integers(len(space.resolutions), size=n),
        stem=rng.integers(len(space.stem.widths), size=n),
        head=rng.integers(len(space.head.widths), size=n),
        width=np.stack([rng.integers(len(stage.widths), size=n) for stage in space.stages], axis=1),
        depth=np.stack([rng.integers(len(stage.depths), size=n) for stage in space.stages], axis=1),
        choice=_choices(space, n, rng),
        position=_positions(space, n, rng),
    )
    if over == "networks":
        _reweigh(space, genes, rng)
    # In the middle of equal cells, so that rounding to a whole width gives both ends their full share.
    return _spread_positions(space, genes)


def sample_balanced(space: SearchSpace, n: int, rng: np.random.Generator) -> Genes:
    """n random architectures, each uniform over choices, together as even as n allows.

    Every decision is drawn by systematic sampling (one random offset, even steps, shuffled), among the rows for which it
    matters: of n rows each option is taken by floor or ceil of its share. For a batch with a path per image this is a
    less noisy estimate than independent draws, and batches fall into groups of the same few sizes step after step, which
    is what kernel libraries that prepare themselves for each size want.
    """
    genes, every = Genes.zeros(n, *Layout(space).shape), np.arange(n)
    genes.resolution[:] = _evenly(every, len(space.resolutions), n, rng)
    genes.stem[:] = _evenly(every, len(space.stem.widths), n, rng)
    genes.head[:] = _evenly(every, len(space.head.widths), n, rng)
    genes.choice[:] = _choices(space, n, rng)  # of blocks that do not run; the others are replaced
    genes.position[:] = _positions(space, n, rng)
    for s, stage in enumerate(space.stages):
        genes.width[:, s] = _evenly(every, len(stage.widths), n, rng)
        genes.depth[:, s] = _evenly(every, len(stage.depths), n, rng)
        running = np.array(stage.depths)[genes.depth[:, s]]
        for d in range(1 if stage.per == "stage" else stage.max_depth):
            choices = stage.choices_at(d)
            # Neighbours in this order run together, so that their numbers come out as even as those of single choices.
            kin = sorted(choices, key=lambda c: (c.kernel, c.se > 0, c.expand))
            order = np.array([choices.index(c) for c in kin])
            rows = np.flatnonzero(running > d)
            genes.choice[rows, s, d] = order[_evenly(rows, len(order), n, rng)[rows]]
    return _spread_positions(space, genes)


def mutate(
    space: SearchSpace, architecture: Architecture, rng: np.random.Generator, probability: float = 0.2
) -> Architecture:
    """Every decision is drawn anew with `probability`."""
    layout = Layout(space)
    return layout.decode(mutate_many(space, layout.encode([architecture]), rng, probability))[0]


def mutate_many(space: SearchSpace, genes: Genes, rng: np.random.Generator, probability: float = 0.2) -> Genes:
    if not 0 <= probability <= 1:
        raise BadInput("a probability must be in [0, 1]", value=probability, remedy="Pass a share such as 0.2.")
    return _mix(genes, sample_many(space, len(genes), rng), rng, probability)


def crossover_many(space: SearchSpace, ones: Genes, others: Genes, rng: np.random.Generator) -> Genes:
    if len(ones) != len(others):
        raise BadInput("parents must come in pairs", value=(len(ones), len(others)), remedy="Pass as many of each.")
    return _mix(ones, others, rng, 0.5)


def largest(space: SearchSpace) -> Architecture:
    """Largest resolution, widths, depths, kernels, expansions, SE on: the network that holds all others."""
    return _extreme(space, -1)


def smallest(space: SearchSpace) -> Architecture:
    """Smallest resolution, widths, depths, kernels, expansions, SE off."""
    return _extreme(space, 0)


def _extreme(space: SearchSpace, end: int) -> Architecture:
    layout, ends = Layout(space), [end] * len(space.stages)

    def weight(choice: BlockChoice) -> tuple[float, int, float]:
        return (choice.expand_range[end] if choice.expand_range else choice.expand, choice.kernel, choice.se)

    def block(slot: Slot, in_channels: int) -> Block:
        choice = sorted(layout.choices(*slot), key=weight)[end]
        return Block.of(choice, space.mid_range(choice, in_channels)[end] if choice.expand_range else None)

    return layout.assemble(end, end, end, ends, ends, block)


def _evenly(rows: IntArray, options: int, n: int, rng: np.random.Generator) -> IntArray:
    """[n] with, at `rows`, options 0, 1, ... each as often as the others, in random order; 0 elsewhere."""
    drawn = np.zeros(n, dtype=np.int64)
    if options > 1 and len(rows):
        steps = (np.arange(len(rows)) + rng.random()) * options / len(rows)
        drawn[rows] = rng.permutation(np.minimum(steps.astype(np.int64), options - 1))
    return drawn


def _positions(space: SearchSpace, n: int, rng: np.random.Generator) -> FloatArray:
    shape = (n, *Layout(space).shape)
    return rng.random(shape) if any(s.has_expand_range for s in space.stages) else np.zeros(shape)


def _choices(space: SearchSpace, n: int, rng: np.random.Generator) -> IntArray:
    drawn = np.zeros((n, *Layout(space).shape), dtype=np.int64)
    for s, stage in enumerate(space.stages):
        slots = 1 if stage.per == "stage" else stage.max_depth
        sizes = np.array([len(stage.choices_at(d)) for d in range(slots)])
        # One number for all positions where they are alike: the draws of seeded runs stay what they were.
        drawn[:, s, :slots] = rng.integers(sizes[0] if len({*sizes}) == 1 else sizes, size=(n, slots))
    return drawn


def _reweigh(space: SearchSpace, genes: Genes, rng: np.random.Generator) -> None:
    """Redraw widths, depths and choices, front to back, with the exact number of networks behind each as weight."""
    after = space.ways_after()
    n = len(genes)
    genes.stem[:] = rng.choice(len(space.stem.widths), size=n, p=_shares([after[0][w] for w in space.stem.widths]))
    before = genes.stem
    for s, stage in enumerate(space.stages):
        pairs = [(w, d) for w in range(len(stage.widths)) for d in range(len(stage.depths))]
        for index, in_channels in enumerate(space.in_widths(s)):
            rows = np.flatnonzero(before == index)
            ways = [
                space.stage_ways(s, in_channels, stage.widths[w], stage.depths[d]) * after[s + 1][stage.widths[w]]
                for w, d in pairs
            ]
            drawn = rng.choice(len(pairs), size=len(rows), p=_shares(ways))
            genes.width[rows, s] = np.array([w for w, _ in pairs])[drawn]
            genes.depth[rows, s] = np.array([d for _, d in pairs])[drawn]
            if stage.has_expand_range:
                shares = _shares([len(space.mid_range(c, in_channels)) for c in stage.choices])
                genes.choice[rows, s, 0] = rng.choice(len(stage.choices), size=len(rows), p=shares)
        if stage.has_expand_range:
            for index, width in enumerate(stage.widths):
                rows = np.flatnonzero(genes.width[:, s] == index)
                shares = _shares([len(space.mid_range(c, width)) for c in stage.choices])
                size = (len(rows), genes.choice.shape[2] - 1)
                genes.choice[rows, s, 1:] = rng.choice(len(stage.choices), size=size, p=shares)
        before = genes.width[:, s]


def _shares(ways: list[int]) -> FloatArray:
    total = sum(ways)
    shares = np.array([way / total for way in ways])  # true division of exact integers: no overflow
    scaled: FloatArray = shares / shares.sum()
    return scaled


def _spread_positions(space: SearchSpace, genes: Genes) -> Genes:
    """Turn uniform positions in [0, 1) into positions whose rounding hits every whole width equally often."""
    for s, stage in enumerate(space.stages):
        if not stage.has_expand_range:
            continue
        widths = np.array(stage.widths)[genes.width[:, s]]
        before = genes.stem if s == 0 else genes.width[:, s - 1]
        inputs = np.array(space.in_widths(s))[before]
        for c, choice in enumerate(stage.choices):
            if choice.expand_range is None:
                continue
            for d in range(genes.choice.shape[2]):
                rows = np.flatnonzero(genes.choice[:, s, d] == c)
                channels = inputs[rows] if d == 0 else widths[rows]
                cells = np.rint(choice.expand_range[1] * channels) - np.rint(choice.expand_range[0] * channels) + 1
                cell = np.floor(genes.position[rows, s, d] * cells)
                genes.position[rows, s, d] = cell / np.maximum(cells - 1, 1)
    return genes


def _mix(ones: Genes, others: Genes, rng: np.random.Generator, share: float) -> Genes:
    """Row by row a mixture: each gene from `others` with probability `share`; a free width goes with its operation."""
    names = [f.name for f in fields(Genes) if f.name != "position"]
    taken = {name: rng.random(getattr(ones, name).shape) < share for name in names}
    taken["position"] = taken["choice"]
    return Genes(**{name: np.where(t, getattr(others, name), getattr(ones, name)) for name, t in taken.items()})
