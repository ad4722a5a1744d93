"""PyTorch on the processor, with a fixed number of threads.

The C library hands memory of a few megabytes back to the system after every layer and fetches it anew, page by page, for the
next. What that costs depends on what ran before, not on the layer: measured on one cloud machine, a block with a 4.6 MiB
activation took 5.7 ms alone where its arithmetic takes 2.7 ms, and the error of a table against whole networks had a spread
of 5 % instead of 1 %. So memory is kept by default (`keep_memory`), which also is the usual advice for serving with PyTorch,
and the fingerprint says so. To run a network as it was measured: MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=2147483647.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch

from snugnet.devices.device import (
    OWN_TIME,
    WALL_CLOCK,
    Device,
    Fingerprint,
    Runnable,
    common_fingerprint,
    frozen_copy,
    thread_cpu_time,
    wall_clock,
)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


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
        network = frozen_copy(module).to("cpu", _DTYPES[self.precision])
        given = example.detach().to("cpu", _DTYPES[self.precision])

        def run() -> torch.Tensor:
            with torch.inference_mode():
                result: torch.Tensor = network(given)
                return result

        def output() -> torch.Tensor:
            with fixed_threads(self.threads):
                return run().float().clone()

        return Runnable(run=run, output=output)

    def time(self, runnable: Runnable, repetitions: int) -> float:
        with fixed_threads(self.threads):
            return (thread_cpu_time if self.threads == 1 else wall_clock)(runnable.run, repetitions)

    @property
    def clock(self) -> str:
        return OWN_TIME if self.threads == 1 else WALL_CLOCK

    def fingerprint(self) -> Fingerprint:
        kept = self.keep_memory and keep_freed_memory()
        return {
            **common_fingerprint(self, runtime="torch", version=torch.__version__),
            "memory": "kept by the process" if kept else "as the C library does",
        }


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


@functools.cache
def keep_freed_memory() -> bool:
    """Ask glibc to keep freed memory in the process; False where there is no glibc."""
    if platform.libc_ver()[0] != "glibc":
        return False
    library: Any = ctypes.CDLL(None)
    trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of <malloc.h>
    return bool(library.mallopt(mmap_max, 0)) and bool(library.mallopt(trim_threshold, 2**31 - 1))
