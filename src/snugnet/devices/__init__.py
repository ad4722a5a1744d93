"""Where networks run, and how long they really take there.

Devices by name are for the command line and for recipes; in Python a device object does, your own included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from snugnet.devices.command import PREFIX, Command
from snugnet.devices.device import Device
from snugnet.devices.onnx_devices import OnnxRuntime, OpenVino
from snugnet.devices.torch_devices import TorchCpu, TorchCuda
from snugnet.errors import UnknownName

__all__ = ["DEVICES", "Command", "Device", "OnnxRuntime", "OpenVino", "TorchCpu", "TorchCuda", "by_name", "listing"]

DEVICES: Final[dict[str, type[Device]]] = {d.name: d for d in (TorchCpu, TorchCuda, OnnxRuntime, OpenVino)}
_BY_COMMAND: Final = f"{PREFIX}COMMAND"


@dataclass(frozen=True, kw_only=True)
class DeviceStatus:
    """One line of `snugnet devices`."""

    name: str
    here: bool
    reason: str  # why not, empty if here
    remedy: str
    precisions: tuple[str, ...]


def by_name(name: str, *, threads: int = 1, precision: str = "float32") -> Device:
    """The device called `name`, or behind `command:COMMAND`; fails with the nearest name, or with what is missing."""
    if name.startswith(PREFIX):
        return Command(command=name.removeprefix(PREFIX), threads=threads, precision=precision)
    if name not in DEVICES:
        raise UnknownName("a device", name, [*DEVICES, _BY_COMMAND])
    return DEVICES[name](threads=threads, precision=precision)


def listing() -> list[DeviceStatus]:
    """Every known device and whether it can be used here."""
    rows = []
    kinds: dict[str, type[Device]] = {**DEVICES, _BY_COMMAND: Command}
    for name, kind in kinds.items():
        reason = kind.missing()
        remedy = kind.remedy() if reason else ""
        rows.append(DeviceStatus(name=name, here=not reason, reason=reason, remedy=remedy, precisions=kind.precisions))
    return rows
