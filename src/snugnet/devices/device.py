"""Where a network runs: one small interface, one final class per runtime.

A device takes a torch module and an example input and gives back something that can be run without arguments (`prepare`),
times such a thing (`time`), and says exactly what it is (`fingerprint`), so that numbers measured on one machine are never
mistaken for numbers of another. Everything is prepared in evaluation mode with gradients off, on a copy: the caller's module
is left as it was. `snugnet.devices.contract` is the suite every device passes, yours included.
"""

from __future__ import annotations

import copy
import os
import platform
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch

from snugnet.errors import BadInput, DeviceMissing

OWN_TIME = "the thread's own clock"
WALL_CLOCK = "the wall clock"
Fingerprint = dict[str, str]
"""What a timing depends on, as plain text: device, processor, runtime and version, threads, precision, system."""


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
        cores = usable_cores()
        ask = f"Ask for 1 to {cores}."
        if isinstance(self.threads, bool) or not isinstance(self.threads, int) or self.threads < 1:
            raise BadInput("threads must be a whole number of at least 1", value=self.threads, remedy=ask)
        if self.threads > cores:
            rule = f"threads must not exceed the {cores} cores this process may use"
            raise BadInput(rule, value=self.threads, remedy=ask)
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


def wall_clock(run: Callable[[], object], repetitions: int) -> float:
    """Milliseconds a call by the machine's own clock; for runtimes whose `run` returns when the work is done."""
    began = time.perf_counter_ns()
    for _ in range(repetitions):
        run()
    return (time.perf_counter_ns() - began) / 1e6 / repetitions


def thread_cpu_time(run: Callable[[], object], repetitions: int) -> float:
    """Milliseconds a call by the clock of the calling thread, which stands still while other programs have the core.

    For work that a single thread does from start to end. On an idle machine this is the wall clock; on a shared one the
    wall clock measures the neighbours: a 20 ms network is hardly ever left alone for 20 ms.
    """
    began = time.thread_time_ns()
    for _ in range(repetitions):
        run()
    return (time.thread_time_ns() - began) / 1e6 / repetitions


class Clock(NamedTuple):
    """A clock in words, and how it is read: milliseconds a call of (run, repetitions)."""

    name: str
    time: Callable[[Callable[[], object], int], float]


def cpu_clock(threads: int) -> Clock:
    """The clock for work that is done in so many threads, the calling one first."""
    return Clock(OWN_TIME, thread_cpu_time) if threads == 1 else Clock(WALL_CLOCK, wall_clock)


def usable_cores() -> int:
    """The cores this process may run on; a container often has fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The processor's own name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = [(line.split("\t")[0], line.partition(":")[2].strip()) for line in lines]
    named = [value for name, value in fields if name.startswith("model name")]
    # Cloud machines often hide the product name; family, model and stepping still tell generations apart.
    detail = [value for name, value in fields if name in ("cpu family", "model", "stepping")]
    if not named:
        return platform.processor() or platform.machine()
    return f"{named[0]} ({'/'.join(detail[:3])})" if detail else named[0]


def common_fingerprint(device: Device, *, runtime: str, version: str) -> Fingerprint:
    """The fields every device reports."""
    return {
        "device": device.name,
        "processor": processor(),
        "cores": str(os.cpu_count() or 1),
        "runtime": runtime,
        "version": version,
        "threads": str(device.threads),
        "precision": device.precision,
        "clock": device.clock,
        "system": f"{platform.system()} {platform.machine()}",
    }
