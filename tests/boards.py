"""Devices without a clock that write down when they are timed, here or in a worker's process: lines of +label and -label."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from snugnet.devices.device import Device, Runnable, common_fingerprint
from snugnet.errors import DeviceLost
from snugnet.nets.network import Network


@dataclass(frozen=True, kw_only=True)
class Board(Device):
    """Takes a microsecond for every parameter, 7 % more inside a network. It stands at `at` (empty: this machine), waits in
    its passes until all that it `meets` are timed too, and is lost after two passes while the file `broken` exists."""

    label: str
    diary: Path
    at: str = ""
    meets: tuple[str, ...] = ()
    broken: Path | None = None

    name: ClassVar[str] = "board"

    @classmethod
    def missing(cls):
        return ""

    @classmethod
    def remedy(cls):
        return ""

    @property
    def place(self):
        return self.at

    def prepare(self, module, example):
        cost = sum(p.numel() for p in module.parameters()) / 1e3 * (1.07 if isinstance(module, Network) else 1.0)
        return Runnable(run=lambda: cost, output=lambda: example)

    def time(self, runnable, repetitions):
        return float(runnable.run())

    def one_pass(self, subjects, order, repetitions):
        self._write("+")
        try:
            self._meet()
            if self.broken is not None and self.broken.exists() and self.passes > 2:
                raise DeviceLost("a board must go on answering", value="silence", remedy="Plug it in.")
            return super().one_pass(subjects, order, repetitions)
        finally:
            self._write("-")

    @property
    def passes(self):
        return read(self.diary).count(f"+{self.label}")

    @property
    def clock(self):
        return "made up"

    def fingerprint(self):
        return {**common_fingerprint(self, runtime="none", version="1"), "processor": self.label}

    def _write(self, sign):
        with self.diary.open("a") as stream:
            stream.write(f"{sign}{self.label}\n")

    def _meet(self):
        """Comes back when all others are inside a pass that waits for this one, or were."""
        deadline = time.monotonic() + 60
        while not {f"+{label}" for label in self.meets} <= set(read(self.diary)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.label} is timed, and {self.meets} are not")
            time.sleep(0.01)


def read(diary):
    return diary.read_text().splitlines() if diary.exists() else []


def overlapping(diary):
    """The sets of devices that were being timed at the same time."""
    inside, found = [], set()
    for line in read(diary):
        if line[0] == "+":
            inside.append(line[1:])
        else:
            inside.remove(line[1:])
        if len(inside) > 1:
            found.add(frozenset(inside))
    return found
