"""The papers' spaces, ready to use.

`hardcore` is the published form (the networks A-F are members), `hardcore-paper` follows the paper's table 3 to the
letter. Every preset takes `classes`, `resolution` and `width` (a multiplier for all channel numbers). A low-resolution
form (`lowres=True`, or the preset's name with `-lowres`) serves images of 28 to 64 pixels: the stem keeps the
resolution up to 40 pixels, and one stage less downsamples, so the last stage still sees 4 x 4 positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from snugnet.errors import BadInput, UnknownName
from snugnet.space.space import Activation, BlockChoice, BlockRules, Head, SearchSpace, Stage, Stem, round_channels

Acts = tuple[Activation, ...]
_Rows = tuple[tuple[tuple[int, ...], tuple[int, int], tuple[int, ...], float, int], ...]
_TF_NAS_RULES = BlockRules(se_of="input", se_divisor=1, se_act="block", se_gate="sigmoid", share=False)
_HARDCORE_WIDTHS = (24, 40, 80, 112, 192)
LOWRES_RESOLUTION = 28


class Preset(Protocol):
    """A space by its options; `width` multiplies all channel numbers."""

    def __call__(
        self, *, classes: int = 1000, resolution: int = 224, width: float = 1.0, lowres: bool = False
    ) -> SearchSpace: ...


PRESETS: dict[str, Preset] = {}


def _preset(make: Callable[[_Form], SearchSpace]) -> Preset:
    """A preset with the options that all have, listed under its function's name with dashes."""
    name = make.__name__.replace("_", "-")

    def build(*, classes: int = 1000, resolution: int = 224, width: float = 1.0, lowres: bool = False) -> SearchSpace:
        return make(_Form(name, classes, resolution, width, lowres))

    build.__name__, build.__qualname__, build.__doc__ = make.__name__, make.__qualname__, make.__doc__
    PRESETS[name] = build
    return build


@_preset
def hardcore(form: _Form) -> SearchSpace:
    """HardCoRe-NAS as published: five searched stages of 2-4 blocks, twelve configurations per block."""
    acts: Acts = ("relu", "relu", "hard-swish", "hard-swish", "hard-swish")
    return form.space(
        stem=form.stem(32, act="hard-swish"),
        stages=(form.first(16), *form.hardcore_stages(_HARDCORE_WIDTHS, (2, 2, 2, 1, 2), acts)),
        head=Head(kind="pool-conv", widths=form.widths(1280), hidden=form.c(960), bias=True, act="hard-swish"),
    )


@_preset
def hardcore_paper(form: _Form) -> SearchSpace:
    """HardCoRe-NAS's table 3 to the letter: ReLU, then Swish; stage 8 is a searched block to 960 channels."""
    searched = form.hardcore_stages(_HARDCORE_WIDTHS, (2, 2, 2, 1, 2), ("relu", "swish", "swish", "swish", "swish"))
    last = form.hardcore_stages((960,), (1,), ("swish",), depth=(1, 1))
    return form.space(
        stem=form.stem(32),
        stages=(form.first(16), *searched, *last),
        head=Head(kind="conv-pool", widths=form.widths(1280), act="swish"),
    )


@_preset
def hardcore_thin(form: _Form) -> SearchSpace:
    """HardCoRe's choices in four thin stages of 1-3 blocks: accuracy is scarce, and a CPU trains it in minutes."""
    acts: Acts = ("relu", "relu", "hard-swish", "hard-swish")
    strides = (2, 2, 2, 1) if form.lowres else (2, 2, 2, 2)
    return form.space(
        stem=Stem(widths=form.widths(8), stride=2, act="hard-swish"),
        stages=(
            form.first(8),
            *form.hardcore_stages((8, 16, 24, 32), strides, acts, depth=(1, 3), expands=(2, 3, 6)),
        ),
        head=Head(kind="pool-conv", widths=form.widths(128), hidden=form.c(96), bias=True, act="hard-swish"),
    )


@_preset
def tfnas(form: _Form) -> SearchSpace:
    """TF-NAS: eight operations per layer, depths from 1, middle widths continuous in [2, 4] or [4, 8] x input."""
    return _tfnas(form, se=True)


