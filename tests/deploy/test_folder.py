"""A network as a folder: timm opens it and computes the same; a folder whose files disagree is refused by name."""

import dataclasses
import importlib
import json
import shutil

import pytest
import torch
from small_network import CARD, small_network

import snugnet as sn
from nets.published import load_package, randomised
from snugnet.cli import execute
from snugnet.deploy.certificate import certify
from snugnet.deploy.folder import config_of, write_folder
from snugnet.deploy.network_file import read_network, save_network
from snugnet.deploy.source import open_source
from snugnet.errors import DamagedFile
from snugnet.nets.network import build_plan
from snugnet.nets.trained import read_trained
from snugnet.space import zoo
from snugnet.space.spec import plan_from_json


def open_with_timm(folder, **options):
    timm = load_package("timm")
    importlib.import_module("snugnet.timm")
    return timm.create_model(f"local-dir:{folder}", **options).eval()


def relative(got, wanted) -> float:
    return float((got - wanted).abs().max() / wanted.abs().max())


@pytest.fixture
def folder(tmp_path):
    save_network(small_network(), tmp_path / "net.safetensors", CARD)
    return write_folder(tmp_path / "net.safetensors", tmp_path / "timm")


IMAGES = torch.randn(3, 3, 9, 9, generator=torch.Generator().manual_seed(0))


def test_timm_opens_the_folder_and_computes_the_same(folder):
    model = open_with_timm(folder)
    with torch.inference_mode():
        wanted = small_network()(IMAGES)
        assert relative(model(IMAGES), wanted) < 1e-4
        assert relative(open_with_timm(folder, pretrained=True)(IMAGES), wanted) < 1e-4
        assert relative(open_with_timm(folder, fresh=True)(IMAGES), wanted) > 1e-2, "fresh weights are others"
    about = model.pretrained_cfg
    assert (tuple(about["mean"]), tuple(about["std"]), tuple(about["input_size"])) == (CARD.mean, CARD.std, (3, 9, 9))
    assert tuple(about["label_names"]) == CARD.class_names


def test_timm_changes_classes_and_channels_as_it_does_for_its_own(folder):
    model, adapted = open_with_timm(folder), open_with_timm(folder, num_classes=7, in_chans=1, drop_path_rate=0.2)
    assert adapted(torch.zeros(2, 1, 9, 9)).shape == (2, 7)
    assert torch.equal(adapted.stages[1][0].project.conv.weight, model.stages[1][0].project.conv.weight)
    assert adapted.stages[1][1].drop_connect == pytest.approx(0.2 * 2 / 3)
    bare = open_with_timm(folder, num_classes=0)
    assert bare(IMAGES).shape == (3, bare.head_hidden_size)
    model.reset_classifier(5)
    assert model(IMAGES).shape == (3, 5)
    assert model.forward_features(IMAGES).shape[1] == model.num_features


def test_timm_writes_what_it_opened_and_elastic_reads_it(folder, tmp_path):
    model = open_with_timm(folder)
    trained = read_trained(model)
    assert (trained.mean, trained.std) == (CARD.mean, CARD.std)
    with torch.inference_mode():
        wanted = small_network()(IMAGES)
        assert relative(trained.network()(IMAGES), wanted) < 1e-6
        again = open_with_timm(write_folder(model, tmp_path / "again"))
        assert relative(again(IMAGES), wanted) < 1e-4


def test_every_published_network_survives_the_words_of_the_configuration():
    for entry in zoo.networks().values():
        with torch.device("meta"):
            network = build_plan(entry.network)
        saved = dataclasses.replace(_UNKNOWN, network=network)
        described = json.loads(json.dumps(config_of(saved)))
        assert plan_from_json(described["model_args"]["blocks"]) == entry.network, entry.name


_UNKNOWN = open_source(small_network())


@pytest.mark.parametrize("name", ["HardCoRe-A", "TF-NAS-CPU-A", "AttentiveNAS-A0"])
def test_published_networks_open_in_timm(name, tmp_path):
    load_package("timm")
    assert execute(["export", name, "--timm", str(tmp_path / name), "--json"]) == 0
    plan = zoo.find(name).network
    images = torch.randn(1, 3, plan.resolution, plan.resolution, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        wanted = open_source(name).network(images)
        assert relative(open_with_timm(tmp_path / name)(images), wanted) < 1e-4


@pytest.mark.parametrize("name", ["mobilenetv2_050", "mobilenetv3_small_050", "hardcorenas_a", "tf_efficientnet_lite0"])
def test_what_elastic_reads_is_written_for_timm(name, tmp_path):
    """timm's network -> our folder -> timm: the logits of the original."""
    original = randomised(load_package("timm").create_model(name, num_classes=5))
    images = torch.randn(1, 3, *original.pretrained_cfg["input_size"][1:], generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        again = open_with_timm(write_folder(original, tmp_path / "timm"))
        assert relative(again(images), original(images)) < 1e-4


def test_the_folder_is_read_here_too(folder):
    with torch.inference_mode():
        assert relative(sn.load(folder)(IMAGES), small_network()(IMAGES)) < 1e-6
    assert read_network(folder).card == CARD


def test_a_folder_that_was_tampered_with_is_refused_by_name(folder, tmp_path):
    def changed(name, change):
        copy = tmp_path / name
        shutil.copytree(folder, copy)
        change(copy)
        with pytest.raises(DamagedFile) as caught:
            sn.load(copy)
        return str(caught.value)

    def edit(copy):
        value = json.loads((copy / "config.json").read_text())
        value["model_args"]["blocks"]["stages"][1][0]["kernel"] = 3
        (copy / "config.json").write_text(json.dumps(value))

    def flip(copy):
        data = bytearray((copy / "model.safetensors").read_bytes())
        data[-3] ^= 1
        (copy / "model.safetensors").write_bytes(bytes(data))

    other = small_network(seed=1)
    assert "must hold the weights" in changed("swap", lambda c: save_network(other, c / "model.safetensors", CARD))
    assert "config.json: model_args.blocks.stages[1][0].kernel" in changed("edit", edit)
    assert "model.safetensors: its weights" in changed("flip", flip)
    stranger = changed("stranger", lambda c: certify(other, {"params": "1M"}, out=c / "certificate.json"))
    assert "certificate.json must be of the network" in stranger
    certify(small_network(), {"params": "1M"}, out=folder / "certificate.json")
    sn.load(folder)
