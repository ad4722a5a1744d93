"""Eight bits: quantised by ONNX Runtime, as accurate as stated, kept only where it pays."""

import json

import onnx
import pytest
import torch
from digits_network import digits_network

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
from tiny_recipe import recipe_in

QUICK = TimingSettings(seconds=0.5, least_passes=5, most_passes=5)


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits", resolution=8)


@pytest.fixture(scope="module")
def network():
    return digits_network()


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
    assert small.model_size < 0.6 * plain.model_size  # a quarter, and scales that weigh in so small a network
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


def test_activations_stay_in_int8_between_layers(graph, digits, tmp_path):
    """In the graph as ONNX Runtime runs it: a map is converted at the ends and around squeeze-excite, not at every layer."""
    import onnxruntime

    images = torch.cat([batch for batch, _ in digits.batches("train", 16, limit=16)])

    def conversions(scheme):
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / "run.onnx")
        options.log_severity_level = 3
        onnxruntime.InferenceSession(quantise(graph.read_bytes(), images, scheme), options)
        return sum(
            node.op_type in ("QuantizeLinear", "DequantizeLinear")
            for node in onnx.load(tmp_path / "run.onnx").graph.node
        )

    assert conversions(SCHEMES[0]) < 0.6 * conversions(SCHEMES[4])


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
    monkeypatch.setattr(int8, "_times", times(2.0, 1.0))
    answers = iter([0.9] * (1 + len(SCHEMES)) + [0.9, 0.88])
    monkeypatch.setattr(int8, "_accuracy", lambda *_: (next(answers), 360))
    outcome = export_int8(graph, tmp_path / "n.int8.onnx", digits, lose=0.005)
    assert (outcome.kept, outcome.path) == ("float32", None)
    assert "float32 is kept: it loses 2.00%" in outcome.message
    assert not (tmp_path / "n.int8.onnx").exists()


def times(float_ms, int8_ms):
    """A clock that gives every scheme the same time."""
    return lambda graphs, *_: {name: float_ms if name == "float32" else int8_ms for name in graphs}


def test_the_fastest_scheme_is_taken_of_those_that_keep_accuracy(graph, digits, monkeypatch):
    """0.4 points are allowed, so half of them on validation images: the third is fast, but too bad."""
    names, ms = [scheme.name for scheme in SCHEMES], {"float32": 2.0}
    ms |= dict(zip(names, (1.0, 0.9, 0.1, 1.1, 1.2), strict=True))
    monkeypatch.setattr(int8, "_times", lambda *_: ms)
    for values, chosen in (
        ((0.899, 0.898, 0.8, 0.899, 0.9), 1),
        ((0.899, 0.897, 0.8, 0.899, 0.9), 0),
        ((0.5, 0.6, 0.4, 0.5, 0.1), 1),
    ):
        answers = iter([0.9, *values])
        monkeypatch.setattr(int8, "_accuracy", lambda *_, answers=answers: (next(answers), 360))
        assert int8.choose_scheme(graph.read_bytes(), digits, lose=0.004 + 1e-9).scheme.name == names[chosen]


@pytest.mark.parametrize(("within", "chosen"), [(None, 4), (1.1, 3), (1.0, 0), (0.5, 2), (0.05, 4)])
def test_of_schemes_that_lose_too_much_the_best_within_the_limit_is_taken(within, chosen):
    names = [scheme.name for scheme in SCHEMES]
    tried = dict(zip(names, (0.6, 0.5, 0.4, 0.7, 0.8), strict=True))
    ms = dict(zip(names, (1.0, 0.9, 0.1, 1.1, 1.2), strict=True))
    assert int8._best_scheme(0.9, tried, ms, 0.01, within).name == names[chosen]
    assert int8._best_scheme(0.7, tried, ms, 0.01, within).name == names[3], (
        "one that loses little goes before the limit"
    )


@pytest.mark.parametrize(("ms", "kept"), [((2.0, 1.0), "int8"), ((1.0, 1.5), "float32")])
def test_float_is_kept_where_int8_is_slower(graph, digits, tmp_path, monkeypatch, ms, kept):
    monkeypatch.setattr(int8, "_times", times(*ms))
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
    monkeypatch.setattr(int8, "_times", times(2.0, 1.0))
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
