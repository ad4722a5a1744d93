"""Architectures as rows of independent genes: resolution, widths, depths, kernels, expansions, and SE where it is chosen.

`Genes` keeps a block's choice as one number; AttentiveNAS draws, mutates and counts kernel and expansion by themselves: 31
genes. Where a stage's choices are the full product of kernels, expansions and SE, this codec takes them apart, in the
paper's order; elsewhere a choice stays one gene. A free middle width (TF-NAS) is no gene: its position is drawn by the
caller. `values` gives the numbers behind the genes, which is what an accuracy predictor is fed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from snugnet.space.architecture import Architecture
from snugnet.space.layout import FloatArray, Genes, IntArray, Layout
from snugnet.space.space import BlockChoice, SearchSpace

Rows = NDArray[np.int64]  # [n, genes]


class Gene(NamedTuple):
    """One decision: what it is called, and the numbers it may take."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """How the choices of one block (or of all blocks of a stage) fall into genes."""

    stage: int
    position: int
    parts: tuple[tuple[str, tuple[float, ...], IntArray], ...]  # name, values, [choice] -> value's number
    choice_at: IntArray  # [a number per part] -> choice


@final
class GeneColumns:
    """The codec of one space."""

    def __init__(self, space: SearchSpace) -> None:
        self.space, self.layout = space, Layout(space)
        self._choices = [_taken_apart(space, s, d) for s, d in self._chosen()]
        numbered = list(enumerate(space.stages, 1))
        genes = [
            Gene("resolution", tuple(map(float, space.resolutions))),
            Gene("stem width", _floats(space.stem.widths)),
        ]
        genes += [Gene(f"stage {n} width", _floats(stage.widths)) for n, stage in numbered]
        genes += [Gene("head width", _floats(space.head.widths))]
        genes += [Gene(f"stage {n} depth", _floats(stage.depths)) for n, stage in numbered]
        self._fixed = len(genes)
        self._places: list[tuple[int, int]] = []  # of each further gene: which choice, which part of it
        for name in ("kernel", "expand", "se", "choice"):
            for index, choice in enumerate(self._choices):
                for part, (label, values, _) in enumerate(choice.parts):
                    if label == name:
                        block = "" if space.stages[choice.stage].per == "stage" else f" block {choice.position + 1}"
                        genes.append(Gene(f"stage {choice.stage + 1}{block} {label}", values))
                        self._places.append((index, part))
        self.genes = tuple(genes)
        self.sizes = np.array([len(gene.values) for gene in genes])

    def rows(self, genes: Genes) -> Rows:
        """[n, genes] option numbers of the architectures in `genes`."""
        fixed = [genes.resolution, genes.stem, *genes.width.T, genes.head, *genes.depth.T]
        free = []
        for index, part in self._places:
            choice = self._choices[index]
            free.append(choice.parts[part][2][genes.choice[:, choice.stage, choice.position]])
        return np.stack([*fixed, *free], axis=1).astype(np.int64)

    def genes_of(self, rows: Rows, position: FloatArray | None = None) -> Genes:
        """The same as `Genes`; free middle widths at `position` [n, stages, depth], or at the start of their range."""
        stages, depth = self.layout.shape
        choice = np.zeros((len(rows), stages, depth), dtype=np.int64)
        for index, slot in enumerate(self._choices):
            mine = [self._fixed + place for place, (number, _) in enumerate(self._places) if number == index]
            order = [part for number, part in self._places if number == index]
            columns = [rows[:, column] for _, column in sorted(zip(order, mine))]
            choice[:, slot.stage, slot.position] = slot.choice_at[tuple(columns)]
        return Genes(
            resolution=rows[:, 0].copy(),
            stem=rows[:, 1].copy(),
            width=rows[:, 2 : 2 + stages].copy(),
            head=rows[:, 2 + stages].copy(),
            depth=rows[:, 3 + stages : 3 + 2 * stages].copy(),
            choice=choice,
            position=np.zeros(choice.shape) if position is None else position,
        )

    def of(self, architectures: Sequence[Architecture]) -> Rows:
        return self.rows(self.layout.encode(architectures))

    def architectures(self, rows: Rows) -> list[Architecture]:
        return self.layout.decode(self.genes_of(rows))

    def values(self, rows: Rows) -> FloatArray:
        """[n, genes] the numbers behind the option numbers: 224, 16, ..., 3, 5, 1, 4, ..."""
        columns = [np.array(gene.values)[rows[:, j]] for j, gene in enumerate(self.genes)]
        return np.stack(columns, axis=1).astype(np.float64)

    def mutated(self, rows: Rows, rng: np.random.Generator, probability: float) -> Rows:
        """Every gene with `probability` takes a different value, uniform over the others."""
        changed = (rng.random(rows.shape) < probability) & (self.sizes > 1)
        shift = 1 + (rng.random(rows.shape) * (self.sizes - 1)).astype(np.int64)
        return np.where(changed, (rows + shift) % self.sizes, rows)

    def crossed(self, ones: Rows, others: Rows, rng: np.random.Generator) -> Rows:
        """Every gene from either parent, by a fair coin."""
        return np.where(rng.random(ones.shape) < 0.5, ones, others)

    def _chosen(self) -> list[tuple[int, int]]:
        """Where a choice is made: once in a stage, or at every block."""
        return [
            (s, d)
            for s, stage in enumerate(self.space.stages)
            for d in range(1 if stage.per == "stage" else stage.max_depth)
        ]


def _taken_apart(space: SearchSpace, stage: int, position: int) -> _Choice:
    choices = space.stages[stage].choices_at(position)
    kernels = sorted({choice.kernel for choice in choices})
    expands = sorted({_expand(choice) for choice in choices})
    gates = sorted({choice.se for choice in choices})
    found = {(c.kernel, _expand(c), c.se): number for number, c in enumerate(choices)}
    if len(found) != len(choices) or len(choices) != len(kernels) * len(expands) * len(gates):
        whole = ("choice", _floats(range(len(choices))), np.arange(len(choices)))
        return _Choice(stage=stage, position=position, parts=(whole,), choice_at=np.arange(len(choices)))
    parts = [
        ("kernel", _floats(kernels), np.array([kernels.index(c.kernel) for c in choices])),
        ("expand", tuple(e[0] for e in expands), np.array([expands.index(_expand(c)) for c in choices])),
        ("se", _floats(gates), np.array([gates.index(c.se) for c in choices])),
    ]
    if len(gates) == 1:
        parts.pop()
    table = np.array([[[found[k, e, g] for g in gates] for e in expands] for k in kernels])
    return _Choice(
        stage=stage, position=position, parts=tuple(parts), choice_at=table if len(gates) > 1 else table[:, :, 0]
    )


def _expand(choice: BlockChoice) -> tuple[float, tuple[float, float]]:
    return choice.expand, choice.expand_range or (choice.expand, choice.expand)


def _floats(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
