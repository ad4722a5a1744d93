"""The layers networks are made of: plain, readable torch modules, one per part of a plan."""

from __future__ import annotations

from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugnet.nets import native
from snugnet.nets.depthwise import depthwise, padded, same_padding
from snugnet.nets.fused import Group, depthwise_unit, norm_act
from snugnet.space.space import Activation, Gate, Padding
from snugnet.space.spec import BlockSpec, HeadSpec, StemSpec


def activation(name: Activation) -> nn.Module:
    if name == "relu":
        return nn.ReLU(inplace=True)
    if name == "relu6":
        return nn.ReLU6(inplace=True)
    return nn.SiLU() if name == "swish" else nn.Hardswish()


def gate(name: Gate) -> nn.Module:
    return nn.Sigmoid() if name == "sigmoid" else nn.Hardsigmoid()


Sides = tuple[int, int]  # padding before and after


@final
class DepthwiseConv2d(nn.Conv2d):
    """A depthwise convolution, in training with the gradients of `depthwise`; in evaluation torch's own, as it ships."""

    def forward(self, input: Tensor) -> Tensor:
        if self.training and self.bias is None:
            return depthwise(input, self.weight, self.stride[0])
        return super().forward(input)


@final
class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's padding, which depends on the size of what it sees."""

    def forward(self, input: Tensor) -> Tensor:
        if self.training and self.groups > 1 and self.bias is None:
            return depthwise(input, self.weight, self.stride[0], "same")
        if torch.jit.is_tracing():  # type: ignore[attr-defined]  # public, but not in torch's own list
            sides = [same_padding(int(n), self.kernel_size[0], self.stride[0]) for n in input.shape[2:]]
            traced: Tensor = _TracedSameConv.apply(input, self.weight, self.stride[0], self.groups, *sides)
            return traced
        x, padding = padded(input, self.kernel_size[0], self.stride[0], "same")
        return F.conv2d(x, self.weight, self.bias, self.stride, padding, groups=self.groups)


@final
class _TracedSameConv(torch.autograd.Function):
    """The same while a graph is traced: ONNX's convolution pads each side by itself, a Pad before it would cost time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, groups: int, rows: Sides, columns: Sides) -> Tensor:
        return F.conv2d(F.pad(x, [*columns, *rows]), weight, None, stride, groups=groups)

    @staticmethod
    def symbolic(graph: Any, x: Any, weight: Any, stride: int, groups: int, rows: Sides, columns: Sides) -> Any:
        kernel = weight.type().sizes()[-1]
        return graph.op(
            "Conv",
            x,
            weight,
            kernel_shape_i=[kernel, kernel],
            strides_i=[stride, stride],
            pads_i=[rows[0], columns[0], rows[1], columns[1]],
            dilations_i=[1, 1],
            group_i=groups,
        )


def conv_unit(
    in_channels: int,
    out_channels: int,
    *,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    act: Activation | None,
    padding: Padding = "symmetric",
    norm_eps: float = 1e-5,
) -> nn.Sequential:
    """Convolution, BN and (unless `act` is None: a linear bottleneck) activation; keeps the size up to the stride."""
    # At stride 1 both rules of padding are the same one.
    usual = nn.Conv2d if groups == 1 else DepthwiseConv2d
    convolution = SameConv2d if padding == "same" and stride > 1 else usual
    layers: dict[str, nn.Module] = {
        "conv": convolution(in_channels, out_channels, kernel, stride, kernel // 2, groups=groups, bias=False),
        "norm": nn.BatchNorm2d(out_channels, eps=norm_eps),
    }
    if act is not None:
        layers["act"] = activation(act)
    unit = ConvUnit()
    for name, layer in layers.items():
        unit.add_module(name, layer)
    return unit


@final
class ConvUnit(nn.Sequential):
    """Convolution `conv`, BN `norm` and perhaps activation `act`: in training what `fused` does of them in one step."""

    def forward(self, input: Tensor) -> Tensor:
        conv, norm = self.conv, self.norm
        act: nn.Module | None = getattr(self, "act", None)
        usual = isinstance(norm, nn.BatchNorm2d) and norm.training and norm.momentum is not None
        if not usual or _watched(self) or not native.fits(input):
            plain: Tensor = super().forward(input)
            return plain
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(norm, nn.BatchNorm2d)
        assert norm.num_batches_tracked is not None
        alone = conv.groups == conv.in_channels and conv.groups > 1
        if alone and isinstance(conv, (DepthwiseConv2d, SameConv2d)) and conv.bias is None and conv.training:
            rule: Padding = "same" if isinstance(conv, SameConv2d) else "symmetric"
            group = Group(images=len(input), weight=conv.weight, norm=norm)
            out, _ = depthwise_unit(input, group, act, conv.stride[0], rule)
        else:
            out = norm_act(conv(input), norm, act)
        norm.num_batches_tracked.add_(1)
        return out


def _watched(unit: nn.Module) -> bool:
    """Whether somebody listens at a layer: then each runs by itself."""
    return any(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks for layer in unit.children())


@final
class SqueezeExcite(nn.Module):
    """Scales every channel by a gate computed from all channels' means."""

    def __init__(self, channels: int, width: int, act: Activation, gate_name: Gate) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce = nn.Conv2d(channels, width, 1)
        self.act = activation(act)
        self.expand = nn.Conv2d(width, channels, 1)
        self.gate = gate(gate_name)

    def forward(self, x: Tensor) -> Tensor:
        scale: Tensor = self.gate(self.expand(self.act(self.reduce(self.pool(x)))))
        return x * scale


