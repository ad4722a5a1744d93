"""ONNX Runtime on the processor, with all graph optimisations on.

A block measured alone is fused and laid out as it would be inside a network, except at its edges, where the runtime converts
between its own layout and the plain one: calibration takes that out again (`snugnet.costs.calibrate`).
"""

from __future__ import annotations

import importlib.util
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
from snugnet.devices.onnx_graph import agree, onnx_bytes


@final
@dataclass(frozen=True, kw_only=True)
class OnnxRuntime(Device):
    """ONNX Runtime's CPU provider: `OnnxRuntime(threads=1)`."""

    name: ClassVar[str] = "onnxruntime"

    @classmethod
    def missing(cls) -> str:
        return "" if importlib.util.find_spec("onnxruntime") else "no package onnxruntime"

    @classmethod
    def remedy(cls) -> str:
        return "pip install onnxruntime"

    def prepare(self, module: torch.nn.Module, example: torch.Tensor) -> Runnable:
        network, given = frozen_copy(module).to("cpu", torch.float32), example.detach().to("cpu", torch.float32)
        runnable = self.open(onnx_bytes(network, given), given)
        with torch.inference_mode():
            agree(runnable.output(), network(given), what="the exported ONNX graph")
        return runnable

    def open(self, graph: bytes | str, given: torch.Tensor) -> Runnable:
        """A graph that exists already, as bytes or as the path of a file."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        feed = {session.get_inputs()[0].name: given.numpy()}

        def run() -> Any:
            return session.run(None, feed)

        def output() -> torch.Tensor:
            return torch.from_numpy(run()[0])

        return Runnable(run=run, output=output)

    def time(self, runnable: Runnable, repetitions: int) -> float:
        return (thread_cpu_time if self.threads == 1 else wall_clock)(runnable.run, repetitions)

    @property
    def clock(self) -> str:
        return OWN_TIME if self.threads == 1 else WALL_CLOCK

    def fingerprint(self) -> Fingerprint:
        import onnxruntime

        return common_fingerprint(self, runtime="onnxruntime", version=str(onnxruntime.__version__))
