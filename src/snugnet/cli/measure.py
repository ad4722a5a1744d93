"""Tables of costs: `snugnet measure` times every block of a space on a device, `snugnet check` puts a table to the test,
`snugnet bins` counts random networks by cost, for training that samples by cost (AttentiveNAS)."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snugnet.cli.options import Batch, DeviceName, DeviceThreads, Precision, Seconds, Seed, space_of_run, timing
from snugnet.cli.printing import Json, check_picture, picture_of_check, print_json, print_table, say
from snugnet.costs.table import CostTable, exact_table, load_table
from snugnet.errors import BadInput, SnugnetError, TableMismatch
from snugnet.progress import RichProgress
from snugnet.space.reading import find_space, space_from_json
from snugnet.space.sampling import largest, smallest
from snugnet.space.space import SearchSpace
from snugnet.space.spec import plan
from snugnet.store import check_writable, read_json, write_json
from snugnet.units import parse, show
from snugnet.units import resource as known_resource

if TYPE_CHECKING:
    from snugnet.devices import Device

SpaceName = Annotated[
    str,
    typer.Option(
        "--space",
        help="A preset's name (see `snugnet spaces`), a YAML file, a run's folder, or another table of the same space.",
    ),
]
Resolution = Annotated[int | None, typer.Option("--resolution", help="Input resolution (default: the space's own).")]
Classes = Annotated[int | None, typer.Option("--classes", help="Number of classes (default: the space's own).")]
Out = Annotated[Path, typer.Option("--out", help="Where to write the table.")]
Lazy = Annotated[
    bool,
    typer.Option("--lazy", help="Time sixteen networks and their blocks now, the others when a search meets them."),
]
TableFile = Annotated[Path, typer.Argument(metavar="TABLE", help="A table that `snugnet measure` wrote.")]
Networks = Annotated[int, typer.Option("--networks", help="How many networks to measure.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw predicted against measured (.svg, .png, .pdf).")]
InSpace = Annotated[str | None, typer.Option("--space", help="Another space to check (default: the table's own).")]
CheckDevice = Annotated[
    str | None,
    typer.Option("--device", help="Where to measure (default: the table's own); a command must be repeated."),
]
CheckOut = Annotated[Path | None, typer.Option("--out", help="Where to write the outcome (default: beside the table).")]
ResourceName = Annotated[str, typer.Option("--resource", help="latency (with --table), macs, params or another.")]
Width = Annotated[
    str | None, typer.Option("--width", help="Of a bin: 25MMACs in the paper. Default: a seventieth of the range.")
]
Rows = Annotated[int, typer.Option("--rows", min=1, help="How many random networks to count.")]
BinsTable = Annotated[Path | None, typer.Option("--table", help="A table of measured costs, for bins over latency.")]
BinsOut = Annotated[
    Path, typer.Option("--out", help="The file that a recipe's phase names: {method: attentive, bins: FILE}.")
]


def measure(
    space: SpaceName = "hardcore",
    device: DeviceName = "torch-cpu",
    threads: DeviceThreads = 1,
    precision: Precision = "float32",
    batch: Batch = 1,
    resolution: Resolution = None,
    classes: Classes = None,
    out: Out = Path("table.json"),
    seconds: Seconds = None,
    lazy: Lazy = False,
    json: Json = False,
) -> None:
    """Measure every block of a space on a device; a killed run goes on where it was."""
    from snugnet.costs.lazy import measure_lazily  # these bring torch in: not for `snugnet --help`
    from snugnet.costs.measure import measure as measure_space
    from snugnet.devices import by_name

    place = by_name(device, threads=threads, precision=precision)
    target = space_at(space, resolution, classes)
    _check_target(out)
    options: dict[str, Any] = {"batch": batch, "settings": timing(seconds), "out": out, "source": space}
    table = (measure_lazily if lazy else measure_space)(target, place, progress=RichProgress(), **options)
    summary = _summary(table, target, out)
    if json:
        print_json(summary)
        return
    fit = table.origin["calibration"]
    print(f"{len(table.costs)} blocks of {target.name} on {device}, {threads} thread(s), batch {batch}")
    print(f"smallest network {summary['lightest_ms']:.2f} ms, largest {summary['heaviest_ms']:.2f} ms by the table")
    print(
        f"calibration: ratio {fit['ratio']:.3f}, {fit['overhead_ms'] * 1e3:+.1f} us per block, "
        f"{fit['edge_ms']:+.3f} ms per million numbers at the edges, margin {fit['margin']:.1%}"
    )
    say(table.origin["message"])
    say(f"wrote {out}")


def _check_target(out: Path) -> None:
    """A table may take the place of a table, not of a search result or a certificate."""
    check_writable(out)
    if not out.is_file():
        return
    try:
        content = read_json(out)
    except SnugnetError:
        return  # what cannot be read is not worth keeping from a new table
    if isinstance(content, dict) and "parts" not in content:
        rule, fields = f"{out} holds something else than a table", ", ".join(list(content)[:4])
        raise BadInput(rule, value=fields, remedy="Choose another name.")


def space_at(word: str, resolution: int | None, classes: int | None) -> SearchSpace:
    """The space a user names, at a resolution and a number of classes of their own."""
    ending, options = Path(word).suffix.lower(), {"resolution": resolution, "classes": classes}
    if Path(word).is_dir():
        space = space_of_run(Path(word))
    elif ending == ".json":
        space = _of_table(word)
    elif ending in (".yaml", ".yml"):
        space = find_space(word)
    else:
        space = find_space(word, **{name: value for name, value in options.items() if value is not None})
    space = space if classes is None else replace(space, classes=classes)
    return space if resolution is None or space.resolutions == (resolution,) else space.with_resolution(resolution)


def _of_table(path: str) -> SearchSpace:
    """The space another table was measured for: the way to a second device that has no data."""
    origin = load_table(path).origin
    if "definition" not in origin:
        remedy = "Give the run's folder instead."
        raise BadInput(f"{path} must tell its space", value=origin.get("space"), remedy=remedy)
    return space_from_json(origin["definition"], path)


def _summary(table: CostTable, space: SearchSpace, out: Path) -> dict[str, Any]:
    ends = {
        name: table.of_network(plan(architecture, space))
        for name, architecture in (("lightest_ms", smallest(space)), ("heaviest_ms", largest(space)))
    }
    fields = ("space", "resolutions", "batch", "device", "date", "passes", "seconds", "spread", "score", "message")
    return {
        "file": str(out),
        "blocks": len(table.costs),
        **ends,
        **{name: table.origin[name] for name in fields},
        "calibration": table.origin["calibration"],
    }


def check(
    table: TableFile,
    networks: Networks = 24,
    plot: Plot = None,
    space: InSpace = None,
    out: CheckOut = None,
    device: CheckDevice = None,
    seconds: Seconds = None,
    seed: Seed = 1,
    json: Json = False,
) -> None:
    """Measure networks that the table has not seen and compare them with its predictions."""
    from snugnet.costs.check import check_table  # these bring torch in: not for `snugnet --help`
    from snugnet.costs.table import open_table

    costs = open_table(table, progress=RichProgress())
    if costs.origin["kind"] != "measured":
        raise TableMismatch("a table to check must be measured", value=costs.resource, remedy="Exact ones need none.")
    target = out or table.with_name("check.json" if table.name == "table.json" else f"{table.stem}.check.json")
    check_writable(target)
    check_picture(plot)
    place = _device_of(costs, device)
    settings = timing(seconds, seed=seed)
    target_space = _space_of(costs, space)
    outcome = check_table(costs, target_space, place, networks=networks, settings=settings, progress=RichProgress())
    write_json(target, outcome.to_json())
    if plot is not None:
        picture_of_check(outcome, plot, f"{costs.origin['space']} on {place.name}, {place.threads} thread(s)")
    if json:
        print_json(outcome.to_json())
    else:
        nets = outcome.networks
        rows = [[f"{r.predicted:.3f}", f"{r.measured:.3f}", f"{r.error:+.2%}", r.architecture] for r in nets]
        columns = ["predicted ms", "measured ms", "error", "network"]
        print_table("Networks the table had not seen", columns, rows, left=0)
        print(f"R2 {outcome.r2:.4f}, ratio {outcome.ratio:.4f}, worst error {outcome.worst_error:.2%}")
        print(f"stay {outcome.margin_ms(1.0):.2%} below a limit, and the network meets it with 95 % confidence")
        say(outcome.message)
    say(f"read {table}, wrote {target}" + (f" and {plot}" if plot else ""))


def _device_of(table: CostTable, name: str | None) -> Device:
    """The table's own device; a command that reaches it is not taken from a file, the user repeats it."""
    from snugnet.devices import Command, by_name

    origin = table.origin["device"]
    if name is None and origin["device"].partition(":")[0] == Command.name:
        rule = "a table of a device behind a command must be checked with that command"
        raise BadInput(rule, value="none", remedy='Say --device "command:ssh pi4 snugnet-agent", as when measuring.')
    return by_name(name or origin["device"], threads=int(origin["threads"]), precision=origin["precision"])


def _space_of(table: CostTable, word: str | None) -> SearchSpace:
    """The table's own space, or the one named; at the table's resolution and classes unless it has several of them."""
    if word is None and "definition" in table.origin:
        return space_from_json(table.origin["definition"], "the table")
    sizes = table.origin["resolutions"]
    return space_at(
        word or table.origin.get("source", table.origin["space"]),
        sizes[0] if len(sizes) == 1 else None,
        table.origin.get("classes"),
    )


def bins(
    space: SpaceName = "attentive",
    resource: ResourceName = "macs",
    width: Width = None,
    rows: Rows = 1_000_000,
    table: BinsTable = None,
    resolution: Resolution = None,
    classes: Classes = None,
    seed: Seed = 0,
    out: BinsOut = Path("bins.json"),
    json: Json = False,
) -> None:
    """Count random networks of a space by their cost. Killed, it goes on; asked for more rows, it adds them."""
    from snugnet.costs.bins import CostBins, bin_architectures
    from snugnet.costs.table import open_table  # brings torch in: not for `snugnet --help`
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
