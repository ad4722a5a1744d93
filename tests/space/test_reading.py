import json
from pathlib import Path

import pytest
import yaml

from snugnet.errors import BadSpace, DamagedFile, FileTrouble
from snugnet.space import largest, plan, preset
from snugnet.space.presets import names
from snugnet.space.reading import find_space, load_space, space_from_dict, space_from_json, space_to_json

GOOD = """
name: mine
classes: 10
resolutions: [32]
stem: {widths: [16], stride: 1}
stages:
  - {width: 16, depth: 1, expands: [1]}
  - {width: 24, depth: [1, 3], stride: 2, kernels: [3, 5], expands: [3, 6], se: [off, on]}
head: {kind: conv-pool, widths: [256]}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "space.yaml"
    path.write_text(text)
    return path


def test_a_space_in_yaml(tmp_path):
    space = load_space(written(tmp_path, GOOD))
    assert space.count == 8 + 8**2 + 8**3
    plan(largest(space), space)
    assert find_space(str(tmp_path / "space.yaml")) == space


def test_free_widths_in_yaml(tmp_path):
    text = GOOD.replace("expands: [3, 6],", "expands: [3, 6], expand_range: [[2, 4], [4, 8]],")
    space = load_space(written(tmp_path, text))
    assert space.stages[1].choices[0].expand_range == (2, 4)


def as_written(space):
    """The YAML form of a space whose stages are full products of kernels, expansions and SE."""
    stages = [
        {
            "width": list(stage.widths),
            "depth": [stage.depths[0], stage.depths[-1]],
            **{k: sorted({getattr(c, k[:-1]) for c in stage.choices}) for k in ("kernels", "expands")},
            "se": sorted({c.se for c in stage.choices}),
            **{k: getattr(stage, k) for k in ("stride", "act", "per")},
        }
        for stage in space.stages
    ]
    ends = {k: {**vars(getattr(space, k)), "widths": list(getattr(space, k).widths)} for k in ("stem", "head")}
    plain = {"resolutions": list(space.resolutions), "rules": dict(vars(space.rules)), "stages": stages}
    return {"name": space.name, "classes": space.classes, "in_channels": space.in_channels, **ends, **plain}


@pytest.mark.parametrize("name", ["hardcore", "attentive", "hardcore-paper", "hardcore-lowres"])
def test_there_and_back(name):
    space = preset(name)
    assert set(space_from_dict(as_written(space)).stages[1].choices) == set(space.stages[1].choices)
    assert space_from_dict(yaml.safe_load(yaml.safe_dump(as_written(space)))).count == space.count


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("width: 24", "width: -24", r"stages\[1\].*positive.*-24"),
        ("depth: [1, 3]", "depth: [3, 1]", r"stages\[1\].*low <= high"),
        ("kernels: [3, 5]", "kernel: [3, 5]", r"unknown key.*stages\.1\.kernel.*Did you mean 'kernels'"),
        ("classes: 10", "classes: ten", "classes.*ten"),
        ("classes: 10", "clases: 10", "missing|unknown key"),
        ("name: mine", "name: mine\nnmae: x", "unknown key"),
        ("kind: conv-pool", "kind: pool", "head.kind"),
        ("resolutions: [32]", "resolutions: []", "resolutions"),
        ("stride: 2", "stride: 3", "stride"),
        ("depth: [1, 3]", "depth: [1, 2, 3]", "depth"),
        ("expands: [3, 6]", "expands: [3, 6], expand_range: [[2, 4]]", "expand_range"),
        ("expands: [3, 6]", "expands: [3, 6], span: [[2, 4], [4, 8]]", r"stages\.1\.span. Write expand_range instead"),
        ("head:", "rules: {middle_divisor: 8}\nhead:", r"rules\.middle_divisor. Write mid_divisor instead"),
        ("width: 24", "width: &it [*it]", "plain values"),
        ("name: mine", "name: mine\n2020-01-01: 3", "unknown key.*2020-01-01"),
        ("classes: 10", "classes: 2020-01-01", "classes.*integer"),
        ("width: 24", "width: .inf", r"stages\.1\.width.*inf"),
        ("expands: [3, 6]", "expands: [3, .inf]", r"stages\[1\].*expand must be positive, at most 1000, got inf"),
        ("expands: [3, 6]", "expands: [3, .nan]", r"stages\[1\].*expand must be positive, at most 1000, got nan"),
        ("width: 24", "width: 100000000000000000000", r"stages\[1\].*at most 1000000"),
    ],
)
def test_mistakes_are_named(tmp_path, old, new, message):
    assert old in GOOD
    with pytest.raises(BadSpace, match=message) as caught:
        load_space(written(tmp_path, GOOD.replace(old, new, 1)))
    assert "\n" not in str(caught.value)


def test_files_that_are_no_spaces(tmp_path):
    with pytest.raises(DamagedFile, match="line"):
        load_space(written(tmp_path, "a: [1, 2"))
    with pytest.raises(BadSpace, match="mapping"):
        load_space(written(tmp_path, "- 1"))
    with pytest.raises(FileTrouble, match="nowhere"):
        load_space(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("name", names())
def test_any_space_is_stored_and_read_back_exactly(name):
    for space in (preset(name), preset(name, classes=7, width=0.5)):
        assert space_from_json(json.loads(json.dumps(space_to_json(space))), "it") == space


def test_equal_spaces_are_stored_alike(tmp_path):
    space = load_space(written(tmp_path, GOOD))
    assert json.dumps(space_to_json(space)) == json.dumps(space_to_json(space_from_json(space_to_json(space), "it")))


def test_a_stored_space_that_is_not_whole_is_named():
    value = space_to_json(preset("hardcore"))
    with pytest.raises(DamagedFile, match=r"table.json must hold a whole space \(stages.0.widths"):
        space_from_json({**value, "stages": [{**value["stages"][0], "widths": "wide"}]}, "table.json")
    with pytest.raises(DamagedFile, match="sound space"):
        space_from_json({**value, "classes": 0}, "table.json")


def test_a_stored_space_of_an_earlier_version_is_read_with_its_names():
    space = preset("tfnas")
    text = (
        json.dumps(space_to_json(space))
        .replace('"expand_range"', '"span"')
        .replace('"mid_divisor"', '"middle_divisor"')
    )
    assert '"span"' in text
    assert space_from_json(json.loads(text), "table.json") == space
    with pytest.raises(DamagedFile, match=r"whole space \(stages.0.colour"):
        value = space_to_json(space)
        value["stages"][0]["colour"] = "red"
        space_from_json(value, "table.json")
