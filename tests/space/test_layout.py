"""Every form of an architecture comes back from every other, in the order the layout says."""

from dataclasses import replace

import numpy as np
import pytest

from snugnet.budgets.feasible_set import Selection
from snugnet.errors import BadArchitecture, BadSpace
from snugnet.space import parse, plan, preset, sample_many
from snugnet.space.layout import Layout, Slot

SMALL = preset("hardcore-thin-lowres", classes=10)
SEVERAL = replace(SMALL, resolutions=(24, 28, 32))
ATTENTIVE = preset("attentive-lowres")


def test_slots_stand_in_the_order_of_the_blocks():
    layout = Layout(SMALL)
    assert layout.slots[:4] == (Slot(0, 0), Slot(1, 0), Slot(1, 1), Slot(1, 2))
    assert [len(rows) for rows in layout.by_stage(layout.slots)] == [stage.max_depth for stage in SMALL.stages]
    with pytest.raises(ValueError, match="shorter"):
        layout.by_stage(layout.slots[1:])


def test_a_choice_stands_for_its_architecture():
    layout, rng = Layout(SMALL), np.random.default_rng(0)
    for architecture in layout.decode(sample_many(SMALL, 50, rng)):
        options, depths = layout.choice(architecture)
        assert len(options) == len(layout.slots)
        assert depths == architecture.depths
        assert layout.architecture(options, depths) == architecture
        specs = layout.slot_specs
        blocks = [
            specs[n][o] for n, o in enumerate(options) if layout.slots[n].position < depths[layout.slots[n].stage]
        ]
        assert tuple(blocks) == plan(architecture, SMALL).blocks
    with pytest.raises(BadSpace, match="several input resolutions"):
        Layout(SEVERAL).architecture(options, depths)


def test_free_middle_widths_must_stand_at_their_start_in_a_choice():
    space = preset("tfnas")
    layout = Layout(space)
    options = [0] * len(layout.slots)
    start = layout.architecture(options, [stage.depths[0] for stage in space.stages])
    assert layout.choice(start) == (tuple(options), start.depths)
    other = str(start).replace("c24 k3e3:48", "c24 k3e3:49")
    assert other != str(start)
    with pytest.raises(BadArchitecture, match="stage 2, block 1 must have its starting middle width 48 here, got 49"):
        layout.choice(parse(other, space))


@pytest.mark.parametrize("space", [SMALL, SEVERAL, ATTENTIVE], ids=lambda s: f"{s.name}-{len(s.resolutions)}")
def test_columns_say_what_runs_and_split_takes_them_apart(space):
    layout, rng = Layout(space), np.random.default_rng(1)
    genes = sample_many(space, 40, rng)
    x = layout.features(genes)
    assert x.shape == (40, layout.columns)
    weights = rng.normal(size=layout.columns)
    parts = layout.split(weights)
    options = layout.by_stage(parts.options)
    assert np.array_equal(np.concatenate([*parts.options, *parts.depths, parts.resolutions, parts.widths]), weights)
    for architecture, value in zip(layout.decode(genes), x @ weights):
        total = sum(
            options[s][d][number] for s, row in enumerate(layout.numbers(architecture)) for d, number in enumerate(row)
        )
        total += sum(
            row[stage.depths.index(depth)] for row, stage, depth in zip(parts.depths, space.stages, architecture.depths)
        )
        if len(space.resolutions) > 1:
            total += parts.resolutions[space.resolutions.index(architecture.resolution)]
        start = 0
        widths = [(space.stem.widths, architecture.stem)]
        widths += [(stage.widths, made.width) for stage, made in zip(space.stages, architecture.stages)]
        for known, chosen in [*widths, (space.head.widths, architecture.head)]:
            if len(known) > 1:
                total += parts.widths[start + known.index(chosen)]
                start += len(known)
        assert value == pytest.approx(total, abs=1e-9)
    assert len(parts.resolutions) == (0 if len(space.resolutions) == 1 else len(space.resolutions))


def test_every_resolution_is_an_additive_problem_of_its_own():
    layout = Layout(SEVERAL)
    assert "several input resolutions" in layout.why_not_additive
    single = [layout.at(resolution) for resolution in SEVERAL.resolutions]
    assert not any(one.why_not_additive for one in single)
    together = set().union(*(one.distinct_specs() for one in single))
    assert together == set(layout.distinct_specs())
    assert [one.ends[0].resolution for one in single] == [24, 28, 32]
    slots = {spec for one in single for row in one.slot_specs for spec in row}
    assert slots | {end for one in single for end in one.ends} == together


def test_a_selection_narrows_and_widens():
    layout, rng = Layout(SMALL), np.random.default_rng(2)
    choices = [
        [tuple(range(len(SMALL.stages[s].choices)))] * SMALL.stages[s].max_depth for s in range(len(SMALL.stages))
    ]
    choices[1] = [(2, 5), (0, 3)]  # the third block of stage 2 is ruled out altogether
    depths = [stage.depths for stage in SMALL.stages]
    depths[1] = (1, 2)
    left = Selection(layout=layout, choices=tuple(map(tuple, choices)), depths=tuple(depths))
    values = layout.split(rng.normal(size=layout.columns))
    options, by_stage = left.narrow(values.options, values.depths)
    assert options[1].tolist() == values.options[1][[2, 5]].tolist()
    assert len(options) == len(layout.slots) - 1
    assert by_stage[1].tolist() == values.depths[1][:2].tolist()
    alpha, beta = left.widen([np.full(len(row), 1 / len(row)) for row in options], [row * 0 + 1 for row in by_stage])
    assert np.flatnonzero(alpha[1]).tolist() == [2, 5]
    assert np.allclose(alpha[3], 1 / len(alpha[3]))  # it never runs
    assert beta[1].tolist() == [1, 1, 0]
    architecture = left.architecture([0, 1, 1, *[0] * (len(options) - 3)], [1, 2, 1, 1, 1])
    assert layout.numbers(architecture)[1] == [5, 3]
    assert left.choice(architecture) == ((0, 1, 1, *[0] * (len(options) - 3)), (1, 2, 1, 1, 1))
    with pytest.raises(BadArchitecture, match="stage 2, block 1 must be left by the limit on memory"):
        left.choice(layout.architecture([0] * len(layout.slots), [1] * 5))
    with pytest.raises(BadArchitecture, match="the depth of stage 2 must be left"):
        left.choice(layout.architecture([0, 2, 0, 0, *[0] * (len(layout.slots) - 4)], [1, 3, 1, 1, 1]))
