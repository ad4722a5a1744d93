"""`snugnet bins`: random networks of a space counted by cost, for training that samples by cost (AttentiveNAS)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from snugnet.cli.measure import Classes, Resolution, SpaceName, space_at
from snugnet.cli.options import Seed
from snugnet.cli.printing import Json, print_json, say
from snugnet.errors import BadInput
from snugnet.progress import RichProgress
from snugnet.store import check_writable
from snugnet.units import parse, show
from snugnet.units import resource as known_resource

ResourceName = Annotated[str, typer.Option("--resource", help="latency (with --table), macs, params or another.")]
Width = Annotated[
    str | None, typer.Option("--width", help="Of a bin: 25MMACs in the paper. Default: a seventieth of the range.")
]
Rows = Annotated[int, typer.Option("--rows", min=1, help="How many random networks to count.")]
Table = Annotated[Path | None, typer.Option("--table", help="A table of measured costs, for bins over latency.")]
Out = Annotated[
    Path, typer.Option("--out", help="The file that a recipe's phase names: {method: attentive, bins: FILE}.")
]


def bins(
    space: SpaceName = "attentive",
    resource: ResourceName = "macs",
    width: Width = None,
    rows: Rows = 1_000_000,
    table: Table = None,
    resolution: Resolution = None,
    classes: Classes = None,
    seed: Seed = 0,
    out: Out = Path("bins.json"),
    json: Json = False,
) -> None:
    """Count random networks of a space by their cost. Killed, it goes on; asked for more rows, it adds them."""
    from snugnet.costs.bins import CostBins, bin_architectures
    from snugnet.costs.lazy import open_table  # brings torch in: not for `snugnet --help`
    from snugnet.costs.table import exact_table
    from snugnet.costs.vectorised import CostLookup
    from snugnet.seeds import Seed as Randomness
    from snugnet.space.gene_columns import GeneColumns

    kind, target = known_resource(resource).name, space_at(space, resolution, classes)
    check_writable(out)
    if (kind == "latency") != (table is not None):
        raise BadInput(
            "bins over latency need a table, others none", value=resource, remedy="Make it: snugnet measure."
        )
    costs = exact_table(target, kind) if table is None else open_table(table, progress=RichProgress())
    costs.require(space=target)
    began, lookup = time.monotonic(), CostLookup(target, costs.of_part, costs.combine, costs.expect)
    empty = CostBins.empty(target, lookup, resource, None if width is None else parse(width, resource))
    counted = bin_architectures(
        target, lookup, empty, rows=rows, seed=Randomness(seed), out=out, progress=RichProgress()
    )
    sizes = counted.sizes(GeneColumns(target))
    facts = {"file": str(out), "space": target.name, "resource": resource, "width": counted.width}
    facts |= {"bins": int((sizes > 0).sum()), "rows": int(sizes.sum()), "seconds": round(time.monotonic() - began, 1)}
    if json:
        print_json(facts)
        return
    print(f"{facts['rows']:,} networks of {target.name} in {facts['bins']} bins of {show(counted.width, resource)}")
    say(f"wrote {out}; a recipe takes it as {{method: attentive, bins: {out}}}")