@_preset
def tfnas_wose(form: _Form) -> SearchSpace:
    """TF-NAS without SE anywhere: four operations per layer."""
    return _tfnas(form, se=False)


@_preset
def tfnas_mbv2(form: _Form) -> SearchSpace:
    """TF-NAS's MobileNetV2 space (its table 5): ReLU6, four operations, MobileNetV2's widths."""
    return _tfnas(form, se=False, widths=(24, 32, 64, 96, 160, 320), act="relu6", later="relu6")


@_preset
def tfnas_thin(form: _Form) -> SearchSpace:
    """TF-NAS's operations in three thin stages of 1-2 layers: a CPU searches it in a minute."""
    return _tfnas(form, se=True, ends=(8, 8, 96), widths=(12, 16, 24), depths=((1, 2),) * 3, strides=(2, 2, 2))


@_preset
def attentive(form: _Form) -> SearchSpace:
    """AttentiveNAS and AlphaNet: width, kernel, expansion and depth per stage, four input resolutions."""
    rows: _Rows = (
        ((16, 24), (1, 2), (1,), 0.0, 1),  # widths, depths, expansions, SE, stride
        ((24, 32), (3, 5), (4, 5, 6), 0.0, 2),
        ((32, 40), (3, 6), (4, 5, 6), 0.25, 1 if form.lowres else 2),
        ((64, 72), (3, 6), (4, 5, 6), 0.0, 2),
        ((112, 120, 128), (3, 8), (4, 5, 6), 0.25, 1),
        ((192, 200, 208, 216), (3, 8), (6,), 0.25, 2),
        ((216, 224), (1, 2), (6,), 0.25, 1),
    )
    head = Head(kind="pool-conv", widths=form.widths(1792, 1984), hidden_expand=6, act="swish", dropout=0.2)
    return form.attentive_space(form.stem(16, 24, act="swish"), rows, head)


@_preset
def attentive_thin(form: _Form) -> SearchSpace:
    """AttentiveNAS's kind of choices in four thin stages: accuracy is scarce, and a CPU trains it in minutes."""
    rows: _Rows = (
        ((8, 16), (1, 2), (1,), 0.0, 1),
        ((16, 24), (1, 3), (2, 3, 4), 0.0, 2),
        ((24, 32), (1, 3), (2, 3, 4), 0.25, 2),
        ((40, 48, 56), (1, 3), (3, 4, 6), 0.25, 1 if form.lowres else 2),
    )
    head = Head(kind="pool-conv", widths=form.widths(96, 128), hidden_expand=3, act="swish", dropout=0.2)
    return form.attentive_space(form.stem(8, 16, act="swish"), rows, head)


def names() -> list[str]:
    """All preset names, the low-resolution forms included."""
    return [*PRESETS, *(f"{name}-lowres" for name in PRESETS)]


def preset(name: str, **options: Any) -> SearchSpace:
    """The preset called `name` (case does not matter), with its options."""
    word = name.lower()
    base = word.removesuffix("-lowres")
    if base not in PRESETS:
        raise UnknownName("a search space", name, names())
    if base != word:
        options = {"resolution": LOWRES_RESOLUTION, **options, "lowres": True}
    return PRESETS[base](**options)


def _tfnas(
    form: _Form,
    *,
    se: bool,
    ends: tuple[int, int, int] = (32, 16, 1280),  # stem, fixed block, head
    widths: tuple[int, ...] = (24, 40, 80, 112, 192, 320),
    depths: tuple[tuple[int, int], ...] = ((1, 2), (1, 3), (1, 4), (1, 4), (1, 4), (1, 1)),
    strides: tuple[int, ...] = (2, 2, 2, 1, 2, 1),
    act: Activation = "relu",
    later: Activation = "swish",
) -> SearchSpace:
    ranges = ((3, (2.0, 4.0), 1.0), (6, (4.0, 8.0), 2.0))
    choices = tuple(
        BlockChoice(kernel=kernel, expand=expand, expand_range=expand_range, se=ratio * with_se)
        for with_se in ((0, 1) if se else (0,))
        for kernel in (3, 5)
        for expand, expand_range, ratio in ranges
    )
    stages = tuple(
        Stage(widths=form.widths(n), depths=tuple(range(low, high + 1)), choices=choices, stride=stride, act=a)
        for n, (low, high), stride, a in zip(widths, depths, form.strides(*strides), (act, *[later] * len(widths)))
    )
    return form.space(
        stem=form.stem(ends[0], act=act),
        stages=(form.first(ends[1], act=act, se=0.25 if se else 0.0), *stages),
        head=Head(kind="conv-pool", widths=form.widths(ends[2]), act=later),
        rules=_TF_NAS_RULES,
    )


