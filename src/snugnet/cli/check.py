"""`snugnet check`: does a table tell the truth about networks it has not seen?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from snugnet.cli.device_options import Seconds
from snugnet.cli.measure import space_at
from snugnet.cli.printing import Json, print_json, print_table, say
from snugnet.costs.table import CostTable, load_table
from snugnet.errors import TableMismatch
from snugnet.progress import RichProgress
from snugnet.space.reading import space_from_json
from snugnet.space.space import SearchSpace
from snugnet.store import check_writable, write_json

TableFile = Annotated[Path, typer.Argument(metavar="TABLE", help="A table that `snugnet measure` wrote.")]
Networks = Annotated[int, typer.Option("--networks", help="How many networks to measure.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw predicted against measured (.svg, .png, .pdf).")]
InSpace = Annotated[str | None, typer.Option("--space", help="Another space to check (default: the table's own).")]
Out = Annotated[Path | None, typer.Option("--out", help="Where to write the outcome (default: beside the table).")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Draws the networks and the order of timing.")]


def check(
    table: TableFile,
    networks: Networks = 24,
    plot: Plot = None,
    space: InSpace = None,
    out: Out = None,
    seconds: Seconds = None,
    seed: Seed = 1,
    json: Json = False,
) -> None:
    """Measure networks that the table has not seen and compare them with its predictions."""
    from snugnet.costs.check import check_table  # these bring torch in: not for `snugnet --help`
    from snugnet.costs.picture import check_format, picture_of_check
    from snugnet.devices import by_name
    from snugnet.devices.timing import TimingSettings

    read = load_table(table)
    if read.origin["kind"] != "measured":
        raise TableMismatch("a table to check must be measured", value=read.resource, remedy="Exact ones need none.")
    target = out or table.with_name("check.json" if table.name == "table.json" else f"{table.stem}.check.json")
    check_writable(target)
    if plot is not None:
        check_format(plot)
        check_writable(plot)
    there = read.origin["device"]
    device = by_name(there["device"], threads=int(there["threads"]), precision=there["precision"])
    settings = TimingSettings(seed=seed) if seconds is None else TimingSettings(seconds=seconds, seed=seed)
    found = check_table(
        read, _space(read, space), device, networks=networks, settings=settings, progress=RichProgress()
    )
    write_json(target, found.to_json())
    if plot is not None:
        picture_of_check(found, plot, f"{read.origin['space']} on {device.name}, {device.threads} thread(s)")
    if json:
        print_json(found.to_json())
    else:
        rows = [[f"{r.predicted:.3f}", f"{r.measured:.3f}", f"{r.error:+.2%}", r.architecture] for r in found.networks]
        print_table(
            "Networks the table had not seen", ["predicted ms", "measured ms", "error", "network"], rows, left=0
        )
        print(f"R2 {found.r2:.4f}, ratio {found.ratio:.4f}, worst error {found.worst_error:.2%}")
        print(f"stay {found.margin_ms(1.0):.2%} below a limit, and the network meets it with 95 % confidence")
        say(found.message)
    say(f"read {table}, wrote {target}" + (f" and {plot}" if plot else ""))


def _space(table: CostTable, word: str | None) -> SearchSpace:
    """The table's own space, or the one named; at the table's resolution and classes unless it has several of them."""
    if word is None and "definition" in table.origin:
        return space_from_json(table.origin["definition"], "the table")
    sizes = table.origin["resolutions"]
    return space_at(
        word or table.origin.get("source", table.origin["space"]),
        sizes[0] if len(sizes) == 1 else None,
        table.origin.get("classes"),
    )
