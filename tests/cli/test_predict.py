"""`snugnet export` and `snugnet predict`, from files to files; and every way of giving them the wrong ones."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from house import one_clear_line
from snugnet.cli import execute
from snugnet.data.dataset import resize
from snugnet.data.folder import read_image
from snugnet.deploy.card import Card
from snugnet.deploy.certificate import certify
from snugnet.deploy.network_file import read_network, save_network
from snugnet.deploy.prediction import Predictor, open_onnx, open_predictor, predict, prepare
from snugnet.nets.network import build
from snugnet.space import Head, SearchSpace, Stage, Stem, largest

SPACE = SearchSpace(
    name="reds",
    classes=3,
    resolutions=(8,),
    stem=Stem(widths=(8,), stride=1),
    stages=(Stage.of(8, depth=1, expands=(1,)),),
    head=Head(kind="conv-pool", widths=(8,)),
)
CARD = Card(class_names=("red", "green", "blue"), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def colour_network():
    """Answers with the strongest channel: every layer passes three channels on."""
    network = build(largest(SPACE), SPACE).eval()
    with torch.no_grad():
        for name, value in network.named_parameters():
            if "norm" not in name:
                value.zero_()
        for c in range(3):
            network.stem.conv.weight[c, c, 1, 1] = 1.0
            network.stages[0][0].depthwise.conv.weight[c, 0, 1, 1] = 1.0
            network.head.conv.conv.weight[c, c] = 1.0
            network.head.classifier.weight[c, c] = 5.0
    return network


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A run folder with a network and its certificate, exported by the verb."""
    folder = tmp_path_factory.mktemp("run")
    network = colour_network()
    save_network(network, folder / "network.safetensors", CARD)
    certify(network, {"params": "1M", "macs": "1MMACs"}, out=folder / "certificate.json")
    for name, colour in {"red": (250, 10, 20), "green": (0, 255, 30), "blue": (20, 20, 200)}.items():
        Image.new("RGB", (13, 10), colour).save(folder / f"{name}.png")
    (folder / "broken.png").write_bytes((folder / "red.png").read_bytes()[:40])
    assert (
        execute(["export", str(folder), "--image", str(folder / "red.png"), "--image", str(folder / "blue.png")]) == 0
    )
    return folder


def test_export_writes_beside_the_network(run_folder):
    assert (run_folder / "network.pt2").stat().st_size > 0
    written = open_onnx(run_folder / "network.onnx")
    seal = json.loads((run_folder / "certificate.json").read_text())["sha256"]
    assert written.card.certificate_sha256 == seal
    assert dict(written.card.budget) == {"params": "1M", "macs": "1MMACs"}
    assert written.metadata["weights_sha256"] == read_network(run_folder).weights_sha256


@pytest.mark.parametrize("form", ["network.onnx", "network.safetensors", ""])
def test_predict_names_the_classes(snug, run_folder, form):
    names = ["blue", "red", "green"]
    pictures = [str(run_folder / f"{name}.png") for name in names]
    code, out, err = snug("predict", str(run_folder / form), *pictures, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert [one["image"] for one in found] == pictures
    assert [one["top"][0]["class"] for one in found] == names
    assert [one["top"][0]["label"] for one in found] == [2, 0, 1]
    assert all(sum(guess["probability"] for guess in one["top"]) == pytest.approx(1) for one in found)
    code, out, _ = snug("predict", str(run_folder / form), pictures[0], "--top", "1")
    assert code == 0
    assert "blue" in out
    assert "green" not in out


def test_both_files_say_the_same(run_folder):
    pictures = [run_folder / f"{name}.png" for name in ("red", "green", "blue")] * 20  # more than a batch
    onnx, torch_file = (predict(open_predictor(run_folder / f), pictures) for f in ("network.onnx", ""))
    assert len(onnx) == 60
    for one, other in zip(onnx, torch_file):
        assert [guess.label for guess in one.guesses] == [guess.label for guess in other.guesses]
        assert [g.probability for g in one.guesses] == pytest.approx([g.probability for g in other.guesses], abs=1e-5)


def test_images_are_prepared_as_in_training(tmp_path):
    path = tmp_path / "noise.png"

    def prepared(size, side, crop):
        pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
        card = Card(mean=CARD.mean, std=CARD.std, crop=crop)
        return prepare(path, Predictor(card=card, channels=3, resolution=side, classes=3, logits=torch.nn.Identity()))

    def as_read(images):
        return (images.float() / 255 - 0.5) / 0.5

    torch.testing.assert_close(prepared((50, 40), 16, 0.875), as_read(read_image(path, 16)), rtol=0, atol=1e-6)
    for side, limit in ((24, 0), (8, 0), (6, 1), (13, 1)):  # torch and PIL round halves differently: one step of 255
        got = prepared((8, 8), side, 1.0)
        wanted = as_read(resize(torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1)[None], side)[0])
        assert float((got - wanted).abs().max()) <= limit * 2 / 255 + 1e-6


