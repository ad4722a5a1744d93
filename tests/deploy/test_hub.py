"""A network on a hub: everything is in the folder, its numbers are the files' numbers, and it comes back the same."""

import importlib
import json
import re
import shutil

import loopback_hub
import pytest
import torch
import yaml
from small_network import CARD, small_network

import snugnet as sn
from nets.published import load_package
from snugnet.cli import execute
from snugnet.deploy.certificate import certify
from snugnet.deploy.export import export
from snugnet.deploy.hub import write_hub_folder
from snugnet.deploy.network_file import save_network
from snugnet.deploy.prediction import open_predictor
from snugnet.errors import BadInput, DamagedFile, FileTrouble

IMAGES = torch.randn(3, 3, 9, 9, generator=torch.Generator().manual_seed(0))
FILES = {"model.safetensors", "config.json", "network.onnx", "certificate.json", "README.md"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder as far as an export looks at it."""
    folder = tmp_path_factory.mktemp("run")
    save_network(small_network(), folder / "network.safetensors", CARD)
    certify(folder, {"params": "1M", "macs": "100MMACs"}, out=folder / "certificate.json")
    (folder / "accuracy.json").write_text(json.dumps({"val": 0.9, "test": 0.875, "architecture": CARD.architecture}))
    return folder


@pytest.fixture(scope="module")
def folder(run, tmp_path_factory):
    target = tmp_path_factory.mktemp("hub") / "network"
    code = execute(["export", str(run), "--hub", str(target), "--licence", "apache-2.0", "--json"])
    assert code == 0
    return target


def test_the_folder_has_everything_and_loads_the_same(run, folder):
    assert {path.name for path in folder.iterdir()} == FILES
    with torch.inference_mode():
        wanted = small_network()(IMAGES)
        assert torch.allclose(sn.load(folder)(IMAGES), wanted, atol=1e-5)
        assert torch.allclose(open_predictor(folder / "network.onnx").logits(IMAGES), wanted, atol=1e-4)


def test_the_readme_has_the_measured_numbers(run, folder):
    text = (folder / "README.md").read_text()
    front = yaml.safe_load(text.split("---")[1])
    assert front["license"] == "apache-2.0"
    assert "87.50 %" in text
    assert "1Mparams" in text or "| 1M |" in text
    for line in json.loads((run / "certificate.json").read_text())["budgets"].values():
        assert line["fits"]
    assert "ant, bee, cow, düne" in text
    code = re.search(r"```python\n(.*?)```", text, flags=re.S).group(1)
    assert len(code.splitlines()) == 3
    scope = {"images": IMAGES}
    exec(code.replace("path/of/this/folder", str(folder)), scope)
    assert scope["logits"].shape == (3, 4)


def test_without_a_certificate_nothing_is_claimed(tmp_path):
    target = write_hub_folder(small_network(), tmp_path / "bare")
    assert not (target / "certificate.json").exists()
    text = (target / "README.md").read_text()
    assert "No certificate" in text
    assert "not stated" in text
    assert "accuracy" not in text.split("## Facts")[0].split("## Measured")[1]


def test_files_of_another_network_are_refused_by_name(folder, tmp_path):
    other = small_network(seed=1)
    export(other, tmp_path / "other.onnx")
    certify(other, {"params": "1M"}, out=tmp_path / "other.json")
    save_network(other, tmp_path / "other.safetensors", CARD)
    swaps = {"network.onnx": "other.onnx", "certificate.json": "other.json", "model.safetensors": "other.safetensors"}
    for name, stranger in swaps.items():
        copy = tmp_path / f"with {stranger}"
        shutil.copytree(folder, copy)
        shutil.copyfile(tmp_path / stranger, copy / name)
        with pytest.raises(DamagedFile, match=re.escape(str(copy / name))):
            sn.load(copy)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    package = load_package("huggingface_hub")
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # uploads go by LFS: the other way needs a second server
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with loopback_hub.running() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        yield server
    assert package.__name__ == "huggingface_hub"


def test_up_and_down_again(hub, run):
    address = sn.push_to_hub(run, "user/small", licence="mit", token="hf_of-this-test")
    assert address == f"{hub.address}/user/small"
    assert set(hub.repos["user/small"]) >= FILES
    assert 'sn.load("hf-hub:user/small")' in hub.repos["user/small"]["README.md"].decode()
    with torch.inference_mode():
        wanted = small_network()(IMAGES)
        assert torch.allclose(sn.load("hf-hub:user/small")(IMAGES), wanted, atol=1e-5)
    hub.requests.clear()
    sn.load("hf-hub:user/small")
    assert not [text for text in hub.requests if text.startswith("GET") and "/resolve/" in text], "cached"


def test_a_hub_with_swapped_weights_is_not_believed(hub, run, tmp_path):
    sn.push_to_hub(run, "user/small", token="hf_of-this-test")
    save_network(small_network(seed=1), tmp_path / "other.safetensors", CARD)
    hub.repos["user/small"]["model.safetensors"] = (tmp_path / "other.safetensors").read_bytes()
    with pytest.raises(DamagedFile, match=r"model\.safetensors must hold the weights"):
        sn.load("hf-hub:user/small")


def test_what_is_not_there_is_said_in_a_line(hub, run):
    with pytest.raises(FileTrouble, match="user/none could not be read"):
        sn.load("hf-hub:user/none")
    for name in ("small", "user/", "a/b/c"):
        with pytest.raises(BadInput, match="user/name"):
            sn.push_to_hub(run, name)


def test_without_the_package_the_remedy_is_named(monkeypatch, run):
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(BadInput, match=r"snugnet\[hub\]"):
        sn.load("hf-hub:user/small")
