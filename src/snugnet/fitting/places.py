"""Where the limits of a run are measured, and where what was measured lies in its folder.

A limit with a label (`latency@phone`) has a device, a table and a check of its own; percentages of a starting network become
milliseconds once that one was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snugnet.budgets import Budget
from snugnet.budgets.limits import EXACT
from snugnet.costs.table import exact_table, open_table
from snugnet.deploy.card import read_certificate
from snugnet.errors import BadInput
from snugnet.fitting.recipe import MeasureSection, Recipe
from snugnet.searching.context import search_context
from snugnet.space.space import SearchSpace
from snugnet.units import resource


def places_of(recipe: Recipe, budget: Budget) -> dict[str, MeasureSection]:
    """Where each latency limit is measured, by its name in the budget; a label without a device is refused."""
    for name in budget:
        if label_of(name) and resource(name).name != "latency":
            raise BadInput(
                "only latency depends on a device, so only it may have a label",
                value=name,
                remedy=f"Write {resource(name).name}.",
            )
    places = {name: recipe.place(name) for name in budget if resource(name).name == "latency"}
    batches = {section.batch for section in places.values()}
    if len(batches) > 1:
        raise BadInput(
            "all devices of a run must measure the same batch", value=sorted(batches), remedy="A certificate has one."
        )
    return places


def label_of(name: str) -> str:
    return name.partition("@")[2]


def table_file(name: str) -> str:
    """Where the table of a latency limit lies in a run folder: table.json, table@phone.json."""
    return f"table@{label_of(name)}.json" if label_of(name) else "table.json"


def step_of(verb: str, name: str) -> str:
    return f"{verb} {label_of(name)}".rstrip()


def referred(budget: Budget, reference: Mapping[str, float]) -> Budget:
    """Percentages as milliseconds, by the latencies of the starting network."""
    relative = [name for name in reference if name in budget and budget.is_relative(name)]
    return Budget({**budget, **{name: f"{budget.amount(name, reference[name]):.6g}ms" for name in relative}})


def measured_shares(certificate: Path) -> dict[str, float]:
    """The share of every limit that the certified network takes, by the upper end of what was measured; over 1: too much."""
    lines = read_certificate(certificate)["budgets"]
    return {name: line["interval"][1] / line["limit"] for name, line in lines.items()}


def binned_costs(recipe: Recipe) -> set[str]:
    """The resources that methods of the recipe bin networks by."""
    return {str(phase.describe()["resource"]) for phase in recipe.train.methods() if "resource" in phase.describe()}


def training_costs(recipe: Recipe, folder: Path, space: SearchSpace) -> dict[str, Any]:
    """Tables (and budget) for `train`, from the run folder, where a method searches while it trains or bins networks by a
    measured cost; else nothing."""
    budget, tables = Budget(recipe.budget), {}
    for name in budget if recipe.needs_budget else binned_costs(recipe) - {*EXACT}:
        path = folder / table_file(name)
        if name in EXACT:
            tables[name] = exact_table(space, name)
        elif path.exists():
            tables[name] = open_table(path).for_statistic(budget.statistic(name) if name in budget else "quiet")
        else:
            raise BadInput(
                f"a method that searches while it trains, or bins by {name}, must have a table of {name} first",
                value=str(path),
                remedy=f"Measure it: `snugnet measure SPACE --out {path}`, or let `snugnet run` do all of it.",
            )
    if not recipe.needs_budget:
        return {"tables": tables} if tables else {}
    return {"tables": tables, "budget": search_context(space, tables, budget).limits.absolute()}
