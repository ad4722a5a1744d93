"""A device behind a command: `Command(command="ssh pi4 snugnet-agent")`, for boards that cannot run Python with torch.

The command starts the agent (`snugnet agent --write FILE`) wherever it leads: over SSH, into a container (`docker exec -i`),
onto a phone (`adb shell`), or on this machine. Graphs are made and quantised here, run and timed there, in ONNX Runtime.
A table made so remembers what the board is, not how it was reached: it serves every board of the same kind, and names no
host. A table or certificate is only data, so the command always comes from the user, never from such a file.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, final

import numpy as np
import torch

from snugnet.devices.agent import PassTimes, boot
from snugnet.devices.agent_link import AgentLink, SubjectKey
from snugnet.devices.device import HERE, Fingerprint, Runnable
from snugnet.devices.onnx_devices import OnnxDevice
from snugnet.errors import BadInput
from snugnet.store import read_bytes

PREFIX: Final = "command:"


@final
@dataclass(frozen=True, kw_only=True)
class _Remote(Runnable):
    """A subject that the agent holds."""

    key: SubjectKey


@final
@dataclass(frozen=True, kw_only=True)
class Command(OnnxDevice):
    """ONNX Runtime on a board, behind a command that starts the agent there. Connects at once."""

    command: str
    timeout: float = 60.0  # seconds without a sign of life after which the board is lost
    _link: AgentLink = field(init=False, repr=False, compare=False)

    name: ClassVar[str] = "command"
    precisions: ClassVar[tuple[str, ...]] = ("float32", "int8")

    def __post_init__(self) -> None:
        if not 0 < self.timeout < math.inf:
            remedy = "60 seconds are usual."
            raise BadInput("timeout must be a positive number of seconds", value=self.timeout, remedy=remedy)
        object.__setattr__(self, "_link", AgentLink(self.command, self.threads, self.timeout))
        super().__post_init__()

    @classmethod
    def missing(cls) -> str:
        return ""  # whether an agent answers is seen by asking it

    @classmethod
    def remedy(cls) -> str:
        return "snugnet agent --write FILE"

    def cores(self) -> int:
        return self._link.about().cores

    def start(self, graph: bytes | str, given: torch.Tensor) -> Runnable:
        content = graph if isinstance(graph, bytes) else read_bytes(graph)
        values = np.ascontiguousarray(given.numpy(), dtype="<f4")
        link, key = self._link, self._link.open(content, values.tobytes(), values.shape)

        def output() -> torch.Tensor:
            body, shape = link.output(key)
            return torch.from_numpy(np.frombuffer(body, dtype="<f4").astype(np.float32).reshape(shape))

        runnable = _Remote(run=lambda: link.time(key, 1), output=output, key=key)
        weakref.finalize(runnable, link.release, key)
        return runnable

    def time(self, runnable: Runnable, repetitions: int) -> float:
        return self._link.time(_key(runnable), repetitions)

    def one_pass(self, subjects: Sequence[Runnable], order: Sequence[int], repetitions: Sequence[int]) -> PassTimes:
        return self._link.one_pass([_key(subject) for subject in subjects], order, repetitions)

    def close(self) -> None:
        """End the agent; it is started again when it is needed."""
        self._link.close()

    @property
    def place(self) -> str:
        """The running system there, however it is reached; an agent that cannot tell stands for what its command says."""
        there = self._link.boot()
        return HERE if there and there == boot() else there or self.command

    @property
    def clock(self) -> str:
        return self._link.about().fields["clock"]

    def fingerprint(self) -> Fingerprint:
        own = {"device": self.name, "threads": str(self.threads), "precision": self.precision}
        return {**own, **self._link.about().fields}


def _key(runnable: Runnable) -> SubjectKey:
    if not isinstance(runnable, _Remote):
        remedy = "Prepare it with this device."
        raise BadInput("a subject must be timed by the device that prepared it", value="another's", remedy=remedy)
    return runnable.key
