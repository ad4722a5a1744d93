"""Eight bits: quantised by ONNX Runtime, as accurate as stated, kept only where it pays."""

import json

import onnx
import pytest
import torch
from torch.nn import functional as F

from snugnet import data as datasets
from snugnet.cli import execute
from snugnet.costs import analytic
from snugnet.costs.graph import graph_costs
from snugnet.deploy import int8
from snugnet.deploy.card import open_certificate
from snugnet.deploy.certificate import certify
from snugnet.deploy.export import export
from snugnet.deploy.int8 import export_int8
from snugnet.deploy.network_file import save_network
from snugnet.deploy.prediction import open_onnx
from snugnet.devices import OnnxRuntime
from snugnet.devices.quantise import SCHEMES, is_quantised, quantise
from snugnet.devices.timing import TimingSettings
from snugnet.errors import BadInput
from snugnet.nets.network import build
from snugnet.space import BlockRules, Head, SearchSpace, Stage, Stem, largest
from tiny_recipe import recipe_in

SPACE = SearchSpace(
    name="small",
    classes=10,
    resolutions=(8,),
    stem=Stem(widths=(8,), stride=1, act="relu"),
    stages=(Stage.of(8, depth=1, expands=(2,)), Stage.of(16, depth=1, expands=(2,), se=(0.25,), stride=2)),
    head=Head(kind="conv-pool", widths=(32,), act="relu"),
    rules=BlockRules(),
)
QUICK = TimingSettings(seconds=0.5, least_passes=5, most_passes=5)


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits", resolution=8)


@pytest.fixture(scope="module")
def network(digits):
    torch.manual_seed(0)
    net = build(largest(SPACE), SPACE).train()
    optimiser = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(12):
        for images, labels in digits.batches("train", 64):
            optimiser.zero_grad()
            F.cross_entropy(net(images), labels).backward()
            optimiser.step()
    return net.eval()


@pytest.fixture(scope="module")
def graph(network, tmp_path_factory):
    return export(network, tmp_path_factory.mktemp("float") / "network.onnx").path


@pytest.fixture(scope="module")
def outcome(graph, digits):
    target = graph.with_name("network.int8.onnx")
    return export_int8(graph, target, digits, always=True, settings=QUICK)


def test_the_stated_accuracy_is_that_of_the_file(outcome, digits):
    assert outcome.accuracy.float32 > 0.8, "the network must have learnt for this to say anything"
    assert outcome.accuracy.images == digits.size("test")
    predictor = open_onnx(outcome.path)
    right = sum(int((predictor.logits(x).argmax(1) == y).sum()) for x, y in digits.batches("test", 50))
    assert right / digits.size("test") == pytest.approx(outcome.accuracy.test, abs=1e-9)
    assert outcome.accuracy.lost < 0.03
    assert predictor.metadata["precision"] == "int8"
    assert set(outcome.tried) == {scheme.name for scheme in SCHEMES}


def test_the_weights_are_bytes_and_the_work_is_the_same(outcome, graph, network):
    small, plain = graph_costs(outcome.path), graph_costs(graph)
    assert small.macs == plain.macs == analytic.macs(network.plan)
    assert small.params == plain.params
    assert small.model_size < 0.5 * plain.model_size
    layers = [node for node in onnx.load(outcome.path).graph.node if node.op_type == "DequantizeLinear"]
    scales = {t.name: tuple(t.dims) for t in onnx.load(outcome.path).graph.initializer}
    assert any(scales.get(node.input[1], ()) == (16,) for node in layers), "a scale per channel"


def test_squeeze_excite_stays_in_float_where_the_scheme_says_so(graph, digits):
    images = torch.cat([batch for batch, _ in digits.batches("train", 16, limit=16)])

    def quantised(scheme):
        model = onnx.load_model_from_string(quantise(graph.read_bytes(), images, scheme))
        assert is_quantised(model)
        return sum(node.op_type == "QuantizeLinear" for node in model.graph.node)

    every, kept = quantised(SCHEMES[1]), quantised(SCHEMES[0])
    assert quantised(SCHEMES[2]) < kept < every


