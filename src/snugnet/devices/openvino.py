"""OpenVINO on the processor (optional: `pip install 'snugnet[openvino]'`).

Float32 is asked for by name: left alone, OpenVINO computes in bfloat16 on processors that have it.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch

from snugnet.devices.device import (
    WALL_CLOCK,
    Device,
    Fingerprint,
    Runnable,
    common_fingerprint,
    frozen_copy,
    wall_clock,
)
from snugnet.devices.onnx_graph import agree, onnx_bytes

_HINTS = {"float32": "f32", "bfloat16": "bf16"}
_TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2}


@final
@dataclass(frozen=True, kw_only=True)
class OpenVino(Device):
    """OpenVINO's CPU plugin: `OpenVino(threads=1)`."""

    name: ClassVar[str] = "openvino"
    precisions: ClassVar[tuple[str, ...]] = ("float32", "bfloat16")

    @classmethod
    def missing(cls) -> str:
        return "" if importlib.util.find_spec("openvino") else "no package openvino"

    @classmethod
    def remedy(cls) -> str:
        return "pip install 'snugnet[openvino]'"

    def prepare(self, module: torch.nn.Module, example: torch.Tensor) -> Runnable:
        network, given = frozen_copy(module).to("cpu", torch.float32), example.detach().to("cpu", torch.float32)
        runnable = self.open(onnx_bytes(network, given), given)
        with torch.inference_mode():
            agree(runnable.output(), network(given), what="the OpenVINO model", tolerance=_TOLERANCE[self.precision])
        return runnable

    def open(self, graph: bytes | str, given: torch.Tensor) -> Runnable:
        """An ONNX graph that exists already, as bytes or as the path of a file."""
        import openvino

        core = openvino.Core()
        settings = {
            "INFERENCE_NUM_THREADS": self.threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": _HINTS[self.precision],
        }
        request = core.compile_model(core.read_model(graph), "CPU", settings).create_infer_request()
        request.set_input_tensor(openvino.Tensor(given.numpy(), shared_memory=False))

        def run() -> Any:
            return request.infer()

        def output() -> torch.Tensor:
            run()
            return torch.from_numpy(request.get_output_tensor().data.copy()).float()

        return Runnable(run=run, output=output)

    def time(self, runnable: Runnable, repetitions: int) -> float:
        return wall_clock(runnable.run, repetitions)

    @property
    def clock(self) -> str:
        return WALL_CLOCK  # OpenVINO works in threads of its own

    def fingerprint(self) -> Fingerprint:
        import openvino

        return common_fingerprint(self, runtime="openvino", version=str(openvino.__version__).split("-")[0])
