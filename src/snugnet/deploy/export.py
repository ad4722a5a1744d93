"""`export`: a network as an ONNX file others can run, written only if it computes what the network computes.

`torch.export` traces the network with a free batch size; PyTorch's dynamo exporter turns the programme into ONNX (opset
18, all weights inside the one file). Exporters have been wrong in silence before, so ONNX Runtime runs the graph on random
and on the given real images, alone and in a batch, before anything is written; a difference is refused. The programme
itself can be kept as well (`.pt2`), for users of PyTorch without snugnet.

The card goes into the file's metadata: entries a stranger can use stand in plain sight (`class_names`, `mean`, `std`,
`resolution`, ...; lists and objects as JSON); `sha256` covers them, the graph and its weights. ONNX files from elsewhere
have none of this and can be opened all the same.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import onnx
import onnxruntime
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from snugnet.costs.graph import read_graph
from snugnet.costs.measure import versions
from snugnet.deploy.card import Card, card_from_json
from snugnet.deploy.network_file import check_finite
from snugnet.devices.device import frozen_copy
from snugnet.devices.onnx_graph import quietly
from snugnet.errors import BadInput, DamagedFile, reason_of
from snugnet.nets.network import Network
from snugnet.store import check_writable, parse_json, sha256, tensors_fingerprint, write_bytes

FORMAT: Final = "snugnet-onnx-1"
_TEXTS: Final = ("space", "architecture", "certificate_sha256")  # entries that are no JSON
OPSET: Final = 18
"""What the exporter produces natively; later versions only relabel it."""
TOLERANCE: Final = 1e-4
"""Largest difference that is rounding, relative to the largest logit or to 1. Fused arithmetic differs by about 1e-6."""
BATCHES: Final = (1, 5)


@final
@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How far a file's logits were from the network's."""

    form: str  # onnx, program
    images: str  # random, given
    batch: int
    largest: float  # of the absolute differences
    relative: float  # the same, relative to the largest logit


