"""`snugnet many`: a certified network for every one of several budgets, from one trained run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from snugnet.cli.options import RunFolder, locks_run
from snugnet.cli.printing import Json, print_json, print_table, say
from snugnet.progress import RichProgress
from snugnet.units import show

Budgets = Annotated[
    Path,
    typer.Option(
        "--budgets",
        metavar="FILE",
        help="YAML: `budgets:` limits by name ({small: {params: 40%}, phone: {latency@phone: 5ms}}); `devices:` for their "
        "labels, as in a recipe.",
    ),
]
On = Annotated[
    str,
    typer.Option("--on", metavar="PLACE", help="Who computes: here, local:2 (processes of this machine) or ray."),
]
Finetune = Annotated[
    bool, typer.Option("--finetune", help="Train every network as the run's recipe says; else inherited weights.")
]
ThreadsEach = Annotated[
    int, typer.Option("--threads", min=1, help="Threads of every computation. Other numbers give other last bits.")
]


@locks_run
def many(
    run: RunFolder,
    budgets: Budgets,
    on: On = "here",
    finetune: Finetune = False,
    threads: ThreadsEach = 1,
    json: Json = False,
) -> None:
    """A certified network for every budget, and a page that compares them. Killed at any moment, the same command goes on.

    Every budget begins with the same evidence, what the run knew when `many` was first called; when all have searched,
    whatever any of them evaluated competes for all. The networks depend neither on the order of budgets nor on --on. Only
    what is measured differs from time to time. Devices are timed one at a time while nothing else is computed; missing
    tables of boards are measured side by side, each board by itself. A budget that fails does not stop the others; the
    exit code is then 1."""
    from snugnet.executors import open_executor
    from snugnet.fitting.many import many as fit_many
    from snugnet.fitting.many import read_budgets

    file = read_budgets(budgets)
    with open_executor(on, threads=threads) as executor:
        result = fit_many(
            run, file, executor=executor, finetune=finetune, threads=threads, say=say, progress=RichProgress()
        )
    if json:
        print_json({"run": str(run), "on": on, **result.to_json()})
    else:
        title, heads = f"{len(result.rows)} budgets of {run}", ["budget", "asked", "accuracy", "measured", "network"]
        print_table(title, heads, [_cells(row) for row in result.rows], left=2)
    say(f"wrote {result.page} and {result.folder / 'many.json'}")
    if result.failed:
        raise typer.Exit(1)


def _cells(row: dict[str, Any]) -> list[str]:
    first = [row["name"], ", ".join(f"{name} {limit}" for name, limit in row["budget"].items())]
    if "error" in row:
        return [*first, "failed", "", row["error"]]
    limits = row["limits"]
    costs = [f"{show(cost, name)} of {show(limits[name], name)}" for name, cost in row["measured"].items()]
    return [*first, f"{row['accuracy']:.2%}", ", ".join(costs), row["architecture"]]
