"""`network.safetensors`: a plain network in one file that needs nothing beside it.

The tensors are the weights; the file's own metadata hold two texts of JSON: `plan`, every layer's numbers, and `snugnet`,
the card (class names, normalisation, budget, ...) sealed by checksums over card, plan and weights. The same network gives
the same bytes. Files of bare weights with a JSON file of the same name beside them, holding a plan or an architecture and
its space, can be read as well. There is no pickle anywhere.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, final

import torch
from pydantic import BaseModel, ConfigDict
from safetensors import torch as safetensors
from torch import Tensor

from snugnet.costs.measure import versions
from snugnet.deploy.card import Card, card_from_json
from snugnet.errors import BadInput, DamagedFile, FileTrouble, SnugnetError, reason_of
from snugnet.nets.network import Network
from snugnet.nets.tensor_file import read_tensors
from snugnet.space.architecture import parse
from snugnet.space.reading import find_space
from snugnet.space.spec import NetworkSpec, plan, plan_from_json, plan_to_json
from snugnet.store import as_model, parse_json, read_json, sealed, sha256, tensors_fingerprint, unsealed, write_bytes

FORMAT: Final = "snugnet-network-1"
_REMEDY: Final = "It was cut short or edited; restore it, or export it again."


@final
@dataclass(frozen=True, kw_only=True)
class NetworkFile:
    """A file that was read: the network in evaluation mode, and what is known of it."""

    network: Network
    card: Card
    weights_sha256: str
    versions: dict[str, str]  # what wrote it; empty for bare weights

    @property
    def plan(self) -> NetworkSpec:
        return self.network.plan


def save_network(network: Network, path: str | Path, card: Card | None = None) -> Path:
    """Write `network` with its plan and `card` to one .safetensors file, atomically."""
    if not isinstance(network, Network):
        raise BadInput(
            "a network file holds a network that was built or extracted here",
            value=type(network).__name__,
            remedy="Use export() for a module of your own.",
        )
    if Path(path).suffix.lower() != ".safetensors":
        raise BadInput("a network file must end in .safetensors", value=str(path), remedy="Rename it.")
    known = card or Card()
    known.check(classes=network.plan.head.classes, channels=network.plan.stem.in_channels)
    weights = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
    check_finite(weights)
    described = json.dumps(plan_to_json(network.plan), sort_keys=True)
    body = {
        "format": FORMAT,
        "card": known.to_json(),
        "plan_sha256": sha256(described.encode()),
        "weights_sha256": tensors_fingerprint(weights),
        "versions": versions(),
    }
    metadata = {"format": "pt", "plan": described, "snugnet": json.dumps(sealed(body), sort_keys=True)}
    return write_bytes(path, _in_order(safetensors.save(weights, metadata=metadata)))


def load(path: str | Path) -> Network:
    """The network in `path`: a plain module in evaluation mode.

    A .safetensors file, a run folder, an exported folder, or one of a model hub, "hf-hub:user/name"."""
    if str(path).startswith("hf-hub:"):
        from snugnet.deploy.hub import download  # it writes files of this kind itself

        path = download(str(path))
    return read_network(path).network


def read_network(path: str | Path) -> NetworkFile:
    """The network in `path` and what is known of it; damage of any kind is named."""
    file = find_network(path)
    weights, metadata = read_tensors(file)
    weights_sha256 = tensors_fingerprint(weights)
    card, made_by = Card(), {}
    if "snugnet" in metadata:
        body = unsealed(parse_json(metadata["snugnet"], f"{file}: its description"), str(file), "its description")
        description = as_model(body, _Description, str(file))
        if sha256(metadata.get("plan", "").encode()) != description.plan_sha256:
            raise DamagedFile(f"{file}: its plan must have the checksum it was written with", remedy=_REMEDY)
        if weights_sha256 != description.weights_sha256:
            raise DamagedFile(f"{file}: its weights must have the checksum they were written with", remedy=_REMEDY)
        card, made_by = card_from_json(description.card, str(file)), description.versions
    return NetworkFile(
        network=_build(_plan(file, metadata), weights, file),
        card=card,
        weights_sha256=weights_sha256,
        versions=made_by,
    )


def find_network(path: str | Path) -> Path:
    """The .safetensors file that `path` names: itself, or the network of a run folder."""
    file = Path(path)
    if file.is_dir():
        inside = file / "network.safetensors"
        if not inside.is_file() and (file / "config.json").is_file() and (file / "model.safetensors").is_file():
            from snugnet.deploy.folder import check_folder  # it reads files of this kind itself

            check_folder(file)
            return file / "model.safetensors"
        if not inside.is_file():
            raise FileTrouble(
                f"{file} must hold a network, {inside} is missing", remedy="Finish the run: `snugnet run` goes on."
            )
        return inside
    if file.suffix.lower() == ".onnx":
        raise BadInput(
            "a network to build in PyTorch must be a .safetensors file",
            value=str(path),
            remedy="An ONNX file is run as it is: with ONNX Runtime, or with `snugnet predict`.",
        )
    if file.suffix.lower() != ".safetensors":
        raise BadInput(
            "a network must be a .safetensors file or a run folder", value=str(path), remedy="Pickles are never read."
        )
    if not file.is_file():
        raise FileTrouble(f"{file} could not be read (no such file)", remedy="Check the path.")
    return file


def plan_in(value: Any, where: str) -> NetworkSpec:
    """The plan that a JSON value describes: a plan, or an architecture (text) with the name of its space."""
    fields = value if isinstance(value, dict) else {}
    try:
        if "plan" in fields:
            return plan_from_json(fields["plan"])
        if set(fields) == {"stem", "stages", "head"}:
            return plan_from_json(fields)
        if isinstance(fields.get("architecture"), str) and isinstance(fields.get("space"), str):
            options = {"classes": fields["classes"]} if isinstance(fields.get("classes"), int) else {}
            space = find_space(fields["space"], **options)
            return plan(parse(fields["architecture"], space), space)
    except SnugnetError as error:
        raise DamagedFile(f"{where}: {error.rule}", remedy=error.remedy) from error
    except (TypeError, AttributeError, KeyError) as error:
        raise DamagedFile(f"{where}: its plan must be made of parts ({error})", remedy=_REMEDY) from error
    raise DamagedFile(
        f"{where} must say what network it is: a plan, or an architecture (text) and its space",
        remedy="Export it again.",
    )


def check_finite(weights: dict[str, Tensor]) -> None:
    for name, value in weights.items():
        if not bool(torch.isfinite(value).all()):
            raise BadInput("weights must be finite", value=name, remedy="Training diverged; take an earlier state.")


class _Description(BaseModel):
    """What a file says of itself beside card and plan."""

    model_config = ConfigDict(strict=True, extra="forbid")
    format: Literal["snugnet-network-1"]
    card: dict[str, Any]
    plan_sha256: str
    weights_sha256: str
    versions: dict[str, str]


def _plan(file: Path, metadata: dict[str, str]) -> NetworkSpec:
    if "plan" in metadata:
        return plan_in({"plan": parse_json(metadata["plan"], f"{file}: its plan")}, str(file))
    beside = file.with_suffix(".json")
    if beside.is_file():
        return plan_in(read_json(beside), str(beside))
    raise FileTrouble(
        f"{beside} must stand beside {file} and say what network it is",
        remedy="Export it again; the weights of a super-network are no network.",
    )


def _build(described: NetworkSpec, weights: dict[str, Tensor], file: Path) -> Network:
    """Sizes are compared before any memory is taken: a plan with absurd numbers costs nothing."""
    try:
        with torch.device("meta"):
            network = Network(described)
        network.load_state_dict(weights, assign=True)
    except (RuntimeError, ValueError, TypeError) as error:
        rule = f"{file} must hold the weights of its plan ({reason_of(error)})"
        raise DamagedFile(rule, remedy="Export it again.") from error
    return network.eval()


def _in_order(data: bytes) -> bytes:
    """The same file with its metadata sorted: the library writes them in an order that changes from run to run."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of eight
    return len(text).to_bytes(8, "little") + text + data[8 + length :]
