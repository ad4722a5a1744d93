"""What the verbs that search a finished run have in common: its folder, tables and budgets."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snugnet.costs.table import CostTable, load_table
from snugnet.errors import BadInput, TableMismatch
from snugnet.store import RunLock

if TYPE_CHECKING:
    from snugnet.fitting.runs import Run

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a trained run.")]
TableFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        metavar="FILE|NAME=FILE",
        help="A table of measured costs (default: the run's table.json). One of another device has a name, which the "
        "budget repeats: --table latency@phone=phone.json --budget latency@phone=40ms.",
    ),
]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads (default: torch's choice).")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of all that is random in the search.")]


def locks_run(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb that writes into RUN holds the folder's lock meanwhile."""

    @functools.wraps(verb)
    def locked(run: Path, **options: Any) -> None:
        with RunLock(run) if run.is_dir() else contextlib.nullcontext():
            verb(run=run, **options)

    return locked


def read_tables(folder: Path, words: list[str] | None) -> dict[str, CostTable]:
    """The tables named on the command line, by resource; the run's own if none was named."""
    tables: dict[str, CostTable] = {}
    if not words:
        words = [str(folder / "table.json")] if (folder / "table.json").exists() else []
        words += [f"latency@{path.stem.partition('@')[2]}={path}" for path in sorted(folder.glob("table@*.json"))]
    for word in words:
        name, equals, path = word.partition("=")
        table = load_table(path if equals else word)
        key = name if equals else table.resource
        if equals and (name.partition("@")[0] != table.resource or name.endswith("@")):
            raise BadInput(
                f"a name for {path} must be {table.resource} or {table.resource}@DEVICE",
                value=name,
                remedy=f"Write --table {table.resource}@phone={path}.",
            )
        if "@" not in key:
            _require_this_device(table, path if equals else word)
        if key in tables:
            raise BadInput(
                "two tables of one resource must be told apart", value=key, remedy=f"Name them: {key}@phone=FILE."
            )
        tables[key] = table
    return tables


def _require_this_device(table: CostTable, path: str) -> None:
    """Milliseconds of another device look like those of this one: they are taken only where the user names it."""
    if table.origin.get("kind") != "measured":
        return
    from snugnet.devices import DEVICES, by_name

    there = table.origin["device"]
    differs = f"device {there['device']}, which is not on this machine"
    if there["device"] in DEVICES and not DEVICES[there["device"]].missing():
        device = by_name(there["device"], threads=int(there["threads"]), precision=there["precision"])
        differs = table.differences(device=device.fingerprint())
    if differs:
        raise TableMismatch(
            f"{path} must be measured on this device, or be named for its own",
            value=differs,
            remedy=f"To search for that device: --table {table.resource}@there={path} with budgets "
            f"{table.resource}@there=...; for this one: `snugnet measure`.",
        )


def open_for_search(folder: Path, threads: int | None) -> Run:
    """The run with its trained super-network, ready to be searched."""
    import torch

    from snugnet.fitting.runs import open_run

    if threads is not None:
        torch.set_num_threads(threads)
    if not folder.is_dir():
        raise BadInput(
            "RUN must be the folder of a trained run", value=str(folder), remedy="Run `snugnet train` first."
        )
    return open_run(folder)
