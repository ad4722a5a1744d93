"""Eight bits: an ONNX graph in float32 -> the same graph with quantised layers, by ONNX Runtime's own quantiser.

Static QDQ quantisation: convolutions and linear layers compute in int8, weights with a scale per channel, activations
(uint8) with a range seen on calibration images, and so do the sums, products, activations and poolings between them: an
activation in float between two layers in int8 costs two conversions of a whole map, which for inverted residuals eats up
most of the gain (docs/LOG.md). Which layers lose accuracy differs from network to network, so what stays in float is a
choice, a `Scheme`: squeeze-excite layers see one position, cost nothing and suffer most; the first layer and the classifier
see and say everything.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, final

import torch

from snugnet.devices.onnx_graph import quietly
from snugnet.errors import BadInput, reason_of

if TYPE_CHECKING:
    import onnx

_LAYERS: Final = ("Conv", "Gemm", "MatMul")
_BETWEEN: Final = ("Add", "Mul", "Clip", "Relu", "GlobalAveragePool", "Flatten", "Reshape")
_BATCH: Final = 32


@final
@dataclass(frozen=True, kw_only=True)
class Scheme:
    """What stays in float, and how an activation's range is read off the images: all of it, or all but the rarest values."""

    name: str
    float_squeeze: bool = True
    float_ends: bool = False  # the first layer and the classifier
    float_between: bool = False  # all that is no layer
    ranges: Literal["minmax", "percentile"] = "minmax"


SCHEMES: Final = (
    Scheme(name="float squeeze-excite"),
    Scheme(name="all layers", float_squeeze=False),
    Scheme(name="float squeeze-excite and ends", float_ends=True),
    Scheme(name="float squeeze-excite, 99.99 % ranges", ranges="percentile"),
    Scheme(name="float between layers", float_between=True),
)
"""What is tried; the first is what tables are measured with."""


def quantise(graph: bytes, images: torch.Tensor, scheme: Scheme = SCHEMES[0]) -> bytes:
    """The graph in int8, calibrated on `images` [N, C, H, W]; a graph that is quantised already stays as it is."""
    import onnx  # here and below on use: every verb imports this file
    from onnxruntime import quantization

    model = onnx.load_model_from_string(graph)
    if is_quantised(model):
        return graph
    percentile, methods = scheme.ranges == "percentile", quantization.CalibrationMethod
    with tempfile.TemporaryDirectory() as place, _silence():
        target = Path(place) / "int8.onnx"
        try:
            ready = _prepared(model, Path(place))
            quantization.quantize_static(
                ready,
                target,
                _reader(ready, images),
                quant_format=quantization.QuantFormat.QDQ,
                op_types_to_quantize=list(_LAYERS if scheme.float_between else (*_LAYERS, *_BETWEEN)),
                nodes_to_exclude=_float_nodes(ready, scheme),
                per_channel=True,
                reduce_range=not _has_vnni(),
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
                calibrate_method=methods.Percentile if percentile else methods.MinMax,
                # A batch at a time: for percentiles the quantiser would otherwise keep every activation of every image.
                extra_options={"CalibPercentile": 99.99, "CalibStridedMinMax": 1} if percentile else {},
            )
            return target.read_bytes()
        except Exception as error:  # the quantiser raises many kinds
            rule = "a graph must be one that ONNX Runtime's quantiser takes"
            raise BadInput(rule, value=reason_of(error), remedy="Stay in float32, and report the network.") from error


def is_quantised(model: onnx.ModelProto) -> bool:
    return any(node.op_type in ("QuantizeLinear", "QLinearConv") for node in model.graph.node)


def _prepared(model: onnx.ModelProto, place: Path) -> onnx.ModelProto:
    """BN folded into convolutions, shapes inferred, every node with a name of its own."""
    import onnx
    from onnxruntime.quantization.shape_inference import quant_pre_process

    onnx.save(model, place / "given.onnx")  # handed over in memory, its weights go to a file that is not found again
    quant_pre_process(place / "given.onnx", place / "ready.onnx", skip_symbolic_shape=True)
    ready = onnx.load(place / "ready.onnx")
    for number, node in enumerate(ready.graph.node):
        node.name = node.name or f"{node.op_type}_{number}"
    return ready


def _reader(model: onnx.ModelProto, images: torch.Tensor) -> Any:
    """The images in batches; a graph for a fixed batch gets batches of that size."""
    from onnxruntime.quantization import CalibrationDataReader

    weights = {tensor.name for tensor in model.graph.initializer}
    entry = next(value for value in model.graph.input if value.name not in weights)
    fixed = entry.type.tensor_type.shape.dim[0].dim_value
    parts = [part for part in images.float().split(fixed or _BATCH) if not fixed or len(part) == fixed]

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        rest: Iterator[torch.Tensor] = iter(parts)

        def get_next(self) -> dict[str, Any] | None:
            part = next(self.rest, None)
            return None if part is None else {entry.name: part.contiguous().numpy()}

        def __len__(self) -> int:
            return len(parts)

        def set_range(self, start_index: int, end_index: int) -> None:
            self.rest = iter(parts[start_index:end_index])

    return Reader()


def _float_nodes(model: onnx.ModelProto, scheme: Scheme) -> list[str]:
    layers = [node for node in model.graph.node if node.op_type in _LAYERS]
    names: list[str] = []
    if scheme.float_ends and layers:
        names += [layers[0].name, layers[-1].name]
    if scheme.float_squeeze:
        shapes = {
            value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in model.graph.value_info
        }
        names += [n.name for n in layers if n.op_type == "Conv" and shapes.get(n.input[0], ())[2:] == [1, 1]]
    return names


def _has_vnni() -> bool:
    """Without these instructions products of uint8 and int8 saturate in 16 bits: weights are then kept to seven bits."""
    try:
        return "vnni" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """The quantiser advises its caller through the root logger."""
    logging.disable(logging.WARNING)
    try:
        with quietly():
            yield
    finally:
        logging.disable(logging.NOTSET)
