"""Stages whose positions offer different choices: every form of an architecture follows the position."""

import numpy as np
import pytest

from snugnet.costs import analytic
from snugnet.costs.vectorised import costs_of_many
from snugnet.errors import BadArchitecture, BadSpace
from snugnet.space.architecture import parse
from snugnet.space.layout import Layout
from snugnet.space.reading import space_from_json, space_to_json
from snugnet.space.sampling import largest, sample_balanced, sample_many, smallest
from snugnet.space.space import BlockChoice, Head, SearchSpace, Stage, Stem
from snugnet.space.spec import plan

FIRST = (BlockChoice(kernel=3, expand=2), BlockChoice(kernel=5, expand=2))
SECOND = (BlockChoice(kernel=3, expand=4, se=0.5), BlockChoice(kernel=3, expand=2), BlockChoice(kernel=3, expand=1.5))
THIRD = (BlockChoice(kernel=7, expand=3),)
SPACE = SearchSpace(
    name="positions",
    classes=4,
    resolutions=(16,),
    stem=Stem(widths=(8,)),
    stages=(
        Stage(widths=(16,), depths=(1, 2, 3), per_position=(FIRST, SECOND, THIRD), stride=2),
        Stage(widths=(24,), depths=(1,), choices=FIRST),
    ),
    head=Head(kind="conv-pool", widths=(32,)),
)


def test_counting_sampling_and_the_codec_agree():
    assert SPACE.count == (2 + 2 * 3 + 2 * 3 * 1) * 2
    rng = np.random.default_rng(0)
    for genes in (
        sample_many(SPACE, 300, rng),
        sample_many(SPACE, 300, rng, "networks"),
        sample_balanced(SPACE, 300, rng),
    ):
        networks = Layout(SPACE).decode(genes)
        assert len(set(networks)) == SPACE.count
        assert Layout(SPACE).decode(Layout(SPACE).encode(networks)) == networks
        assert all(parse(str(network), SPACE) == network for network in networks[:20])
        expected = [sum(map(analytic.macs, plan(network, SPACE).parts)) for network in networks[:20]]
        np.testing.assert_allclose(costs_of_many(SPACE, genes, analytic.macs)[:20], expected)
        listed = set(Layout(SPACE).distinct_specs())
        assert all(part in listed for network in networks for part in plan(network, SPACE).parts)


def test_ends_and_slots():
    assert str(largest(SPACE)) == "r16 c8 | c16 k5e2 k3e4s k7e3 | c24 k5e2 | f32"
    assert str(smallest(SPACE)) == "r16 c8 | c16 k3e2 | c24 k3e2 | f32"
    assert [[len(row) for row in stage] for stage in Layout(SPACE).by_stage(Layout(SPACE).slot_specs)] == [
        [2, 3, 1],
        [2],
    ]


def test_a_choice_of_another_position_is_refused():
    with pytest.raises(BadArchitecture, match="stage 1, block 2 must be one of the choices"):
        parse("r16 c8 | c16 k5e2 k5e2 | c24 k5e2 | f32", SPACE)


def test_the_lists_must_fit_the_stage():
    with pytest.raises(BadSpace, match="a list for every position"):
        Stage(widths=(16,), depths=(1, 2), per_position=(FIRST,))
    with pytest.raises(BadSpace, match="choices must not be empty"):
        Stage(widths=(16,), depths=(1, 2))


def test_json_comes_back():
    assert space_from_json(space_to_json(SPACE), "here") == SPACE
