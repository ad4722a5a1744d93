"""A budget made concrete: a table and a number for every limit, for any space whatever its shape.

Here percentages become numbers, exact tables are made where none was given, a calibrated table's margin comes off, and a
limit below the cheapest network of the space is refused before anything else happens. Whether several limits together
leave a network is `feasible`'s question; methods that only try networks out (evolution, random) need no more than this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from snugnet import units
from snugnet.budgets.budget import Budget
from snugnet.budgets.extremes import cheapest, dearest
from snugnet.costs.table import CostTable, exact_table
from snugnet.errors import BadInput, Infeasible
from snugnet.solve import TOLERANCE
from snugnet.space.architecture import Architecture
from snugnet.space.plan import plan
from snugnet.space.space import SearchSpace

Tables = CostTable | Iterable[CostTable] | Mapping[str, CostTable]

EXACT = ("macs", "params", "model_size", "memory")
"""Resources whose tables need no device: a budget on them needs no table from the caller."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Every limit of a budget as a number in its base unit, with the table it is held against.

    `asked` is what the user said; `amounts` what predictions are held to, less by the table's margin."""

    space: SearchSpace
    budget: Budget
    asked: dict[str, float]
    effective_limits: dict[str, float]
    tables: dict[str, CostTable]

    def cost(self, architecture: Architecture) -> dict[str, float]:
        """What an architecture costs by the tables, in base units: every limited resource."""
        network = plan(architecture, self.space)
        return {name: table.of_network(network) for name, table in self.tables.items()}

    def fits(self, architecture: Architecture) -> bool:
        """Does it meet every limit by the tables?"""
        return all(
            cost <= self.effective_limits[name] * (1 + TOLERANCE) for name, cost in self.cost(architecture).items()
        )


def limits_of(
    space: SearchSpace,
    tables: Tables,
    budget: Budget | Mapping[str, str],
    *,
    margin: bool = True,
    tighten: Mapping[str, float] | None = None,
) -> Limits:
    """The limits of `budget` on `space`; `Infeasible` if one of them lies below the cheapest network.

    `tables`: one, several, or by name ("latency@phone"). Exact resources (MACs, parameters, model size, memory) need none.
    `margin`: keep a calibrated table's margin of the limit free, so that the measured network fits, not only the sum.
    `tighten`: factors on limits, e.g. {"latency": 0.97} after a network was measured over its budget.
    """
    asked = budget if isinstance(budget, Budget) else Budget(budget)
    known = _tables(space, tables, asked)
    factors = dict(tighten or {})
    for name, factor in factors.items():
        if name not in asked or not 0 < factor <= 1:
            raise BadInput(
                "tighten must give a factor in (0, 1] for a limited resource", value=(name, factor), remedy="Try 0.97."
            )
    wanted, effective_limits = {}, {}
    for name, table in known.items():
        largest = dearest(space, table).cost if asked.is_relative(name) else 0.0
        wanted[name] = asked.amount(name, largest)
        amount = wanted[name] * factors.get(name, 1.0)
        effective_limits[name] = amount / (1.0 + table.margin) if margin else amount
        least = cheapest(space, table).cost
        if least > effective_limits[name] * (1 + TOLERANCE):
            # In the user's own numbers: what was asked, and what would do with the margin on top.
            raise too_little(space, name, amount, least * (1.0 + table.margin if margin else 1.0))
    return Limits(space=space, budget=asked, asked=wanted, effective_limits=effective_limits, tables=known)


def _tables(space: SearchSpace, tables: Tables, budget: Budget) -> dict[str, CostTable]:
    """A table per limited resource, checked against the space; exact ones are made where none was given."""
    given = _by_name(tables)
    found = {}
    for name in budget:
        if name in given:
            table = given[name]
            if units.resource(table.resource) != units.resource(name):
                raise BadInput(
                    f"the table for {name} must be a table of {units.resource(name).name}",
                    value=table.resource,
                    remedy="Pass the table that belongs to the name.",
                )
            table.require(space=space)
            found[name] = table
        elif name in EXACT:
            found[name] = exact_table(space, name)
        else:
            have = ", ".join([*given, *(n for n in EXACT if n not in given)])
            raise BadInput(
                f"a budget on {name} must have a cost table of {name}",
                value=budget[name],
                remedy=f"Make one with `snugnet measure` and pass it, or drop the limit; there are tables of: {have}.",
            )
    return found


def _by_name(tables: Tables) -> dict[str, CostTable]:
    if isinstance(tables, CostTable):
        return {tables.resource: tables}
    if isinstance(tables, Mapping):
        return dict(tables)
    given: dict[str, CostTable] = {}
    for table in tables:
        if table.resource in given:
            raise BadInput(
                "two tables of one resource must be told apart by name",
                value=table.resource,
                remedy=f"Pass them as {{'{table.resource}@phone': ..., '{table.resource}@server': ...}}.",
            )
        given[table.resource] = table
    return given


def too_little(space: SearchSpace, name: str, limit: float, least: float, beside: str = "") -> Infeasible:
    """The refusal of one limit that lies below what the cheapest network needs."""
    enough = at_least(least, name)
    return Infeasible(
        f"{name} must be at least {enough}, which the cheapest network of space {space.name!r} needs{beside}",
        value=units.show(limit, name),
        remedy=f"Raise the budget to {enough} or add smaller choices.",
    )


def at_least(value: float, name: str) -> str:
    """`value` as text that a person can copy into a budget: rounded up, never down."""
    text = units.show(value, name)
    return text if units.parse(text, name) >= value else units.show(value * 1.0006, name)
