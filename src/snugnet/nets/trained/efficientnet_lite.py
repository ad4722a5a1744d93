"""efficientnet_lite_pytorch's networks (and EfficientNet-PyTorch's, their origin): `_conv_stem`, `_blocks`, `_fc`.

Padding is TensorFlow's, eps 1e-3, squeeze-excite gates are sigmoids. The names say everything but strides and activation,
and for the Lite family those are the same in all sizes: so a file of weights alone can be read too, with stages of strides
1, 2, 2, 2, 1, 2, 1 and ReLU6.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from snugnet.errors import BadInput
from snugnet.nets.blocks import SameConv2d
from snugnet.nets.trained.assembly import Assembly, SqueezeLayers, Trained, check_children, refuse

FAMILY = "efficientnet_lite_pytorch"
_TOP = ("_conv_stem", "_bn0", "_blocks", "_conv_head", "_bn1", "_avg_pooling", "_dropout", "_fc", "_swish")
_BLOCK = (
    *("_expand_conv", "_bn0", "_depthwise_conv", "_bn1"),
    *("_se_reduce", "_se_expand", "_project_conv", "_bn2", "_swish"),
)
_STRIDES = (1, 2, 2, 2, 1, 2, 1)
_LITE_RESOLUTION = {(16, 320): 224}  # Lite0 by number of blocks and last width


def recognises(module: nn.Module) -> bool:
    return all(hasattr(module, name) for name in ("_conv_stem", "_bn0", "_blocks", "_conv_head", "_fc", "_swish"))


def read(module: Any, resolution: int | None) -> Trained:
    check_children(module, _TOP, type(module).__name__)
    assembly = Assembly(FAMILY, resolution or int(getattr(module, "input_image_size", None) or 224))
    assembly.stem((module._conv_stem, module._bn0), module._swish, "_conv_stem")
    for number, block in enumerate(module._blocks):
        name = f"_blocks.{number}"
        check_children(block, _BLOCK, name)
        if not hasattr(block, "_depthwise_conv"):
            refuse(name, block, "an MBConvBlock")
        deep, out = block._depthwise_conv, block._project_conv
        wide = getattr(block, "_expand_conv", None)
        squeeze = None
        if hasattr(block, "_se_reduce"):
            squeeze = SqueezeLayers(
                reduce=block._se_reduce, expand=block._se_expand, act=block._swish, gate=nn.Sigmoid()
            )
        into = (wide or deep).in_channels
        residual = bool(getattr(block, "id_skip", True)) and deep.stride[0] == 1 and into == out.out_channels
        assembly.block(
            expand=None if wide is None else (wide, block._bn0),
            depthwise=(deep, block._bn1),
            squeeze=squeeze,
            project=(out, block._bn2),
            acts=(block._swish,),
            residual=residual,
            name=name,
        )
    dropout = getattr(getattr(module, "_dropout", None), "p", 0.0)
    assembly.head((module._conv_head, module._bn1), module._swish, module._fc, dropout=dropout, name="_conv_head")
    return assembly.finish()


def recognises_weights(weights: Mapping[str, Tensor]) -> bool:
    return {"_conv_stem.weight", "_blocks.0._depthwise_conv.weight", "_conv_head.weight", "_fc.weight"} <= set(weights)


def read_weights(weights: Mapping[str, Tensor], resolution: int | None) -> Trained:
    """A Lite network from its weights alone."""
    if any("_se_reduce" in name for name in weights):
        raise BadInput(
            "a file of weights with squeeze-excite does not say its activation",
            value="_se_reduce",
            remedy="Pass the module that has these weights loaded; files alone are read for EfficientNet-Lite.",
        )
    network = nn.Module()
    network._conv_stem, network._bn0 = _conv(weights, "_conv_stem", 2), _norm(weights, "_bn0")
    count = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("_blocks."))
    blocks, widths, before = [], [], 0
    for number in range(count):
        name = f"_blocks.{number}"
        width = weights[f"{name}._project_conv.weight"].shape[0]
        if width != before:
            widths.append(width)
        if len(widths) > len(_STRIDES):
            break
        stride = 1 if width == before else _STRIDES[len(widths) - 1]
        blocks.append(_lite_block(weights, name, stride))
        before = width
    if len(widths) != len(_STRIDES):
        raise BadInput(
            f"EfficientNet-Lite must have {len(_STRIDES)} widths one after the other",
            value=len(widths),
            remedy="Pass the module that has these weights loaded.",
        )
    network._blocks = nn.ModuleList(blocks)
    network._conv_head, network._bn1 = _conv(weights, "_conv_head", 1), _norm(weights, "_bn1")
    classes, features = weights["_fc.weight"].shape
    network._fc = nn.Linear(features, classes)
    network._fc.load_state_dict({"weight": weights["_fc.weight"], "bias": weights["_fc.bias"]})
    network._swish = nn.ReLU6()
    network._dropout = nn.Dropout(0.2)
    return read(network, resolution or _LITE_RESOLUTION.get((count, before), 224))


def _lite_block(weights: Mapping[str, Tensor], name: str, stride: int) -> nn.Module:
    block = nn.Module()
    if f"{name}._expand_conv.weight" in weights:
        block._expand_conv, block._bn0 = _conv(weights, f"{name}._expand_conv", 1), _norm(weights, f"{name}._bn0")
    block._depthwise_conv = _conv(weights, f"{name}._depthwise_conv", stride, depthwise=True)
    block._bn1, block._bn2 = _norm(weights, f"{name}._bn1"), _norm(weights, f"{name}._bn2")
    block._project_conv = _conv(weights, f"{name}._project_conv", 1)
    block._swish = nn.ReLU6()
    return block


def _conv(weights: Mapping[str, Tensor], name: str, stride: int, *, depthwise: bool = False) -> nn.Conv2d:
    weight = weights[f"{name}.weight"]
    out, into, size, _ = weight.shape
    groups = out if depthwise else 1
    conv = SameConv2d(into * groups, out, size, stride, size // 2, groups=groups, bias=False)
    conv.load_state_dict({"weight": weight})
    return conv


def _norm(weights: Mapping[str, Tensor], name: str) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(len(weights[f"{name}.weight"]), eps=1e-3)
    keys = ("weight", "bias", "running_mean", "running_var")
    norm.load_state_dict({**{key: weights[f"{name}.{key}"] for key in keys}, "num_batches_tracked": torch.tensor(0)})
    return norm
