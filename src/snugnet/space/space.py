"""What may be built: a search space as frozen data.

A space is a stem, a row of stages and a head. A stage is a row of blocks (inverted residuals); it offers output widths,
depths and a list of `BlockChoice`s, taken per block (HardCoRe-NAS, TF-NAS) or once per stage (AttentiveNAS). A fixed
block is a stage with one choice. A choice with an `expand_range` leaves its middle width open: any integer between
`expand_range[0] * C_in` and `expand_range[1] * C_in` (TF-NAS). Rules for all blocks (SE width, shortcut, rounding)
stand in `BlockRules`. Pure data: no torch, no state, validated on construction.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from pydantic import ConfigDict, with_config

from snugnet.errors import BadSpace

Activation = Literal["relu", "relu6", "swish", "hard-swish"]
Gate = Literal["sigmoid", "hard-sigmoid"]
MAX_CHANNELS = 1_000_000  # of any layer, and MAX_FACTOR of any width against another: bounds on what a slip can ask for
MAX_FACTOR = 1000.0
Padding = Literal["symmetric", "same"]
"""What keeps a map's size up to the stride: `symmetric` pads k // 2 on all sides; `same` is TensorFlow's rule, as little as
possible and the odd row at the end, which differs where the stride is 2 and the size even."""


def round_channels(value: float, divisor: int = 8) -> int:
    """The nearest multiple of `divisor` that loses at most a tenth: the rule of the MobileNet family."""
    rounded = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * value else rounded


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True)
class BlockChoice:
    """One operation a block may be: kernel, expansion (middle width / input width), SE, and the range of a free width."""

    kernel: int
    expand: float
    se: float = 0.0  # width of the squeeze layer as a share of the middle (or input) width; 0: none
    expand_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        _require(_is_int(self.kernel) and self.kernel > 0 and self.kernel % 2 == 1, "kernel must be odd", self.kernel)
        _require(0 < self.expand <= MAX_FACTOR, f"expand must be positive, at most {MAX_FACTOR:g}", self.expand)
        _require(0 <= self.se <= MAX_FACTOR, f"se must be 0 (none) or a share of at most {MAX_FACTOR:g}", self.se)
        if self.expand_range is not None:
            (low, high), rule = (
                self.expand_range,
                f"expand_range must be (low, high) around expand, at most {MAX_FACTOR:g}",
            )
            _require(0 < low <= self.expand <= high <= MAX_FACTOR, rule, self.expand_range)

    @property
    def label(self) -> str:
        """`k5e6s`: kernel 5, expansion 6, with SE."""
        return f"k{self.kernel}e{self.expand:g}{'s' if self.se else ''}"


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True)
class BlockRules:
    """What all blocks of a space have in common."""

    se_of: Literal["middle", "input"] = "middle"
    se_divisor: int = 8
    se_act: Activation | Literal["block"] = "relu"  # block: the activation of the block itself
    se_gate: Gate = "hard-sigmoid"
    mid_divisor: int = 1
    shortcut: Literal["identity", "always"] = "identity"
    # In a super-network: weights per kernel size, or the centre of the largest.
    kernel_weights: Literal["own", "crop"] = "own"
    padding: Padding = "symmetric"  # of the stem too
    norm_eps: float = 1e-5  # of every BN, stem and head included
    share: bool = True  # in a super-network: choices of a block share their pointwise weights

    def __post_init__(self) -> None:
        for name in ("se_divisor", "mid_divisor"):
            value = getattr(self, name)
            _require(_is_int(value) and value > 0, f"rules.{name} must be a positive whole number", value)
        _one_of("rules.se_act", self.se_act, (*get_args(Activation), "block"))
        _one_of("rules.se_gate", self.se_gate, get_args(Gate))
        _one_of("rules.se_of", self.se_of, ("middle", "input"))
        _one_of("rules.shortcut", self.shortcut, ("identity", "always"))
        _one_of("rules.padding", self.padding, get_args(Padding))
        _require(0 < self.norm_eps < 1, "rules.norm_eps must be between 0 and 1", self.norm_eps)
        _one_of("rules.kernel_weights", self.kernel_weights, ("own", "crop"))

    def se_width(self, choice: BlockChoice, in_channels: int, mid_channels: int) -> int:
        if not choice.se:
            return 0
        width = choice.se * (mid_channels if self.se_of == "middle" else in_channels)
        return round_channels(width, self.se_divisor)

    def mid_channels(self, choice: BlockChoice, in_channels: int) -> int:
        """The middle width a choice starts with (its only one unless it has a range)."""
        return round_channels(choice.expand * in_channels, self.mid_divisor)


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True)
class Stage:
    """A row of blocks: the first may change resolution and width, the others keep them.

    All positions offer `choices`; where they differ (spaces around published networks), `per_position` has a list for
    each and `choices` holds all of them. Ask `choices_at(position)`.
    """

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    choices: tuple[BlockChoice, ...] = ()
    stride: int = 1
    act: Activation = "relu"
    per: Literal["block", "stage"] = "block"
    per_position: tuple[tuple[BlockChoice, ...], ...] | None = None
    full_expand: bool = False  # an expansion layer even where the middle is as wide as the input (timm's blocks)

    def __post_init__(self) -> None:
        if self.per_position is not None:
            self._check_positions(self.per_position)
            object.__setattr__(self, "choices", tuple(dict.fromkeys(c for row in self.per_position for c in row)))
        _rising("widths", self.widths)
        _rising("depths", self.depths)
        _require(self.stride in (1, 2), "stride must be 1 or 2", self.stride)
        _one_of("act", self.act, get_args(Activation))
        _one_of("per", self.per, ("block", "stage"))
        _require(len(self.choices) > 0, "choices must not be empty", self.choices)
        for row in self.per_position or (self.choices,):
            labels = [c.label for c in row]
            twice = sorted({label for label in labels if labels.count(label) > 1})
            _require(not twice, "choices must differ in kernel, expand or SE on/off", ", ".join(twice))
        _require(self.per == "block" or not self.has_expand_range, "an expand_range needs choices per block", self.per)

    @classmethod
    def of(
        cls,
        width: int | Sequence[int],
        *,
        depth: int | tuple[int, int],
        kernels: Sequence[int] = (3,),
        expands: Sequence[float] = (6,),
        se: Sequence[float | bool] = (0.0,),
        stride: int = 1,
        act: Activation = "relu",
        per: Literal["block", "stage"] = "block",
    ) -> Stage:
        """A stage from the full product of kernels, expansions and SE; `depth=(2, 4)` is a range, ends included."""
        low, high = (depth, depth) if isinstance(depth, int) else depth
        _require(low <= high, "depth must be (low, high) with low <= high", depth)
        ratios = [0.25 if ratio is True else float(ratio) for ratio in se]
        choices = tuple(BlockChoice(kernel=k, expand=e, se=s) for e in expands for k in kernels for s in ratios)
        widths = tuple(width) if isinstance(width, Sequence) else (width,)
        depths = tuple(range(low, high + 1))
        return cls(widths=widths, depths=depths, choices=choices, stride=stride, act=act, per=per)

    def _check_positions(self, rows: tuple[tuple[BlockChoice, ...], ...]) -> None:
        _rising("depths", self.depths)
        _require(len(rows) == self.max_depth, "per_position must have a list for every position", len(rows))
        _require(all(rows), "per_position must not have an empty list", rows)
        _require(self.per == "block", "per_position needs choices per block", self.per)
        free = [c.label for row in rows for c in row if c.expand_range]
        _require(not free, "per_position must not have an expand_range", ", ".join(free))

    def choices_at(self, position: int) -> tuple[BlockChoice, ...]:
        """What the block at `position` may be."""
        return self.choices if self.per_position is None else self.per_position[position]

    @property
    def distinct_positions(self) -> range:
        """Positions that can differ from those before them: the first, the second, and all where each has its list."""
        return range(self.max_depth if self.per_position is not None else min(2, self.max_depth))

    @property
    def has_expand_range(self) -> bool:
        return any(choice.expand_range for choice in self.choices)

    @property
    def max_depth(self) -> int:
        return self.depths[-1]


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True)
class Stem:
    """The first convolution."""

    widths: tuple[int, ...]
    stride: int = 2
    kernel: int = 3
    act: Activation = "relu"

    def __post_init__(self) -> None:
        _rising("stem.widths", self.widths)
        _require(self.stride in (1, 2), "stem.stride must be 1 or 2", self.stride)
        _require(_is_int(self.kernel) and self.kernel % 2 == 1, "stem.kernel must be odd", self.kernel)
        _one_of("stem.act", self.act, get_args(Activation))


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True)
class Head:
    """What follows the stages.

    `conv-pool`: 1x1 convolution to `widths`, BN, activation, pooling, linear.
    `pool-conv`: 1x1 convolution to `hidden` (or `hidden_expand * C_in`), BN, activation, pooling, then a linear-like
    1x1 convolution without BN to `widths`, activation, linear.
    """

    kind: Literal["conv-pool", "pool-conv"] = "conv-pool"
    widths: tuple[int, ...]
    hidden: int = 0
    hidden_expand: float = 0.0
    bias: bool = False
    act: Activation = "relu"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        _one_of("head.kind", self.kind, ("conv-pool", "pool-conv"))
        _rising("head.widths", self.widths)
        _one_of("head.act", self.act, get_args(Activation))
        _require(_is_int(self.hidden) and 0 <= self.hidden <= MAX_CHANNELS, "head.hidden must be a width", self.hidden)
        factor = f"head.hidden_expand must be a factor of at most {MAX_FACTOR:g}"
        _require(0 <= self.hidden_expand <= MAX_FACTOR, factor, self.hidden_expand)
        given = (self.hidden > 0) + (self.hidden_expand > 0)
        needed = 1 if self.kind == "pool-conv" else 0
        rule = "head of kind pool-conv needs hidden or hidden_expand, one of them; conv-pool none"
        _require(given == needed, rule, (self.kind, self.hidden, self.hidden_expand))
        _require(0 <= self.dropout < 1, "head.dropout must be in [0, 1)", self.dropout)

    def hidden_width(self, in_channels: int) -> int:
        return self.hidden or round_channels(self.hidden_expand * in_channels)


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """Stem, stages, head, and the resolutions and classes they serve."""

    name: str
    classes: int
    resolutions: tuple[int, ...]
    stem: Stem
    stages: tuple[Stage, ...]
    head: Head
    rules: BlockRules = field(default_factory=BlockRules)
    in_channels: int = 3

    def __post_init__(self) -> None:
        _require(bool(self.name) and self.name.strip() == self.name, "name must be a word", self.name)
        _require(_is_int(self.classes) and self.classes >= 2, "classes must be at least 2", self.classes)
        _require(_is_int(self.in_channels) and self.in_channels >= 1, "in_channels must be positive", self.in_channels)
        _rising("resolutions", self.resolutions)
        _require(len(self.stages) > 0, "stages must not be empty", self.stages)
        for index, stage in enumerate(self.stages):
            for in_channels in {*self.in_widths(index), *(stage.widths if stage.max_depth > 1 else ())}:
                for choice in stage.choices:
                    self._check_widths(f"stage {index + 1}, {choice.label}", choice, in_channels)

    def _check_widths(self, place: str, choice: BlockChoice, in_channels: int) -> None:
        widths = self.mid_range(choice, in_channels)
        _require(
            len(widths) > 0 and (choice.expand_range is None or self.rules.mid_channels(choice, in_channels) in widths),
            f"{place}: a range behind {in_channels} channels must hold multiples of mid_divisor, its start among them",
            (choice.expand_range, self.rules.mid_divisor),
        )
        ends, rule = (widths[0], widths[-1]), f"middle widths behind {in_channels} channels must be 1 to {MAX_CHANNELS}"
        _require(ends[0] >= 1 and ends[1] <= MAX_CHANNELS, f"{place}: {rule}", ends)
        if choice.expand_range is not None and in_channels in widths:
            # Without expansion a block has one layer less: no weights could be shared along such a range.
            rule = f"an expand_range must not reach 1 (behind {in_channels} channels it holds {in_channels} itself)"
            remedy = "Keep the range clear of 1, and offer expansion 1 as a choice of its own."
            raise BadSpace(f"{place}: {rule}", value=choice.expand_range, remedy=remedy)

    def in_widths(self, index: int) -> tuple[int, ...]:
        """What stage `index` may receive: the widths of the stage (or stem) before it."""
        return self.stem.widths if index == 0 else self.stages[index - 1].widths

    def mid_range(self, choice: BlockChoice, in_channels: int) -> range:
        """The middle widths `choice` may take behind `in_channels` channels: of a range, the multiples of mid_divisor."""
        if choice.expand_range is None:
            mid_channels = self.rules.mid_channels(choice, in_channels)
            return range(mid_channels, mid_channels + 1)
        low, high = (round(bound * in_channels) for bound in choice.expand_range)
        step = self.rules.mid_divisor
        return range(-(-low // step) * step, high + 1, step)

    def stage_ways(self, index: int, in_channels: int, width: int, depth: int) -> int:
        """In how many ways stage `index` can be filled at this input width, output width and depth."""
        stage = self.stages[index]
        if stage.per == "stage":
            return len(stage.choices)
        before = [in_channels, *[width] * (depth - 1)]
        return math.prod(
            sum(len(self.mid_range(choice, channels)) for choice in stage.choices_at(position))
            for position, channels in enumerate(before)
        )

    def ways_after(self) -> list[dict[int, int]]:
        """For every stage boundary and width there: how many ways to complete the network (exact integers)."""
        after: list[dict[int, int]] = [{width: len(self.head.widths) for width in self.stages[-1].widths}]
        for index in reversed(range(len(self.stages))):
            ends = list(itertools.product(self.stages[index].widths, self.stages[index].depths))
            ways = {
                before: sum(self.stage_ways(index, before, width, depth) * after[-1][width] for width, depth in ends)
                for before in self.in_widths(index)
            }
            after.append(ways)
        return after[::-1]

    @property
    def count(self) -> int:
        """How many architectures the space holds, exactly; every whole middle width of a range counts."""
        return len(self.resolutions) * sum(self.ways_after()[0].values())

    def with_resolution(self, resolution: int) -> SearchSpace:
        """The same space at one input resolution."""
        return replace(self, resolutions=(resolution,))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require(holds: bool, rule: str, value: object) -> None:
    if not holds:
        raise BadSpace(rule, value=value, remedy="Give the space such a value.")


def _one_of(name: str, value: str, known: Iterable[str]) -> None:
    names = tuple(known)
    _require(value in names, f"{name} must be one of {', '.join(names)}", value)


def _rising(name: str, values: tuple[int, ...]) -> None:
    whole = isinstance(values, tuple) and len(values) > 0 and all(_is_int(v) and v > 0 for v in values)
    _require(whole, f"{name} must be positive whole numbers, at least one", values)
    _require(values[-1] <= MAX_CHANNELS, f"{name} must be at most {MAX_CHANNELS}", values)
    _require(all(a < b for a, b in itertools.pairwise(values)), f"{name} must rise, without repeats", values)
