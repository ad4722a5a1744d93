from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snugnet.errors import BadArchitecture, BadInput, BadSpace, DamagedFile, SnugnetError, UnknownName
from snugnet.space import (
    Architecture,
    BlockChoice,
    BlockRules,
    Head,
    SearchSpace,
    Stage,
    Stem,
    check,
    from_json,
    largest,
    mutate,
    parse,
    plan,
    preset,
    sample,
    smallest,
)
from snugnet.space.architecture import read_text_form
from snugnet.space.layout import Layout
from snugnet.space.presets import PRESETS, names
from snugnet.space.sampling import crossover_many, mutate_many, sample_balanced, sample_many
from snugnet.space.spec import check_plan, part_from_json, part_to_json, plan_from_json, plan_to_json


def small_space(**changes) -> SearchSpace:
    words = {
        "name": "small",
        "classes": 3,
        "resolutions": (16,),
        "stem": Stem(widths=(8,), stride=1),
        "stages": (
            Stage.of(8, depth=1, expands=(1,)),
            Stage.of(16, depth=(1, 2), stride=2, kernels=(3, 5), expands=(2, 3), se=(0, 0.25)),
        ),
        "head": Head(kind="conv-pool", widths=(32,)),
    }
    return SearchSpace(**{**words, **changes})


def all_architectures(space: SearchSpace) -> set[Architecture]:
    """Every member of a tiny space, the slow way: sample until nothing new comes."""
    rng, found = np.random.default_rng(0), set()
    for _ in range(200):
        found |= set(Layout(space).decode(sample_many(space, 200, rng, "networks")))
    return found


def test_counts_of_the_papers():
    assert preset("hardcore").count == (12**2 + 12**3 + 12**4) ** 5
    assert preset("hardcore-paper").count == 12 * (12**2 + 12**3 + 12**4) ** 5
    assert preset("attentive").count == 440301256704


@pytest.mark.parametrize(
    "space",
    [
        small_space(),
        small_space(resolutions=(16, 24), stem=Stem(widths=(8, 12)), head=Head(kind="conv-pool", widths=(8, 16))),
        small_space(stages=(Stage.of((8, 16), depth=(1, 3), kernels=(3, 5), per="stage"),)),
        small_space(
            stages=(
                Stage(
                    widths=(4, 6),
                    depths=(1, 2),
                    choices=(BlockChoice(kernel=3, expand=2, expand_range=(1.5, 2)), BlockChoice(kernel=5, expand=1)),
                ),
            ),
            stem=Stem(widths=(2, 4)),
        ),
    ],
)
def test_count_is_exact(space):
    found = all_architectures(space)
    assert len(found) == space.count
    for architecture in found:
        check(architecture, space)


def test_sampling_over_networks_is_uniform():
    space = small_space()
    rng = np.random.default_rng(1)
    drawn = Layout(space).decode(sample_many(space, 20_000, rng, "networks"))
    _, counts = np.unique([str(a) for a in drawn], return_counts=True)
    expected = 20_000 / space.count
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert len(counts) == space.count
    assert chi2 < space.count + 5 * np.sqrt(2 * space.count)
    shallow = np.mean([a.depths[1] == 1 for a in Layout(space).decode(sample_many(space, 4000, rng))])
    assert 0.45 < shallow < 0.55  # over choices: every depth as likely, though few networks are shallow


@pytest.mark.parametrize("name", names())
def test_round_trips_by_the_thousand(name):
    space = preset(name)
    genes = sample_many(space, 10_000 if name in PRESETS else 1_000, np.random.default_rng(2))
    architectures = Layout(space).decode(genes)
    for architecture in architectures:
        assert parse(str(architecture), space) == architecture
        assert from_json(architecture.to_json(), space) == architecture
    assert Layout(space).decode(Layout(space).encode(architectures[:300])) == architectures[:300]


