"""Where a network runs: one small interface, one final class per runtime.

A device takes a torch module and an example input and gives back something that can be run without arguments (`prepare`),
times such a thing (`time`), and says exactly what it is (`fingerprint`), so that numbers measured on one machine are never
mistaken for numbers of another. Everything is prepared in evaluation mode with gradients off, on a copy: the caller's module
is left as it was. `snugnet.devices.contract` is the suite every device passes, yours included.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import torch

from snugnet.devices.agent import PassTimes, machine, one_pass, usable_cores
from snugnet.errors import BadInput, DeviceMissing

Fingerprint = dict[str, str]
"""What a timing depends on, as plain text: device, processor, runtime and version, threads, precision, system."""
HERE: Final = ""
"""The place of all devices that share this machine's processor."""


@dataclass(frozen=True, kw_only=True)
class Runnable:
    """A prepared subject: `run` does the work once, `output` does it and returns the result as a float32 CPU tensor.

    `answer` is the result for other inputs of the same shape; without it a device can time networks but not be judged.
    """

    run: Callable[[], object]
    output: Callable[[], torch.Tensor]
    answer: Callable[[torch.Tensor], torch.Tensor] | None = None


@dataclass(frozen=True, kw_only=True)
class Device(ABC):
    """A place to run networks. Construction fails at once if the place is not there."""

    threads: int = 1
    precision: str = "float32"

    name: ClassVar[str]
    precisions: ClassVar[tuple[str, ...]] = ("float32",)

    def __post_init__(self) -> None:
        if isinstance(self.threads, bool) or not isinstance(self.threads, int) or self.threads < 1:
            rule = "threads must be a whole number of at least 1"
            raise BadInput(rule, value=self.threads, remedy="One is usual; ask for as many as the device has cores.")
        if self.threads > (cores := self.cores()):
            rule = f"threads must not exceed the {cores} cores this process may use"
            raise BadInput(rule, value=self.threads, remedy=f"Ask for 1 to {cores}.")
        if self.precision not in self.precisions:
            rule = f"precision on {self.name} must be one of {', '.join(self.precisions)}"
            raise BadInput(rule, value=self.precision, remedy=f"Use {self.precisions[0]!r}.")
        if missing := self.missing():
            raise DeviceMissing(f"{self.name} must be on this machine", value=missing, remedy=self.remedy())

    @classmethod
    @abstractmethod
    def missing(cls) -> str:
        """Why this device cannot be used here; empty if it can."""

    @classmethod
    @abstractmethod
    def remedy(cls) -> str:
        """What a user does to get it."""

    @abstractmethod
    def prepare(self, module: torch.nn.Module, example: torch.Tensor) -> Runnable:
        """Make `module` ready to run on `example`, in evaluation mode with gradients off."""

    @abstractmethod
    def time(self, runnable: Runnable, repetitions: int) -> float:
        """Milliseconds a call, over `repetitions` calls in a row."""

    def one_pass(self, subjects: Sequence[Runnable], order: Sequence[int], repetitions: Sequence[int]) -> PassTimes:
        """Visit every subject once, in this order (`snugnet.devices.timing`); a device far away does it there."""
        return one_pass(subjects, self.time, order, repetitions)

    def cores(self) -> int:
        """How many cores there are to use."""
        return usable_cores()

    @property
    def place(self) -> str:
        """What is taken while this device is timed: devices of one place are timed one at a time, of others side by side."""
        return HERE

    @property
    @abstractmethod
    def clock(self) -> str:
        """Which clock `time` reads, in words."""

    @abstractmethod
    def fingerprint(self) -> Fingerprint:
        """What timings on this device depend on. Same fingerprint, comparable numbers."""


def frozen_copy(module: torch.nn.Module) -> torch.nn.Module:
    """A copy in evaluation mode that asks for no gradients."""
    return copy.deepcopy(module).eval().requires_grad_(False)


def common_fingerprint(device: Device, *, runtime: str, version: str) -> Fingerprint:
    """The fields every device reports."""
    return {
        "device": device.name,
        **machine(),
        "runtime": runtime,
        "version": version,
        "threads": str(device.threads),
        "precision": device.precision,
        "clock": device.clock,
    }
