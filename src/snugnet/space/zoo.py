"""Published networks, from the same blocks as everything else.

Searched networks (HardCoRe-NAS A-F, TF-NAS, AttentiveNAS, AlphaNet) are architectures of their spaces and stand in
`zoo.json` in text form with the papers' figures. The hand-made baselines the papers compare with are outside of any
space; they are plans, written as rows of (expansion, channels, repeats, stride, kernel, SE, activation).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from snugnet.errors import UnknownName
from snugnet.space.architecture import Architecture, parse
from snugnet.space.presets import preset
from snugnet.space.space import Activation, Gate, round_channels
from snugnet.space.spec import BlockSpec, HeadSpec, NetworkSpec, StemSpec, check_plan, plan


@dataclass(frozen=True, kw_only=True)
class Published:
    """A network of a paper: its plan, the figures its authors report, and its place in a space if it has one."""

    name: str
    network: NetworkSpec
    figures: dict[str, Any]
    source: str
    space: str | None = None
    architecture: Architecture | None = None
    convention: Literal["layers", "tfnas"] = "layers"  # in which its authors count MACs

    def __hash__(self) -> int:
        return hash(self.name)


@cache
def networks() -> dict[str, Published]:
    """All published networks by name, in the papers' order."""
    return {entry.name: entry for entry in (*_searched(), *_baselines())}


def find(name: str) -> Published:
    """The network called `name`; case does not matter."""
    for entry in networks().values():
        if entry.name.lower() == name.lower():
            return entry
    raise UnknownName("a published network", name, networks())


def _searched() -> list[Published]:
    data = json.loads(files("snugnet.space").joinpath("zoo.json").read_text())
    made = []
    for entry in data["networks"]:
        space = preset(entry["space"])
        architecture = parse(entry["architecture"], space)
        family = max((f for f in data["sources"] if entry["name"].startswith(f)), key=len)
        made.append(
            Published(
                name=entry["name"],
                network=plan(architecture, space),
                figures=entry["published"],
                source=data["sources"][family],
                space=entry["space"],
                architecture=architecture,
                convention="tfnas" if family == "TF-NAS" else "layers",
            )
        )
    return made


@dataclass(frozen=True, kw_only=True)
class _Row:
    """`repeats` blocks; `se` is the squeeze layer's width as a share of the middle (`se_of` input: of the input)."""

    expand: float = 0.0
    mid_channels: int = 0
    out: int
    repeats: int = 1
    stride: int = 1
    kernel: int = 3
    se: float = 0.0
    act: Activation = "relu"


def _network(
    rows: list[_Row],
    *,
    stem: int,
    hidden: int,
    act: Activation,
    pooled: int = 0,
    se_of: str = "middle",
    se_divisor: int = 8,
    se_act: Activation = "relu",
    se_gate: Gate = "sigmoid",
    resolution: int = 224,
    dropout: float = 0.2,
) -> NetworkSpec:
    first = StemSpec(in_channels=3, out_channels=stem, kernel=3, stride=2, resolution=resolution, act=act)
    channels, size, stages = stem, first.out_resolution, []
    for row in rows:
        blocks = []
        for repeat in range(row.repeats):
            mid_channels = row.mid_channels or round(row.expand * channels)
            stride = row.stride if repeat == 0 else 1
            squeeze = row.se * (mid_channels if se_of == "middle" else channels)
            part = BlockSpec(
                in_channels=channels,
                mid_channels=mid_channels,
                out_channels=row.out,
                kernel=row.kernel,
                stride=stride,
                resolution=size,
                act=row.act,
                se=round_channels(squeeze, se_divisor) if row.se else 0,
                se_act=se_act,
                se_gate=se_gate,
                shortcut="identity" if stride == 1 and channels == row.out else "none",
            )
            blocks.append(part)
            channels, size = part.out_channels, part.out_resolution
        stages.append(tuple(blocks))
    head = HeadSpec(
        in_channels=channels,
        hidden=hidden,
        pooled=pooled,
        pooled_bias=pooled > 0,
        classes=1000,
        resolution=size,
        act=act,
        dropout=dropout,
    )
    made = NetworkSpec(stem=first, stages=tuple(stages), head=head)
    check_plan(made)
    return made


