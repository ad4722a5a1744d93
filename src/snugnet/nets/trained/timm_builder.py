"""Networks of timm's EfficientNet builder: `conv_stem`, `blocks`, `conv_head`, `classifier`.

EfficientNet, MNASNet, MobileNetV2 and FBNet-C pool behind `conv_head` and its BN; MobileNetV3 and HardCoRe-NAS end their
blocks with a 1x1 `ConvBnAct`, pool, and have a `conv_head` without BN. timm itself is never imported.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from snugnet.nets.trained.assembly import Assembly, SqueezeLayers, Trained, check_children, refuse

FAMILY = "timm"
_TOP = ("conv_stem", "bn1", "blocks", "conv_head", "bn2", "norm_head", "act2", "global_pool", "flatten", "classifier")
_BLOCK = ("conv_pw", "bn1", "conv_dw", "bn2", "se", "conv_pwl", "bn3")
_SQUEEZE = ("conv_reduce", "act1", "conv_expand", "gate")


def recognises(module: nn.Module) -> bool:
    return all(hasattr(module, name) for name in ("conv_stem", "bn1", "blocks", "conv_head", "classifier"))


def read(module: Any, resolution: int | None) -> Trained:
    check_children(module, _TOP, type(module).__name__)
    about = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None) or {}
    assembly = Assembly(FAMILY, resolution or about.get("input_size", (3, 224, 224))[-1])
    assembly.stem((module.conv_stem, module.bn1), _act(module.bn1, "bn1"), "conv_stem")
    blocks = [
        (f"blocks.{s}.{b}", block) for s, stage in enumerate(module.blocks) for b, block in enumerate(_blocks(stage, s))
    ]
    pooled_head = not isinstance(getattr(module, "bn2", None), nn.BatchNorm2d)
    last = blocks.pop() if pooled_head else None
    for name, block in blocks:
        _block(assembly, block, name)
    _check_pooling(module)
    dropout = getattr(module, "drop_rate", 0.0)
    if last is None:
        unit = (module.conv_head, module.bn2)
        assembly.head(unit, _act(module.bn2, "bn2"), module.classifier, dropout=dropout, name="conv_head")
    else:
        name, block = last
        check_children(block, ("conv", "bn1"), name)
        if not hasattr(block, "conv") or getattr(block, "has_skip", False):
            refuse(name, block, "a 1x1 ConvBnAct without shortcut before the pooling")
        if type(getattr(module, "norm_head", nn.Identity())).__name__ != "Identity":
            refuse("norm_head", module.norm_head, "no BN behind the pooling")
        assembly.head(
            (block.conv, block.bn1),
            _act(block.bn1, name),
            module.classifier,
            features=module.conv_head,
            features_act=module.act2,
            dropout=dropout,
            name=name,
        )
    return assembly.finish(about.get("mean"), about.get("std"))


def _blocks(stage: nn.Module, number: int) -> Any:
    if not isinstance(stage, nn.Sequential):
        refuse(f"blocks.{number}", stage, "a Sequential of blocks")
    return stage


def _block(assembly: Assembly, block: Any, name: str) -> None:
    check_children(block, _BLOCK, name)
    if not hasattr(block, "conv_dw") or getattr(block, "conv_s2d", None) is not None:
        refuse(name, block, "an InvertedResidual or a DepthwiseSeparableConv")
    squeeze = _squeeze(block.se, f"{name}.se") if hasattr(block, "se") else None
    residual = bool(getattr(block, "has_skip", False))
    if hasattr(block, "conv_pwl"):
        _linear(block.bn3, f"{name}.bn3")
        assembly.block(
            expand=(block.conv_pw, block.bn1),
            depthwise=(block.conv_dw, block.bn2),
            squeeze=squeeze,
            project=(block.conv_pwl, block.bn3),
            acts=(_act(block.bn1, name), _act(block.bn2, name)),
            residual=residual,
            name=name,
        )
        return
    _linear(block.bn2, f"{name}.bn2")
    assembly.block(
        expand=None,
        depthwise=(block.conv_dw, block.bn1),
        squeeze=squeeze,
        project=(block.conv_pw, block.bn2),
        acts=(_act(block.bn1, name),),
        residual=residual,
        name=name,
    )


def _squeeze(layer: Any, name: str) -> SqueezeLayers | None:
    if isinstance(layer, nn.Identity):
        return None
    check_children(layer, _SQUEEZE, name)
    if not all(hasattr(layer, part) for part in _SQUEEZE):
        refuse(name, layer, "a SqueezeExcite of conv_reduce, act1, conv_expand, gate")
    return SqueezeLayers(reduce=layer.conv_reduce, expand=layer.conv_expand, act=layer.act1, gate=layer.gate)


def _act(norm: Any, name: str) -> nn.Module:
    act = getattr(norm, "act", None)
    if not isinstance(act, nn.Module):
        refuse(name, norm, "a BatchNormAct2d, with its activation in it")
    return act


def _linear(norm: Any, name: str) -> None:
    if not isinstance(getattr(norm, "act", nn.Identity()), nn.Identity):
        refuse(name, norm.act, "no activation behind the projection")


def _check_pooling(module: Any) -> None:
    kind = getattr(module.global_pool, "pool_type", "avg")
    if kind not in ("avg", "fast", "fastavg"):
        refuse(f"global_pool ({kind})", module.global_pool, "average pooling")
