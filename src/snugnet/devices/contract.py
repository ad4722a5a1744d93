"""The suite every device passes; run it on your own.

    from snugnet.devices.contract import DeviceContract

    class TestMyBoard(DeviceContract):
        def make(self) -> Device:
            return MyBoard(threads=1)

pytest collects the inherited tests. None of them depends on how fast a machine is.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from typing import Final

import torch

from snugnet.devices.device import Device

_FIELDS: Final = {"device", "processor", "cores", "runtime", "version", "threads", "precision", "clock", "system"}
_TOLERANCE: Final = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2, "int8": 1e-1}


def _network(width: int = 8) -> torch.nn.Module:
    """Layers whose training and evaluation modes differ, so that a forgotten `eval()` shows."""
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm2d(width)
    norm.running_mean = torch.linspace(-1, 1, width)
    norm.running_var = torch.linspace(0.5, 2, width)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, width, 3, padding=1),
        norm,
        torch.nn.Hardswish(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Dropout(0.5),
        torch.nn.Linear(width, 5),
    )


class DeviceContract(ABC):
    """Subclass as `Test...` and say how to make the device."""

    @abstractmethod
    def make(self) -> Device: ...

    def test_computes_what_torch_computes_in_evaluation_mode(self) -> None:
        device = self.make()
        for batch, size in ((1, 8), (3, 11)):
            module, given = (
                _network(),
                torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(batch)),
            )
            module.train()
            got = device.prepare(module, given).output()
            with torch.no_grad():
                wanted = module.eval()(given)
            assert got.dtype == torch.float32
            assert got.shape == wanted.shape
            limit = _TOLERANCE[device.precision] * float(wanted.abs().max())
            assert float((got.cpu() - wanted).abs().max()) <= limit

    def test_other_inputs_are_answered_where_a_device_can(self) -> None:
        module, device = _network(), self.make()
        prepared = device.prepare(module, torch.ones(2, 3, 8, 8))
        if prepared.answer is None:
            return  # it can time networks, and that is enough for tables
        before, other = prepared.output(), torch.linspace(-1, 1, 384).reshape(2, 3, 8, 8)
        with torch.inference_mode():
            wanted = module.eval()(other)
        # int8 is calibrated on the example alone, which says nothing of other inputs
        limit = (1.0 if device.precision == "int8" else _TOLERANCE[device.precision]) * float(wanted.abs().max())
        assert float((prepared.answer(other) - wanted).abs().max()) <= limit
        assert torch.equal(prepared.output(), before), "the example stays what is timed"

    def test_the_callers_module_is_left_as_it_was(self) -> None:
        module = _network()
        module.train()
        before = {name: value.clone() for name, value in module.state_dict().items()}
        prepared = self.make().prepare(module, torch.ones(1, 3, 8, 8))
        prepared.run()
        assert module.training
        assert all(p.requires_grad for p in module.parameters())
        assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())

    def test_a_prepared_subject_does_not_follow_later_changes(self) -> None:
        module, given = _network(), torch.ones(1, 3, 8, 8)
        prepared = self.make().prepare(module, given)
        first = prepared.output()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
        assert torch.allclose(first, prepared.output(), rtol=0, atol=1e-6)

    def test_no_gradients(self) -> None:
        assert not self.make().prepare(_network(), torch.ones(1, 3, 8, 8)).output().requires_grad

    def test_times_are_positive_and_finite(self) -> None:
        device = self.make()
        prepared = device.prepare(_network(), torch.ones(1, 3, 8, 8))
        for repetitions in (1, 3):
            taken = device.time(prepared, repetitions)
            assert isinstance(taken, float)
            assert math.isfinite(taken)
            assert taken > 0

    def test_a_time_is_of_one_call(self) -> None:
        """Repetitions are divided out: were they not, sixty-four calls would cost sixty-four times one."""
        device = self.make()
        prepared = device.prepare(_network(64), torch.ones(1, 3, 64, 64))
        device.time(prepared, 4)
        one = sorted(device.time(prepared, 1) for _ in range(9))[4]
        many = sorted(device.time(prepared, 64) for _ in range(3))[1]
        assert many < 16 * one

    def test_much_more_work_takes_longer(self) -> None:
        device = self.make()
        small = device.prepare(_network(8), torch.ones(1, 3, 8, 8))
        large = device.prepare(_network(128), torch.ones(1, 3, 128, 128))  # 4,096 times the arithmetic
        taken = [(device.time(small, 1), device.time(large, 1)) for _ in range(8)]
        assert min(s for s, _ in taken) < min(b for _, b in taken)

    def test_thread_counts_of_the_process_are_given_back(self) -> None:
        device, before = self.make(), torch.get_num_threads()
        device.time(device.prepare(_network(), torch.ones(1, 3, 8, 8)), 1)
        assert torch.get_num_threads() == before

    def test_the_fingerprint_tells_what_a_time_depends_on(self) -> None:
        device = self.make()
        print_ = device.fingerprint()
        assert set(print_) >= _FIELDS
        assert all(isinstance(value, str) and value for value in print_.values())
        assert print_["device"] == device.name
        assert print_["threads"] == str(device.threads)
        assert print_["precision"] == device.precision
        assert json.loads(json.dumps(print_)) == print_
        assert print_ == self.make().fingerprint(), "the same device must have the same fingerprint"
