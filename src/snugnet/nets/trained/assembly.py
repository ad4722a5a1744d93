"""Somebody's layers put together as our plan and weights, piece by piece, front to back.

A reader of a family walks its modules and hands over each stem, block and head as convolutions, BNs and activations; what
they are is read off here: sizes, strides, padding, eps. Activations are recognised by what they compute. Blocks are grouped
in stages: a new one begins where the stride or the width changes, or where the activation does. What our blocks cannot
say is refused, naming the module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar, final, get_args

import torch
from torch import Tensor, nn

from snugnet.data.folder import IMAGENET_MEAN, IMAGENET_STD
from snugnet.errors import BadInput
from snugnet.nets.blocks import activation, gate
from snugnet.nets.network import Network
from snugnet.space.space import Activation, Gate, Padding
from snugnet.space.spec import BlockSpec, HeadSpec, NetworkSpec, StemSpec, check_plan

UNDERSTOOD = (
    "networks of timm's EfficientNet builder (MobileNetV2/V3, EfficientNet, EfficientNet-Lite, MNASNet, FBNet, "
    "HardCoRe-NAS), torchvision's mobilenet_v2, mobilenet_v3 and efficientnet, efficientnet_lite_pytorch's, "
    "and this project's own"
)
_IDLE = ("Identity", "DropPath", "StochasticDepth")  # does nothing in evaluation
_SAME = ("Conv2dSame", "Conv2dStaticSamePadding", "Conv2dDynamicSamePadding", "SameConv2d")
Unit = tuple[nn.Module, nn.Module]  # convolution, BN
M = TypeVar("M", bound=nn.Module)


@final
@dataclass(frozen=True, kw_only=True)
class Trained:
    """A network that was read: its plan at its own resolution, its weights under our names, what its images look like."""

    plan: NetworkSpec
    weights: dict[str, Tensor]
    family: str
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    @property
    def resolution(self) -> int:
        return self.plan.resolution

    def network(self) -> Network:
        """As a plain network of ours, in evaluation mode."""
        with torch.device("meta"):
            network = Network(self.plan)
        network.load_state_dict({name: tensor.clone() for name, tensor in self.weights.items()}, assign=True)
        for parameter in network.parameters():
            parameter.requires_grad_(True)
        return network.eval()


@final
@dataclass(frozen=True, kw_only=True)
class SqueezeLayers:
    """A squeeze-excite layer's parts."""

    reduce: nn.Module
    expand: nn.Module
    act: nn.Module
    gate: nn.Module


