"""Exported files compute what the network computes, say what they are, and are not written otherwise."""

import contextlib
import io
import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from small_network import CARD, small_network

from snugnet.costs import analytic
from snugnet.deploy import export as exporting
from snugnet.deploy.certificate import certify
from snugnet.deploy.export import Exported, export, stamp
from snugnet.deploy.prediction import open_onnx
from snugnet.errors import BadInput, DamagedFile, FileTrouble


@pytest.fixture(scope="module")
def network():
    return small_network()


@pytest.fixture(scope="module")
def images():
    return torch.rand(7, 3, 9, 9, generator=torch.Generator().manual_seed(1)) * 4 - 2


@pytest.fixture(scope="module")
def made(network, images, tmp_path_factory) -> Exported:
    folder = tmp_path_factory.mktemp("exported")
    streams = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        written = export(network.train(), folder / "n.onnx", card=CARD, images=images, program=folder / "n.pt2")
    assert [stream.getvalue() for stream in streams] == ["", ""], "exporters talk; we do not pass it on"
    assert network.training, "the caller's module is left as it was"
    network.eval()
    assert sorted(p.name for p in folder.iterdir()) == ["n.onnx", "n.pt2"], "no files of external data"
    return written


def test_it_computes_what_the_network_computes(network, images, made):
    session = onnxruntime.InferenceSession(made.path, providers=["CPUExecutionProvider"])
    with torch.inference_mode():
        wanted = network(images).numpy()
    assert wanted.std(axis=0).min() > 0.01, "the logits must depend on the image for this to say anything"
    for count in (1, 2, 7):
        got = session.run(["logits"], {"images": images[:count].numpy()})[0]
        np.testing.assert_allclose(got, wanted[:count], rtol=0, atol=1e-5 * np.abs(wanted).max())
    kinds = [(row.form, row.images, row.batch) for row in made.comparisons]
    batches = (("random", 1), ("random", 5), ("given", 1), ("given", 7))
    assert kinds == [(form, *rest) for form in ("onnx", "program") for rest in batches]
    assert all(row.relative < 1e-5 for row in made.comparisons)


def test_it_says_what_it_is_and_nothing_of_this_machine(network, made):
    model = onnx.load(made.path)
    words = {entry.key: entry.value for entry in model.metadata_props}
    assert (words["classes"], words["resolution"], words["channels"]) == ("4", "9", "3")
    assert json.loads(words["class_names"]) == list(CARD.class_names)
    assert json.loads(words["mean"]) == list(CARD.mean)
    assert json.loads(words["budget"]) == {"latency": "40ms"}
    assert words["weights_sha256"] == certify(network, {"params": "10M"}).weights_sha256 == made.weights_sha256
    assert f"torch {torch.__version__}" in words["versions"]
    assert [entry.version for entry in model.opset_import] == [18]
    assert [model.graph.input[0].name, model.graph.output[0].name] == ["images", "logits"]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert open_onnx(made.path).card == CARD
    for path in (made.path, made.program):
        assert b"blocks.py" not in path.read_bytes()


def test_certify_counts_it_alike(network, made):
    counted = {line.name: line.measured for line in certify(made.path, {"macs": "1GMACs", "memory": "1MiB"}).lines}
    assert counted == {"macs": analytic.macs(network.plan), "memory": analytic.peak_memory(network.plan)}


def test_the_program_runs_without_us(network, images, made):
    program = torch.export.load(made.program)
    for count in (1, 7):
        assert torch.allclose(program.module()(images[:count]), network(images[:count]), atol=1e-6)


def test_a_changed_onnx_file_is_named(made, tmp_path):
    path = tmp_path / "n.onnx"
    model = onnx.load(made.path)
    weights = onnx.numpy_helper.to_array(model.graph.initializer[0]).copy()
    weights.flat[0] += 1
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weights, model.graph.initializer[0].name))
    onnx.save(model, path)
    with pytest.raises(DamagedFile, match=r"n\.onnx must have the checksum"):
        open_onnx(path)
    model = onnx.load(made.path)
    next(entry for entry in model.metadata_props if entry.key == "mean").value = "[0, 0, 0]"
    onnx.save(model, path)
    with pytest.raises(DamagedFile, match=r"n\.onnx must have the checksum"):
        open_onnx(path)
    path.write_bytes(made.path.read_bytes()[:-2000])
    with pytest.raises(DamagedFile, match=r"n\.onnx"):
        open_onnx(path)


def test_a_certificate_is_named_later_and_the_graph_stays(made, tmp_path):
    path = tmp_path / "n.onnx"
    path.write_bytes(made.path.read_bytes())
    stamp(path, certificate_sha256="abc")
    stamped = open_onnx(path)
    assert stamped.card == CARD.model_copy(update={"certificate_sha256": "abc"})
    assert stamped.metadata["weights_sha256"] == made.weights_sha256
    assert certify(path, {"params": "10M"}).weights_sha256 == made.graph_sha256
    stamp(path, certificate_sha256="")
    assert path.read_bytes() == made.path.read_bytes()


def test_a_file_that_differs_is_not_written(network, tmp_path, monkeypatch):
    """A stand-in for an exporter that is wrong in silence: it scales the first weights by a thousandth."""
    trace = exporting._trace

    def wrong(still, shape):
        traced = trace(still, shape)
        next(iter(traced.state_dict.values())).data.mul_(1.001)
        return traced

    monkeypatch.setattr(exporting, "_trace", lambda still, shape: wrong(exporting.frozen_copy(still), shape))
    with pytest.raises(BadInput, match=r"exported onnx must compute .* on random images, got 'a difference of"):
        export(network, tmp_path / "n.onnx", program=tmp_path / "n.pt2")
    assert not list(tmp_path.iterdir())


def test_a_module_of_ones_own_and_the_same_bytes_twice(tmp_path):
    torch.manual_seed(0)
    own = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 2))
    with pytest.raises(BadInput, match="resolution must be known"):
        export(own, tmp_path / "n.onnx", channels=1)
    written = [export(own, tmp_path / f"{n}.onnx", channels=1, resolution=8) for n in range(2)]
    assert written[0].sha256 == written[1].sha256
    assert (written[0].input_shape, written[0].classes, written[0].program) == ((1, 8, 8), 2, None)


def test_what_cannot_be_exported(network, images, tmp_path):
    target = tmp_path / "n.onnx"
    diverged = small_network()
    diverged.head.classifier.weight.data[0, 0] = float("inf")
    maps = torch.nn.Conv2d(3, 4, 3)
    for words, message in (
        ({"path": tmp_path / "n.pb"}, r"end in \.onnx"),
        ({"program": tmp_path / "n.zip"}, r"end in \.pt2"),
        ({"images": images[:, :1]}, "images must be floats of the shape"),
        ({"images": (images * 60).to(torch.uint8)}, "images must be floats of the shape"),
        ({"images": images[:0]}, "images must be floats of the shape"),
        ({"resolution": 8}, "resolution is 9"),
        ({"network": diverged}, "weights must be finite"),
        ({"network": maps, "resolution": 8}, r"logits \[N, classes\]"),
        ({"network": torch.nn.Linear(3, 4), "resolution": 8}, "must take images"),
        ({"card": CARD.__class__(class_names=("a",))}, "as many as"),
    ):
        with pytest.raises(BadInput, match=message):
            export(**{"network": network, "path": target, **words})
    with pytest.raises(FileTrouble):
        export(network, "/proc/none/n.onnx")
    assert not list(tmp_path.iterdir())