@pytest.mark.parametrize("name", names())
def test_mutation_and_crossover_stay_in_the_space(name):
    space = preset(name)
    rng = np.random.default_rng(3)
    one = sample(space, rng)
    assert mutate(space, one, rng, 0.0) == one
    genes = sample_many(space, 300, rng)
    for child in (
        *Layout(space).decode(mutate_many(space, genes, rng, 0.3)),
        *Layout(space).decode(crossover_many(space, genes, genes.take(slice(None, None, -1)), rng)),
        mutate(space, one, rng, 1.0),
    ):
        check(child, space)


def test_sampling_is_seeded_and_bounded():
    space = preset("hardcore")
    assert sample(space, np.random.default_rng(4)) == sample(space, np.random.default_rng(4))
    with pytest.raises(BadInput, match="probability"):
        mutate(space, smallest(space), np.random.default_rng(0), 1.5)


@pytest.mark.parametrize("name", names())
def test_extremes_belong_and_plans_fit_together(name):
    space = preset(name)
    for architecture in (largest(space), smallest(space), sample(space, np.random.default_rng(5))):
        made = plan(architecture, space)
        check_plan(made)
        assert plan_from_json(plan_to_json(made)) == made
        missing = set(made.parts) - set(Layout(space).distinct_specs(widths_per_range=10**6 if "tf" in name else 3))
        assert not missing


def test_slots_hold_the_parts_of_every_network():
    space = preset("hardcore")
    specs = Layout(space).by_stage(Layout(space).slot_specs)
    architecture = sample(space, np.random.default_rng(6))
    made = plan(architecture, space)
    for stage, blocks in zip(made.stages, specs):
        for part, offered in zip(stage, blocks):
            assert part in offered
    assert len(Layout(space).distinct_specs()) == 1 + 1 + 5 * 2 * 12 + 1
    with pytest.raises(BadSpace, match="several input resolutions"):
        Layout(preset("attentive")).require_additive()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (
            "r224 c32 | c16 k3e1 | c24 k5e3 | c40 2*k5e3 | c80 2*k3e3 | c112 2*k3e3 | c192 2*k3e3 | f1280",
            "depth of stage 2",
        ),
        (
            "r225 c32 | c16 k3e1 | c24 2*k5e3 | c40 2*k5e3 | c80 2*k3e3 | c112 2*k3e3 | c192 2*k3e3 | f1280",
            "resolution",
        ),
        (
            "r224 c32 | c16 k3e1 | c24 2*k7e3 | c40 2*k5e3 | c80 2*k3e3 | c112 2*k3e3 | c192 2*k3e3 | f1280",
            "stage 2, block 1",
        ),
        (
            "r224 c32 | c16 k3e1 | c24 2*k5e3 | c41 2*k5e3 | c80 2*k3e3 | c112 2*k3e3 | c192 2*k3e3 | f1280",
            "width of stage 3",
        ),
        (
            "r224 c32 | c16 k3e1 | c24 2*k5e3:9 | c40 2*k5e3 | c80 2*k3e3 | c112 2*k3e3 | c192 2*k3e3 | f1280",
            "stage 2, block 1",
        ),
        ("r224 c32 | c16 k3e1 | c24 2*k5e3 | f1280", "number of stages"),
        ("r224 c32 | c16 k3e1", "separated by"),
        ("r224 c32 | c16 k3e1 | c24 k3e3 f1280", "ends with"),
        ("r224 c32 | c16 | f1280", "stage 1"),
        ("r224 c32 | c16 999999999*k3e1 | f1280", "repeat"),
        ("hello", "separated by"),
        ("", "separated by"),
    ],
)
def test_what_is_not_in_the_space_is_refused_with_its_place(text, place):
    with pytest.raises(BadArchitecture, match=place):
        parse(text, preset("hardcore"))


@pytest.mark.parametrize(
    "change", [{"stem": "x"}, {"stages": 3}, {"stages": [{}]}, {"more": 1}, {"head": None}, {"head": True}]
)
def test_malformed_json_is_refused(change):
    space = preset("hardcore")
    value = {**smallest(space).to_json(), **change}
    with pytest.raises(BadArchitecture):
        from_json(value, space)