@dataclass(frozen=True)
class _Form:
    """What was asked of a preset: classes, resolution, multiplier of widths, the full or the low-resolution form."""

    name: str
    classes: int
    resolution: int
    width: float
    lowres: bool

    def __post_init__(self) -> None:
        if not 0 < self.width <= 16:
            rule = f"width of {self.name!r} must be a multiplier in (0, 16]"
            raise BadInput(rule, value=self.width, remedy="Try 0.5 or 1.0.")
        least, most = (8, 96) if self.lowres else (32, 1024)
        if not isinstance(self.resolution, int) or not least <= self.resolution <= most:
            form = "low-resolution form" if self.lowres else "full form"
            other = (
                "the full form" if self.lowres else "the low-resolution form (lowres=True, or the name with -lowres)"
            )
            rule = f"resolution in the {form} must be a whole number from {least} to {most}"
            raise BadInput(rule, value=self.resolution, remedy=f"For other sizes take {other}.")

    def c(self, channels: int) -> int:
        return channels if self.width == 1.0 else round_channels(channels * self.width)

    def widths(self, *channels: int) -> tuple[int, ...]:
        return tuple(sorted({self.c(n) for n in channels}))

    def strides(self, *full: int) -> tuple[int, ...]:
        """In the low-resolution form the second searched stage does not downsample."""
        return (full[0], 1, *full[2:]) if self.lowres else full

    def stem(self, *channels: int, act: Activation = "relu") -> Stem:
        return Stem(widths=self.widths(*channels), stride=1 if self.lowres and self.resolution <= 40 else 2, act=act)

    def first(self, channels: int, *, act: Activation = "relu", se: float = 0.0) -> Stage:
        """The first block of the family: expansion 1, nothing to choose."""
        return Stage.of(self.c(channels), depth=1, kernels=(3,), expands=(1,), se=(se,), act=act)

    def hardcore_stages(
        self,
        widths: tuple[int, ...],
        strides: tuple[int, ...],
        acts: Acts,
        depth: tuple[int, int] = (2, 4),
        expands: tuple[int, ...] = (3, 4, 6),
    ) -> list[Stage]:
        rows = zip(widths, self.strides(*strides), acts)
        return [
            Stage.of(self.c(n), depth=depth, kernels=(3, 5), expands=expands, se=(0.0, 0.25), stride=s, act=a)
            for n, s, a in rows
        ]

    def attentive_space(self, stem: Stem, rows: _Rows, head: Head) -> SearchSpace:
        """Choices per stage, shortcuts everywhere, and 6/7 to 9/7 of the images' side: 192 to 288 pixels for 224."""
        step = 4 if self.lowres else 32
        sizes = {max(step, round(self.resolution * n / 7 / step) * step) for n in (6, 7, 8, 9)}
        each: dict[str, Any] = {"kernels": (3, 5), "act": "swish", "per": "stage"}
        stages = tuple(
            Stage.of(self.widths(*widths), depth=depth, expands=expands, se=(se,), stride=stride, **each)
            for widths, depth, expands, se, stride in rows
        )
        rules = BlockRules(mid_divisor=8, shortcut="always", kernel_weights="crop")
        return self.space(resolutions=tuple(sorted(sizes)), stem=stem, stages=stages, head=head, rules=rules)

    def space(
        self,
        *,
        stem: Stem,
        stages: tuple[Stage, ...],
        head: Head,
        rules: BlockRules | None = None,
        resolutions: tuple[int, ...] = (),
    ) -> SearchSpace:
        return SearchSpace(
            name=f"{self.name}-lowres" if self.lowres else self.name,
            classes=self.classes,
            resolutions=resolutions or (self.resolution,),
            stem=stem,
            stages=stages,
            head=head,
            rules=rules or BlockRules(),
        )
