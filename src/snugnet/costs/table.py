"""What every part of a space costs: one table per resource, measured or exact, in memory and in its file.

A network's cost by the table is the sum over its parts (the largest for peak memory: `combine`). A table knows its
origin: for a measured one the device's fingerprint, batch, precision, date, versions, passes; for an exact one the
convention of counting. Keys are parts, that is all the numbers of a layer, so that a table serves every network made of
the same parts, whatever space it came from. Of a free middle width some values are measured; those between are
interpolated (exact tables compute them). Used for something else than it was made for, a table refuses (`require`).

In its file every value carries a mark, a short hash of where it stands and what it is. So a table that was edited by hand
is refused with the name of the field that was changed; a truncated one with the line and column where it ends.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypedDict, Unpack

from pydantic import BaseModel, ConfigDict, Field, Strict

from snugnet.costs import analytic
from snugnet.errors import DamagedFile, TableMismatch, UnknownName
from snugnet.progress import NullProgress, Progress
from snugnet.space.layout import Layout
from snugnet.space.reading import space_to_json
from snugnet.space.space import SearchSpace
from snugnet.space.spec import BlockSpec, LayerSpec, NetworkSpec, part_from_json, part_to_json
from snugnet.store import as_model, read_json, sha256, write_json
from snugnet.units import RESOURCES, Statistic
from snugnet.units import resource as known_resource

Combine = Literal["sum", "max"]
Times = tuple[float, float, float]
"""Milliseconds with their 95 % interval: value, low, high."""


class Purpose(TypedDict, total=False):
    """What a table is asked to serve for; what is left out, or None, is not asked for."""

    space: SearchSpace | None
    device: Mapping[str, str] | None
    batch: int | None
    resolution: int | None


@dataclass(frozen=True, kw_only=True)
class CostTable:
    """Cost of each part in the base unit of `resource` (milliseconds, MACs, parameters, bytes)."""

    resource: str
    costs: dict[LayerSpec, float]
    combine: Combine = "sum"
    origin: dict[str, Any] = field(default_factory=dict)
    isolated_ms: dict[LayerSpec, Times] = field(default_factory=dict)
    """Of a measured table: each part's time by itself before calibration, with its 95 % interval."""
    by_statistic: dict[Statistic, dict[LayerSpec, float]] = field(default_factory=dict)
    """Of a measured table: the costs by the other statistics of the same passes."""

    @property
    def unit(self) -> str:
        return known_resource(self.resource).unit

    @property
    def statistic(self) -> Statistic:
        """Which statistic of the measured times the costs are."""
        statistic: Statistic = self.origin.get("statistic", "quiet")
        return statistic

    def for_statistic(self, statistic: Statistic) -> CostTable:
        """The table of another statistic of the same passes, with that one's calibration and margins."""
        if statistic == self.statistic or self.origin.get("kind") == "exact":
            return self
        if statistic not in self.by_statistic:
            rule = f"a {self.resource} table must have been estimated for the statistic that is limited"
            remedy = f"Measure anew with `snugnet measure`, or limit {self.statistic}."
            raise TableMismatch(rule, value=f"{self.statistic} in the table, {statistic} in the budget", remedy=remedy)
        calibrations = {**self.origin["calibrations"], self.statistic: self.origin["calibration"]}
        rows = [{**row, "measured_ms": row["statistics"][statistic]} for row in self.origin["networks"]]
        own = {"statistic": statistic, "calibration": calibrations[statistic], "calibrations": calibrations}
        return replace(
            self,
            costs=self.by_statistic[statistic],
            origin={**self.origin, **own, "networks": rows},
            isolated_ms={},
            by_statistic={**self.by_statistic, self.statistic: self.costs},
        )

    def scaled(self, factor: float) -> CostTable:
        """The same table with every cost times `factor`: corrected by whole networks measured near a limit."""
        if self.expect is not None:
            return replace(self, costs=self.costs.times(factor))  # type: ignore[attr-defined]
        return replace(self, costs={part: factor * cost for part, cost in self.costs.items()})

    @property
    def margin(self) -> float:
        """Relative: a network predicted at `T / (1 + margin)` costs at most T with 95 % confidence; 0 where exact."""
        return float(self.origin.get("calibration", {}).get("margin", 0.0))

    @cached_property
    def _knots(self) -> tuple[list[float], list[float]]:
        """Predicted costs and what networks predicted at them cost at most; the margin is the same beyond both ends."""
        curve = self.origin.get("calibration", {}).get("margins") or [[1.0, self.margin]]
        return [cost for cost, _ in curve], [cost * (1.0 + margin) for cost, margin in curve]

    def upper(self, cost: float) -> float:
        """What a network predicted at `cost` costs at most, with 95 % confidence; rises with `cost`.

        It is the calibration's own error there, so that small networks do not pay for what is unsure about large ones."""
        return _along(cost, *self._knots)

    def within(self, limit: float) -> float:
        """The largest predicted cost whose `upper` is at most `limit`: the inverse of `upper`."""
        costs, uppers = self._knots
        return _along(limit, uppers, costs)

    @property
    def expect(self) -> Callable[[list[LayerSpec]], None] | None:
        """Of a table that is measured on demand (`costs.lazy`): has the costs of these parts ready, all at once."""
        return getattr(self.costs, "expect", None)

    def of_part(self, part: LayerSpec) -> float:
        known = self.costs.get(part)
        return self._between(part) if known is None else known

    def of_network(self, network: NetworkSpec) -> float:
        """The network's cost as the table sees it."""
        if self.expect is not None:
            self.expect(list(network.parts))
        return self.combined(self.of_part(part) for part in network.parts)

    def combined(self, costs: Iterable[float]) -> float:
        return sum(costs) if self.combine == "sum" else max(costs)

    def require(self, **purpose: Unpack[Purpose]) -> None:
        """Raise `TableMismatch`, with all that differs, unless the table was made for this."""
        if differences := self.differences(**purpose):
            rule = f"a {self.resource} table must be used for what it was made for"
            raise TableMismatch(rule, value=differences, remedy="Make a table for this with `snugnet measure`.")

    def differences(self, **purpose: Unpack[Purpose]) -> str:
        """What the table was made for instead, in words; empty if nothing differs. Exact tables fit anywhere except in
        another space."""
        differences = []
        if (space := purpose.get("space")) is not None:
            differences += self._differences_of_space(space)
        if self.origin.get("kind") == "measured":
            if (device := purpose.get("device")) is not None:
                differences += _differences(self.origin["device"], device)
            if (batch := purpose.get("batch")) not in (None, self.origin.get("batch")):
                differences.append(f"batch {self.origin['batch']} in the table, {batch} here")
            if (resolution := purpose.get("resolution")) not in (None, *self.origin.get("resolutions", ())):
                sizes = ", ".join(map(str, self.origin["resolutions"]))
                differences.append(f"resolution {sizes} in the table, {resolution} here")
        return "; ".join(differences)

    def _differences_of_space(self, space: SearchSpace) -> list[str]:
        """Another space of the same parts is served as well."""
        missing = []
        if self.origin.get("space_id") not in (None, space_id(space)):
            missing = [part.label for part in Layout(space).distinct_specs() if not self._holds(part)]
        if not missing:
            return []
        example = f"{len(missing)} parts of {space.name!r} are missing, such as {missing[0]}"
        other = "another of that name" if self.origin.get("space") == space.name else repr(space.name)
        return [f"space {self.origin.get('space')!r} in the table, {other} here ({example})"]

    @cached_property
    def _by_mid_channels(self) -> dict[BlockSpec, list[tuple[int, float]]]:
        """Blocks alike except for their middle width -> (middle, cost), rising."""
        curves = width_curves(self.costs)
        return {key: [(part.mid_channels, self.costs[part]) for part in parts] for key, parts in curves.items()}

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
        rule = f"the {self.resource} table must hold every part of the network"
        remedy = "It was made for another space or resolution; make one for this network's space."
        raise TableMismatch(rule, value=part.label, remedy=remedy)


