"""The papers' spaces, ready to use.

`hardcore` is the published form (the networks A-F are members), `hardcore-paper` follows the paper's table 3 to the
letter. Every preset takes `classes`, `resolution` and `width` (a multiplier for all channel numbers). A low-resolution
form (`lowres=True`, or the preset's name with `-lowres`) serves images of 28 to 64 pixels: the stem keeps the
resolution up to 40 pixels, and one stage less downsamples, so the last stage still sees 4 x 4 positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from snugnet.errors import BadInput, UnknownName
from snugnet.space.space import Activation, BlockChoice, BlockRules, Head, SearchSpace, Stage, Stem, round_channels

_TF_NAS_RULES = BlockRules(se_of="input", se_divisor=1, se_act="block", se_gate="sigmoid", share=False)


def hardcore(*, classes: int = 1000, resolution: int = 224, width: float = 1.0, lowres: bool = False) -> SearchSpace:
    """HardCoRe-NAS as published: five searched stages of 2-4 blocks, twelve configurations a block."""
    c, fixed, searched = _shape("hardcore", width), _fixed, _hardcore_stage
    strides = (2, 1, 2, 1, 2) if lowres else (2, 2, 2, 1, 2)
    acts: tuple[Activation, ...] = ("relu", "relu", "hard-swish", "hard-swish", "hard-swish")
    return SearchSpace(
        name=_name("hardcore", lowres),
        classes=classes,
        resolutions=(_resolution(resolution, lowres),),
        stem=Stem(widths=(c(32),), stride=_stem_stride(resolution, lowres), act="hard-swish"),
        stages=(
            fixed(c(16), act="relu"),
            *(searched(c(n), s, a) for n, s, a in zip((24, 40, 80, 112, 192), strides, acts)),
        ),
        head=Head(kind="pool-conv", widths=(c(1280),), hidden=c(960), bias=True, act="hard-swish"),
    )


def hardcore_paper(
    *, classes: int = 1000, resolution: int = 224, width: float = 1.0, lowres: bool = False
) -> SearchSpace:
    """HardCoRe-NAS's table 3 to the letter: ReLU, then Swish; stage 8 is a searched block to 960 channels."""
    c = _shape("hardcore-paper", width)
    strides = (2, 1, 2, 1, 2) if lowres else (2, 2, 2, 1, 2)
    acts: tuple[Activation, ...] = ("relu", "swish", "swish", "swish", "swish")
    return SearchSpace(
        name=_name("hardcore-paper", lowres),
        classes=classes,
        resolutions=(_resolution(resolution, lowres),),
        stem=Stem(widths=(c(32),), stride=_stem_stride(resolution, lowres), act="relu"),
        stages=(
            _fixed(c(16), act="relu"),
            *(_hardcore_stage(c(n), s, a) for n, s, a in zip((24, 40, 80, 112, 192), strides, acts)),
            _hardcore_stage(c(960), 1, "swish", depth=(1, 1)),
        ),
        head=Head(kind="conv-pool", widths=(c(1280),), act="swish"),
    )


def hardcore_thin(
    *, classes: int = 1000, resolution: int = 224, width: float = 1.0, lowres: bool = False
) -> SearchSpace:
    """HardCoRe's choices in four thin stages of 1-3 blocks: accuracy is scarce, and a CPU trains it in minutes."""
    c = _shape("hardcore-thin", width)
    strides = (2, 1, 2, 1) if lowres else (2, 2, 2, 2)
    acts: tuple[Activation, ...] = ("relu", "relu", "hard-swish", "hard-swish")
    searched = (
        _hardcore_stage(c(n), s, a, depth=(1, 3), expands=(2, 3, 6)) for n, s, a in zip((8, 16, 24, 32), strides, acts)
    )
    return SearchSpace(
        name=_name("hardcore-thin", lowres),
        classes=classes,
        resolutions=(_resolution(resolution, lowres),),
        stem=Stem(widths=(c(8),), stride=2, act="hard-swish"),
        stages=(_fixed(c(8), act="relu"), *searched),
        head=Head(kind="pool-conv", widths=(c(128),), hidden=c(96), bias=True, act="hard-swish"),
    )


def tfnas(*, classes: int = 1000, resolution: int = 224, width: float = 1.0, lowres: bool = False) -> SearchSpace:
    """TF-NAS: eight operations a layer, depths from 1, middle widths continuous in [2, 4] or [4, 8] x input."""
    return _tfnas("tfnas", classes, resolution, width, lowres, se=True)


def tfnas_wose(*, classes: int = 1000, resolution: int = 224, width: float = 1.0, lowres: bool = False) -> SearchSpace:
    """TF-NAS without SE anywhere: four operations a layer."""
    return _tfnas("tfnas-wose", classes, resolution, width, lowres, se=False)


def tfnas_mbv2(*, classes: int = 1000, resolution: int = 224, width: float = 1.0, lowres: bool = False) -> SearchSpace:
    """TF-NAS's MobileNetV2 space (its table 5): ReLU6, four operations, MobileNetV2's widths."""
    acts: tuple[Activation, ...] = ("relu6",) * 6
    widths = (24, 32, 64, 96, 160, 320)
    return _tfnas("tfnas-mbv2", classes, resolution, width, lowres, se=False, widths=widths, acts=acts, act="relu6")


