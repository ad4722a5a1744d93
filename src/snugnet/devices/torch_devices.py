"""PyTorch on the processor, with a fixed number of threads, and on an NVIDIA GPU, timed with CUDA events.

The C library hands memory of a few megabytes back to the system after every layer and fetches it anew, page by page, for the
next. What that costs depends on what ran before, not on the layer: measured on one cloud machine, a block with a 4.6 MiB
activation took 5.7 ms alone where its arithmetic takes 2.7 ms, and the error of a table against whole networks had a spread
of 5 % instead of 1 %. So memory is kept by default (`keep_memory`), which also is the usual advice for serving with PyTorch,
and the fingerprint says so. To run a network as it was measured: MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=2147483647.

On a GPU a kernel launch returns before the work is done, so the processor's clock says nothing: an event is recorded before
and after the calls, and the time between the two is read once the second has passed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch

from snugnet.devices.agent import cpu_clock
from snugnet.devices.device import Device, Fingerprint, Runnable, common_fingerprint, frozen_copy
from snugnet.executors import keep_freed_memory

_DTYPES: Final = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@final
@dataclass(frozen=True, kw_only=True)
class TorchCpu(Device):
    """Eager PyTorch on the CPU: `TorchCpu(threads=1)`."""

    keep_memory: bool = True

    name: ClassVar[str] = "torch-cpu"
    precisions: ClassVar[tuple[str, ...]] = ("float32", "bfloat16")

    @classmethod
    def missing(cls) -> str:
        return ""

    @classmethod
    def remedy(cls) -> str:
        return "It is part of every PyTorch."

    def prepare(self, module: torch.nn.Module, example: torch.Tensor) -> Runnable:
        if self.keep_memory:
            keep_freed_memory()
        infer, given = _inference(module, example, "cpu", self.precision)

        def answer(images: torch.Tensor) -> torch.Tensor:
            with fixed_threads(self.threads):
                return infer(images.to(given)).float().clone()

        return Runnable(run=lambda: infer(given), output=lambda: answer(given), answer=answer)

    def time(self, runnable: Runnable, repetitions: int) -> float:
        with fixed_threads(self.threads):
            return cpu_clock(self.threads).time(runnable.run, repetitions)

    @property
    def clock(self) -> str:
        return cpu_clock(self.threads).name

    def fingerprint(self) -> Fingerprint:
        kept = self.keep_memory and keep_freed_memory()
        return {
            **common_fingerprint(self, runtime="torch", version=torch.__version__),
            "memory": "kept by the process" if kept else "as the C library does",
        }


@final
@dataclass(frozen=True, kw_only=True)
class TorchCuda(Device):
    """Eager PyTorch on the current CUDA device; `threads` are those of the processor that launches the kernels."""

    name: ClassVar[str] = "torch-cuda"
    precisions: ClassVar[tuple[str, ...]] = ("float32", "float16", "bfloat16")

    @classmethod
    def missing(cls) -> str:
        if torch.version.cuda is None:
            return "a PyTorch built without CUDA"
        return "" if torch.cuda.is_available() else "no CUDA device"

    @classmethod
    def remedy(cls) -> str:
        return "It needs an NVIDIA GPU and a CUDA build of PyTorch; `snugnet devices` lists what is here."

    def prepare(self, module: torch.nn.Module, example: torch.Tensor) -> Runnable:
        infer, given = _inference(module, example, "cuda", self.precision)

        def answer(images: torch.Tensor) -> torch.Tensor:
            return infer(images.to(given)).float().cpu()

        return Runnable(run=lambda: infer(given), output=lambda: answer(given), answer=answer)

    def time(self, runnable: Runnable, repetitions: int) -> float:
        with fixed_threads(self.threads):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            begin.record()
            for _ in range(repetitions):
                runnable.run()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) / repetitions

    @property
    def clock(self) -> str:
        return "CUDA events"

    def fingerprint(self) -> Fingerprint:
        return {
            **common_fingerprint(self, runtime="torch", version=torch.__version__),
            "gpu": torch.cuda.get_device_name(),
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),
        }


def _inference(
    module: torch.nn.Module, example: torch.Tensor, place: str, precision: str
) -> tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]:
    """A copy of `module` at `place`, and the example there."""
    network, given = frozen_copy(module).to(place, _DTYPES[precision]), example.detach().to(place, _DTYPES[precision])

    def infer(images: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            result: torch.Tensor = network(images)
            return result

    return infer, given


@contextlib.contextmanager
def fixed_threads(threads: int) -> Iterator[None]:
    """PyTorch's thread count is global; it is set around each timing and given back."""
    before = torch.get_num_threads()
    if before == threads:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
