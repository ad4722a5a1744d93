"""torchvision's mobilenet_v2, mobilenet_v3 and efficientnet: `features`, then `classifier`.

`features` is a row: a convolution unit (stem), blocks (in EfficientNet a Sequential per stage), a convolution unit (head). A
block holds its layers in `conv` (V2) or `block` (V3, EfficientNet). torchvision itself is never imported.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from snugnet.nets.trained.assembly import Assembly, SqueezeLayers, Trained, check_children, expect, refuse

FAMILY = "torchvision"
_SQUEEZE = ("avgpool", "fc1", "fc2", "activation", "scale_activation")


def recognises(module: nn.Module) -> bool:
    features = getattr(module, "features", None)
    if not isinstance(features, nn.Sequential) or not isinstance(getattr(module, "classifier", None), nn.Sequential):
        return False
    return len(features) > 2 and _is_unit(features[0]) and _is_unit(features[-1])


def read(module: Any, resolution: int | None) -> Trained:
    check_children(module, ("features", "avgpool", "classifier"), type(module).__name__)
    if hasattr(module, "avgpool"):
        expect(module.avgpool, nn.AdaptiveAvgPool2d, "avgpool")
    assembly = Assembly(FAMILY, resolution or 224)
    stem, *middle, last = module.features
    assembly.stem((stem[0], stem[1]), _act(stem, "features.0"), "features.0")
    for number, entry in enumerate(middle, 1):
        rows = entry if type(entry) is nn.Sequential else [entry]
        for place, block in enumerate(rows):
            _block(assembly, block, f"features.{number}" + (f".{place}" if rows is entry else ""))
    name = f"features.{len(middle) + 1}"
    layers = [layer for layer in module.classifier if not isinstance(layer, nn.Dropout)]
    rates = [layer.p for layer in module.classifier if isinstance(layer, nn.Dropout)]
    if len(layers) not in (1, 3):
        refuse("classifier", module.classifier, "a linear layer, or two with an activation between")
    assembly.head(
        (last[0], last[1]),
        _act(last, name),
        layers[-1],
        features=layers[0] if len(layers) == 3 else None,
        features_act=layers[1] if len(layers) == 3 else None,
        dropout=rates[0] if rates else 0.0,
        name=name,
    )
    return assembly.finish()


def _is_unit(module: nn.Module) -> bool:
    sequence = isinstance(module, nn.Sequential) and len(module) in (2, 3)
    return sequence and isinstance(module[0], nn.Conv2d) and isinstance(module[1], nn.BatchNorm2d)  # type: ignore[index]


def _act(unit: Any, name: str) -> nn.Module:
    if len(unit) != 3:
        refuse(name, unit, "convolution, BN and activation")
    act: nn.Module = unit[2]
    return act


def _block(assembly: Assembly, block: Any, name: str) -> None:
    inside = "conv" if hasattr(block, "conv") else "block"
    check_children(block, (inside,), name)
    layers = list(getattr(block, inside, ()))
    if len(layers) >= 2 and isinstance(layers[-2], nn.Conv2d):  # V2 has its projection as two layers of the row
        layers[-2:] = [nn.Sequential(*layers[-2:])]
    squeezes = [layer for layer in layers if hasattr(layer, "fc1")]
    units = [layer for layer in layers if not hasattr(layer, "fc1")]
    if not hasattr(block, "use_res_connect") or not all(map(_is_unit, units)) or len(units) not in (2, 3):
        refuse(name, block, "an InvertedResidual or an MBConv")
    *expand, deep, project = units
    if len(squeezes) > 1 or len(project) != 2 or (squeezes and layers[-2] is not squeezes[0]):
        refuse(name, block, "expansion, depthwise, squeeze-excite, linear projection in this order")
    assembly.block(
        expand=(expand[0][0], expand[0][1]) if expand else None,  # type: ignore[index]
        depthwise=(deep[0], deep[1]),  # type: ignore[index]
        squeeze=_squeeze(squeezes[0], name) if squeezes else None,
        project=(project[0], project[1]),  # type: ignore[index]
        acts=[_act(unit, name) for unit in (*expand, deep)],
        residual=bool(block.use_res_connect),
        name=name,
    )


def _squeeze(layer: Any, name: str) -> SqueezeLayers:
    check_children(layer, _SQUEEZE, f"{name}.se")
    return SqueezeLayers(reduce=layer.fc1, expand=layer.fc2, act=layer.activation, gate=layer.scale_activation)
