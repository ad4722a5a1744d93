"""From data to a certified network in one command: `snugnet run` with a recipe, `snugnet fit` without one, from a trained
network; `snugnet report` shows a run on a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from snugnet.cli.options import (
    Changes,
    Limits,
    NewRun,
    RecipeName,
    Threads,
    TrackerNames,
    read_limits,
    space_of_run,
    with_trackers,
)
from snugnet.cli.printing import Json, print_json, say
from snugnet.errors import SnugnetError
from snugnet.progress import RichProgress
from snugnet.space.space import SearchSpace
from snugnet.store import check_writable, write_text

DataName = Annotated[
    str,
    typer.Argument(
        metavar="DATA", help="A folder with a folder per class (or train/ and val/ with those); or a data set."
    ),
]
Start = Annotated[
    str,
    typer.Option("--start", help="The trained network to start from: efficientnet-lite0, timm:NAME, a file; or none."),
]
Time = Annotated[str, typer.Option("--time", help="About how long it may take: 10min, 2h.")]
Device = Annotated[str | None, typer.Option("--device", help="Where the network will run (default: onnxruntime).")]
RunOut = Annotated[
    Path | None, typer.Option("--out", metavar="RUN", help="The run folder (default: runs/ and the recipe's name).")
]
AnyRun = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, finished or not.")]
PageFile = Annotated[Path | None, typer.Option("--out", help="Where to write the page (default: RUN/report.html).")]


def fit(
    data: DataName,
    budget: Limits,
    out: NewRun,
    start: Start = "efficientnet-lite0",
    time: Time = "30min",
    device: Device = None,
    changes: Changes = None,
    threads: Threads = None,
    tracker: TrackerNames = None,
    json: Json = False,
) -> None:
    """The most accurate network within the budgets, from a trained one. Killed at any moment, the same command goes on."""
    from snugnet import fitting
    from snugnet.training.team import leads

    limits = read_limits(budget)
    options: dict[str, Any] = {
        "device": device,
        "start": start,
        "time": time,
        "changes": with_trackers(changes, tracker),
    }
    result = fitting.fit(data, limits, out=out, threads=threads, say=say, progress=RichProgress(), **options)
    if not leads():  # under torchrun one process speaks for all
        return
    lines: dict[str, Any] = result.certificate["budgets"]
    facts = {
        "run": str(result.folder),
        "accuracy": result.accuracy,
        "fits": result.certificate["fits"],
        "limits": {name: line["limit"] for name, line in lines.items()},
        "measured": {name: line["measured"] for name, line in lines.items()},
        "seconds": sum(result.seconds.values()),
        "certificate": str(result.folder / "certificate.json"),
        "network": str(result.file),
        "report": str(result.report),
        "architecture": str(result.architecture),
    }
    if json:
        print_json(facts)
        return
    print(f"accuracy     {result.accuracy:.1%} of the test images")
    for name in ("network", "certificate", "report"):
        print(f"{name:12} {facts[name]}")


def run(
    recipe: RecipeName,
    out: RunOut = None,
    changes: Changes = None,
    threads: Threads = None,
    tracker: TrackerNames = None,
    json: Json = False,
) -> None:
    """Measure, train, search, fine-tune, export, certify and report. Killed at any moment, the same command goes on.

    Several processes train together: torchrun --nproc-per-node 8 -m snugnet run RECIPE; the first of them does the rest."""
    from snugnet import fitting
    from snugnet.training.team import leads

    plan = fitting.find(recipe, with_trackers(changes, tracker))
    folder = out or Path("runs") / plan.name
    facts = fitting.fit(plan, out=folder, threads=threads, say=say, progress=RichProgress()).to_json()
    if not leads():  # under torchrun one process speaks for all
        return
    if json:
        print_json(facts)
        return
    for title, name in (("network", "network"), ("certificate", "certificate"), ("page", "report")):
        print(f"{title:12} {facts[name]}")


def report(run: AnyRun, out: PageFile = None, json: Json = False) -> None:
    """Show a run on one page: the answer, the network, the front, an explorer, where everything comes from."""
    from snugnet.reporting.page import make_report

    target = run / "report.html" if out is None else out
    page = make_report(run, space=_space(run))
    check_writable(target)
    path = write_text(target, page.html)
    reasons = {"missing": page.missing, "damaged": page.damaged, "stale": page.stale}
    if json:
        print_json({"report": str(path), "bytes": path.stat().st_size, **reasons})
        return
    for name, reason in {**page.missing, **page.damaged, **page.stale}.items():
        say(f"not shown: {name}. {reason}")
    print(path)
    say(f"read {run}, wrote {path}")


def _space(run: Path) -> SearchSpace | None:
    """The space by the recipe and its images, for runs whose budget needs no table; else the page finds it itself."""
    if (run / "table.json").exists() or not (run / "recipe.yaml").exists():
        return None
    try:
        return space_of_run(run)
    except SnugnetError as error:
        say(f"the space is not known: {error}")
        return None
