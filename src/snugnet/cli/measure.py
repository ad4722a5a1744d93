"""`snugnet measure`: what every block of a space costs on a device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from snugnet.cli.device_options import Batch, DeviceName, Precision, Seconds, Threads
from snugnet.cli.printing import Json, print_json, say
from snugnet.costs.table import CostTable, load_table
from snugnet.errors import BadInput, SnugnetError
from snugnet.progress import RichProgress
from snugnet.space.reading import find_space, space_from_json
from snugnet.space.sampling import largest, smallest
from snugnet.space.space import SearchSpace
from snugnet.space.spec import plan
from snugnet.store import check_writable, read_json

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


def measure(
    space: SpaceName = "hardcore",
    device: DeviceName = "torch-cpu",
    threads: Threads = 1,
    precision: Precision = "float32",
    batch: Batch = 1,
    resolution: Resolution = None,
    classes: Classes = None,
    out: Out = Path("table.json"),
    seconds: Seconds = None,
    json: Json = False,
) -> None:
    """Measure every block of a space on a device; a killed run goes on where it was."""
    from snugnet.costs.measure import measure as measure_space  # these bring torch in: not for `snugnet --help`
    from snugnet.devices import by_name
    from snugnet.devices.timing import TimingSettings

    settings = TimingSettings() if seconds is None else TimingSettings(seconds=seconds)
    place = by_name(device, threads=threads, precision=precision)
    searched = space_at(space, resolution, classes)
    _check_target(out)
    table = measure_space(
        searched, place, batch=batch, settings=settings, out=out, source=space, progress=RichProgress()
    )
    words = _summary(table, searched, out)
    if json:
        print_json(words)
        return
    fit = table.origin["calibration"]
    print(f"{len(table.costs)} blocks of {searched.name} on {device}, {threads} thread(s), batch {batch}")
    print(f"smallest network {words['lightest_ms']:.2f} ms, largest {words['heaviest_ms']:.2f} ms by the table")
    print(
        f"calibration: ratio {fit['ratio']:.3f}, {fit['overhead_ms'] * 1e3:+.1f} us a block, "
        f"{fit['edge_ms']:+.3f} ms a million numbers at the edges, margin {fit['margin']:.1%}"
    )
    say(table.origin["message"])
    say(f"wrote {out}")


def _check_target(out: Path) -> None:
    """A table may take the place of a table, not of a search result or a certificate."""
    check_writable(out)
    if not out.is_file():
        return
    try:
        there = read_json(out)
    except SnugnetError:
        return  # what cannot be read is not worth keeping from a new table
    if isinstance(there, dict) and "parts" not in there:
        raise BadInput(
            f"{out} holds something else than a table", value=", ".join(list(there)[:4]), remedy="Choose another name."
        )


def space_at(word: str, resolution: int | None, classes: int | None) -> SearchSpace:
    """The space a user names, at a resolution and a number of classes of their own."""
    if Path(word).is_dir():
        space = _of_run(Path(word))
        space = space if classes is None else replace(space, classes=classes)
    elif word.lower().endswith(".json"):
        space = _of_table(word)
        space = space if classes is None else replace(space, classes=classes)
    elif word.lower().endswith((".yaml", ".yml")):
        space = find_space(word)
        space = space if classes is None else replace(space, classes=classes)
    else:
        options: dict[str, Any] = {"resolution": resolution, "classes": classes}
        space = find_space(word, **{name: value for name, value in options.items() if value is not None})
    return space if resolution is None or space.resolutions == (resolution,) else space.with_resolution(resolution)


def _of_run(folder: Path) -> SearchSpace:
    """The space of a run's super-network, width and classes included."""
    from snugnet.fitting.recipe import read
    from snugnet.store import read_text

    path = folder / "recipe.yaml"
    recipe = read(read_text(path), origin=str(path))
    return recipe.space.build(recipe.data.load())


def _of_table(path: str) -> SearchSpace:
    """The space another table was measured for: the way to a second device that has no data."""
    origin = load_table(path).origin
    if "definition" not in origin:
        raise BadInput(
            f"{path} must tell its space", value=origin.get("space"), remedy="Give the run's folder instead."
        )
    return space_from_json(origin["definition"], path)


def _summary(table: CostTable, space: SearchSpace, out: Path) -> dict[str, Any]:
    ends = {"lightest_ms": smallest(space), "heaviest_ms": largest(space)}
    kept = ("space", "resolutions", "batch", "device", "date", "passes", "seconds", "spread", "score", "message")
    return {
        "file": str(out),
        "blocks": len(table.costs),
        **{name: table.of_network(plan(architecture, space)) for name, architecture in ends.items()},
        **{name: table.origin[name] for name in kept},
        "calibration": table.origin["calibration"],
    }