@pytest.mark.parametrize("field", ["kernel", "expand", "se"])
def test_a_block_in_json_says_everything(field):
    space = preset("hardcore")
    value = smallest(space).to_json()
    del value["stages"][1]["blocks"][0][field]
    with pytest.raises(BadArchitecture, match=f"stage 2, block 1, {field} is missing"):
        from_json(value, space)


@given(st.text(alphabet="rckefs0123456789|*:. ", max_size=60))
def test_any_text_is_read_or_refused_never_a_crash(text):
    try:
        architecture = read_text_form(text)
    except BadArchitecture:
        return
    assert read_text_form(str(architecture)) == architecture


numbers = st.one_of(st.integers(-2, 9), st.sampled_from([0.5, -1.0]))


@given(
    st.lists(st.integers(-4, 40), max_size=3),
    st.lists(st.integers(-1, 4), max_size=3),
    st.integers(-1, 4),
    st.lists(st.tuples(numbers, numbers, numbers), max_size=3),
)
def test_a_stage_is_sound_or_refused(widths, depths, stride, choices):
    try:
        stage = Stage(
            widths=tuple(widths),
            depths=tuple(depths),
            stride=stride,
            choices=tuple(BlockChoice(kernel=k, expand=e, se=s) for k, e, s in choices),
        )
        space = small_space(stages=(stage,))
    except SnugnetError:
        return
    assert min(widths) > 0
    assert list(widths) == sorted(set(widths))
    assert min(depths) > 0
    assert stride in (1, 2)
    rng = np.random.default_rng(0)
    for architecture in Layout(space).decode(sample_many(space, 5, rng)):
        check(architecture, space)
        plan(architecture, space)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Stage.of(8, depth=(4, 2)),
        lambda: Stage.of(-8, depth=1),
        lambda: Stage.of(8, depth=0),
        lambda: Stage.of(8, depth=1, kernels=(4,)),
        lambda: Stage.of(8, depth=1, kernels=(3, 3)),
        lambda: Stage.of(8, depth=1, kernels=()),
        lambda: Stage.of(8, depth=1, act="gelu"),
        lambda: Stage(widths=(8,), depths=(1,), choices=(BlockChoice(kernel=3, expand=3, expand_range=(4, 5)),)),
        lambda: Head(kind="pool-conv", widths=(8,)),
        lambda: Head(kind="conv-pool", widths=(8,), hidden=9),
        lambda: small_space(classes=1),
        lambda: small_space(stages=()),
        lambda: small_space(resolutions=(32, 16)),
        lambda: small_space(name=""),
        lambda: BlockRules(shortcut="sometimes"),
    ],
)
def test_contradictions_are_refused(make):
    with pytest.raises(BadSpace):
        make()


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e300])
@pytest.mark.parametrize(
    "make",
    [
        lambda value: Stage.of(value, depth=1),
        lambda value: Stage.of(8, depth=1, expands=(value,)),
        lambda value: Stage.of(8, depth=1, se=(value,)),
        lambda value: BlockChoice(kernel=3, expand=3, expand_range=(2, value)),
        lambda value: Head(kind="pool-conv", widths=(8,), hidden_expand=value),
        lambda value: Head(kind="pool-conv", widths=(8,), hidden=value),
        lambda value: Stem(widths=(value,)),
    ],
)
def test_widths_without_bounds_are_refused(make, value):
    with pytest.raises(BadSpace):
        make(value)


@pytest.mark.parametrize("expand_range", [(1.0, 3.0), (1.02, 3.0), (0.5, 2.0)])
def test_a_range_that_reaches_no_expansion_is_refused(expand_range):
    choice = BlockChoice(kernel=3, expand=2, expand_range=expand_range)
    with pytest.raises(BadSpace, match="stage 1, k3e2: an expand_range must not reach 1"):
        small_space(stages=(Stage(widths=(8,), depths=(1,), choices=(choice,)),))


def test_a_range_that_reaches_no_channels_is_refused():
    choice = BlockChoice(kernel=3, expand=0.5, expand_range=(0.01, 0.6))
    with pytest.raises(BadSpace, match="middle widths behind 8 channels must be 1 to"):
        small_space(stages=(Stage(widths=(8,), depths=(1, 2), choices=(choice,)),))


