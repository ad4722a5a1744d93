"""PyTorch on an NVIDIA GPU, timed with CUDA events.

A kernel launch returns before the work is done, so the processor's clock says nothing: an event is recorded before and after
the calls, and the time between the two is read once the second has passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from snugnet.devices.device import Device, Fingerprint, Runnable, common_fingerprint, frozen_copy
from snugnet.devices.torch_cpu import fixed_threads

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


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
        network = frozen_copy(module).to("cuda", _DTYPES[self.precision])
        given = example.detach().to("cuda", _DTYPES[self.precision])

        def run() -> torch.Tensor:
            with torch.inference_mode():
                result: torch.Tensor = network(given)
                return result

        def output() -> torch.Tensor:
            return run().float().cpu()

        return Runnable(run=run, output=output)

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
