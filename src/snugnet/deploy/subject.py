"""What is to be certified, whatever form it comes in.

A torch module; an ONNX file; a `.safetensors` file (or a run folder with one); an architecture's JSON file; or a published
network by name. Each becomes a `Subject`: something a device can run, its exact costs counted from itself, and a hash of
its weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from snugnet.costs.graph import GraphCosts, graph_costs, read_graph
from snugnet.deploy.card import weights_hash
from snugnet.deploy.network_file import plan_in, read_network
from snugnet.deploy.onnx_file import card_in, graph_hash
from snugnet.devices.device import Device, Runnable, frozen_copy
from snugnet.devices.onnx_graph import onnx_bytes
from snugnet.errors import BadInput, FileTrouble, UnknownName
from snugnet.nets.build import Network, build_plan
from snugnet.space import zoo
from snugnet.space.plan import NetworkSpec
from snugnet.store import read_json


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
    plan: NetworkSpec | None = None
    architecture: str = ""  # as the file's card tells it


def open_subject(network: torch.nn.Module | str | Path, *, resolution: int | None = None, channels: int = 3) -> Subject:
    """Read `network`; a module that does not say so itself needs its input `resolution`."""
    if isinstance(network, torch.nn.Module):
        return _of_module(network, type(network).__name__, "module", resolution, channels)
    word = str(network)
    if word.lower().endswith(".onnx"):
        return _of_onnx(Path(word))
    if word.lower().endswith(".safetensors") or Path(word).is_dir():
        read = read_network(word)
        found = _of_module(read.network, word, "safetensors", None, channels)
        return replace(found, architecture=read.card.architecture)
    if word.lower().endswith(".json"):
        made = build_plan(plan_in(read_json(word), word))
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
        macs=graph.macs, params=numbers, model_size=stored, memory=graph.memory, input_shape=graph.input_shape
    )

    def prepare(device: Device, batch: int) -> Runnable:
        return device.prepare(still, _images(batch, shape))

    return Subject(
        name=name,
        form=form,
        weights_sha256=weights_hash(still.state_dict()),
        costs=counted,
        prepare=prepare,
        plan=described,
    )


def _of_onnx(path: Path) -> Subject:
    if not path.is_file():
        raise FileTrouble(f"{path} could not be read (no such file)", remedy="Check the path.")
    costs, graph = graph_costs(path), read_graph(path)

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
        weights_sha256=graph_hash(graph),  # a file's metadata may name this certificate later
        costs=costs,
        prepare=prepare,
        architecture=card_in(graph, path).architecture,
    )


def _images(batch: int, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(0))
