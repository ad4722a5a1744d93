"""Channel sorting before a phase of shared training: the first channels of a block should be its best ones."""

from __future__ import annotations

from typing import Any

from snugnet.train.method import Net


def sort_if_wanted(net: Net, wanted: bool) -> None:
    if wanted:
        sort: Any = net.sort_channels  # type: ignore[attr-defined]
        sort()
