"""An architecture worked out: every layer's numbers, nothing left to decide.

`plan(architecture, space)` gives a `NetworkSpec`: stem, blocks, head, each a frozen value with all sizes in it. From here
on nobody needs the space: modules are built from parts, exact costs are computed from parts, and a part is the key
under which a measured cost is kept (two blocks with the same numbers cost the same). Published networks outside any
space are plans as well.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, with_config

from snugnet.errors import BadInput, DamagedFile
from snugnet.space.architecture import Architecture, check, find_choice
from snugnet.space.space import Activation, Gate, Padding, SearchSpace

Shortcut = Literal["none", "identity", "project"]
_PADDING: dict[Padding, str] = {"symmetric": "", "same": " same"}
_NEWER = {"padding": "symmetric", "norm_eps": 1e-5, "full_expand": False}  # fields said only where they are not so


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True)
class StemSpec:
    """Convolution, BN, activation on the image."""

    in_channels: int
    out_channels: int
    kernel: int
    stride: int
    resolution: int  # of the input
    act: Activation
    padding: Padding = "symmetric"
    norm_eps: float = 1e-5

    @property
    def out_resolution(self) -> int:
        return -(-self.resolution // self.stride)

    @property
    def label(self) -> str:
        sizes = f"{self.in_channels}>{self.out_channels} k{self.kernel} s{self.stride}{_PADDING[self.padding]}"
        return f"stem {sizes} {self.act} @{self.resolution}"


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True)
class BlockSpec:
    """Inverted residual: expand (absent where middle equals input), depthwise, squeeze-excite, project, shortcut."""

    in_channels: int
    mid_channels: int
    out_channels: int
    kernel: int
    stride: int
    resolution: int  # of the input
    act: Activation
    se: int = 0  # width of the squeeze layer; 0: none
    se_act: Activation = "relu"
    se_gate: Gate = "hard-sigmoid"
    shortcut: Shortcut = "none"  # project: average pooling over the stride and, where widths differ, a 1x1 convolution
    padding: Padding = "symmetric"
    norm_eps: float = 1e-5
    full_expand: bool = False  # an expansion layer even where the middle is as wide as the input

    @property
    def expands(self) -> bool:
        return self.full_expand or self.mid_channels != self.in_channels

    @property
    def out_resolution(self) -> int:
        return -(-self.resolution // self.stride)

    @property
    def label(self) -> str:
        se = f" se{self.se} {self.se_act} {self.se_gate}" if self.se else ""
        middle = f"{self.mid_channels}{'!' if self.full_expand else ''}"
        kernel = f"k{self.kernel} s{self.stride}{_PADDING[self.padding]}"
        sizes = f"{self.in_channels}>{middle}>{self.out_channels} {kernel}"
        return f"block {sizes} {self.act}{se} {self.shortcut} @{self.resolution}"


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True)
class HeadSpec:
    """1x1 convolution + BN + activation, pooling, optionally a linear layer + activation (`pooled`), classifier."""

    in_channels: int
    hidden: int
    pooled: int  # 0: the classifier follows the pooling
    pooled_bias: bool
    classes: int
    resolution: int
    act: Activation
    dropout: float = 0.0
    norm_eps: float = 1e-5

    @property
    def features(self) -> int:
        return self.pooled or self.hidden

    @property
    def label(self) -> str:
        pooled = f">{self.pooled}{'b' if self.pooled_bias else ''}" if self.pooled else ""
        return f"head {self.in_channels}>{self.hidden}{pooled}>{self.classes} {self.act} @{self.resolution}"


LayerSpec = StemSpec | BlockSpec | HeadSpec
_KINDS: dict[str, type[LayerSpec]] = {"stem": StemSpec, "block": BlockSpec, "head": HeadSpec}
_READERS: dict[str, TypeAdapter[LayerSpec]] = {name: TypeAdapter(kind) for name, kind in _KINDS.items()}
_RESTORE = "Restore the file, or write it again."


class _PlanFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    stem: dict[str, Any]
    stages: list[list[dict[str, Any]]]
    head: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class NetworkSpec:
    """All parts of a network in order; `stages` groups the blocks."""

    stem: StemSpec
    stages: tuple[tuple[BlockSpec, ...], ...]
    head: HeadSpec

    @property
    def resolution(self) -> int:
        return self.stem.resolution

    @cached_property
    def blocks(self) -> tuple[BlockSpec, ...]:
        return tuple(block for stage in self.stages for block in stage)

    @cached_property
    def parts(self) -> tuple[LayerSpec, ...]:
        return (self.stem, *self.blocks, self.head)


def plan(architecture: Architecture, space: SearchSpace) -> NetworkSpec:
    """Work `architecture` out in `space` (checked first)."""
    check(architecture, space)
    stem = stem_spec(space, architecture.stem, architecture.resolution)
    stages: list[list[BlockSpec]] = [[] for _ in architecture.stages]
    resolution = stem.out_resolution
    for placed in architecture.placed_blocks():
        stage, position, in_channels, block = placed
        width = architecture.stages[stage].width
        place = Place(stage, position, in_channels, width, resolution)
        part = block_spec(space, place, find_choice(placed, space), block.mid_channels)
        stages[stage].append(part)
        resolution = part.out_resolution
    head = head_spec(space, architecture.head, architecture.stages[-1].width, resolution)
    return NetworkSpec(stem=stem, stages=tuple(map(tuple, stages)), head=head)


class Place(NamedTuple):
    """Where a block can stand: all its layers depend on, but for its own choice."""

    stage: int
    position: int  # the first has the stride
    in_channels: int
    out_channels: int
    resolution: int  # of the block's input


def stem_spec(space: SearchSpace, width: int, resolution: int) -> StemSpec:
    return StemSpec(
        in_channels=space.in_channels,
        out_channels=width,
        kernel=space.stem.kernel,
        stride=space.stem.stride,
        resolution=resolution,
        act=space.stem.act,
        padding=space.rules.padding,
        norm_eps=space.rules.norm_eps,
    )


def block_spec(space: SearchSpace, place: Place, choice: int, mid_channels: int | None = None) -> BlockSpec:
    """The numbers of one block: a choice (by its number) at a place; without `mid_channels` at its starting middle width."""
    row, rules = space.stages[place.stage], space.rules
    picked = row.choices_at(place.position)[choice]
    inner = rules.mid_channels(picked, place.in_channels) if mid_channels is None else mid_channels
    stride = 1 if place.position else row.stride
    shortcut: Shortcut = "identity" if stride == 1 and place.in_channels == place.out_channels else "none"
    if shortcut == "none" and rules.shortcut == "always":
        shortcut = "project"
    return BlockSpec(
        in_channels=place.in_channels,
        mid_channels=inner,
        out_channels=place.out_channels,
        kernel=picked.kernel,
        stride=stride,
        resolution=place.resolution,
        act=row.act,
        se=rules.se_width(picked, place.in_channels, inner),
        se_act=row.act if rules.se_act == "block" else rules.se_act,
        se_gate=rules.se_gate,
        shortcut=shortcut,
        padding=rules.padding,
        norm_eps=rules.norm_eps,
        full_expand=row.full_expand,
    )


def head_spec(space: SearchSpace, width: int, in_channels: int, resolution: int) -> HeadSpec:
    head = space.head
    pooled = head.kind == "pool-conv"
    return HeadSpec(
        in_channels=in_channels,
        hidden=head.hidden_width(in_channels) if pooled else width,
        pooled=width if pooled else 0,
        pooled_bias=head.bias,
        classes=space.classes,
        resolution=resolution,
        act=head.act,
        dropout=head.dropout,
        norm_eps=space.rules.norm_eps,
    )


def part_to_json(part: LayerSpec) -> dict[str, Any]:
    kind = next(name for name, cls in _KINDS.items() if isinstance(part, cls))
    described = {name: value for name, value in asdict(part).items() if name not in _NEWER or value != _NEWER[name]}
    return {"part": kind, **described}


def part_from_json(value: Any) -> LayerSpec:
    """The part that `part_to_json` wrote; a wrong or missing field is named."""
    if not isinstance(value, dict) or value.get("part") not in [*_KINDS]:  # of a list: it may hold anything
        raise DamagedFile("a part must be an object with 'part': stem, block or head", value=value, remedy=_RESTORE)
    # Earlier versions called the middle width "middle".
    fields = {"mid_channels" if name == "middle" else name: item for name, item in value.items() if name != "part"}
    try:
        return _READERS[value["part"]].validate_json(json.dumps(fields), strict=True)
    except ValidationError as error:
        raise _damaged(error, f"a {value['part']}") from error


def plan_to_json(network: NetworkSpec) -> dict[str, Any]:
    return {
        "stem": part_to_json(network.stem),
        "stages": [[part_to_json(block) for block in stage] for stage in network.stages],
        "head": part_to_json(network.head),
    }


def plan_from_json(value: Any) -> NetworkSpec:
    """The plan that `plan_to_json` wrote, its parts in order and fitting together."""
    try:
        read = _PlanFile.model_validate(value)
    except ValidationError as error:
        raise _damaged(error, "a plan") from error
    stem, head = part_from_json(read.stem), part_from_json(read.head)
    stages = tuple(tuple(part_from_json(block) for block in stage) for stage in read.stages)
    blocks = tuple(tuple(block for block in stage if isinstance(block, BlockSpec)) for stage in stages)
    if not isinstance(stem, StemSpec) or not isinstance(head, HeadSpec) or blocks != stages:
        raise DamagedFile("a plan must be a stem, stages of blocks and a head", remedy=_RESTORE)
    network = NetworkSpec(stem=stem, stages=blocks, head=head)
    check_plan(network)
    return network


def _damaged(error: ValidationError, what: str) -> DamagedFile:
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    if first["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return DamagedFile(f"{what} must have the field {place!r}", remedy=_RESTORE)
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return DamagedFile(f"{what} must not have the field {place!r}", remedy=_RESTORE)
    return DamagedFile(f"field {place!r} of {what}: {first['msg']}", value=first["input"], remedy=_RESTORE)


def check_plan(network: NetworkSpec) -> None:
    """Raise unless every part receives what the one before it gives."""
    before: StemSpec | BlockSpec = network.stem
    rest: tuple[BlockSpec | HeadSpec, ...] = (*network.blocks, network.head)
    for place, part in enumerate(rest, 1):
        output = (before.out_channels, before.out_resolution)
        own = (part.in_channels, part.resolution)
        if output != own:
            rule = f"part {place} must receive the channels and resolution of the part before it, {output}"
            raise BadInput(rule, value=own, remedy="Give it those, or change the part before it.")
        if not isinstance(part, HeadSpec):
            before = part
