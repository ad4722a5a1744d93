"""What every part of a space costs: one table per resource, measured or exact.

A network's cost by the table is the sum over its parts (the largest for peak memory: `combine`). A table knows its
origin: for a measured one the device's fingerprint, batch, precision, date, versions, passes; for an exact one the
convention of counting. Keys are parts, that is all the numbers of a layer, so that a table serves every network made of
the same parts, whatever space it came from. Of a free middle width some values are measured; those between are
interpolated (exact tables compute them). Used for something else than it was made for, a table refuses (`require`).
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from snugnet.costs import analytic
from snugnet.errors import TableMismatch, UnknownName
from snugnet.space.plan import BlockSpec, LayerSpec, NetworkSpec
from snugnet.space.slots import distinct_parts
from snugnet.space.space import SearchSpace
from snugnet.space.stored import space_to_json
from snugnet.store import sha256
from snugnet.units import resource as known_resource

Combine = Literal["sum", "max"]


@dataclass(frozen=True, kw_only=True)
class CostTable:
    """Cost of each part in the base unit of `resource` (milliseconds, MACs, parameters, bytes)."""

    resource: str
    costs: dict[LayerSpec, float]
    combine: Combine = "sum"
    origin: dict[str, Any] = field(default_factory=dict)
    isolated_ms: dict[LayerSpec, tuple[float, float, float]] = field(default_factory=dict)
    """Of a measured table: each part's time by itself before calibration, with its 95 % interval."""

    @property
    def unit(self) -> str:
        return known_resource(self.resource).unit

    @property
    def margin(self) -> float:
        """Relative: a network predicted at `T / (1 + margin)` costs at most T with 95 % confidence; 0 where exact."""
        return float(self.origin.get("calibration", {}).get("margin", 0.0))

    def of_part(self, part: LayerSpec) -> float:
        known = self.costs.get(part)
        return self._between(part) if known is None else known

    def of_network(self, network: NetworkSpec) -> float:
        """The network's cost as the table sees it."""
        return self.combined(self.of_part(part) for part in network.parts)

    def combined(self, costs: Iterable[float]) -> float:
        return sum(costs) if self.combine == "sum" else max(costs)

    def require(
        self,
        *,
        space: SearchSpace | None = None,
        device: Mapping[str, str] | None = None,
        batch: int | None = None,
        resolution: int | None = None,
    ) -> None:
        """Raise `TableMismatch`, with all that differs, unless the table was made for this."""
        if found := self.differences(space=space, device=device, batch=batch, resolution=resolution):
            raise TableMismatch(
                f"a {self.resource} table must be used for what it was made for",
                value=found,
                remedy="Make a table for this with `snugnet measure`.",
            )

    def differences(
        self,
        *,
        space: SearchSpace | None = None,
        device: Mapping[str, str] | None = None,
        batch: int | None = None,
        resolution: int | None = None,
    ) -> str:
        """What the table was made for instead, in words; empty if nothing differs. Exact tables fit anywhere except in
        another space."""
        differences = []
        if space is not None and self.origin.get("space_id") not in (None, space_id(space)):
            missing = [part.label for part in distinct_parts(space) if not self._holds(part)]
            if missing:  # another space of the same parts is served as well
                found = f"{len(missing)} parts of {space.name!r} are missing, such as {missing[0]}"
                other = "another of that name" if self.origin.get("space") == space.name else repr(space.name)
                differences.append(f"space {self.origin.get('space')!r} in the table, {other} here ({found})")
        if self.origin.get("kind") == "measured":
            if device is not None:
                differences += _differences(self.origin["device"], device)
            if batch is not None and batch != self.origin["batch"]:
                differences.append(f"batch {self.origin['batch']} in the table, {batch} here")
            if resolution is not None and resolution not in self.origin["resolutions"]:
                sizes = ", ".join(map(str, self.origin["resolutions"]))
                differences.append(f"resolution {sizes} in the table, {resolution} here")
        return "; ".join(differences)

    @cached_property
    def _by_mid_channels(self) -> dict[BlockSpec, list[tuple[int, float]]]:
        """Blocks alike except for their middle width -> (middle, cost), rising."""
        alike: dict[BlockSpec, list[tuple[int, float]]] = {}
        for part, cost in self.costs.items():
            if isinstance(part, BlockSpec):
                alike.setdefault(replace(part, mid_channels=0), []).append((part.mid_channels, cost))
        return {key: sorted(points) for key, points in alike.items()}

    def _holds(self, part: LayerSpec) -> bool:
        try:
            self.of_part(part)
        except TableMismatch:
            return False
        return True

    def _between(self, part: LayerSpec) -> float:
        if isinstance(part, BlockSpec):
            points = self._by_mid_channels.get(replace(part, mid_channels=0), [])
            place = bisect.bisect(points, (part.mid_channels, 0.0))
            if 0 < place < len(points):
                if self.origin.get("kind") == "exact":
                    return float(_EXACT[self.resource][0](part))
                (left, low), (right, high) = points[place - 1], points[place]
                return low + (high - low) * (part.mid_channels - left) / (right - left)
        raise TableMismatch(
            f"the {self.resource} table must hold every part of the network",
            value=part.label,
            remedy="It was made for another space or resolution; make one for this network's space.",
        )


def _differences(there: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    return [f"{name} {there.get(name, 'unknown')} in the table, {here.get(name, 'unknown')} here" for name in names]


def space_id(space: SearchSpace) -> str:
    """A short fingerprint of everything a space says."""
    return sha256(json.dumps(space_to_json(space), sort_keys=True).encode())[:16]


_EXACT: dict[str, tuple[Callable[[LayerSpec], float], Combine]] = {
    "macs": (analytic.macs, "sum"),
    "params": (analytic.params, "sum"),
    "model_size": (analytic.weight_bytes, "sum"),
    "memory": (analytic.peak_memory, "max"),
}


def exact_table(space: SearchSpace, resource: str) -> CostTable:
    """The exact table of `space` for macs, params, model_size or memory; no device needed."""
    if resource not in _EXACT:
        raise UnknownName("a resource with exact costs", resource, _EXACT)
    function, combine = _EXACT[resource]
    costs = {part: float(function(part)) for part in distinct_parts(space)}
    return CostTable(
        resource=resource,
        costs=costs,
        combine=combine,
        origin={"kind": "exact", "space": space.name, "space_id": space_id(space)},
    )
