"""`snugnet measure`: what every block of a space costs on a device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from snugnet.cli.device_options import Batch, DeviceName, Precision, Seconds, Threads
from snugnet.cli.printing import Json, print_json, say
from snugnet.costs.table import CostTable
from snugnet.progress import Shown
from snugnet.space.plan import plan
from snugnet.space.reading import find_space
from snugnet.space.sampling import heaviest, lightest
from snugnet.space.space import SearchSpace

SpaceName = Annotated[str, typer.Option("--space", help="A preset's name (see `snugnet spaces`) or a YAML file.")]
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
    from snugnet.devices.registry import by_name
    from snugnet.devices.timing import TimingSettings

    settings = TimingSettings() if seconds is None else TimingSettings(seconds=seconds)
    place = by_name(device, threads=threads, precision=precision)
    searched = space_at(space, resolution, classes)
    table = measure_space(searched, place, batch=batch, settings=settings, out=out, source=space, tracker=Shown())
    words = _summary(table, searched, out)
    if json:
        print_json(words)
        return
    fit = table.origin["calibration"]
    print(f"{len(table.costs)} blocks of {searched.name} on {device}, {threads} thread(s), batch {batch}")
    print(f"lightest network {words['lightest_ms']:.2f} ms, heaviest {words['heaviest_ms']:.2f} ms by the table")
    print(
        f"calibration: ratio {fit['ratio']:.3f}, {fit['overhead_ms'] * 1e3:+.1f} us a block, "
        f"{fit['edge_ms']:+.3f} ms a million numbers at the edges, margin {fit['margin']:.1%}"
    )
    say(table.origin["message"])
    say(f"wrote {out}")


def space_at(word: str, resolution: int | None, classes: int | None) -> SearchSpace:
    """The space a user names, at a resolution and a number of classes of their own."""
    if word.lower().endswith((".yaml", ".yml")):
        space = find_space(word)
        space = space if classes is None else replace(space, classes=classes)
    else:
        options: dict[str, Any] = {"resolution": resolution, "classes": classes}
        space = find_space(word, **{name: value for name, value in options.items() if value is not None})
    return space if resolution is None or space.resolutions == (resolution,) else space.with_resolution(resolution)


def _summary(table: CostTable, space: SearchSpace, out: Path) -> dict[str, Any]:
    ends = {"lightest_ms": lightest(space), "heaviest_ms": heaviest(space)}
    kept = ("space", "resolutions", "batch", "device", "date", "passes", "seconds", "spread", "verdict", "message")
    return {
        "file": str(out),
        "blocks": len(table.costs),
        **{name: table.of_network(plan(architecture, space)) for name, architecture in ends.items()},
        **{name: table.origin[name] for name in kept},
        "calibration": table.origin["calibration"],
    }
