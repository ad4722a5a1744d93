"""What several verbs share: options of a device and of a run folder, and readers of tables, budgets and KEY=VALUE."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snugnet.budgets.budget import Budget
from snugnet.costs.table import CostTable, load_table
from snugnet.errors import BadInput, TableMismatch
from snugnet.store import RunLock

if TYPE_CHECKING:
    from snugnet.fitting.runs import Run

DeviceName = Annotated[str, typer.Option("--device", help="Where to run: see `snugnet devices`.")]
DeviceThreads = Annotated[int, typer.Option("--threads", help="Threads of the processor to use.")]
Precision = Annotated[str, typer.Option("--precision", help="Number format, where the device offers several.")]
Batch = Annotated[int, typer.Option("--batch", help="Images at once.")]
Seconds = Annotated[float | None, typer.Option("--seconds", help="Most time to spend timing.")]

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


def read_tables(folder: Path, texts: list[str] | None) -> dict[str, CostTable]:
    """The tables named on the command line, by resource; the run's own if none was named."""
    tables: dict[str, CostTable] = {}
    if not texts:
        texts = [str(folder / "table.json")] if (folder / "table.json").exists() else []
        texts += [f"latency@{path.stem.partition('@')[2]}={path}" for path in sorted(folder.glob("table@*.json"))]
    for text in texts:
        name, equals, path = text.partition("=")
        table = load_table(path if equals else text)
        key = name if equals else table.resource
        if equals and (name.partition("@")[0] != table.resource or name.endswith("@")):
            raise BadInput(
                f"a name for {path} must be {table.resource} or {table.resource}@DEVICE",
                value=name,
                remedy=f"Write --table {table.resource}@phone={path}.",
            )
        if "@" not in key:
            _require_this_device(table, path if equals else text)
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

    origin = table.origin["device"]
    differs = f"device {origin['device']}, which is not on this machine"
    if origin["device"] in DEVICES and not DEVICES[origin["device"]].missing():
        device = by_name(origin["device"], threads=int(origin["threads"]), precision=origin["precision"])
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


def read_limits(texts: list[str]) -> Budget:
    """`["latency=40ms", "params=6M"]` as a budget."""
    limits: dict[str, str] = {}
    for text in texts:
        name, equals, limit = text.partition("=")
        if not equals or not name or not limit:
            raise BadInput("a budget must be written NAME=LIMIT", value=text, remedy="Write it like latency=40ms.")
        if name in limits:
            raise BadInput("a budget must limit a resource once", value=name, remedy="Drop one of the two.")
        limits[name.strip()] = limit
    return Budget(limits)


def read_options(texts: list[str]) -> dict[str, Any]:
    """`["steps=500", "start=smallest"]` as keyword arguments; numbers become numbers."""
    import yaml

    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise BadInput("an option must be written KEY=VALUE", value=text, remedy="Write it like steps=500.")
        options[name.strip()] = yaml.safe_load(value)
    return options
