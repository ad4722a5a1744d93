"""A budget made concrete: a table and a number for every limit, for any space whatever its shape.

Here percentages become numbers, exact tables are made where none was given, a calibrated table's margin comes off, and a
limit below the cheapest network of the space is refused before anything else happens. Whether several limits together
leave a network is `feasible`'s question; methods that only try networks out (evolution, random) need no more than this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import final

from snugnet import units
from snugnet.budgets.budget import Budget
from snugnet.budgets.extremes import cheapest, dearest
from snugnet.costs.table import CostTable, exact_table
from snugnet.errors import BadInput, Infeasible
from snugnet.solve import TOLERANCE
from snugnet.space.architecture import Architecture
from snugnet.space.space import SearchSpace
from snugnet.space.spec import plan

Tables = CostTable | Iterable[CostTable] | Mapping[str, CostTable]

HIGHEST_AIM = 1.5  # of a limit: how far a search may aim above it, the margin of its table taken off
EXACT = ("macs", "params", "model_size", "memory")
"""Resources whose tables need no device: a budget on them needs no table from the caller."""


@final
@dataclass(frozen=True, kw_only=True)
class Limit:
    """One hard limit, from the budget's text to the certificate; numbers are in the resource's base unit."""

    name: str  # the resource, with the device's label where the budget has one: "latency@phone"
    asked: float  # what the user said
    effective: float  # what predictions are held to: less by the table's margin and by what measuring has taught
    table: CostTable
    device: Mapping[str, str] | None  # the fingerprint of the device the table was measured on; None: no device matters

    @property
    def label(self) -> str:
        """The part of the name after @, which names the device; empty for this machine's own."""
        return self.name.partition("@")[2]

    def admits(self, cost: float) -> bool:
        """Is a predicted cost within the limit?"""
        return cost <= self.effective * (1 + TOLERANCE)


@final
class Limits(Mapping[str, Limit]):
    """The limits of a budget on a space, by name: `limits["latency@phone"].effective`."""

    def __init__(self, space: SearchSpace, budget: Budget, limits: Iterable[Limit]) -> None:
        self.space, self.budget = space, budget
        self._limits = {limit.name: limit for limit in limits}

    def __getitem__(self, name: str) -> Limit:
        return self._limits[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._limits)

    def __len__(self) -> int:
        return len(self._limits)

    @property
    def tables(self) -> dict[str, CostTable]:
        return {name: limit.table for name, limit in self.items()}

    @property
    def asked(self) -> dict[str, float]:
        return {name: limit.asked for name, limit in self.items()}

    @property
    def effective(self) -> dict[str, float]:
        return {name: limit.effective for name, limit in self.items()}

    def absolute(self) -> Budget:
        """The budget with every percentage turned into the amount it stands for: what a certificate can promise."""
        return Budget({n: self.budget.absolute(n, self[n].asked) for n in self})

    def cost(self, architecture: Architecture) -> dict[str, float]:
        """What an architecture costs by the tables, in base units: every limited resource."""
        network = plan(architecture, self.space)
        return {name: limit.table.of_network(network) for name, limit in self.items()}

    def fits(self, architecture: Architecture) -> bool:
        """Does it meet every limit by the tables?"""
        return all(self[name].admits(cost) for name, cost in self.cost(architecture).items())


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
    `tighten`: factors on limits, e.g. {"latency": 0.97} after a network was measured over its budget. Above 1 for a measured
    resource, after a network was measured well under it: gives back of the margin, never more than was asked.
    """
    asked = budget if isinstance(budget, Budget) else Budget(budget)
    known = _tables(space, tables, asked)
    factors = dict(tighten or {})
    for name, factor in factors.items():
        most = HIGHEST_AIM if name in known and known[name].origin.get("kind") == "measured" else 1.0
        if name not in asked or not 0 < factor <= most:
            rule = f"tighten must give a factor in (0, {most:g}] for a limited resource"
            raise BadInput(rule, value=(name, factor), remedy="Try 0.97.")
    limits = []
    for name, table in known.items():
        largest = dearest(space, table).cost if asked.is_relative(name) else 0.0
        amount = asked.amount(name, largest)
        aim = amount * factors.get(name, 1.0)
        effective = min(amount, table.within(aim) if margin else aim)
        limit = Limit(name=name, asked=amount, effective=effective, table=table, device=table.origin.get("device"))
        least = cheapest(space, table).cost
        if not limit.admits(least):
            # In the user's own numbers: what was asked, and what would do with the margin on top.
            raise too_little(space, name, aim, table.upper(least) if margin else least)
        limits.append(limit)
    return Limits(space, asked, limits)


def _tables(space: SearchSpace, tables: Tables, budget: Budget) -> dict[str, CostTable]:
    """A table per limited resource, checked against the space; exact ones are made where none was given."""
    given = _by_name(tables)
    chosen = {}
    for name in budget:
        if name in given:
            table = given[name]
            if units.resource(table.resource) != units.resource(name):
                rule = f"the table for {name} must be a table of {units.resource(name).name}"
                raise BadInput(rule, value=table.resource, remedy="Pass the table that belongs to the name.")
            table.require(space=space)
            chosen[name] = table.for_statistic(budget.statistic(name))
        elif name in EXACT:
            chosen[name] = exact_table(space, name)
        else:
            have = ", ".join([*given, *(n for n in EXACT if n not in given)])
            remedy = f"Make one with `snugnet measure` and pass it, or drop the limit; there are tables of: {have}."
            raise BadInput(f"a budget on {name} must have a cost table of {name}", value=budget[name], remedy=remedy)
    return chosen


def _by_name(tables: Tables) -> dict[str, CostTable]:
    if isinstance(tables, CostTable):
        return {tables.resource: tables}
    if isinstance(tables, Mapping):
        return dict(tables)
    given: dict[str, CostTable] = {}
    for table in tables:
        if table.resource in given:
            remedy = f"Pass them as {{'{table.resource}@phone': ..., '{table.resource}@server': ...}}."
            raise BadInput("two tables of one resource must be told apart by name", value=table.resource, remedy=remedy)
        given[table.resource] = table
    return given


def too_little(space: SearchSpace, name: str, limit: float, least: float, beside: str = "") -> Infeasible:
    """The refusal of one limit that lies below what the cheapest network needs."""
    enough = at_least(least, name)
    rule = f"{name} must be at least {enough}, which the cheapest network of space {space.name!r} needs{beside}"
    remedy = f"Raise the budget to {enough} or add smaller choices."
    return Infeasible(rule, value=units.show(limit, name), remedy=remedy)


def at_least(value: float, name: str) -> str:
    """`value` as text that a person can copy into a budget: rounded up, never down."""
    text = units.show(value, name)
    return text if units.parse(text, name) >= value else units.show(value * 1.0006, name)
