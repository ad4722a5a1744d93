"""snugnet: you say what the network may cost, and get the most accurate network that costs no more.

The public names, and nothing else. They are looked up when first used: importing the package does nothing and stays
light, so that `snugnet --help` need not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snugnet import devices as devices
    from snugnet import errors as errors
    from snugnet.budgets import Budget as Budget
    from snugnet.costs.check import check_table as check
    from snugnet.costs.measure import measure as measure
    from snugnet.costs.measure_many import measure_many as measure_many
    from snugnet.costs.table import load_table as load_table
    from snugnet.data import load as load_data
    from snugnet.deploy.certificate import certify as certify
    from snugnet.deploy.export import export as export
    from snugnet.deploy.hub import push_to_hub as push_to_hub
    from snugnet.deploy.network_file import load as load
    from snugnet.deploy.network_file import save_network as save
    from snugnet.executors import open_executor as open_executor
    from snugnet.fitting import fit as fit
    from snugnet.fitting.many import many as many
    from snugnet.nets import Supernet as Supernet
    from snugnet.nets import build as build
    from snugnet.nets import extract as extract
    from snugnet.nets import recalibrate as recalibrate
    from snugnet.nets.elasticise import elastic as elastic
    from snugnet.reporting import build_report as report
    from snugnet.searching.front import front as front
    from snugnet.searching.search import search as search
    from snugnet.space import Head as Head
    from snugnet.space import SearchSpace as SearchSpace
    from snugnet.space import Stage as Stage
    from snugnet.space import Stem as Stem
    from snugnet.space import presets as spaces
    from snugnet.space import zoo as zoo
    from snugnet.training import finetune as finetune
    from snugnet.training import methods as methods
    from snugnet.training import train as train

__version__ = "0.1.0"

_HOMES = {
    "Budget": "snugnet.budgets:Budget",
    "Head": "snugnet.space:Head",
    "SearchSpace": "snugnet.space:SearchSpace",
    "Stage": "snugnet.space:Stage",
    "Stem": "snugnet.space:Stem",
    "Supernet": "snugnet.nets:Supernet",
    "build": "snugnet.nets:build",
    "certify": "snugnet.deploy.certificate:certify",
    "check": "snugnet.costs.check:check_table",
    "devices": "snugnet.devices",
    "elastic": "snugnet.nets.elasticise:elastic",
    "errors": "snugnet.errors",
    "export": "snugnet.deploy.export:export",
    "extract": "snugnet.nets:extract",
    "finetune": "snugnet.training:finetune",
    "fit": "snugnet.fitting:fit",
    "front": "snugnet.searching.front:front",
    "load": "snugnet.deploy.network_file:load",
    "load_data": "snugnet.data:load",
    "load_table": "snugnet.costs.table:load_table",
    "many": "snugnet.fitting.many:many",
    "measure": "snugnet.costs.measure:measure",
    "measure_many": "snugnet.costs.measure_many:measure_many",
    "methods": "snugnet.training.methods",
    "open_executor": "snugnet.executors:open_executor",
    "push_to_hub": "snugnet.deploy.hub:push_to_hub",
    "recalibrate": "snugnet.nets:recalibrate",
    "report": "snugnet.reporting:build_report",
    "save": "snugnet.deploy.network_file:save_network",
    "search": "snugnet.searching.search:search",
    "spaces": "snugnet.space.presets",
    "train": "snugnet.training:train",
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