@final
@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written, and how well it agrees."""

    path: Path
    program: Path | None
    sha256: str  # of the file
    weights_sha256: str  # of the network it was made from
    graph_sha256: str  # of what the file computes, its metadata left out
    input_shape: tuple[int, int, int]  # channels, height, width
    classes: int
    opset: int
    comparisons: tuple[Comparison, ...]


def export(
    network: nn.Module,
    path: str | Path,
    *,
    card: Card | None = None,
    images: Tensor | None = None,
    resolution: int | None = None,
    channels: int = 3,
    program: str | Path | None = None,
    tolerance: float = TOLERANCE,
) -> Exported:
    """Write `network` to `path` (.onnx) and, if asked, its `torch.export` programme to `program` (.pt2).

    `images` [N, C, H, W], prepared as for the network, are what the file is checked on besides random ones. A module of your
    own must say its `resolution` and `channels`; networks made here know them.
    """
    check_path(path, ".onnx")
    if program is not None:
        check_path(program, ".pt2")
    still, known = frozen_copy(network).cpu(), card or Card()
    shape = input_shape(network, resolution, channels)
    check_finite(dict(still.state_dict()))
    if images is not None:
        _check_images(images, shape)
    classes = _classes(still, shape)
    known.check(classes=classes, channels=shape[0])
    traced = _trace(still, shape)
    data = _onnx(traced, known, _about(still, shape, classes))
    session = open_session(data, "the exported graph")

    comparisons = compare("onnx", lambda batch: run_session(session, batch), still, shape, images, tolerance)
    if program is not None:
        comparisons += compare("program", traced.module(), still, shape, images, tolerance)
        write_bytes(program, _program(traced))
    written = write_bytes(path, data)
    return Exported(
        path=written,
        program=None if program is None else Path(program),
        sha256=sha256(data),
        weights_sha256=tensors_fingerprint(still.state_dict()),
        graph_sha256=graph_hash(onnx.load_model_from_string(data)),
        input_shape=shape,
        classes=classes,
        opset=OPSET,
        comparisons=tuple(comparisons),
    )


def check_path(path: str | Path, ending: str) -> None:
    """Refuse a file nobody could use, before any work."""
    if Path(path).suffix.lower() != ending:
        raise BadInput(f"the file to export to must end in {ending}", value=str(path), remedy="Rename it.")
    check_writable(path)


def input_shape(network: nn.Module, resolution: int | None, channels: int) -> tuple[int, int, int]:
    if isinstance(network, Network):
        side = network.plan.resolution
        if resolution not in (None, side):
            raise BadInput(f"this network's resolution is {side}", value=resolution, remedy="Leave it out.")
        return network.plan.stem.in_channels, side, side
    if resolution is None:
        raise BadInput("a module's input resolution must be known", value=None, remedy="Pass resolution=224.")
    return channels, resolution, resolution


def _check_images(images: Tensor, shape: tuple[int, int, int]) -> None:
    if images.dim() != 4 or tuple(images.shape[1:]) != shape or len(images) < 1 or not images.is_floating_point():
        raise BadInput(
            f"images must be floats of the shape [N, {', '.join(map(str, shape))}], normalised",
            value=f"{images.dtype} {list(images.shape)}",
            remedy="Prepare them as for the network.",
        )


def _classes(still: nn.Module, shape: tuple[int, int, int]) -> int:
    try:
        with torch.inference_mode():
            logits = still(random_images(2, shape))
    except Exception as error:
        rule = f"the module must take images {list(shape)}"
        raise BadInput(rule, value=reason_of(error), remedy="Check resolution.") from error
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != 2:
        raise BadInput(
            "the module must give logits [N, classes]",
            value=list(getattr(logits, "shape", [])) or type(logits).__name__,
            remedy="Wrap it so that it does.",
        )
    return int(logits.shape[1])


def _trace(still: nn.Module, shape: tuple[int, int, int]) -> Any:
    entry = next(iter(inspect.signature(still.forward).parameters))
    try:
        with quietly():
            traced = torch.export.export(
                still, (random_images(2, shape),), dynamic_shapes={entry: {0: torch.export.Dim("batch", min=1)}}
            )
    except Exception as error:
        rule = "a module must be traceable by torch.export with any batch size"
        raise BadInput(rule, value=reason_of(error, 160), remedy="Rewrite the operation it stumbles on.") from error
    for node in traced.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    return traced


def _onnx(traced: Any, card: Card, about: dict[str, str]) -> bytes:
    """Exported in memory: files beyond the one that is asked for never come into being."""
    try:
        with quietly():
            program = torch.onnx.export(
                traced, input_names=["images"], output_names=["logits"], opset_version=OPSET, dynamo=True, verbose=False
            )
            assert program is not None
            model = program.model_proto
    except Exception as error:
        rule = "a module must be exportable to ONNX"
        raise BadInput(rule, value=reason_of(error, 160), remedy="Rewrite the operation it stumbles on.") from error
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    del model.graph.value_info[:]  # the exporter's own names for the batch; readers infer them again
    data = describe(model, card, about)
    onnx.checker.check_model(onnx.load_model_from_string(data), full_check=True)
    return data


def _about(still: nn.Module, shape: tuple[int, int, int], classes: int) -> dict[str, str]:
    made_by = {**versions(), "onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__}
    return {
        "classes": str(classes),
        "channels": str(shape[0]),
        "resolution": str(shape[1]),
        "weights_sha256": tensors_fingerprint(still.state_dict()),
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(made_by.items())),
    }


def _program(traced: Any) -> bytes:
    stream = io.BytesIO()
    with quietly():
        torch.export.save(traced, stream)
    return stream.getvalue()


def compare(
    form: str, run: Any, still: nn.Module, shape: tuple[int, int, int], images: Tensor | None, tolerance: float
) -> list[Comparison]:
    """`run` against the network, on every kind of images and batch; the first real difference is refused."""
    comparisons = []
    kinds = {"random": random_images(BATCHES[-1], shape)}
    if images is not None:
        kinds["given"] = images.detach().to("cpu", torch.float32)
    for kind, all_images in kinds.items():
        for count in sorted({BATCHES[0], len(all_images)}):
            batch = all_images[:count].contiguous()
            with torch.inference_mode():
                expected = still(batch)
                computed = run(batch)
            comparisons.append(_difference(form, kind, computed, expected, tolerance))
    return comparisons


def _difference(form: str, kind: str, actual: Tensor, expected: Tensor, tolerance: float) -> Comparison:
    if actual.shape != expected.shape or not bool(torch.isfinite(expected).all()):
        shapes = f"{list(actual.shape)} and {list(expected.shape)}"
        raise _differs(form, kind, f"shapes {shapes}, or logits that are not finite")
    largest, scale = float((actual - expected).abs().max()), max(float(expected.abs().max()), 1e-30)
    if not largest <= tolerance * max(scale, 1.0):  # logits near 0 are what rounding leaves of sums of a thousand terms
        raise _differs(form, kind, f"a difference of {largest:.3g} where the largest logit is {scale:.3g}")
    return Comparison(form=form, images=kind, batch=len(expected), largest=largest, relative=largest / scale)


def _differs(form: str, kind: str, value: str) -> BadInput:
    return BadInput(
        f"the exported {form} must compute what the network computes on {kind} images",
        value=value,
        remedy="Nothing was written. Please report it: the exporter got this network wrong.",
    )


# --- the file and its metadata ----------------------------------------------------------------------------------------


def describe(model: onnx.ModelProto, card: Card, about: dict[str, str]) -> bytes:
    """The model as bytes with the card and `about` in its metadata, and nothing of the machine it was made on."""
    _forget_origin(model)
    entries = {"format": FORMAT, **about}
    for name, value in card.to_json().items():
        entries[name] = value if name in _TEXTS else json.dumps(value, sort_keys=True)
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, entries)
    onnx.helper.set_model_props(model, {**entries, "sha256": _hash(model)})
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def stamp(path: str | Path, **changes: Any) -> Path:
    """Change fields of the card in a file that was written here, e.g. `certificate_sha256=...`; the graph stays as it is."""
    file = Path(path)
    model = read_graph(file)
    metadata = checked_metadata(model, file)
    if metadata.get("format") != FORMAT:
        raise BadInput("a file to stamp must have been exported here", value=str(file), remedy="Export it again.")
    own = {*Card.model_fields, "format", "sha256"}
    about = {name: text for name, text in metadata.items() if name not in own}
    return write_bytes(file, describe(model, _card(metadata, str(file)).model_copy(update=changes), about))


def card_in(model: onnx.ModelProto, file: Path) -> Card:
    """What the file tells of its network; an empty card if it was not written here."""
    metadata = checked_metadata(model, file)
    return _card(metadata, str(file)) if metadata.get("format") == FORMAT else Card()


def open_session(graph: bytes | str, where: str) -> Any:
    """An ONNX Runtime session on the processor, for a graph's bytes or the path of a file."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's own exceptions have no common base
        raise DamagedFile(
            f"{where} must run on ONNX Runtime ({reason_of(error)})", remedy="Export it again."
        ) from error


