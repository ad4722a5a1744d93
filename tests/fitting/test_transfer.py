"""A finished network on other images: a new last layer, settings found on held-out images, resumed trial by trial."""

import json

import pytest
import torch

from snugnet.data import load
from snugnet.deploy.card import Card
from snugnet.deploy.network_file import read_network, save_network
from snugnet.errors import BadInput, UnknownName
from snugnet.fitting.transfer import Transfer, transfer
from snugnet.nets import build
from snugnet.nets.network import with_new_classifier
from snugnet.space import Head, SearchSpace, Stage, Stem, largest
from standin import toy_data

SPACE = SearchSpace(
    name="small",
    classes=10,
    resolutions=(8,),
    stem=Stem(widths=(8,), stride=1),
    stages=(Stage.of(8, depth=(1, 2), stride=2, kernels=(3,), expands=(2,)),),
    head=Head(kind="conv-pool", widths=(16,)),
)
QUICK = Transfer(epochs=8, batch=16, dropout=0.1, lrs=(0.02, 0.2), weight_decays=(0.0, 1e-4), trial_epochs=1)


@pytest.fixture
def source(tmp_path):
    torch.manual_seed(0)
    network = build(largest(SPACE), SPACE).eval()
    card = Card(class_names=tuple("0123456789"), mean=(0.4,) * 3, std=(0.3,) * 3, budget={"params": "1M"})
    save_network(network, tmp_path / "network.safetensors", card)
    return tmp_path


def run(source, how=QUICK):
    return transfer(source, toy_data(), how, out=source / "moved", device="cpu", threads=1)


def test_the_papers_settings_are_the_defaults():
    how = Transfer()
    method = how.method(0.01, 1e-4, how.epochs, "train+val")
    assert (how.epochs, how.batch, how.dropout, how.label_smoothing) == (150, 64, 0.5, 0.1)
    assert (method.momentum, method.label_smoothing, method.distill, method.split) == (0.9, 0.1, 0.0, "train+val")
    assert len(how.lrs) * len(how.weight_decays) > 1


def test_all_but_the_last_layer_is_kept(source):
    before = read_network(source).network
    after = with_new_classifier(before, 4, seed=1, dropout=0.5)
    assert after.plan.head.classes == 4 and after.head.dropout.p == 0.5
    for name, tensor in before.state_dict().items():
        if not name.startswith("head.classifier"):
            assert torch.equal(tensor, after.state_dict()[name])
    assert torch.equal(
        after.head.classifier.weight, with_new_classifier(before, 4, seed=1, dropout=0.5).head.classifier.weight
    )


def test_the_best_pair_on_held_out_images_trains_the_network_that_is_kept(source):
    done = run(source)
    assert len(done.trials) == 4 and {row["lr"] for row in done.trials} == {0.02, 0.2}
    best = max(done.trials, key=lambda row: row["accuracy"])
    assert (done.lr, done.weight_decay) == (best["lr"], best["weight_decay"])
    file = read_network(source / "moved")
    assert file.plan.head.classes == 4 and file.card.class_names == tuple("abcd") and file.card.mean == (0.4,) * 3
    assert done.test > 0.5 and json.loads((source / "moved" / "transfer.json").read_text())["test"] == done.test


def test_started_again_it_comes_to_the_same(source):
    first = run(source)
    weights = (source / "moved" / "network.safetensors").read_bytes()
    kept = sorted((source / "moved" / "trials").iterdir())
    (kept[0] / "weights.safetensors").unlink(missing_ok=True)  # as a kill before the end leaves it
    again = run(source)
    assert again == first and (source / "moved" / "network.safetensors").read_bytes() == weights
    assert sorted((source / "moved" / "trials").iterdir()) == kept


def test_one_pair_is_taken_as_it_is(source):
    done = run(source, Transfer.of({"epochs": 1, "lrs": 0.1, "weight_decays": 0, "crop_padding": 1}))
    assert done.trials == [] and (done.lr, done.weight_decay) == (0.1, 0)


def test_mistakes_are_named(source):
    with pytest.raises(UnknownName, match="Did you mean 'crop_padding'"):
        Transfer.of({"crop_paddin": 1})
    with pytest.raises(BadInput, match="size, 8"):
        transfer(source, load("digits", resolution=16), QUICK, out=source / "x")
    with pytest.raises(BadInput, match="dropout"):
        run(source, Transfer(dropout=1.0))