def _baselines() -> list[Published]:
    def entry(name: str, network: NetworkSpec, source: str, **figures: float) -> Published:
        return Published(name=name, network=network, figures=dict(figures), source=source)

    v2 = "MobileNetV2 (Sandler et al., 2018), figures as in TF-NAS's table 6"
    return [
        entry("MobileNetV2-1.0", _mobilenet_v2(1.0), v2, top1=72.0, mmacs=300, mparams=3.504872),
        entry("MobileNetV2-1.4", _mobilenet_v2(1.4), v2, top1=74.7, mmacs=585, mparams=6.108776),
        entry(
            "MobileNetV3-Large",
            _mobilenet_v3_large(),
            "MobileNetV3 (Howard et al., 2019)",
            top1=75.2,
            mmacs=216.590,
            mparams=5.483032,
        ),
        entry(
            "EfficientNet-B0",
            _efficientnet_b0(),
            "EfficientNet (Tan & Le, 2019)",
            top1=77.3,
            mmacs=385.815,
            mparams=5.288548,
        ),
        entry("MnasNet-B1", _mnasnet_b1(), "MnasNet (Tan et al., 2019)", top1=74.5, mparams=4.383312),
    ]


def _mobilenet_v2(width: float) -> NetworkSpec:
    def c(channels: int) -> int:
        return round_channels(channels * width)

    table = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    rows = [_Row(expand=e, out=c(n), repeats=r, stride=s, act="relu6") for e, n, r, s in table]
    return _network(rows, stem=c(32), hidden=max(1280, c(1280)), act="relu6")


def _mobilenet_v3_large() -> NetworkSpec:
    relu: Activation = "relu"
    swish: Activation = "hard-swish"
    table: list[tuple[int, int, int, int, float, Activation]] = [
        (16, 16, 1, 3, 0, relu),
        (64, 24, 2, 3, 0, relu),
        (72, 24, 1, 3, 0, relu),
        (72, 40, 2, 5, 0.25, relu),
        (120, 40, 1, 5, 0.25, relu),
        (120, 40, 1, 5, 0.25, relu),
        (240, 80, 2, 3, 0, swish),
        (200, 80, 1, 3, 0, swish),
        (184, 80, 1, 3, 0, swish),
        (184, 80, 1, 3, 0, swish),
        (480, 112, 1, 3, 0.25, swish),
        (672, 112, 1, 3, 0.25, swish),
        (672, 160, 2, 5, 0.25, swish),
        (960, 160, 1, 5, 0.25, swish),
        (960, 160, 1, 5, 0.25, swish),
    ]
    rows = [_Row(mid_channels=m, out=n, stride=s, kernel=k, se=se, act=a) for m, n, s, k, se, a in table]
    return _network(rows, stem=16, hidden=960, pooled=1280, act="hard-swish", se_gate="hard-sigmoid")


def _efficientnet_b0() -> NetworkSpec:
    table = (
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    )
    rows = [_Row(expand=e, out=n, repeats=r, stride=s, kernel=k, se=0.25, act="swish") for e, n, r, s, k in table]
    return _network(rows, stem=32, hidden=1280, act="swish", se_of="input", se_divisor=1, se_act="swish")


def _mnasnet_b1() -> NetworkSpec:
    table = (
        (1, 16, 1, 1, 3),
        (3, 24, 3, 2, 3),
        (3, 40, 3, 2, 5),
        (6, 80, 3, 2, 5),
        (6, 96, 2, 1, 3),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    )
    rows = [_Row(expand=e, out=n, repeats=r, stride=s, kernel=k) for e, n, r, s, k in table]
    return _network(rows, stem=32, hidden=1280, act="relu")
