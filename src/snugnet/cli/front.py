"""`snugnet front`: the best networks of a run along one resource."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated

import typer

from snugnet.cli.printing import Json, print_json, print_table, say
from snugnet.cli.run_options import RunFolder, Seed, TableFiles, Threads, locks_run, open_for_search, read_tables
from snugnet.progress import RichProgress
from snugnet.store import check_writable, write_json, write_text
from snugnet.units import resource as known_resource
from snugnet.units import show

ResourceName = Annotated[str, typer.Option("--resource", help="latency, macs, params, model_size or memory.")]
Points = Annotated[int, typer.Option("--points", min=2, help="How many budgets along the resource.")]
Csv = Annotated[Path | None, typer.Option("--csv", help="Write the points as CSV too.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw accuracy against the resource (.png, .svg or .pdf).")]


@locks_run
def front(
    run: RunFolder,
    resource: ResourceName = "latency",
    points: Points = 20,
    table: TableFiles = None,
    seed: Seed = 0,
    threads: Threads = None,
    csv: Csv = None,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Networks along a resource, from the cheapest to the dearest, each validated."""
    from snugnet.costs.picture import check_format
    from snugnet.searching.front import as_rows, picture_of_front
    from snugnet.searching.front import front as find_front

    known_resource(resource)
    if plot is not None:
        check_format(plot)
    tables = read_tables(run, table)
    opened = open_for_search(run, threads)
    for target in filter(None, (run / "front.json", csv, plot)):
        check_writable(target)
    found = find_front(
        opened.supernet,
        opened.data,
        tables,
        resource,
        points,
        seed=seed,
        out=run / "search",
        progress=RichProgress(),
    )
    rows = as_rows(found)
    value = {"resource": resource, "unit": known_resource(resource).unit, "points": rows}
    say(f"wrote {write_json(run / 'front.json', value)}")
    if csv is not None:
        say(f"wrote {write_text(csv, _as_csv(rows, resource))}")
    if plot is not None:
        say(f"wrote {picture_of_front(found, resource, plot)}")
    if json:
        print_json(value)
        return
    cells = []
    for row in rows:
        cost = show(row["predicted"][resource], resource)
        cells.append([show(row["limit"], resource), cost, f"{row['accuracy']:.2%}", row["architecture"]])
    print_table(f"Front along {resource}", ["limit", "predicted", "accuracy", "network"], cells, left=0)


def _as_csv(rows: list[dict[str, object]], resource: str) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([f"limit_{resource}", f"predicted_{resource}", "accuracy", "loss", "architecture"])
    for row in rows:
        predicted = row["predicted"]
        assert isinstance(predicted, dict)
        writer.writerow([row["limit"], predicted[resource], row["accuracy"], row["loss"], row["architecture"]])
    return text.getvalue()
