"""Every device passes the one suite; those that are not on this machine are skipped by name."""

import pytest

from agents import agent_command
from snugnet.devices import Command, OnnxRuntime, OpenVino, TorchCpu, TorchCuda
from snugnet.devices.contract import DeviceContract


class TestTorchCpu(DeviceContract):
    def make(self):
        return TorchCpu(threads=1)


class TestTorchCpuHalf(DeviceContract):
    def make(self):
        return TorchCpu(threads=1, precision="bfloat16")


class TestOnnxRuntime(DeviceContract):
    def make(self):
        return OnnxRuntime(threads=1)


class TestOnnxRuntimeInt8(DeviceContract):
    def make(self):
        return OnnxRuntime(threads=1, precision="int8")


class TestCommand(DeviceContract):
    def make(self):
        return Command(command=agent_command(), threads=1)


class TestCommandInt8(DeviceContract):
    def make(self):
        return Command(command=agent_command(), threads=1, precision="int8")


@pytest.mark.skipif(bool(TorchCuda.missing()), reason=TorchCuda.missing() or "here")
class TestTorchCuda(DeviceContract):
    def make(self):
        return TorchCuda()


@pytest.mark.skipif(bool(OpenVino.missing()), reason=OpenVino.missing() or "here")
class TestOpenVino(DeviceContract):
    def make(self):
        return OpenVino(threads=1)