@final
class InvertedResidual(nn.Module):
    """Expand, depthwise, squeeze-excite, project; plus a shortcut where the part has one."""

    def __init__(self, part: BlockSpec) -> None:
        super().__init__()
        m, eps = part.mid_channels, part.norm_eps
        self.expand = conv_unit(part.in_channels, m, act=part.act, norm_eps=eps) if part.expands else nn.Identity()
        self.depthwise = conv_unit(
            m, m, kernel=part.kernel, stride=part.stride, groups=m, act=part.act, padding=part.padding, norm_eps=eps
        )
        self.se = SqueezeExcite(m, part.se, part.se_act, part.se_gate) if part.se else nn.Identity()
        self.project = conv_unit(m, part.out_channels, act=None, norm_eps=eps)
        self.shortcut = shortcut(part)
        self.drop_connect = 0.0  # in training: the share of images whose block is left out beside its shortcut

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(self.se(self.depthwise(self.expand(x))))
        if self.shortcut is None:
            return y
        if self.training and self.drop_connect:
            kept = torch.rand(len(y), 1, 1, 1, device=y.device) >= self.drop_connect
            y = y * kept / (1 - self.drop_connect)
        short: Tensor = self.shortcut(x)
        return y + short


def shortcut(part: BlockSpec) -> nn.Module | None:
    if part.shortcut == "none":
        return None
    if part.shortcut == "identity":
        return nn.Identity()
    layers: list[nn.Module] = []
    if part.stride > 1:
        layers.append(nn.AvgPool2d(part.stride, ceil_mode=True, count_include_pad=False))
    if part.in_channels != part.out_channels:
        layers.append(nn.Conv2d(part.in_channels, part.out_channels, 1, bias=False))
    return nn.Sequential(*layers)


def stem_module(part: StemSpec) -> nn.Sequential:
    return conv_unit(
        part.in_channels,
        part.out_channels,
        kernel=part.kernel,
        stride=part.stride,
        act=part.act,
        padding=part.padding,
        norm_eps=part.norm_eps,
    )


@final
class ClassifierHead(nn.Module):
    """1x1 convolution, pooling, optionally a feature layer, dropout, classifier."""

    def __init__(self, part: HeadSpec) -> None:
        super().__init__()
        self.conv = conv_unit(part.in_channels, part.hidden, act=part.act, norm_eps=part.norm_eps)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.features = nn.Linear(part.hidden, part.pooled, bias=part.pooled_bias) if part.pooled else nn.Identity()
        self.act = activation(part.act) if part.pooled else nn.Identity()
        self.dropout = nn.Dropout(part.dropout)
        self.classifier = nn.Linear(part.features, part.classes)

    def pooled(self, x: Tensor) -> Tensor:
        """What the classifier sees of an image: [N, features]."""
        features: Tensor = self.act(self.features(torch.flatten(self.pool(self.conv(x)), 1)))
        return features

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.dropout(self.pooled(x)))
        return logits


def initialise(module: nn.Module, *, zero_last: bool = False) -> None:
    """Kaiming for convolutions, small normal for linear layers; `zero_last`, AttentiveNAS's start: PyTorch's own
    weights, and blocks with a shortcut begin as it."""
    for layer in () if zero_last else module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.01)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    if zero_last:
        for block in module.modules():
            if isinstance(block, InvertedResidual) and block.shortcut is not None:
                nn.init.zeros_(block.project.norm.weight)  # type: ignore[union-attr,arg-type]
