"""The whole way from data to a certified network: `fit`, the recipes it is told by, and the run folders it leaves."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snugnet.fitting.fit_data import FitResult, fit
    from snugnet.fitting.recipe import Recipe, find, names, read

__all__ = ["FitResult", "Recipe", "find", "fit", "names", "read"]


def __getattr__(name: str) -> Any:
    """Opening a run needs none of what measures, trains and exports: each name is imported on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "fit_data" if name in ("FitResult", "fit") else "recipe"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