def test_grey_images_of_16_bits_are_scaled_as_in_training(tmp_path):
    ramp = np.linspace(0, 65535, 32 * 32).reshape(32, 32).astype(np.uint16)
    Image.fromarray(ramp).save(tmp_path / "deep.png")
    Image.fromarray((ramp // 257).astype(np.uint8)).save(tmp_path / "grey.png")
    for channels in (1, 3):
        given = Predictor(card=Card(), channels=channels, resolution=16, classes=3, logits=torch.nn.Identity())
        deep, grey = (prepare(tmp_path / f"{name}.png", given) for name in ("deep", "grey"))
        assert torch.equal(deep, grey) and deep.shape == (channels, 16, 16) and float(deep.std()) > 0.1


def test_a_network_that_does_not_know_its_normalisation_says_so(snug, tmp_path, run_folder):
    save_network(colour_network(), tmp_path / "bare.safetensors")
    code, out, err = snug("predict", str(tmp_path / "bare.safetensors"), str(run_folder / "red.png"), "--json")
    assert code == 0
    assert json.loads(out)[0]["top"][0]["class"] == "0"
    assert "does not say how images are normalised" in err


def test_bad_input_gets_one_line_and_code_2(snug, run_folder, tmp_path):
    network, picture = str(run_folder / "network.onnx"), str(run_folder / "red.png")
    (tmp_path / "cut.onnx").write_bytes((run_folder / "network.onnx").read_bytes()[:300])
    (tmp_path / "cut.safetensors").write_bytes((run_folder / "network.safetensors").read_bytes()[:-5])
    (tmp_path / "text.png").write_text("no picture")
    save_network(colour_network(), tmp_path / "bare.safetensors")
    bare = colour_network()
    torch.nn.init.ones_(bare.head.classifier.bias)
    save_network(bare, tmp_path / "other.safetensors")
    for words, message in (
        (["predict", network, picture, str(run_folder / "broken.png")], "broken.png must be an image"),
        (["predict", network, str(tmp_path / "text.png")], "text.png must be an image"),
        (["predict", network, str(tmp_path / "none.png")], "none.png could not be read (no such file)"),
        (["predict", network, str(tmp_path)], "is a folder"),
        (["predict", network], "Missing argument"),
        (["predict", network, picture, "--top", "4"], "top must lie in 1..3"),
        (["predict", network, picture, "--top", "0"], "top must lie in 1..3"),
        (["predict", str(tmp_path / "none.onnx"), picture], "none.onnx could not be read"),
        (["predict", str(tmp_path / "cut.onnx"), picture], "cut.onnx must"),
        (["predict", str(tmp_path / "cut.safetensors"), picture], "cut.safetensors must"),
        (["predict", str(tmp_path / "net.pth"), picture], "a .onnx or .safetensors file, or a run folder, got"),
        (["predict", str(tmp_path), picture], "network.safetensors is missing"),
        (["export", str(tmp_path)], "network.safetensors is missing"),
        (["export", str(tmp_path / "none.safetensors")], "no such file"),
        (["export", str(tmp_path / "cut.safetensors")], "cut.safetensors must"),
        (["export", network], "must be a .safetensors file"),
    ):
        code, out, err = snug(*words)
        assert (code, out) == (2, ""), words
        assert one_clear_line(err), err
        assert message in err


def test_bad_input_once_the_network_is_read(snug, run_folder, tmp_path):
    source = str(run_folder / "network.safetensors")
    other = colour_network()
    torch.nn.init.ones_(other.head.classifier.bias)
    certify(other, {"params": "1M"}, out=tmp_path / "other.json")
    for words, message in (
        (["export", source, "--out", str(tmp_path / "n.pb")], "must end in .onnx"),
        (["export", source, "--out", "/proc/none/n.onnx"], "could not be written"),
        (["export", source, "--image", str(run_folder / "broken.png")], "broken.png must be an image"),
        (["export", source, "--certificate", str(tmp_path / "none.json")], "none.json could not be read"),
        (["export", source, "--certificate", str(tmp_path / "other.json")], "must be of this network"),
    ):
        code, out, err = snug(*words)
        assert (code, out) == (2, ""), words
        assert one_clear_line(err.splitlines()[-1]), err
        assert message in err
    assert {path.name for path in tmp_path.iterdir()} == {"other.json"}
