"""Devices by name, and what happens to those that are not there."""

import pytest
import torch

from snugnet.devices import DEVICES, OnnxRuntime, TorchCpu, TorchCuda, by_name, listing
from snugnet.devices.agent import raised_priority, usable_cores
from snugnet.devices.onnx_graph import agree
from snugnet.errors import BadInput, DeviceMissing, UnknownName


def test_a_device_by_name():
    assert by_name("torch-cpu", threads=1) == TorchCpu(threads=1)
    assert by_name("onnxruntime") == OnnxRuntime()


def test_the_nearest_name_is_offered():
    with pytest.raises(UnknownName, match="Did you mean 'onnxruntime'"):
        by_name("onnx-runtime")


@pytest.mark.parametrize("threads", [0, -1, True, 1.5, usable_cores() + 1])
def test_impossible_threads_are_refused(threads):
    with pytest.raises(BadInput, match="threads must"):
        TorchCpu(threads=threads)


def test_unknown_precision_is_refused():
    with pytest.raises(BadInput, match="float32"):
        OnnxRuntime(precision="int3")


@pytest.mark.skipif(not TorchCuda.missing(), reason="CUDA is here")
def test_a_device_that_is_not_here_says_so():
    with pytest.raises(DeviceMissing, match="torch-cuda must be on this machine"):
        by_name("torch-cuda")


def test_the_listing_has_all_and_a_remedy_for_the_absent():
    rows = {row.name: row for row in listing()}
    assert set(rows) == {*DEVICES, "command:COMMAND"}
    assert rows["torch-cpu"].here
    assert all(row.here or (row.reason and row.remedy) for row in rows.values())


def test_fingerprints_differ_where_timings_do():
    prints = [TorchCpu(), TorchCpu(precision="bfloat16"), TorchCpu(keep_memory=False), OnnxRuntime()]
    assert len({tuple(device.fingerprint().items()) for device in prints}) == 4


def test_a_wrong_graph_is_refused():
    agree(torch.ones(2), torch.ones(2), what="x")
    with pytest.raises(BadInput, match="difference of 1"):
        agree(torch.zeros(2), torch.ones(2), what="x")
    with pytest.raises(BadInput, match="shape"):
        agree(torch.zeros(3), torch.ones(2), what="x")
    with pytest.raises(BadInput):
        agree(torch.full((2,), float("nan")), torch.ones(2), what="x")


def test_what_no_exporter_can_take_is_explained():
    class Odd(torch.nn.Module):
        def forward(self, x):
            return torch.from_numpy(x.numpy() + 1) if float(x.sum()) > 0 else torch.linalg.eigvals(x).real

    with pytest.raises(BadInput, match=r"exportable to ONNX|compute what torch computes"):
        OnnxRuntime().prepare(Odd(), -torch.ones(3, 3))


def test_priority_is_asked_for_and_given_back():
    import os

    def state():
        return os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)

    before = state()
    for threads in (1, 2):
        with raised_priority(threads) as granted:
            assert granted in ("first", "raised", "ordinary")
            assert (state() == before) == (granted == "ordinary")
        assert state() == before
