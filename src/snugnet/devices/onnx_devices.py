"""Runtimes on the processor that take ONNX graphs: ONNX Runtime, and OpenVINO (`pip install 'snugnet[openvino]'`).

ONNX Runtime has all graph optimisations on. A block measured alone is fused and laid out as it would be inside a network,
except at its edges, where a runtime converts between its own layout and the plain one: calibration takes that out again
(`snugnet.costs.calibrate`). OpenVINO is asked for float32 by name: left alone, it computes in bfloat16 on processors that
have it. Both run int8: graphs are quantised on the way in (`snugnet.devices.quantise`), those that are so already are left.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, final

import torch

from snugnet.devices.agent import WALL_CLOCK, cpu_clock, onnx_runner, wall_clock
from snugnet.devices.device import Device, Fingerprint, Runnable, common_fingerprint, frozen_copy
from snugnet.devices.onnx_graph import agree, onnx_bytes
from snugnet.devices.quantise import quantise

_TOLERANCE: Final = {"float32": 1e-3, "bfloat16": 5e-2, "int8": 1e-3}  # of the graph before it is quantised
_HINTS: Final = {"float32": "f32", "bfloat16": "bf16", "int8": "f32"}


@dataclass(frozen=True, kw_only=True)
class OnnxDevice(Device):
    """What they have in common; the name of one on this machine is that of its package."""

    @classmethod
    def missing(cls) -> str:
        return "" if importlib.util.find_spec(cls.name) else f"no package {cls.name}"

    def prepare(self, module: torch.nn.Module, example: torch.Tensor) -> Runnable:
        network, given = frozen_copy(module).to("cpu", torch.float32), example.detach().to("cpu", torch.float32)
        graph = onnx_bytes(network, given)
        runnable = self.start(graph, given)
        with torch.inference_mode():
            what = f"the ONNX graph in {self.name}"  # which is right before it is rounded
            agree(runnable.output(), network(given), what=what, tolerance=_TOLERANCE[self.precision])
        return self.open(graph, given) if self.precision == "int8" else runnable

    def open(self, graph: bytes | str, given: torch.Tensor) -> Runnable:
        """A graph that exists already, as bytes or as the path of a file, in this device's precision."""
        return self.start(self.graph(graph, given), given)

    def graph(self, graph: bytes | str, given: torch.Tensor) -> bytes | str:
        """The graph in this device's precision; for times it does not matter which images int8 is calibrated on."""
        if self.precision != "int8":
            return graph
        return quantise(graph if isinstance(graph, bytes) else Path(graph).read_bytes(), given)

    @abstractmethod
    def start(self, graph: bytes | str, given: torch.Tensor) -> Runnable:
        """The graph as it is, in the runtime."""

    def fingerprint(self) -> Fingerprint:
        return common_fingerprint(self, runtime=self.name, version=_version(self.name))


@final
@dataclass(frozen=True, kw_only=True)
class OnnxRuntime(OnnxDevice):
    """ONNX Runtime's CPU provider: `OnnxRuntime(threads=1)`."""

    name: ClassVar[str] = "onnxruntime"
    precisions: ClassVar[tuple[str, ...]] = ("float32", "int8")

    @classmethod
    def remedy(cls) -> str:
        return "pip install onnxruntime"

    def start(self, graph: bytes | str, given: torch.Tensor) -> Runnable:
        run = onnx_runner(graph, given.numpy(), self.threads)

        def answer(images: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(run(images.numpy())[0])

        return Runnable(run=run, output=lambda: torch.from_numpy(run()[0]), answer=answer)

    def time(self, runnable: Runnable, repetitions: int) -> float:
        return cpu_clock(self.threads).time(runnable.run, repetitions)

    @property
    def clock(self) -> str:
        return cpu_clock(self.threads).name


@final
@dataclass(frozen=True, kw_only=True)
class OpenVino(OnnxDevice):
    """OpenVINO's CPU plugin: `OpenVino(threads=1)`."""

    name: ClassVar[str] = "openvino"
    precisions: ClassVar[tuple[str, ...]] = ("float32", "bfloat16", "int8")

    @classmethod
    def remedy(cls) -> str:
        return "pip install 'snugnet[openvino]'"

    def start(self, graph: bytes | str, given: torch.Tensor) -> Runnable:
        import openvino

        core = openvino.Core()
        settings = {
            "INFERENCE_NUM_THREADS": self.threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": _HINTS[self.precision],
        }
        compiled = core.compile_model(core.read_model(graph), "CPU", settings)
        request, other = compiled.create_infer_request(), compiled.create_infer_request()
        request.set_input_tensor(openvino.Tensor(given.numpy(), shared_memory=False))

        def output() -> torch.Tensor:
            request.infer()
            return torch.from_numpy(request.get_output_tensor().data.copy()).float()

        def answer(images: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(other.infer({0: images.numpy()})[0].copy()).float()

        return Runnable(run=request.infer, output=output, answer=answer)

    def time(self, runnable: Runnable, repetitions: int) -> float:
        return wall_clock(runnable.run, repetitions)

    @property
    def clock(self) -> str:
        return WALL_CLOCK  # OpenVINO works in threads of its own


def _version(package: str) -> str:
    """As its metadata say: who only compares a table with this device need not load the runtime."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # installed under another name, such as onnxruntime-gpu
        return str(importlib.import_module(package).__version__).split("-")[0]
