"""What is to be certified, whatever form it comes in.

A torch module; an ONNX file; a `.safetensors` file of weights with its plan (in the file's own metadata, or in a JSON file
of the same name beside it); an architecture; or a published network by name. Each becomes a `Subject`: something a device
can run, its exact costs counted from itself, and a hash of its weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open

from snugnet.costs.graph import GraphCosts, external_files, graph_costs
from snugnet.devices.device import Device, Runnable, frozen_copy
from snugnet.devices.onnx_graph import onnx_bytes
from snugnet.errors import BadInput, DamagedFile, FileTrouble, UnknownName
from snugnet.files import read_bytes, read_json, sha256
from snugnet.nets.build import Network, build_plan
from snugnet.space import zoo
from snugnet.space.architecture import parse
from snugnet.space.plan import NetworkPlan, plan, plan_from_json
from snugnet.space.reading import find_space


@runtime_checkable
class OpensOnnx(Protocol):
    """A device that runs ONNX files as they are."""

    def open(self, graph: bytes | str, given: torch.Tensor) -> Runnable: ...


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A network to certify."""

    name: str
    form: str  # module, onnx, safetensors, architecture, published
    weights_sha256: str
    costs: GraphCosts
    prepare: Callable[[Device, int], Runnable]  # on a device, for a batch
    plan: NetworkPlan | None = None


def open_subject(network: torch.nn.Module | str | Path, *, resolution: int | None = None, channels: int = 3) -> Subject:
    """Read `network`; a module that does not say so itself needs its input `resolution`."""
    if isinstance(network, torch.nn.Module):
        return _of_module(network, type(network).__name__, "module", resolution, channels)
    word = str(network)
    if word.lower().endswith(".onnx"):
        return _of_onnx(Path(word))
    if word.lower().endswith(".safetensors"):
        return _of_module(_load_safetensors(Path(word)), word, "safetensors", None, channels)
    if word.lower().endswith(".json"):
        made = build_plan(_plan_in(read_json(word), word))
        return _of_module(made, word, "architecture", None, channels)
    if word.lower() in {name.lower() for name in zoo.networks()}:
        entry = zoo.find(word)
        return _of_module(build_plan(entry.network), entry.name, "published", None, channels)
    if "/" in word or "." in Path(word).suffix:
        raise BadInput("a network must be a .onnx, .safetensors or .json file", value=word, remedy="Export it first.")
    raise UnknownName("a network", word, zoo.networks())


def _of_module(module: torch.nn.Module, name: str, form: str, resolution: int | None, channels: int) -> Subject:
    described = module.plan if isinstance(module, Network) else None
    if described is not None:
        channels, resolution = described.stem.in_channels, resolution or described.resolution
    if resolution is None:
        raise BadInput("a module's input resolution must be known", value=None, remedy="Pass resolution=224.")
    shape = (channels, resolution, resolution)
    still = frozen_copy(module)
    graph = graph_costs(onnx_bytes(still, torch.zeros(1, *shape)))
    numbers = sum(p.numel() for p in module.parameters())
    stored = sum(p.numel() * p.element_size() for p in module.parameters())
    # The module's own parameters, BN's scales and shifts among them; the graph has those folded away.
    counted = GraphCosts(
        macs=graph.macs, params=numbers, weights=stored, memory=graph.memory, input_shape=graph.input_shape
    )

    def prepare(device: Device, batch: int) -> Runnable:
        return device.prepare(still, _images(batch, shape))

    return Subject(name=name, form=form, weights_sha256=_hash(still), costs=counted, prepare=prepare, plan=described)


def _of_onnx(path: Path) -> Subject:
    if not path.is_file():
        raise FileTrouble(f"{path} could not be read (no such file)", remedy="Check the path.")
    costs = graph_costs(path)
    files = [path, *(path.parent / name for name in external_files(path))]

    def prepare(device: Device, batch: int) -> Runnable:
        if not isinstance(device, OpensOnnx):
            raise BadInput(
                "an ONNX file must be run by a runtime for ONNX", value=device.name, remedy="Use --device onnxruntime."
            )
        try:
            runnable = device.open(str(path), _images(batch, costs.input_shape[1:]))
            runnable.run()
        except Exception as error:
            raise BadInput(
                f"{path} must run on {device.name} with batch {batch}",
                value=" ".join(str(error).split())[:120],
                remedy="Export it again with a dynamic batch, or ask for the batch it was made for.",
            ) from error
        return runnable

    return Subject(
        name=str(path),
        form="onnx",
        weights_sha256=sha256(b"".join(read_bytes(file) for file in files)),
        costs=costs,
        prepare=prepare,
    )


def _load_safetensors(path: Path) -> Network:
    """The plain network whose weights are in `path`."""
    if not path.is_file():
        raise FileTrouble(f"{path} could not be read (no such file)", remedy="Check the path.")
    try:
        with safe_open(str(path), framework="pt") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            words = file.metadata() or {}
    except SafetensorError as error:
        raise DamagedFile(
            f"{path} must be a whole safetensors file ({error})", remedy="Restore or remake it."
        ) from error
    beside = path.with_suffix(".json")
    if "plan" in words:
        described = _plan_in({"plan": _json(words["plan"], path)}, str(path))
    elif beside.is_file():
        described = _plan_in(read_json(beside), str(beside))
    else:
        raise FileTrouble(f"{beside} must stand beside {path} and say what network it is", remedy="Export it again.")
    network = Network(described)
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:120]
        raise DamagedFile(f"{path} must hold the weights of its plan ({reason})", remedy="Export it again.") from error
    return network


def _json(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DamagedFile(
            f"{path}: the plan in its metadata must be JSON ({error.msg})", remedy="Remake it."
        ) from error


def _plan_in(value: Any, where: str) -> NetworkPlan:
    """A plan, or an architecture with the name of its space."""
    if isinstance(value, dict) and "plan" in value:
        return plan_from_json(value["plan"])
    if isinstance(value, dict) and {"stem", "stages", "head"} == set(value):
        return plan_from_json(value)
    if isinstance(value, dict) and isinstance(value.get("architecture"), str) and isinstance(value.get("space"), str):
        options = {"classes": value["classes"]} if isinstance(value.get("classes"), int) else {}
        space = find_space(value["space"], **options)
        return plan(parse(value["architecture"], space), space)
    raise DamagedFile(
        f"{where} must say what network it is: a plan, or an architecture (text) and its space",
        remedy="Export it again.",
    )


def _images(batch: int, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(0))


def _hash(module: torch.nn.Module) -> str:
    """SHA-256 over every tensor's name, shape and bytes, in order of name."""
    mark = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        mark.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
        mark.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if value.dim() else
                    str(value.item()).encode())  # fmt: skip
    return mark.hexdigest()
