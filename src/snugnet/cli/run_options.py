"""What the verbs that search a finished run have in common: its folder, tables and budgets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snugnet.costs.table import CostTable
from snugnet.costs.table_file import load_table
from snugnet.errors import BadInput

if TYPE_CHECKING:
    from snugnet.recipes.runs import Run

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a trained run.")]
TableFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        metavar="FILE|NAME=FILE",
        help="A table of measured costs (default: the run's table.json); repeat it with names for several devices: "
        "latency@phone=phone.json.",
    ),
]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads (default: torch's choice).")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of all that is random in the search.")]


def read_tables(folder: Path, words: list[str] | None) -> dict[str, CostTable]:
    """The tables named on the command line, by resource; the run's own if none was named."""
    tables: dict[str, CostTable] = {}
    if not words:
        own = folder / "table.json"
        words = [str(own)] if own.exists() else []
    for word in words:
        name, equals, path = word.partition("=")
        table = load_table(path if equals else word)
        key = name if equals else table.resource
        if key in tables:
            raise BadInput(
                "two tables of one resource must be told apart", value=key, remedy=f"Name them: {key}@phone=FILE."
            )
        tables[key] = table
    return tables


def open_for_search(folder: Path, threads: int | None) -> Run:
    """The run with its trained super-network, ready to be searched."""
    import torch

    from snugnet.recipes.runs import open_run

    if threads is not None:
        torch.set_num_threads(threads)
    if not folder.is_dir():
        raise BadInput(
            "RUN must be the folder of a trained run", value=str(folder), remedy="Run `snugnet train` first."
        )
    return open_run(folder)
