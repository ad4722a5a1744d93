"""Costs counted from a graph equal those computed from a plan."""

import numpy as np
import onnx
import pytest
import torch

from snugnet.costs import analytic
from snugnet.costs.graph import graph_costs
from snugnet.devices.onnx_graph import onnx_bytes
from snugnet.errors import BadInput, DamagedFile, FileTrouble
from snugnet.nets.network import build, build_plan
from snugnet.space import plan, preset, sample, zoo


def graph_of(network, size):
    return graph_costs(onnx_bytes(network.eval(), torch.zeros(1, 3, size, size)))


@pytest.mark.parametrize("name", ["HardCoRe-F", "TF-NAS-A", "AttentiveNAS-A1", "MobileNetV3-Large", "EfficientNet-B0"])
def test_published_networks(name):
    network = zoo.find(name).network
    found = graph_of(build_plan(network), network.resolution)
    assert found.macs == analytic.macs(network)
    assert found.memory == analytic.peak_memory(network)
    assert found.model_size == 4 * found.params
    assert 0.98 * analytic.params(network) < found.params < analytic.params(network)  # BN is folded into convolutions


@pytest.mark.parametrize("name", ["hardcore-lowres", "tfnas-lowres", "attentive-lowres"])
def test_random_networks(name):
    space, rng = preset(name, classes=7, width=0.25), np.random.default_rng(0)
    for _ in range(2):
        architecture = sample(space, rng)
        network = plan(architecture, space)
        found = graph_of(build(architecture, space), network.resolution)
        assert (found.macs, found.memory) == (analytic.macs(network), analytic.peak_memory(network))


def test_a_batch_in_the_file_changes_nothing():
    space = preset("hardcore-lowres", classes=7, width=0.25)
    network = build(sample(space, np.random.default_rng(1)), space).eval()
    one, eight = (graph_costs(onnx_bytes(network, torch.zeros(n, 3, 28, 28))) for n in (1, 8))
    assert one == eight


def test_batch_normalisation_is_counted_without_its_statistics():
    value = onnx.helper.make_tensor_value_info
    floats = onnx.TensorProto.FLOAT
    names = ["scale", "shift", "mean", "variance"]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("BatchNormalization", ["x", *names], ["y"])],
        "g",
        [value("x", floats, ["n", 5, 4, 4])],
        [value("y", floats, ["n", 5, 4, 4])],
        [onnx.helper.make_tensor(name, floats, [5], [1.0] * 5) for name in names],
    )
    found = graph_costs(onnx.helper.make_model(graph).SerializeToString())
    assert (found.params, found.macs, found.memory) == (10, 0, 4 * 5 * 16)


def test_what_cannot_be_counted_is_refused(tmp_path):
    with pytest.raises(FileTrouble):
        graph_costs(tmp_path / "none.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"not a graph")
    with pytest.raises(DamagedFile, match=r"bad\.onnx"):
        graph_costs(tmp_path / "bad.onnx")
    value = onnx.helper.make_tensor_value_info
    floats = onnx.TensorProto.FLOAT
    loose = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [value("x", floats, [1, 3, "height", "width"])],
        [value("y", floats, [1, 3, "height", "width"])],
    )
    with pytest.raises(BadInput, match="must be fixed"):
        graph_costs(onnx.helper.make_model(loose).SerializeToString())