def width_curves(parts: Iterable[LayerSpec]) -> dict[BlockSpec, list[BlockSpec]]:
    """Blocks alike except for their middle width, narrow ones first; the key is such a block without one."""
    alike: dict[BlockSpec, list[BlockSpec]] = {}
    for part in parts:
        if isinstance(part, BlockSpec):
            alike.setdefault(replace(part, mid_channels=0), []).append(part)
    return {key: sorted(blocks, key=lambda block: block.mid_channels) for key, blocks in alike.items()}


def _along(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """The piecewise linear curve through (xs, ys) at `x`; beyond the ends in proportion to the last point."""
    place = bisect.bisect_left(xs, x)
    if place == 0 or place == len(xs):
        end = min(place, len(xs) - 1)
        return x * ys[end] / xs[end]
    share = (x - xs[place - 1]) / (xs[place] - xs[place - 1])
    return ys[place - 1] + share * (ys[place] - ys[place - 1])


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
    costs = {part: float(function(part)) for part in Layout(space).distinct_specs()}
    origin = {"kind": "exact", "space": space.name, "space_id": space_id(space)}
    return CostTable(resource=resource, costs=costs, combine=combine, origin=origin)


_FORMAT: Final = 1
_REMEDY: Final = "Restore the file, or make it anew with `snugnet measure`."
_Cost = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Row(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    part: dict[str, Any]
    cost: _Cost
    # Named before the table's own field was; it keeps its name so that tables measured then can still be read.
    alone: Annotated[tuple[_Cost, _Cost, _Cost], Strict(False)] | None = None
    statistics: dict[Statistic, _Cost] = {}


class _Open(BaseModel):
    """Part of an origin: what is read back, and there may be more."""

    model_config = ConfigDict(strict=True, extra="allow")


class _ExactOrigin(_Open):
    kind: Literal["exact"]
    space: str
    space_id: str


class _Calibration(_Open):
    margin: _Cost = 0.0
    margins: list[Annotated[list[_Cost], Field(min_length=2, max_length=2)]] = []


class _Network(_Open):
    architecture: str
    measured_ms: _Cost
    statistics: dict[Statistic, _Cost] = {}


class _MeasuredOrigin(_Open):
    kind: Literal["measured"]
    space: str
    space_id: str
    batch: Annotated[int, Field(ge=1)]
    device: dict[str, str]
    resolutions: list[int]
    statistic: Statistic = "quiet"
    calibration: _Calibration = _Calibration()
    calibrations: dict[Statistic, _Calibration] = {}
    networks: list[_Network] = []


class _File(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    format: Literal[1]
    resource: str
    unit: str
    combine: Combine
    origin: _MeasuredOrigin
    parts: Annotated[list[_Row], Field(min_length=1)]
    marks: dict[str, str]


class _ExactFile(_File):
    origin: _ExactOrigin  # type: ignore[assignment]


def save_table(table: CostTable, path: str | Path) -> Path:
    """Write `table` to `path`: the old file or the new one, never half of one."""
    parts: list[dict[str, Any]] = []
    for part, cost in table.costs.items():
        times = {"alone": list(table.isolated_ms[part])} if part in table.isolated_ms else {}
        more = {name: costs[part] for name, costs in table.by_statistic.items()}
        parts.append({"part": part_to_json(part), "cost": cost, **times, **({"statistics": more} if more else {})})
    value = {
        "format": _FORMAT,
        "resource": table.resource,
        "unit": table.unit,
        "combine": table.combine,
        "origin": table.origin,
        "parts": parts,
    }
    return write_json(path, {**value, "marks": _marks(value)})


def open_table(path: str | Path, *, progress: Progress | None = None) -> CostTable:
    """The table in a file. One that `measure_lazily` began goes on being measured, on its own device alone."""
    first = load_table(path)
    if not first.origin.get("on_demand"):
        return first
    from snugnet.costs.lazy import resumed  # here: what measures brings torch and runtimes in

    return resumed(first, path, progress or NullProgress())


def load_table(path: str | Path) -> CostTable:
    """The table in `path`; anything wrong with it is named."""
    value = read_json(path)
    if not isinstance(value, dict) or "parts" not in value or "resource" not in value:
        raise DamagedFile(f"{path} must be a cost table", remedy="Give the file that `snugnet measure` wrote.")
    origin = value.get("origin")
    exact = isinstance(origin, dict) and origin.get("kind") == "exact"
    file = as_model(value, _ExactFile if exact else _File, str(path))
    if file.resource not in RESOURCES:
        rule = f"{path}: resource: must be one of {', '.join(RESOURCES)}"
        raise DamagedFile(rule, value=file.resource, remedy=_REMEDY)
    rows = {_part(row, f"{path}: parts[{index}].part"): row for index, row in enumerate(file.parts)}
    _check_marks(path, value)
    statistics = [name for name in file.parts[0].statistics if all(name in row.statistics for row in file.parts)]
    return CostTable(
        resource=file.resource,
        costs={part: row.cost for part, row in rows.items()},
        combine=file.combine,
        origin=value["origin"],
        isolated_ms={part: row.alone for part, row in rows.items() if row.alone is not None},
        by_statistic={name: {part: row.statistics[name] for part, row in rows.items()} for name in statistics},
    )


def _part(row: _Row, place: str) -> LayerSpec:
    try:
        return part_from_json(row.part)
    except DamagedFile as error:
        raise DamagedFile(f"{place}: {error.rule}", remedy=_REMEDY) from error


def _marks(value: dict[str, Any]) -> dict[str, str]:
    """A mark for every top-level field, every field of the origin (two levels deep) and every field of every part."""
    leaves = {name: value[name] for name in value if name not in ("origin", "parts", "marks")}
    for name, item in value["origin"].items():
        inner = item if isinstance(item, dict) and item else None
        leaves |= {f"origin.{name}.{key}": part for key, part in inner.items()} if inner else {f"origin.{name}": item}
    leaves |= {f"parts[{i}].{name}": item for i, row in enumerate(value["parts"]) for name, item in row.items()}
    return {place: sha256(f"{place}={json.dumps(item, sort_keys=True)}".encode())[:8] for place, item in leaves.items()}


def _check_marks(path: str | Path, value: dict[str, Any]) -> None:
    written, marks = value["marks"], _marks(value)
    for place in {**marks, **written}:
        if written.get(place) != marks.get(place):
            change = "changed" if place in written and place in marks else "added or taken away"
            raise DamagedFile(f"{path}: {place}: must be as it was written (it was {change})", remedy=_REMEDY)
