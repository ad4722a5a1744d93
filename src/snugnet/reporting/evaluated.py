"""An explorer without worths: among the networks that were evaluated, the most accurate within every limit.

For spaces whose costs do not add up block by block (AttentiveNAS), and for runs that learnt no worths. Networks that another
one beats in accuracy and in every cost are left out: no limits would ever choose them.
"""

from __future__ import annotations

from typing import Any

from snugnet.costs.table import CostTable
from snugnet.errors import BadInput, SnugnetError
from snugnet.reporting.networks import drawn, slider
from snugnet.reporting.reading import RunFiles
from snugnet.space.architecture import Architecture, parse
from snugnet.space.plan import plan
from snugnet.space.space import SearchSpace

_MOST = 2000  # networks looked at


def judged_explorer(files: RunFiles, space: SearchSpace, tables: dict[str, CostTable], reason: str) -> dict[str, Any]:
    """Sliders over the evaluated networks; `reason` says why these and not all of the space."""
    kept = _undominated(_judged(files, space, tables))
    if not kept:
        raise BadInput(
            "the explorer needs worths or evaluated networks", remedy=f"{reason} {files.trouble['evaluations']}"
        )
    sliders = []
    for name, table in tables.items():
        costs = [costs[name] * (1 + table.margin) for _, _, costs in kept]
        ends = (min(costs), max(costs))
        sliders.append(slider(name, table, files, ends))
    networks = [{**drawn(made, space, tables), "accuracy": accuracy} for made, accuracy, _ in kept]
    return {"resources": sliders, "networks": networks, "remark": reason}


Judged = tuple[Architecture, float, dict[str, float]]


def _judged(files: RunFiles, space: SearchSpace, tables: dict[str, CostTable]) -> list[Judged]:
    rows: list[Judged] = []
    for row in files.found.get("evaluations", [])[-_MOST:]:
        if "network" in row:
            try:
                made = parse(row["network"], space)
                network = plan(made, space)
                costs = {name: table.of_network(network) for name, table in tables.items()}
            except SnugnetError:
                continue  # of another space or another table: not comparable
            rows.append((made, float(row["accuracy"]), costs))
    return rows


def _undominated(rows: list[Judged]) -> list[Judged]:
    """Most accurate first; a network stays if everything at least as accurate costs more in some resource."""
    kept: list[Judged] = []
    for row in sorted(rows, key=lambda row: (-row[1], *row[2].values())):
        if not any(all(other[2][name] <= cost for name, cost in row[2].items()) for other in kept):
            kept.append(row)
    return kept