def attentive(*, classes: int = 1000, resolution: int = 224, width: float = 1.0, lowres: bool = False) -> SearchSpace:
    """AttentiveNAS and AlphaNet: width, kernel, expansion and depth per stage, four input resolutions."""
    c = _shape("attentive", width)
    rows: tuple[tuple[tuple[int, ...], tuple[int, int], tuple[int, ...], bool], ...] = (
        ((16, 24), (1, 2), (1,), False),
        ((24, 32), (3, 5), (4, 5, 6), False),
        ((32, 40), (3, 6), (4, 5, 6), True),
        ((64, 72), (3, 6), (4, 5, 6), False),
        ((112, 120, 128), (3, 8), (4, 5, 6), True),
        ((192, 200, 208, 216), (3, 8), (6,), True),
        ((216, 224), (1, 2), (6,), True),
    )
    strides = (1, 2, 1, 2, 1, 2, 1) if lowres else (1, 2, 2, 2, 1, 2, 1)
    step = 4 if lowres else 32
    base = _resolution(resolution, lowres)
    sizes = sorted({max(step, round(base * n / 7 / step) * step) for n in (6, 7, 8, 9)})
    stages = tuple(
        Stage.of(
            _several(c, widths),
            depth=depth,
            kernels=(3, 5),
            expands=expands,
            se=(0.25 if se else 0.0,),
            stride=stride,
            act="swish",
            per="stage",
        )
        for (widths, depth, expands, se), stride in zip(rows, strides)
    )
    return SearchSpace(
        name=_name("attentive", lowres),
        classes=classes,
        resolutions=tuple(sizes),
        stem=Stem(widths=_several(c, (16, 24)), stride=_stem_stride(resolution, lowres), act="swish"),
        stages=stages,
        head=Head(
            kind="pool-conv", widths=_several(c, (1792, 1984)), hidden_expand=6, bias=False, act="swish", dropout=0.2
        ),
        rules=BlockRules(mid_divisor=8, shortcut="always", kernel_weights="crop"),
    )


PRESETS: dict[str, Callable[..., SearchSpace]] = {
    "hardcore": hardcore,
    "hardcore-paper": hardcore_paper,
    "hardcore-thin": hardcore_thin,
    "tfnas": tfnas,
    "tfnas-wose": tfnas_wose,
    "tfnas-mbv2": tfnas_mbv2,
    "attentive": attentive,
}
LOWRES_RESOLUTION = 28


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
    name: str,
    classes: int,
    resolution: int,
    width: float,
    lowres: bool,
    *,
    se: bool,
    widths: tuple[int, ...] = (24, 40, 80, 112, 192, 320),
    acts: tuple[Activation, ...] = ("relu", *("swish",) * 5),  # type: ignore[assignment]
    act: Activation = "relu",
) -> SearchSpace:
    c = _shape(name, width)
    depths = ((1, 2), (1, 3), (1, 4), (1, 4), (1, 4), (1, 1))
    strides = (2, 1, 2, 1, 2, 1) if lowres else (2, 2, 2, 1, 2, 1)
    ranges = ((3, (2.0, 4.0), 1.0), (6, (4.0, 8.0), 2.0))
    choices = tuple(
        BlockChoice(kernel=kernel, expand=expand, expand_range=expand_range, se=ratio * with_se)
        for with_se in ((0, 1) if se else (0,))
        for kernel in (3, 5)
        for expand, expand_range, ratio in ranges
    )
    stages = tuple(
        Stage(widths=(c(n),), depths=tuple(range(low, high + 1)), choices=choices, stride=stride, act=a)
        for n, (low, high), stride, a in zip(widths, depths, strides, acts)
    )
    return SearchSpace(
        name=_name(name, lowres),
        classes=classes,
        resolutions=(_resolution(resolution, lowres),),
        stem=Stem(widths=(c(32),), stride=_stem_stride(resolution, lowres), act=act),
        stages=(_fixed(c(16), act=act, se=0.25 if se else 0.0), *stages),
        head=Head(kind="conv-pool", widths=(c(1280),), act=acts[-1]),
        rules=_TF_NAS_RULES,
    )


def _hardcore_stage(
    width: int,
    stride: int,
    act: Activation,
    depth: tuple[int, int] = (2, 4),
    expands: tuple[int, ...] = (3, 4, 6),
) -> Stage:
    return Stage.of(
        width, depth=depth, kernels=(3, 5), expands=expands, se=(0.0, 0.25), stride=stride, act=act, per="block"
    )


def _fixed(width: int, *, act: Activation, se: float = 0.0) -> Stage:
    """The first block of the family: expansion 1, nothing to choose."""
    return Stage.of(width, depth=1, kernels=(3,), expands=(1,), se=(se,), act=act)


def _shape(name: str, width: float) -> Callable[[int], int]:
    if not 0 < width <= 16:
        raise BadInput(f"width of {name!r} must be a multiplier in (0, 16]", value=width, remedy="Try 0.5 or 1.0.")
    return lambda channels: channels if width == 1.0 else round_channels(channels * width)


def _several(c: Callable[[int], int], widths: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted({c(width) for width in widths}))


def _resolution(resolution: int, lowres: bool) -> int:
    least, most = (8, 96) if lowres else (32, 1024)
    if not isinstance(resolution, int) or not least <= resolution <= most:
        form = "low-resolution form" if lowres else "full form"
        other = "the full form" if lowres else "the low-resolution form (lowres=True, or the name with -lowres)"
        raise BadInput(
            f"resolution in the {form} must be a whole number from {least} to {most}",
            value=resolution,
            remedy=f"For other sizes take {other}.",
        )
    return resolution


def _stem_stride(resolution: int, lowres: bool) -> int:
    return 1 if lowres and resolution <= 40 else 2


def _name(name: str, lowres: bool) -> str:
    return f"{name}-lowres" if lowres else name
