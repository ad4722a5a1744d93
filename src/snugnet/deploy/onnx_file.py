"""`network.onnx`: a graph that any runtime takes, with the card in its metadata.

Entries a stranger can use stand in plain sight (`class_names`, `mean`, `std`, `resolution`, ...; lists and objects as JSON);
`sha256` covers them, the graph and its weights. ONNX files from elsewhere have none of this and can be opened all the same.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, final

import onnx
import torch
from onnx import numpy_helper
from torch import Tensor

from snugnet.costs.graph import read_graph
from snugnet.deploy.card import Card, card_from_json, parse_json
from snugnet.errors import BadInput, DamagedFile
from snugnet.store import write_bytes

FORMAT: Final = "snugnet-onnx-1"
_TEXTS: Final = ("space", "architecture", "certificate_sha256")


@final
@dataclass(frozen=True, kw_only=True)
class OnnxNetwork:
    """An opened graph: images [N, C, H, W] -> logits [N, classes]."""

    card: Card
    channels: int
    resolution: int
    classes: int
    batch: int | None  # the one batch size the graph takes; None: any
    metadata: dict[str, str]
    session: Any = field(repr=False)

    def __call__(self, images: Tensor) -> Tensor:
        pieces = images.split(self.batch) if self.batch is not None else (images,)
        entry = self.session.get_inputs()[0].name
        return torch.cat([torch.from_numpy(self.session.run(None, {entry: piece.numpy()})[0]) for piece in pieces])


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
    metadata = _checked(model, file)
    if metadata.get("format") != FORMAT:
        raise BadInput("a file to stamp must have been exported here", value=str(file), remedy="Export it again.")
    own = set(Card().to_json()) | {"format", "sha256"}
    about = {name: text for name, text in metadata.items() if name not in own}
    return write_bytes(file, describe(model, replace(_card(metadata, str(file)), **changes), about))


def open_onnx(path: str | Path, *, threads: int = 1) -> OnnxNetwork:
    """The network in an ONNX file; one that was written here must be unchanged."""
    file = Path(path)
    metadata = _checked(read_graph(file), file)
    session = open_session(str(file), str(file), threads=threads)
    batch, channels, resolution, classes = _sizes(session, file)
    return OnnxNetwork(
        card=_card(metadata, str(file)) if metadata.get("format") == FORMAT else Card(),
        channels=channels,
        resolution=resolution,
        classes=classes,
        batch=batch,
        metadata=metadata,
        session=session,
    )


def card_in(model: onnx.ModelProto, file: Path) -> Card:
    """What the file tells of its network; an empty card if it was not written here."""
    metadata = _checked(model, file)
    return _card(metadata, str(file)) if metadata.get("format") == FORMAT else Card()


def open_session(graph: bytes | str, where: str, *, threads: int = 1) -> Any:
    """An ONNX Runtime session on the processor, for a graph's bytes or the path of a file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's own exceptions have no common base
        reason = " ".join(str(error).split())[:120]
        raise DamagedFile(f"{where} must run on ONNX Runtime ({reason})", remedy="Export it again.") from error


def _checked(model: onnx.ModelProto, file: Path) -> dict[str, str]:
    """The metadata; those written here must be unchanged, and so must be the graph they stand in."""
    metadata = {str(entry.key): str(entry.value) for entry in model.metadata_props}
    if metadata.get("format") == FORMAT and "sha256" in metadata and metadata["sha256"] != _hash(model):
        raise DamagedFile(
            f"{file} must have the checksum it was written with",
            remedy="Export it again; or, if you changed the graph yourself, remove the metadata entry sha256.",
        )
    return metadata


def _card(metadata: dict[str, str], where: str) -> Card:
    value = {name: metadata.get(name, "") for name in _TEXTS}
    rest = set(Card().to_json()) - set(_TEXTS)
    return card_from_json({**value, **{name: parse_json(metadata.get(name, ""), where) for name in rest}}, where)


def _sizes(session: Any, file: Path) -> tuple[int | None, int, int, int]:
    """Batch (None: any), channels, side and classes of a graph that classifies square images."""
    inputs, outputs = session.get_inputs(), session.get_outputs()
    shape, logits = inputs[0].shape, outputs[0].shape
    images = len(shape) == 4 and all(isinstance(size, int) for size in shape[1:]) and shape[2] == shape[3]
    if len(inputs) != 1 or not images or shape[1] not in (1, 3) or len(logits) != 2 or not isinstance(logits[1], int):
        raise BadInput(
            f"{file} must map images [N, 1 or 3, side, side] to logits [N, classes]",
            value=f"{shape} to {logits}",
            remedy="Export it for one input resolution.",
        )
    return (shape[0] if isinstance(shape[0], int) else None), shape[1], shape[2], logits[1]


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