@final
class Assembly:
    """Collects specs and weights; `finish` gives the network."""

    def __init__(self, family: str, resolution: int) -> None:
        self.family, self.resolution = family, resolution
        self.weights: dict[str, Tensor] = {}
        self.stem_spec: StemSpec | None = None
        self.stages: list[list[BlockSpec]] = []
        self.head_spec: HeadSpec | None = None
        self.rules: set[Padding] = set()  # of strided convolutions: elsewhere both rules are one
        self.eps: float | None = None

    def stem(self, unit: Unit, act: nn.Module, name: str) -> None:
        conv = self._unit("stem", unit, name)
        if conv.groups != 1:
            refuse(name, conv, "a stem without groups")
        self.stem_spec = StemSpec(
            in_channels=conv.in_channels,
            out_channels=conv.out_channels,
            kernel=conv.kernel_size[0],
            stride=conv.stride[0],
            resolution=self.resolution,
            act=activation_name(act, name),
        )

    def block(
        self,
        *,
        expand: Unit | None,
        depthwise: Unit,
        squeeze: SqueezeLayers | None,
        project: Unit,
        acts: Sequence[nn.Module],
        residual: bool,
        name: str,
    ) -> None:
        """One inverted residual; `acts` are the activations behind expansion and depthwise convolution, all alike."""
        before: StemSpec | BlockSpec | None = self.stages[-1][-1] if self.stages else self.stem_spec
        assert before is not None
        wide, deep, out = self._sizes(expand, depthwise, project, name)
        names = {activation_name(act, name) for act in acts}
        if len(names) != 1:
            raise BadInput(f"{name}: a block must have one activation", value=sorted(names), remedy=_understood())
        same_size = deep.stride[0] == 1 and before.out_channels == out.out_channels
        if residual and not same_size:
            refuse(name, project[0], "a shortcut only where stride is 1 and the width stays")
        spec = BlockSpec(
            in_channels=before.out_channels,
            mid_channels=deep.in_channels,
            out_channels=out.out_channels,
            kernel=deep.kernel_size[0],
            stride=deep.stride[0],
            resolution=before.out_resolution,
            act=names.pop(),
            shortcut="identity" if residual else "none",
            full_expand=wide is not None and deep.in_channels == before.out_channels,
            **self._squeeze_fields(squeeze, name),
        )
        if not self.stages or begins_stage(self.stages[-1][-1], spec):
            self.stages.append([])
        place = f"stages.{len(self.stages) - 1}.{len(self.stages[-1])}"
        self.stages[-1].append(spec)
        for part, unit in (("expand", expand), ("depthwise", depthwise), ("project", project)):
            if unit is not None:
                self._unit(f"{place}.{part}", unit, name)
        if squeeze is not None:
            self._layer(f"{place}.se.reduce", squeeze.reduce, name)
            self._layer(f"{place}.se.expand", squeeze.expand, name)

    def head(
        self,
        unit: Unit,
        act: nn.Module,
        classifier: nn.Module,
        *,
        features: nn.Module | None = None,
        features_act: nn.Module | None = None,
        dropout: float = 0.0,
        name: str,
    ) -> None:
        conv = self._unit("head.conv", unit, name)
        if conv.kernel_size[0] != 1 or conv.stride[0] != 1 or conv.groups != 1:
            refuse(name, conv, "a head that begins with a 1x1 convolution")
        known = activation_name(act, name)
        if features is not None:
            assert features_act is not None
            if activation_name(features_act, name) != known:
                refuse(name, features_act, f"one activation in the head, {known}")
            self._layer("head.features", features, name, flat=True)
        last = expect(classifier, nn.Linear, f"{name} (classifier)")
        if last.bias is None:
            refuse(f"{name} (classifier)", last, "a classifier with a bias")
        self._layer("head.classifier", last, name)
        self.head_spec = HeadSpec(
            in_channels=conv.in_channels,
            hidden=conv.out_channels,
            pooled=0 if features is None else _width(features),
            pooled_bias=features is not None and features.bias is not None,
            classes=last.out_features,
            resolution=self.stages[-1][-1].out_resolution,
            act=known,
            dropout=float(dropout),
        )

    def finish(self, mean: Any = None, std: Any = None) -> Trained:
        assert self.stem_spec is not None
        assert self.head_spec is not None
        assert self.eps is not None
        if len(self.rules) > 1:
            raise BadInput(
                "strided convolutions must be padded by one rule", value=sorted(self.rules), remedy=_understood()
            )
        padding: Padding = self.rules.pop() if self.rules else "symmetric"
        plan = NetworkSpec(
            stem=replace(self.stem_spec, padding=padding, norm_eps=self.eps),
            stages=tuple(
                tuple(replace(block, padding=padding, norm_eps=self.eps) for block in stage) for stage in self.stages
            ),
            head=replace(self.head_spec, norm_eps=self.eps),
        )
        check_plan(plan)
        return Trained(
            plan=plan,
            weights=self.weights,
            family=self.family,
            mean=tuple(mean or IMAGENET_MEAN),
            std=tuple(std or IMAGENET_STD),
        )

    def _sizes(
        self, expand: Unit | None, depthwise: Unit, project: Unit, name: str
    ) -> tuple[nn.Conv2d | None, nn.Conv2d, nn.Conv2d]:
        wide = None if expand is None else expect(expand[0], nn.Conv2d, name)
        deep, out = expect(depthwise[0], nn.Conv2d, name), expect(project[0], nn.Conv2d, name)
        for conv in (wide, out):
            if conv is not None and (conv.kernel_size[0] != 1 or conv.groups != 1 or conv.stride[0] != 1):
                refuse(name, conv, "1x1 convolutions to expand and project")
        if deep.groups != deep.in_channels or deep.in_channels != deep.out_channels:
            refuse(name, deep, "a depthwise convolution between them")
        return wide, deep, out

    def _squeeze_fields(self, squeeze: SqueezeLayers | None, name: str) -> dict[str, Any]:
        if squeeze is None:
            return {}
        reduce = expect(squeeze.reduce, nn.Conv2d, name)
        return {
            "se": reduce.out_channels,
            "se_act": activation_name(squeeze.act, name),
            "se_gate": gate_name(squeeze.gate, name),
        }

    def _unit(self, place: str, unit: Unit, name: str) -> nn.Conv2d:
        """Check a convolution and its BN and keep their weights; the convolution comes back."""
        conv, norm = expect(unit[0], nn.Conv2d, name), expect(unit[1], nn.BatchNorm2d, name)
        size, stride = conv.kernel_size[0], conv.stride[0]
        square = conv.kernel_size == (size, size) and tuple(conv.stride) == (stride, stride) and size % 2 == 1
        if not square or tuple(conv.dilation) != (1, 1) or conv.bias is not None or conv.padding_mode != "zeros":
            refuse(name, conv, "convolutions with odd square kernels, without dilation or bias")
        if not hasattr(conv, "weight") or not norm.affine or norm.running_mean is None:
            refuse(name, norm, "BN with scale, shift and statistics")
        if self.eps is not None and norm.eps != self.eps:
            raise BadInput(f"{name}: all BNs must have one eps, {self.eps}", value=norm.eps, remedy=_understood())
        self.eps = norm.eps
        self._padding(conv, name)
        self.weights[f"{place}.conv.weight"] = _copy(conv.weight)
        for key in ("weight", "bias", "running_mean", "running_var"):
            self.weights[f"{place}.norm.{key}"] = _copy(getattr(norm, key))
        self.weights[f"{place}.norm.num_batches_tracked"] = torch.tensor(0)
        return conv

    def _padding(self, conv: nn.Conv2d, name: str) -> None:
        same = type(conv).__name__ in _SAME
        if not same and tuple(conv.padding) != (conv.kernel_size[0] // 2,) * 2:
            refuse(name, conv, "padding of half a kernel, or TensorFlow's")
        if conv.stride[0] > 1:
            self.rules.add("same" if same else "symmetric")

    def _layer(self, place: str, layer: nn.Module, name: str, *, flat: bool = False) -> None:
        if not isinstance(layer, nn.Conv2d | nn.Linear):
            refuse(name, layer, "a linear layer or a 1x1 convolution")
        weight = _copy(layer.weight)
        self.weights[f"{place}.weight"] = weight.flatten(1) if flat else weight
        if layer.bias is not None:
            self.weights[f"{place}.bias"] = _copy(layer.bias)


def begins_stage(before: BlockSpec, block: BlockSpec) -> bool:
    """Does `block` open a new stage behind `before`? A stage keeps size and width behind its first block."""
    if block.stride > 1 or block.in_channels != block.out_channels or block.shortcut != "identity":
        return True
    return (before.act, before.full_expand) != (block.act, block.full_expand)


def activation_name(module: nn.Module, place: str) -> Activation:
    """Which of our activations `module` computes."""
    known: dict[str, nn.Module] = {name: activation(name) for name in get_args(Activation)}
    found: Activation = _behaves_like(module, known, place)
    return found


def gate_name(module: nn.Module, place: str) -> Gate:
    known: dict[str, nn.Module] = {name: gate(name) for name in get_args(Gate)}
    found: Gate = _behaves_like(module, known, place)
    return found


def _behaves_like(module: nn.Module, known: Mapping[str, nn.Module], place: str) -> Any:
    """Comparing outputs needs no list of everybody's class names."""
    values = torch.linspace(-9, 9, 361)
    if not any(True for _ in module.parameters()):
        with torch.no_grad():
            result = module(values.clone())
            for name, reference in known.items():
                if torch.allclose(result, reference(values.clone()), atol=1e-6):
                    return name
    return refuse(place, module, f"one of {', '.join(known)}")


def expect(module: object, kind: type[M], place: str) -> M:
    if not isinstance(module, kind):
        refuse(place, module, f"a {kind.__name__}")
    return module


def check_children(module: nn.Module, understood: Sequence[str], place: str) -> None:
    """Refuse a module with children that the reader does not read, unless they do nothing in evaluation."""
    for name, child in module.named_children():
        if name not in understood and type(child).__name__ not in _IDLE:
            refuse(f"{place}.{name}", child, ", ".join(understood))


def refuse(place: str, module: object, instead: str) -> NoReturn:
    raise BadInput(
        f"{place} is not understood; there must be {instead}", value=type(module).__name__, remedy=_understood()
    )


def _understood() -> str:
    return f"Understood are {UNDERSTOOD}."


def _width(layer: nn.Module) -> int:
    return layer.out_channels if isinstance(layer, nn.Conv2d) else expect(layer, nn.Linear, "features").out_features


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to(device="cpu", dtype=torch.float32).clone().contiguous()
