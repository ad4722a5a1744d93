"""A `.pte` file is written only if ExecuTorch computes from it what the network computes."""

import sys

import pytest
import torch
from small_network import small_network

from snugnet.deploy.executorch_file import export_executorch
from snugnet.errors import BadInput, DeviceMissing


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "executorch.exir", None)
    monkeypatch.setitem(sys.modules, "executorch.backends.xnnpack.partition.xnnpack_partitioner", None)
    with pytest.raises(DeviceMissing, match="pip install executorch"):
        export_executorch(small_network(), tmp_path / "net.pte")
    assert not (tmp_path / "net.pte").exists()


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"\.pte"):
        export_executorch(small_network(), tmp_path / "net.onnx")


def test_the_runtime_computes_what_the_network_computes(tmp_path):
    runtime = pytest.importorskip("executorch.runtime", reason="executorch is not installed").Runtime
    network = small_network().eval()
    side = network.plan.resolution
    images = torch.rand(3, 3, side, side)
    rows = export_executorch(network, tmp_path / "net.pte", images=images)
    assert {row.images for row in rows} == {"random", "given"} and max(row.largest for row in rows) < 1e-4
    method = runtime.get().load_program((tmp_path / "net.pte").read_bytes()).load_method("forward")
    with torch.inference_mode():
        torch.testing.assert_close(method.execute([images[:1]])[0], network(images[:1]), rtol=1e-4, atol=1e-4)