def run_session(session: Any, images: Tensor) -> Tensor:
    """The logits of a batch."""
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: images.numpy()})[0])


def random_images(batch: int, shape: tuple[int, ...]) -> Tensor:
    """What a graph is traced, compared and timed with: the same every time."""
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(0))


def checked_metadata(model: onnx.ModelProto, file: Path) -> dict[str, str]:
    """The metadata; those written here must be unchanged, and so must be the graph they stand in."""
    metadata = {str(entry.key): str(entry.value) for entry in model.metadata_props}
    if metadata.get("format") == FORMAT and "sha256" in metadata and metadata["sha256"] != _hash(model):
        raise DamagedFile(
            f"{file} must have the checksum it was written with",
            remedy="Export it again; or, if you changed the graph yourself, remove the metadata entry sha256.",
        )
    return metadata


def _card(metadata: dict[str, str], where: str) -> Card:
    texts = {name: metadata.get(name, "") for name in Card.model_fields}
    origin = f"{where}: its description"
    fields = {name: text if name in _TEXTS else parse_json(text, origin) for name, text in texts.items()}
    return card_from_json(fields, where)


def _forget_origin(model: onnx.ModelProto) -> None:
    """The exporter notes source files and lines of the machine at every node: nobody's business, and a quarter of a file."""
    graph = model.graph
    for part in (*graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer, graph):
        del part.metadata_props[:]
        part.doc_string = ""


def _hash(model: onnx.ModelProto) -> str:
    """SHA-256 over what the file says and computes, whatever wrote its bytes."""
    mark = hashlib.sha256(graph_hash(model).encode())
    for entry in sorted(model.metadata_props, key=lambda entry: str(entry.key)):
        if entry.key != "sha256":
            mark.update(f"{entry.key}={entry.value}\n".encode())
    return mark.hexdigest()


def graph_hash(model: onnx.ModelProto) -> str:
    """SHA-256 over what a graph computes, weights included: a certificate can name it and then be named in the file."""
    mark = hashlib.sha256()
    ends = [[value.name for value in values] for values in (model.graph.input, model.graph.output)]
    mark.update(f"{ends}{[(entry.domain, entry.version) for entry in model.opset_import]}".encode())
    for function in model.functions:
        mark.update(function.SerializeToString(deterministic=True))
    for tensor in model.graph.initializer:
        mark.update(f"{tensor.name}{tuple(tensor.dims)}{tensor.data_type}".encode())
        mark.update(numpy_helper.to_array(tensor).tobytes())
    for node in model.graph.node:
        mark.update(f"{node.op_type}{list(node.input)}{list(node.output)}".encode())
        for attribute in sorted(node.attribute, key=lambda attribute: str(attribute.name)):
            mark.update(attribute.SerializeToString(deterministic=True))
    return mark.hexdigest()
