"""`snugnet run`: one command from data to a certified network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from snugnet.cli.printing import Json, print_json, say
from snugnet.progress import RichProgress

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A shipped recipe's name or a YAML file.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="RUN", help="The run folder (default: runs/ and the recipe's name).")
]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe: budget.latency=40ms.")
]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads for training and search.")]


def run(
    recipe: RecipeName, out: Out = None, changes: Changes = None, threads: Threads = None, json: Json = False
) -> None:
    """Measure, train, search, fine-tune, export, certify and report. Killed at any moment, the same command goes on."""
    from snugnet import fitting

    plan = fitting.find(recipe, changes or [])
    folder = out or Path("runs") / plan.name
    result = fitting.fit(plan, out=folder, threads=threads, say=say, progress=RichProgress())
    facts = result.to_json()
    if json:
        print_json(facts)
        return
    print(f"network      {facts['network']}")
    print(f"certificate  {facts['certificate']}")
    print(f"page         {facts['report']}")
