"""Architectures as independent genes: the paper's 31, there and back, mutation and crossover gene by gene."""

import numpy as np
import pytest

from snugnet.space import preset, sample
from snugnet.space.gene_columns import GeneColumns
from snugnet.space.sampling import sample_many


def test_the_attentive_space_has_31_genes_in_the_papers_order():
    columns = GeneColumns(preset("attentive"))
    assert len(columns.genes) == 31
    names = [gene.name.split()[-1] for gene in columns.genes]
    assert names == ["resolution", *["width"] * 9, *["depth"] * 7, *["kernel"] * 7, *["expand"] * 7]
    assert int(np.prod(columns.sizes.astype(float))) == preset("attentive").count
    largest = columns.sizes[None] - 1
    assert columns.values(largest)[0].tolist() == [
        *(288, 24, 24, 32, 40, 72, 128, 216, 224, 1984),
        *(2, 5, 6, 6, 8, 8, 2),
        *[5] * 7,
        *(1, 6, 6, 6, 6, 6, 6),
    ]


@pytest.mark.parametrize("name", ["attentive", "hardcore-lowres", "attentive-lowres"])
def test_rows_and_architectures_agree(name):
    space = preset(name)
    columns, rng = GeneColumns(space), np.random.default_rng(0)
    networks = [sample(space, rng) for _ in range(20)]
    rows = columns.of(networks)
    assert (rows < columns.sizes).all() and columns.architectures(rows) == networks


def test_rows_of_drawn_genes_survive_the_way_back():
    space = preset("attentive")
    columns = GeneColumns(space)
    rows = columns.rows(sample_many(space, 500, np.random.default_rng(1)))
    assert (columns.rows(columns.genes_of(rows)) == rows).all()
    assert ((rows.min(0) == 0) & (rows.max(0) == columns.sizes - 1)).all()


def test_a_mutated_gene_is_a_different_one():
    columns, rng = GeneColumns(preset("attentive")), np.random.default_rng(2)
    rows = np.zeros((4000, 31), dtype=np.int64)
    all_changed = columns.mutated(rows, rng, 1.0)
    free = columns.sizes > 1
    assert (all_changed[:, free] != 0).all() and (all_changed[:, ~free] == 0).all()
    assert (all_changed < columns.sizes).all()
    depths = all_changed[:, 10 + 4]  # of six
    assert np.bincount(depths)[1:].min() > 0.9 * 4000 / 5
    some = columns.mutated(rows, rng, 0.2)
    assert abs((some[:, free] != 0).mean() - 0.2) < 0.01


def test_a_child_has_every_gene_from_one_of_its_parents():
    columns, rng = GeneColumns(preset("attentive")), np.random.default_rng(3)
    ones, others = np.zeros((1000, 31), dtype=np.int64), np.ones((1000, 31), dtype=np.int64)
    children = columns.crossed(ones, others, rng)
    assert set(np.unique(children)) == {0, 1} and abs(children.mean() - 0.5) < 0.02
