"""Exact costs of a network as it ships, counted from its ONNX graph: nothing is believed, everything is recounted.

The conventions are those of `snugnet.costs.analytic`: a MAC for every weight and output position of convolutions and
linear layers; parameters are weights, biases, BN scales and shifts (not BN's statistics); peak memory is what is alive at a
layer when every layer runs in turn, with BN, activations, products and sums in place. Exporters fold BN into convolutions,
so a graph may have fewer parameters than the module it came from, never more.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import onnx
from onnx import numpy_helper, shape_inference

from snugnet.errors import BadInput, DamagedFile, FileTrouble, reason_of

_IN_PLACE: Final = {
    "Add", "BatchNormalization", "Clip", "Dropout", "Flatten", "HardSigmoid", "HardSwish", "Identity", "Mul", "Relu",
    "DequantizeLinear", "QuantizeLinear", "Reshape", "Sigmoid", "Softmax", "Squeeze", "Sub", "Div", "Swish", "Unsqueeze",
}  # fmt: skip
_SCALARS: Final = {"Constant", "Shape", "Gather", "Concat", "Cast", "Slice"}  # bookkeeping of shapes costs nothing


@dataclass(frozen=True, kw_only=True)
class GraphCosts:
    """For one image: MACs, parameters, bytes of the weights, bytes of peak activations, and the input's shape."""

    macs: int
    params: int
    model_size: int
    memory: int
    input_shape: tuple[int, ...]

    def of(self, resource: str) -> float:
        return float(getattr(self, resource))


def read_graph(source: bytes | str | Path) -> onnx.ModelProto:
    """An ONNX model from bytes or a file; a damaged one is named."""
    try:
        model = onnx.load_model_from_string(source) if isinstance(source, bytes) else onnx.load(str(source))
        onnx.checker.check_model(model)
    except OSError as error:
        raise FileTrouble(f"{source!s} could not be read ({error.strerror})", remedy="Check the path.") from error
    except Exception as error:
        rule = f"{'the ONNX bytes' if isinstance(source, bytes) else source} must be a whole ONNX model"
        raise DamagedFile(f"{rule} ({reason_of(error, 80)})", remedy="Export it again.") from error
    return model


def graph_costs(source: bytes | str | Path) -> GraphCosts:
    """Count a graph that takes one image."""
    model = read_graph(source)
    graph = _inferred(model)
    constants = {t.name: tuple(t.dims) for t in graph.initializer}
    shapes = _shapes(graph) | constants
    entry = next(value.name for value in graph.input if value.name not in constants)
    counted = _parameters(graph, constants)
    return GraphCosts(
        macs=sum(_macs(node, shapes) for node in graph.node),
        params=sum(math.prod(constants[name]) for name in counted),
        model_size=sum(numpy_helper.to_array(t).nbytes for t in graph.initializer if t.name in counted),
        memory=_peak(graph, shapes, constants, entry),
        input_shape=shapes[entry],
    )


def _inferred(model: onnx.ModelProto) -> Any:
    """The graph with every shape known, for a batch of one."""
    inner = onnx.ModelProto()
    inner.CopyFrom(model)
    constants = {t.name for t in inner.graph.initializer}
    for value in inner.graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name not in constants and len(dims) > 0:
            dims[0].ClearField("dim_param")
            dims[0].dim_value = 1
    del inner.graph.value_info[:]  # a file's own shapes may be for another batch
    for value in inner.graph.output:
        value.type.tensor_type.ClearField("shape")
    return shape_inference.infer_shapes(inner, data_prop=True).graph


def _shapes(graph: Any) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for value in [*graph.input, *graph.value_info, *graph.output]:
        dims = value.type.tensor_type.shape.dim
        if any(not d.HasField("dim_value") for d in dims):
            rule = "every size in an ONNX graph except the batch must be fixed to be counted"
            raise BadInput(rule, value=value.name, remedy="Export it for one input resolution.")
        shapes[value.name] = tuple(d.dim_value for d in dims)
    return shapes


def _parameters(graph: Any, constants: dict[str, tuple[int, ...]]) -> set[str]:
    """Initialisers that are weights: those of layers, without BN's statistics and the constants of reshapes."""
    weights = set()
    stored = {  # quantised weights: what a layer reads -> what is in the file
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in constants
    }
    for node in graph.node:
        names = node.input[1:3] if node.op_type in ("Conv", "Gemm", "BatchNormalization") else []
        if node.op_type == "MatMul":
            names = node.input[:2]
        if node.op_type == "Add":  # a linear layer's bias, where the exporter split it off
            names = [n for n in node.input if n in constants and math.prod(constants[n]) > 1]
        weights |= {stored.get(name, name) for name in names if stored.get(name, name) in constants}
    return weights


def _macs(node: Any, shapes: dict[str, tuple[int, ...]]) -> int:
    if node.op_type == "Conv":  # weights are [out, in / groups, height, width]
        return math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[1]][1:])
    if node.op_type == "Gemm":
        transposed = any(a.name == "transA" and a.i for a in node.attribute)
        return math.prod(shapes[node.output[0]]) * shapes[node.input[0]][0 if transposed else 1]
    if node.op_type == "MatMul":
        return math.prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]
    return 0


def _peak(graph: Any, shapes: dict[str, tuple[int, ...]], constants: dict[str, tuple[int, ...]], entry: str) -> int:
    """Bytes alive at the fullest moment: outputs are allocated, or take over an input's place that nobody needs again."""
    waiting = Counter(name for node in graph.node for name in node.input if name)
    waiting.update(value.name for value in graph.output)
    buffer = {entry: entry}  # tensor -> the buffer it lives in
    users = Counter({entry: waiting[entry]})  # buffer -> readings still to come
    size = {entry: math.prod(shapes[entry])}
    fused = _gates_of_themselves(graph)
    peak = size[entry]
    for node in graph.node:
        inputs = [name for name in node.input if name in buffer]
        output = node.output[0]
        if node.op_type in _SCALARS or not inputs:
            continue
        numbers = 0 if output in fused else math.prod(shapes[output])
        home = next((buffer[n] for n in inputs if _takes_over(node, n, users, buffer, size, numbers)), None)
        if home is None:
            home = output
            size[home] = numbers
        peak = max(peak, sum(size[b] for b in {*(b for b in size if users[b] > 0), home}))
        for name in inputs:
            users[buffer[name]] -= 1
        buffer[output] = home
        users[home] += waiting[output]
    return 4 * peak


def _takes_over(
    node: Any, name: str, users: Counter[str], buffer: dict[str, str], size: dict[str, int], numbers: int
) -> bool:
    readings = sum(buffer.get(n) == buffer[name] for n in node.input)
    return node.op_type in _IN_PLACE and users[buffer[name]] == readings and size[buffer[name]] == numbers


def _gates_of_themselves(graph: Any) -> set[str]:
    """x * sigmoid(x) is one activation, written as two nodes: the gate's output never exists as a tensor."""
    made_by = {node.output[0]: node for node in graph.node}
    gates = set()
    for node in graph.node:
        if node.op_type == "Mul":
            for gate, other in (tuple(node.input), tuple(node.input)[::-1]):
                maker = made_by.get(gate)
                if maker is not None and maker.op_type in ("Sigmoid", "HardSigmoid") and maker.input[0] == other:
                    gates.add(gate)
    return gates
