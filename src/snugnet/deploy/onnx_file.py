"""`network.onnx`: a graph that any runtime takes, with the card in its metadata.

Entries a stranger can use stand in plain sight (`class_names`, `mean`, `std`, `resolution`, ...; lists and objects as JSON);
`sha256` covers them, the graph and its weights. ONNX files from elsewhere have none of this and can be opened all the same.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

import onnx
import torch
from onnx import numpy_helper
from torch import Tensor

from snugnet.costs.graph import read_graph
from snugnet.deploy.card import Card, card_from_json
from snugnet.errors import BadInput, DamagedFile, reason_of
from snugnet.store import parse_json, write_bytes

FORMAT: Final = "snugnet-onnx-1"
_TEXTS: Final = ("space", "architecture", "certificate_sha256")


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
    import onnxruntime

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