def test_its_certificate_states_the_accuracy(outcome, tmp_path):
    out = tmp_path / "certificate.int8.json"
    limits = {"model_size": "1MiB", "latency": "1000ms"}
    certify(outcome.path, limits, OnnxRuntime(), accuracy=outcome.accuracy, out=out, settings=QUICK)
    read = open_certificate(out)
    assert read.accuracy == outcome.accuracy
    out.write_text(out.read_text().replace(f'"float32": {outcome.accuracy.float32}', '"float32": 0.1'))
    with pytest.raises(Exception, match="certificate"):
        open_certificate(out)


def test_float_is_kept_where_int8_loses_too_much(graph, digits, tmp_path, monkeypatch):
    monkeypatch.setattr(int8, "_times", lambda *_: (2.0, 1.0))
    answers = iter([0.9] * len(SCHEMES) + [0.9, 0.88])
    monkeypatch.setattr(int8, "_accuracy", lambda *_: (next(answers), 360))
    outcome = export_int8(graph, tmp_path / "n.int8.onnx", digits, lose=0.005)
    assert (outcome.kept, outcome.path) == ("float32", None)
    assert "float32 is kept: it loses 2.00%" in outcome.message
    assert not (tmp_path / "n.int8.onnx").exists()


@pytest.mark.parametrize(("ms", "kept"), [((2.0, 1.0), "int8"), ((1.0, 1.5), "float32")])
def test_float_is_kept_where_int8_is_slower(graph, digits, tmp_path, monkeypatch, ms, kept):
    monkeypatch.setattr(int8, "_times", lambda *_: ms)
    outcome = export_int8(graph, tmp_path / "n.int8.onnx", digits, lose=1.0, limit=50)
    assert outcome.kept == kept
    assert (tmp_path / "n.int8.onnx").exists() == (kept == "int8")
    assert ("not faster" in outcome.message) == (kept == "float32")


def test_images_of_another_size_are_refused(graph, tmp_path):
    with pytest.raises(BadInput, match="the network's size"):
        export_int8(graph, tmp_path / "n.int8.onnx", datasets.load("digits", resolution=16))
    with pytest.raises(BadInput, match="float32"):
        export_int8(graph.with_name("network.int8.onnx"), tmp_path / "n.int8.onnx", None)


def test_the_device_runs_blocks_in_int8(network):
    images = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    runnable = OnnxRuntime(precision="int8").prepare(network, images)
    with torch.inference_mode():
        wanted = network(images)
    difference = float((runnable.output() - wanted).abs().max() / wanted.abs().max())
    assert 0 < difference < 0.2
    assert OnnxRuntime(precision="int8").fingerprint()["precision"] == "int8"


def test_the_command_line_writes_both_with_a_certificate_each(network, tmp_path, monkeypatch, capsys):
    save_network(network, tmp_path / "network.safetensors")
    recipe_in(tmp_path).rename(tmp_path / "recipe.yaml")
    certify(tmp_path, {"model_size": "1MiB"}, out=tmp_path / "certificate.json")
    monkeypatch.setattr(int8, "_times", lambda *_: (2.0, 1.0))
    assert execute(["export", str(tmp_path), "--no-program", "--int8", "--lose", "at-most=50%", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["int8"]
    assert answer["kept"] == "int8"
    assert answer["ratio"] == 0.5
    assert (tmp_path / "network.int8.onnx").is_file()
    stated = open_certificate(tmp_path / "certificate.int8.json")
    assert stated.accuracy is not None
    assert stated.accuracy.test == answer["accuracy"]["test"]
    assert execute(["export", str(tmp_path), "--int8", "--lose", "0.5"]) == 2
    assert "at-most=SHARE" in capsys.readouterr().err
