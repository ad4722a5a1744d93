"""A cost table as a JSON file: readable, and believed only if nobody changed it.

Every value carries a mark, a short hash of where it stands and what it is. So a table that was edited by hand is refused
with the name of the field that was changed; a truncated one with the line and column where it ends.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

from snugnet.costs.table import CostTable
from snugnet.errors import DamagedFile
from snugnet.space.plan import LayerSpec, part_from_json, part_to_json
from snugnet.store import read_json, sha256, write_json
from snugnet.units import RESOURCES

_FORMAT: Final = 1
_FIELDS: Final = ("format", "resource", "unit", "combine", "origin", "parts", "marks")
_ORIGIN: Final = {"batch": int, "device": dict, "resolutions": list, "space": str, "space_id": str}
_REMEDY: Final = "Restore the file, or make it anew with `snugnet measure`."


def save_table(table: CostTable, path: str | Path) -> Path:
    """Write `table` to `path`: the old file or the new one, never half of one."""
    parts = []
    for part, cost in table.costs.items():
        words: dict[str, Any] = {"part": part_to_json(part), "cost": cost}
        parts.append(words if part not in table.isolated_ms else {**words, "alone": list(table.isolated_ms[part])})
    value = {
        "format": _FORMAT,
        "resource": table.resource,
        "unit": table.unit,
        "combine": table.combine,
        "origin": table.origin,
        "parts": parts,
    }
    return write_json(path, {**value, "marks": _marks(value)})


def load_table(path: str | Path) -> CostTable:
    """The table in `path`; anything wrong with it is named."""
    value = read_json(path)
    if not isinstance(value, dict) or "parts" not in value or "resource" not in value:
        raise DamagedFile(f"{path} must be a cost table", remedy="Give the file that `snugnet measure` wrote.")
    for name in _FIELDS:
        if name not in value:
            raise _damaged(path, name, "must be there")
    if value["format"] != _FORMAT:
        raise _damaged(path, "format", f"must be {_FORMAT}", value["format"])
    if value["resource"] not in RESOURCES:
        raise _damaged(path, "resource", f"must be one of {', '.join(RESOURCES)}", value["resource"])
    if value["combine"] not in ("sum", "max"):
        raise _damaged(path, "combine", "must be sum or max", value["combine"])
    _check_origin(path, value["origin"])
    costs, isolated_ms = _parts(path, value["parts"])
    _check_marks(path, value)
    return CostTable(
        resource=value["resource"],
        costs=costs,
        combine=value["combine"],
        origin=value["origin"],
        isolated_ms=isolated_ms,
    )


def _check_origin(path: str | Path, origin: Any) -> None:
    if not isinstance(origin, dict) or origin.get("kind") not in ("measured", "exact"):
        raise _damaged(path, "origin.kind", "must be measured or exact")
    for name, kind in _ORIGIN.items() if origin["kind"] == "measured" else ():
        if not isinstance(origin.get(name), kind):
            raise _damaged(path, f"origin.{name}", f"must be {kind.__name__}", origin.get(name))


def _parts(path: str | Path, rows: Any) -> tuple[dict[LayerSpec, float], dict[LayerSpec, tuple[float, float, float]]]:
    if not isinstance(rows, list) or not rows:
        raise _damaged(path, "parts", "must be a list of at least one part")
    costs: dict[LayerSpec, float] = {}
    isolated_ms: dict[LayerSpec, tuple[float, float, float]] = {}
    for index, row in enumerate(rows):
        where = f"parts[{index}]"
        if not isinstance(row, dict):
            raise _damaged(path, where, "must be an object", row)
        try:
            part = part_from_json(row.get("part"))
        except DamagedFile as error:
            raise _damaged(path, f"{where}.part", error.rule) from error
        if not _is_cost(row.get("cost")):
            raise _damaged(path, f"{where}.cost", "must be a number of at least 0", row.get("cost"))
        costs[part] = float(row["cost"])
        if "alone" in row:
            times = row["alone"]
            if not isinstance(times, list) or len(times) != 3 or not all(_is_cost(t) for t in times):
                raise _damaged(path, f"{where}.alone", "must be a time and its interval", times)
            isolated_ms[part] = (float(times[0]), float(times[1]), float(times[2]))
    return costs, isolated_ms


def _is_cost(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _marks(value: dict[str, Any]) -> dict[str, str]:
    """A mark for every top-level field, every field of the origin (two levels deep) and every field of every part."""
    leaves = {name: value[name] for name in value if name not in ("origin", "parts", "marks")}
    for name, item in value["origin"].items():
        inner = item if isinstance(item, dict) and item else None
        leaves |= {f"origin.{name}.{key}": part for key, part in inner.items()} if inner else {f"origin.{name}": item}
    leaves |= {f"parts[{i}].{name}": item for i, row in enumerate(value["parts"]) for name, item in row.items()}
    return {where: sha256(f"{where}={json.dumps(item, sort_keys=True)}".encode())[:8] for where, item in leaves.items()}


def _check_marks(path: str | Path, value: dict[str, Any]) -> None:
    given, wanted = value["marks"], _marks(value)
    if not isinstance(given, dict):
        raise _damaged(path, "marks", "must be an object")
    for where in {**wanted, **given}:
        if where not in given or where not in wanted:
            raise _damaged(path, where, "must be as it was written (it was added or taken away)")
        if given[where] != wanted[where]:
            raise _damaged(path, where, "must be as it was written (it was changed)")


def _damaged(path: str | Path, where: str, rule: str, *value: Any) -> DamagedFile:
    if value:
        return DamagedFile(f"{path}: field {where} {rule}", value=value[0], remedy=_REMEDY)
    return DamagedFile(f"{path}: field {where} {rule}", remedy=_REMEDY)
