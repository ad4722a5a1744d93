"""A budget made concrete: a table and a number for every limit, for any space whatever its shape.

Here percentages become numbers, exact tables are made where none was given, a calibrated table's margin comes off, and a
limit below the cheapest network of the space is refused before anything else happens. Whether several limits together
leave a network is `feasible`'s question; methods that only try networks out (evolution, random) need no more than this.

The cheapest and the dearest network by a table are exact, also where costs do not add up slot by slot. A block's cost
depends on its choice, on the width before it, on its own width and on the resolution. So the extreme over a whole space is a
walk from stem to head that remembers, for every width a stage may end with, the best way to get there: dynamic programming,
a few thousand table look-ups even for AttentiveNAS. Free middle widths are tried at both ends of their range and at their
start: costs rise with the middle width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import final

from snugnet import units
from snugnet.budgets.budget import Budget
from snugnet.costs.table import CostTable, exact_table
from snugnet.errors import BadInput, Infeasible
from snugnet.solve import TOLERANCE
from snugnet.space.architecture import Architecture, Block, StageChoice
from snugnet.space.layout import Layout
from snugnet.space.sampling import smallest
from snugnet.space.space import SearchSpace
from snugnet.space.spec import Place, plan

Way = tuple[float, tuple[StageChoice, ...]]
Tables = CostTable | Iterable[CostTable] | Mapping[str, CostTable]

HIGHEST_AIM = 1.5  # of a limit: how far a search may aim above it after a network was measured under it
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
    resource, after a network was measured well under it: gives back of the margin, and where that is not enough, the table
    says too much of such networks and its costs are scaled down until they agree with what was measured.
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
        effective = table.within(aim) if margin else aim
        if effective > amount:
            table, effective = table.scaled(amount / effective), amount
        limit = Limit(name=name, asked=amount, effective=effective, table=table, device=table.origin.get("device"))
        if not limit.admits(table.of_network(plan(smallest(space), space))):
            least = cheapest(space, table).cost  # seldom another network
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


@dataclass(frozen=True)
class Extreme:
    """A network and what it costs."""

    cost: float
    architecture: Architecture


def cheapest(space: SearchSpace, table: CostTable) -> Extreme:
    """No network of `space` costs less by `table`."""
    return _extreme(space, table, 1.0)


def dearest(space: SearchSpace, table: CostTable) -> Extreme:
    """No network of `space` costs more by `table`."""
    return _extreme(space, table, -1.0)


def _extreme(space: SearchSpace, table: CostTable, sign: float) -> Extreme:
    """The network that minimises sign * cost."""
    layout, networks = Layout(space), []
    if table.expect is not None:  # an extreme of the whole space needs the whole table
        table.expect(list(layout.distinct_specs()))
    for resolution in space.resolutions:
        heads = layout.head_specs(resolution)
        for stem in layout.stem_specs(resolution):
            ways: dict[int, Way] = {stem.out_channels: (table.of_part(stem), ())}
            for index in range(len(space.stages)):
                ways = _through(layout, table, index, ways, resolution, sign)
            for before, (cost, stages) in ways.items():
                for width, head in zip(space.head.widths, heads[space.stages[-1].widths.index(before)]):
                    total = table.combined((cost, table.of_part(head)))
                    network = Architecture(resolution=resolution, stem=stem.out_channels, stages=stages, head=width)
                    networks.append((total, network))
    best = min(networks, key=lambda way: sign * way[0])
    # Summed once more in the network's own order, so that it equals what others get for this network.
    return Extreme(table.of_network(plan(best[1], space)), best[1])


def _through(
    layout: Layout, table: CostTable, index: int, ways: dict[int, Way], resolution: int, sign: float
) -> dict[int, Way]:
    """The best way to leave stage `index` with each of its widths."""
    stage = layout.space.stages[index]
    places = [p for p in layout.places(index, resolution) if p.position or p.in_channels in ways]
    blocks = {place: _blocks(layout, table, place, sign) for place in places}
    after: dict[int, Way] = {}
    for width in stage.widths:
        rest = [blocks[p] for p in places if p.position and p.out_channels == width]  # the last serves those behind it
        options: list[Way] = []
        for place in places:
            if place.position or place.out_channels != width:
                continue
            cost, stages = ways[place.in_channels]
            for choice, (price, block) in enumerate(blocks[place]):
                for depth in stage.depths:
                    later = [rest[min(position, len(rest) - 1)] for position in range(depth - 1)]
                    following = [
                        row[choice] if stage.per == "stage" else min(row, key=lambda r: sign * r[0]) for row in later
                    ]
                    total = table.combined((cost, price, *(c for c, _ in following)))
                    chosen = StageChoice(width=width, blocks=(block, *(b for _, b in following)))
                    options.append((total, (*stages, chosen)))
        after[width] = min(options, key=lambda way: sign * way[0])
    return after


def _blocks(layout: Layout, table: CostTable, place: Place, sign: float) -> list[tuple[float, Block]]:
    """(cost, block) of every choice at a place, each at its best middle width."""
    best = []
    for number, choice in enumerate(layout.choices(place.stage, place.position)):
        mid_channels: list[int | None] = [None]
        if choice.expand_range:
            mid_range, start = layout.mid_range(place, number), layout.block_spec(place, number).mid_channels
            mid_channels = [*sorted({mid_range[0], mid_range[-1], start})]
        ways = [(table.of_part(layout.block_spec(place, number, m)), Block.of(choice, m)) for m in mid_channels]
        best.append(min(ways, key=lambda way: sign * way[0]))
    return best
