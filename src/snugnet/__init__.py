"""snugnet: you say what the network may cost, and get the most accurate network that costs no more.

The public names, and nothing else. They are looked up when first used: importing the package does nothing and stays
light, so that `snugnet --help` need not wait for torch.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snugnet import devices as devices
    from snugnet import errors as errors
    from snugnet.budget import Budget as Budget
    from snugnet.costs.check import check_table as check
    from snugnet.costs.measure import measure as measure
    from snugnet.costs.table_file import load_table as load_table
    from snugnet.deploy.certificate import certify as certify
    from snugnet.deploy.export import export as export
    from snugnet.deploy.network_file import load as load
    from snugnet.deploy.network_file import save_network as save
    from snugnet.nets import Supernet as Supernet
    from snugnet.nets import build as build
    from snugnet.nets import extract as extract
    from snugnet.nets import recalibrate as recalibrate
    from snugnet.report import build_report as report
    from snugnet.search.front import front as front
    from snugnet.search.search import search as search
    from snugnet.space import Head as Head
    from snugnet.space import SearchSpace as SearchSpace
    from snugnet.space import Stage as Stage
    from snugnet.space import Stem as Stem
    from snugnet.space import presets as spaces
    from snugnet.space import zoo as zoo
    from snugnet.train import finetune as finetune
    from snugnet.train import load as load_data
    from snugnet.train import methods as methods
    from snugnet.train import train as train

__version__ = "0.1.0"

_HOMES = {
    "Budget": "snugnet.budget:Budget",
    "Head": "snugnet.space:Head",
    "SearchSpace": "snugnet.space:SearchSpace",
    "Stage": "snugnet.space:Stage",
    "Stem": "snugnet.space:Stem",
    "Supernet": "snugnet.nets:Supernet",
    "build": "snugnet.nets:build",
    "certify": "snugnet.deploy.certificate:certify",
    "check": "snugnet.costs.check:check_table",
    "devices": "snugnet.devices",
    "errors": "snugnet.errors",
    "export": "snugnet.deploy.export:export",
    "extract": "snugnet.nets:extract",
    "finetune": "snugnet.train:finetune",
    "front": "snugnet.search:front",
    "load": "snugnet.deploy.network_file:load",
    "load_data": "snugnet.train:load",
    "load_table": "snugnet.costs.table_file:load_table",
    "measure": "snugnet.costs.measure:measure",
    "methods": "snugnet.train.methods",
    "recalibrate": "snugnet.nets:recalibrate",
    "report": "snugnet.report:build_report",
    "save": "snugnet.deploy.network_file:save_network",
    "search": "snugnet.search:search",
    "spaces": "snugnet.space.presets",
    "train": "snugnet.train:train",
    "zoo": "snugnet.space.zoo",
}

__all__ = ["__version__", *sorted(_HOMES)]


def _find(name: str) -> Any:
    module, _, attribute = _HOMES[name].partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'snugnet' has no attribute {name!r}")
    return _find(name)


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """Rooms and verbs share names (`snugnet.search` is a room, `snugnet.search(...)` its verb). Python binds a room to
    its package when it is first imported; here the verb keeps the name, and `from snugnet.search import ...` works."""

    search = property(lambda self: _find("search"), lambda self, room: None)
    train = property(lambda self: _find("train"), lambda self, room: None)
    report = property(lambda self: _find("report"), lambda self, room: None)


sys.modules[__name__].__class__ = _Package
