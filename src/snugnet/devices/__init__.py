"""Where networks run, and how long they really take there."""

from snugnet.devices.device import Device, Fingerprint, Runnable
from snugnet.devices.onnx_runtime import OnnxRuntime
from snugnet.devices.openvino import OpenVino
from snugnet.devices.registry import DEVICES, DeviceStatus, by_name, listing
from snugnet.devices.torch_cpu import TorchCpu
from snugnet.devices.torch_cuda import TorchCuda

__all__ = [
    "DEVICES",
    "Device",
    "DeviceStatus",
    "Fingerprint",
    "OnnxRuntime",
    "OpenVino",
    "Runnable",
    "TorchCpu",
    "TorchCuda",
    "by_name",
    "listing",
]
