"""`snugnet zoo`: the published networks, what their papers say and what we count."""

from __future__ import annotations

from typing import Any

from snugnet.cli.printing import Json, print_json, print_table
from snugnet.costs import analytic
from snugnet.space import zoo as published


def zoo(json: Json = False) -> None:
    """List the published networks with the papers' figures and our own exact counts."""
    rows = [_row(entry) for entry in published.networks().values()]
    if json:
        print_json(rows)
        return
    cells = [
        [
            row["name"],
            row["space"] or "-",
            str(row["resolution"]),
            f"{row['mmacs']:.1f}",
            _figure(row, "mmacs"),
            f"{row['mparams']:.3f}",
            _figure(row, "top1"),
            _figure(row, "latency_ms"),
            row["published"].get("latency_on", ""),
        ]
        for row in rows
    ]
    columns = [
        "network",
        "space",
        "px",
        "MMACs",
        "published",
        "Mparams",
        "top-1 %",
        "latency ms",
        "measured by its authors on",
    ]
    print_table("Published networks: our counts, the papers' figures", columns, cells, left=2)


def _row(entry: published.Published) -> dict[str, Any]:
    return {
        "name": entry.name,
        "space": entry.space,
        "architecture": str(entry.architecture) if entry.architecture else None,
        "resolution": entry.network.resolution,
        "mmacs": round(analytic.macs(entry.network, entry.convention) / 1e6, 6),
        "convention": entry.convention,
        "mparams": round(analytic.params(entry.network) / 1e6, 6),
        "peak_memory_bytes": analytic.peak_memory(entry.network),
        "published": entry.figures,
        "source": entry.source,
    }


def _figure(row: dict[str, Any], key: str) -> str:
    value = row["published"].get(key)
    return "-" if value is None else f"{value:g}"
