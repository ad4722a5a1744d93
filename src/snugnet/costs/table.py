"""What every part of a space costs: one table per resource, measured or exact.

A network's cost by the table is the sum over its parts (the largest for peak memory: `combine`). A table knows its
origin: for a measured one the device's fingerprint, batch, precision, date, versions, passes; for an exact one the
convention of counting. Keys are parts, that is all the numbers of a layer, so that a table serves every network made of
the same parts, whatever space it came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from snugnet.costs import analytic
from snugnet.errors import TableMismatch, UnknownName
from snugnet.space.plan import NetworkPlan, Part
from snugnet.space.slots import distinct_parts
from snugnet.space.space import SearchSpace
from snugnet.units import resource as known_resource

Combine = Literal["sum", "max"]


@dataclass(frozen=True, kw_only=True)
class CostTable:
    """Cost of each part in the base unit of `resource` (milliseconds, MACs, parameters, bytes)."""

    resource: str
    costs: dict[Part, float]
    combine: Combine = "sum"
    origin: dict[str, Any] = field(default_factory=dict)

    @property
    def unit(self) -> str:
        return known_resource(self.resource).unit

    def of_part(self, part: Part) -> float:
        try:
            return self.costs[part]
        except KeyError:
            raise TableMismatch(
                f"the {self.resource} table must hold every part of the network",
                value=part.label,
                remedy="It was made for another space or resolution; make one for this network's space.",
            ) from None

    def of_network(self, network: NetworkPlan) -> float:
        """The network's cost as the table sees it."""
        return self.combined(self.of_part(part) for part in network.parts)

    def combined(self, costs: Iterable[float]) -> float:
        return sum(costs) if self.combine == "sum" else max(costs)


_EXACT: dict[str, tuple[Callable[[Part], float], Combine]] = {
    "macs": (analytic.macs, "sum"),
    "params": (analytic.params, "sum"),
    "weights": (analytic.weight_bytes, "sum"),
    "memory": (analytic.peak_memory, "max"),
}


def exact_table(space: SearchSpace, resource: str) -> CostTable:
    """The exact table of `space` for macs, params, weights or memory; no device needed."""
    if resource not in _EXACT:
        raise UnknownName("a resource with exact costs", resource, _EXACT)
    function, combine = _EXACT[resource]
    costs = {part: float(function(part)) for part in distinct_parts(space)}
    return CostTable(resource=resource, costs=costs, combine=combine, origin={"kind": "exact", "space": space.name})
