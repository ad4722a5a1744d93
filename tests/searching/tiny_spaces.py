"""Tiny spaces whose costs do not add up slot by slot: several input resolutions, several widths."""

from snugnet.space import Head, SearchSpace, Stage, Stem


def several_resolutions() -> SearchSpace:
    return SearchSpace(
        name="resolutions",
        classes=10,
        resolutions=(6, 8),
        stem=Stem(widths=(8,), stride=1),
        stages=(
            Stage.of(8, depth=(1, 2), stride=2, kernels=(3, 5), expands=(1, 2), se=(0,)),
            Stage.of(16, depth=(1, 2), stride=2, kernels=(3,), expands=(2, 3), se=(0, 0.25)),
        ),
        head=Head(kind="conv-pool", widths=(32,)),
    )


def several_widths() -> SearchSpace:
    return SearchSpace(
        name="widths",
        classes=10,
        resolutions=(6, 8),
        stem=Stem(widths=(8,), stride=1),
        stages=(
            Stage.of((8, 12), depth=(1, 2), stride=2, kernels=(3, 5), expands=(1, 2), se=(0,)),
            Stage.of((16, 24), depth=(1, 2), stride=2, kernels=(3,), expands=(2, 3), se=(0,)),
        ),
        head=Head(kind="conv-pool", widths=(32,)),
    )