def test_presets_take_classes_resolution_width():
    space = preset("hardcore", classes=10, resolution=160, width=0.5)
    assert (space.classes, space.resolutions, space.stages[1].widths) == (10, (160,), (16,))
    assert preset("HardCoRe").name == "hardcore"
    low = preset("hardcore-lowres", resolution=32)
    assert low.stem.stride == 1
    assert Layout(low).resolutions(32)[-1] == 4
    assert preset("hardcore-lowres", resolution=64).stem.stride == 2
    for options in ({"resolution": 28}, {"resolution": -5}, {"width": 0}, {"width": -1}):
        with pytest.raises(BadInput):
            preset("hardcore", **options)
    with pytest.raises(UnknownName, match="Did you mean 'hardcore'"):
        preset("hardcor")


def test_an_architecture_is_a_value():
    space = preset("hardcore")
    one, same = smallest(space), smallest(space)
    assert one == same
    assert hash(one) == hash(same)
    assert len({one, same, largest(space)}) == 2
    assert replace(one, resolution=192) != one


@pytest.mark.parametrize("name", ["hardcore", "tfnas", "attentive"])
def test_balanced_sampling_is_uniform_and_even(name):
    space = preset(name)
    rng = np.random.default_rng(7)
    batches = [sample_balanced(space, 30, rng) for _ in range(400)]
    for architecture in Layout(space).decode(batches[0]):
        check(architecture, space)
    for s, stage in enumerate(space.stages):
        counts = np.array([np.bincount(b.depth[:, s], minlength=len(stage.depths)) for b in batches])
        assert np.ptp(counts, axis=1).max() <= 1  # even in every batch
        running = [np.array(stage.depths)[b.depth[:, s]] > 0 for b in batches]
        for batch, rows in zip(batches, running):
            taken = np.bincount(batch.choice[rows, s, 0], minlength=len(stage.choices))
            assert np.ptp(taken) <= 1
        share = np.array([b.choice[:, s, 0] for b in batches])
        frequencies = np.bincount(share[:, 0], minlength=len(stage.choices)) / len(batches)
        assert np.abs(frequencies - 1 / len(stage.choices)).max() < 5 * np.sqrt(0.25 / len(batches))  # of one image


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": "3"}, "architecture, stage 2, block 1, kernel: .* got 3"),
        ({"se": 1}, "architecture, stage 2, block 1, se: .* got 1"),
        ({"colour": "red"}, "architecture, stage 2, block 1, colour is not a field"),
    ],
)
def test_malformed_json_is_named_by_its_place(change, message):
    space = preset("hardcore")
    value = smallest(space).to_json()
    value["stages"][1]["blocks"][0] |= change
    with pytest.raises(BadArchitecture, match=message):
        from_json(value, space)
    del value["stages"][1]["blocks"][0]["kernel"]
    with pytest.raises(BadArchitecture, match="architecture, stage 2, block 1, kernel is missing"):
        from_json({**value, "stages": value["stages"]}, space)


def test_parts_in_json():
    space = preset("hardcore")
    network = plan(smallest(space), space)
    block = part_to_json(network.blocks[1])
    assert part_from_json(block) == network.blocks[1]
    earlier = {"middle" if name == "mid_channels" else name: item for name, item in block.items()}
    assert part_from_json(earlier) == network.blocks[1]
    for change, message in (
        ({"kernel": "3"}, "field 'kernel' of a block: .* got 3"),
        ({"act": "gelu"}, "field 'act' of a block: .*relu"),
        ({"colour": 1}, "a block must not have the field 'colour'"),
        ({"stride": True}, "field 'stride' of a block"),
    ):
        with pytest.raises(DamagedFile, match=message):
            part_from_json({**block, **change})
    del block["kernel"]
    with pytest.raises(DamagedFile, match="a block must have the field 'kernel'"):
        part_from_json(block)
    value = plan_to_json(network)
    for change in ({"stages": 3}, {"stem": value["head"]}, {"more": 1}, {"stages": [[value["stem"]]]}):
        with pytest.raises(DamagedFile, match="a plan"):
            plan_from_json({**value, **change})
