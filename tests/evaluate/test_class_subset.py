"""A subset of the classes: one of every group of neighbours, whole classes, fresh splits inside each."""

import numpy as np
import pytest
import torch

from snugnet.data import load
from snugnet.errors import BadInput
from snugnet.evaluate.class_subset import class_accuracies, pick_classes, read_class_accuracies, with_classes
from snugnet.fitting.recipe import DataSection


def test_one_class_from_each_group_of_neighbours():
    accuracies = np.random.default_rng(0).random(1000)
    groups = np.array_split(np.argsort(accuracies), 100)
    seen = set()
    for seed in range(3):
        chosen = pick_classes(accuracies, 100, seed)
        assert len(chosen) == 100 and chosen == sorted(chosen)
        assert all(len(set(group) & set(chosen)) == 1 for group in map(list, groups))
        seen.add(tuple(chosen))
    assert len(seen) == 3 and pick_classes(accuracies, 100, 1) == pick_classes(accuracies, 100, 1)
    with pytest.raises(BadInput, match="1 to the 1000 classes"):
        pick_classes(accuracies, 1001)


def test_only_images_of_the_chosen_classes_are_left_cut_80_20_in_each():
    data = load("digits")
    part = with_classes(data, [7, 2], seed=1)
    assert part.classes == 2 and part.about.task_classes == 10 and part.about.class_names == ("2", "7")
    for here, number in enumerate((2, 7)):
        counts = {split: int((part.labels[part.positions(split)] == here).sum()) for split in ("train", "val", "test")}
        whole = int((data.labels[data.positions("train+val")] == number).sum())
        assert counts["train"] + counts["val"] == whole and counts["val"] == round(0.2 * whole)
        assert counts["test"] == int((data.labels[data.positions("test")] == number).sum())
    labels = torch.cat([part.labels[part.positions(split)] for split in ("train", "val", "test")])
    assert set(labels.tolist()) == {0, 1}
    some = part.positions("train")[:40]
    assert torch.equal(torch.tensor([2, 7])[part.labels[some]], data.labels[some])  # the same images, renumbered
    assert not set(part.positions("train").tolist()) & set(part.positions("val").tolist())
    assert part.identity() != data.identity() and with_classes(data, [2, 7], seed=1).identity() == part.identity()
    with pytest.raises(BadInput, match="from 0 to 9"):
        with_classes(data, [10])


def test_accuracies_by_class_and_the_recipe_that_takes_them(tmp_path):
    data = load("digits")
    labels = {tuple(image.flatten().tolist()): int(label) for image, label in zip(*_all(data))}

    def knows_half(images):
        """Right for odd digits, always wrong for even ones."""
        answers = []
        for image in images:
            label = labels[tuple(image.flatten().tolist())]
            answers.append(label if label % 2 else (label + 1) % 10)
        return torch.nn.functional.one_hot(torch.tensor(answers), 10).float()

    found = class_accuracies(knows_half, data)
    assert found.accuracy == [0.0, 1.0] * 5
    path = found.save(tmp_path / "classes.json")
    section = DataSection(name="digits", subset={"accuracies": str(path), "groups": 2, "seed": 3})
    part = section.load()
    chosen = [int(name) for name in part.about.class_names]
    assert len(chosen) == 2 and chosen[0] % 2 != chosen[1] % 2  # one of the hard half, one of the easy half
    assert section.load(whole=True).size("train") == data.size("train")
    with pytest.raises(BadInput, match="must be about the"):
        read_class_accuracies(path, with_names(data))
    with pytest.raises(ValueError, match="either `classes` or `accuracies`"):
        DataSection(name="digits", subset={})


def with_names(data):
    from dataclasses import replace

    return replace(data, about=replace(data.about, class_names=("a", "b")))


def _all(data):
    images, labels = zip(*data.batches("train+val", 256))
    return torch.cat(images), torch.cat(labels)


def test_the_verb_writes_the_file(tmp_path, snug):
    from snugnet.deploy.card import Card
    from snugnet.deploy.network_file import save_network
    from snugnet.nets import build
    from snugnet.space import preset, smallest

    space = preset("tfnas-thin-lowres", classes=10, resolution=8)
    torch.manual_seed(0)
    save_network(build(smallest(space), space).eval(), tmp_path / "net.safetensors", Card())
    code, out, err = snug(
        "classes",
        str(tmp_path / "net.safetensors"),
        "digits",
        "--out",
        str(tmp_path / "c.json"),
        "--groups",
        "3",
        "--json",
    )
    assert code == 0, err
    assert len(read_class_accuracies(tmp_path / "c.json", load("digits")).accuracy) == 10
    assert '"classes"' in out
