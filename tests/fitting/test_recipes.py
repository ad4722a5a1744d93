"""Recipes: the shipped ones are whole, mistakes are named, changes arrive."""

import pytest
import yaml

from snugnet.errors import BadInput, DamagedFile, UnknownName
from snugnet.fitting import find, names, read
from snugnet.fitting.finetuning import finetune_method
from snugnet.fitting.runs import fresh_supernet, init_run, open_run
from snugnet.training import methods


@pytest.mark.parametrize("name", names())
def test_shipped_recipes_are_whole(name):
    recipe = find(name)
    last = recipe.train.methods()[-1].name
    assert recipe.name == name
    assert last == next((m for m in ("tfnas", "attentive", "alpha") if name.startswith(m)), "multipath")
    again = read(yaml.safe_dump(recipe.resolved()))
    assert again == recipe


def test_phases_are_the_methods_with_their_defaults():
    text = "{name: x, data: {name: digits}, space: {name: hardcore-lowres}, train: {phases: [{method: singlepath}]}}"
    assert read(text).train.methods() == [methods.singlepath()]


def test_changes_reach_their_place():
    recipe = find("digits", ["train.phases[1].epochs=3", "train.phases.0.weight_decay=1e-5", "space.width=0.5"])
    first, second = recipe.train.methods()
    assert (second.epochs, first.weight_decay, recipe.space.width) == (3, 1e-5, 0.5)
    assert find("digits", ["train.phases[0].auto_augment=svhn"]).train.methods()[0].auto_augment == "svhn"


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ("train.bach=3", UnknownName, "Did you mean 'batch'"),
        ("train.phases[0].epoch=3", UnknownName, "Did you mean 'epochs'"),
        ("train.phases[0].shift=2", BadInput, "has a new name, got shift. Write crop_padding"),
        ("train.phases[0].open_gates=true", BadInput, "Write se_bias_init"),
        ("train.phases[0].method=heaviest", BadInput, "Write largest"),
        ("train.judge_times=3", BadInput, "Write eval_times"),
        ("dat.name=digits", UnknownName, "Did you mean 'data'"),
        ("train.phases[0].method=multipat", UnknownName, "Did you mean 'multipath'"),
        ("train.phases[4].epochs=3", BadInput, "2 entries, counted from 0, got 4"),
        ("train.batch=many", BadInput, "train.batch: input should be a valid integer"),
        ("measure.check=2", BadInput, "measure.check: .*at least 3 networks"),
        ("train.phases=[]", BadInput, "train.phases: list should have at least 1 item"),
        ("data.name.x=1", BadInput, "inside a section"),
        ("data={}", BadInput, "data.name is required"),
        ("train.phases[0].lr=-1", BadInput, "lr must be positive"),
        ("train", BadInput, "key=value"),
        ("train.batch=[", DamagedFile, "must be YAML"),
    ],
)
def test_mistakes_are_named(change, error, text):
    with pytest.raises(error, match=text.replace("[", r"\[")):
        find("digits", [change])


def test_the_split_of_fine_tuning_stands_in_its_section_or_in_its_options():
    for place in ("finetune.split", "finetune.options.split"):
        assert finetune_method(find("digits", [f"{place}=train+val"]).finetune).split == "train+val"
    with pytest.raises(BadInput, match="leave one out"):
        find("digits", ["finetune.split=train+val", "finetune.options.split=train"])
    with pytest.raises(BadInput, match=r"split must be one of .*got test"):  # of which the reported accuracy is
        finetune_method(find("digits", ["finetune.split=test"]).finetune).check()


def test_files_that_are_no_recipes(tmp_path):
    with pytest.raises(UnknownName, match="Did you mean 'digits'"):
        find("digit")
    for text, error in (("a: [", DamagedFile), ("3", BadInput), ("{}", BadInput)):
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        with pytest.raises(error, match=r"recipe\.yaml"):
            find(str(path))


def test_a_folder_belongs_to_one_recipe(tmp_path):
    assert init_run(tmp_path, find("digits")) is False
    assert init_run(tmp_path, find("digits")) is True
    with pytest.raises(BadInput, match=r"train\.batch: 64 -> 32"):
        init_run(tmp_path, find("digits", ["train.batch=32"]))
    with pytest.raises(BadInput, match="trained super-network"):
        open_run(tmp_path)


def test_weights_follow_the_seed_alone():
    recipe = find("digits")
    space = recipe.space.build(recipe.data.load())
    assert (space.classes, space.resolutions) == (10, (16,))
    one, same, other = (fresh_supernet(space, seed).stem.conv.weight for seed in (0, 0, 1))
    assert (one == same).all() and (one != other).any()
