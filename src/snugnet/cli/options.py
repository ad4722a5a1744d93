"""What several verbs share: options of a device, a recipe, a run folder, and readers of tables, budgets and KEY=VALUE."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snugnet.budgets.budget import Budget
from snugnet.costs.table import CostTable
from snugnet.errors import BadInput, TableMismatch
from snugnet.space.space import SearchSpace
from snugnet.store import RunLock, parse_yaml, read_text

if TYPE_CHECKING:
    from snugnet.data.dataset import Data
    from snugnet.devices import Device
    from snugnet.devices.timing import TimingSettings
    from snugnet.fitting.runs import Run

DeviceName = Annotated[
    str,
    typer.Option("--device", help="Where to run: see `snugnet devices`; command:COMMAND for a board behind an agent."),
]
DeviceThreads = Annotated[int, typer.Option("--threads", help="Threads of the processor to use.")]
Precision = Annotated[str, typer.Option("--precision", help="Number format, where the device offers several.")]
Batch = Annotated[int, typer.Option("--batch", help="Images at once.")]
Seconds = Annotated[float | None, typer.Option("--seconds", help="Most time to spend timing.")]

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a trained run.")]
NewRun = Annotated[Path, typer.Option("--out", metavar="RUN", help="The run folder; made if it is not there.")]
RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A shipped recipe's name or a YAML file.")]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change the recipe: budget.latency=40ms, train.phases[0].epochs=3."
    ),
]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads (default: torch's choice).")]
TrackerNames = Annotated[
    list[str] | None,
    typer.Option(
        "--tracker", help="Who is told beside train.jsonl: tensorboard (default where installed), wandb, mlflow, none."
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of all that is random.")]
Limits = Annotated[
    list[str],
    typer.Option(
        "--budget",
        help="A hard limit such as latency=40ms, latency:p90=50ms or params=6M; repeatable. Searches also take a share "
        "of the largest network (of the starting one): latency=60%.",
    ),
]
Lose = Annotated[
    str,
    typer.Option("--lose", metavar="at-most=SHARE", help="Test images that fewer bits may get wrong beyond float32."),
]
MethodOptions = Annotated[
    list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="An option of the method, e.g. steps=500.")
]
TableFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        metavar="FILE|NAME=FILE",
        help="A table of measured costs (default: the run's table.json). One of another device has a name, which the "
        "budget repeats: --table latency@phone=phone.json --budget latency@phone=40ms.",
    ),
]


def locks_run(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb that writes into RUN holds the folder's lock meanwhile."""

    @functools.wraps(verb)
    def locked(run: Path, **options: Any) -> None:
        with RunLock(run) if run.is_dir() else contextlib.nullcontext():
            verb(run=run, **options)

    return locked


def with_trackers(changes: list[str] | None, trackers: list[str] | None) -> list[str]:
    """The changes of a recipe with those that --tracker stands for."""
    chosen = [name for name in trackers or [] if name != "none"]
    return [*(changes or []), *([f"trackers={chosen}"] if trackers else [])]


def timing(seconds: float | None, **usual: Any) -> TimingSettings:
    """The usual settings, for the seconds a user allows."""
    from snugnet.devices.timing import TimingSettings  # brings torch in: not for `snugnet --help`

    return TimingSettings(**usual if seconds is None else {**usual, "seconds": seconds})


def read_tables(folder: Path, texts: list[str] | None) -> dict[str, CostTable]:
    """The tables named on the command line, by resource; the run's own if none was named."""
    from snugnet.costs.table import open_table  # brings torch in: not for `snugnet --help`
    from snugnet.progress import RichProgress

    tables: dict[str, CostTable] = {}
    if not texts:
        texts = [str(folder / "table.json")] if (folder / "table.json").exists() else []
        texts += [f"latency@{path.stem.partition('@')[2]}={path}" for path in sorted(folder.glob("table@*.json"))]
    for text in texts:
        name, equals, path = text.partition("=") if "=" in text else ("", "", text)
        table = open_table(path, progress=RichProgress())
        key = name if equals else table.resource
        if key.partition("@")[0] != table.resource or key.endswith("@"):
            raise BadInput(
                f"a name for {path} must be {table.resource} or {table.resource}@DEVICE",
                value=name,
                remedy=f"Write --table {table.resource}@phone={path}.",
            )
        if "@" not in key:
            _require_this_device(table, path)
        if key in tables:
            remedy = f"Name them: {key}@phone=FILE."
            raise BadInput("two tables of one resource must be told apart", value=key, remedy=remedy)
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

    from snugnet.executors import keep_freed_memory
    from snugnet.fitting.runs import open_run

    keep_freed_memory()
    if threads is not None:
        torch.set_num_threads(threads)
    if not folder.is_dir():
        remedy = "Run `snugnet train` first."
        raise BadInput("RUN must be the folder of a trained run", value=str(folder), remedy=remedy)
    return open_run(folder)


def space_of_run(folder: Path) -> SearchSpace:
    """The space of a run's super-network, width and classes included, by its recipe and images."""
    from snugnet.fitting.recipe import read

    path = folder / "recipe.yaml"
    recipe = read(read_text(path), origin=str(path))
    return recipe.build_space(recipe.load_data())


def data_of_run(home: Path | None, resolution: int) -> Data:
    """The images of the run in `home`, at a network's resolution."""
    if home is None or not (home / "recipe.yaml").is_file():
        rule = "images come from a run: the network must be in the folder of its run, with its recipe.yaml"
        raise BadInput(rule, value=str(home), remedy="In Python, snugnet.deploy.int8.export_int8 takes your data.")
    from snugnet import fitting

    return fitting.find(str(home / "recipe.yaml")).load_data(resolution, whole=True)


def read_lose(text: str) -> float:
    """The share in `at-most=0.5%`."""
    word, _, number = text.partition("=")
    try:
        share = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if word != "at-most" or not 0 <= share <= 1:
        raise BadInput("--lose must be at-most=SHARE", value=text, remedy="Write --lose at-most=0.5%.")
    return share


def read_devices(texts: list[str], threads: int, precision: str) -> Device | dict[str, Device]:
    """`["onnxruntime"]` as a device, `["pi4=command:ssh pi4 snugnet-agent", ...]` as one for every label of a budget."""
    from snugnet.devices import by_name

    places: dict[str, str] = {}
    for text in texts:
        labelled = re.fullmatch(r"([\w.-]+)=(.+)", text)  # a command may hold an = too, but begins otherwise
        label, name = labelled.groups() if labelled else ("", text)
        if label in places:
            remedy = "Write NAME=DEVICE, with the NAME of latency@NAME."
            raise BadInput("two devices must be told apart by a name each", value=text, remedy=remedy)
        places[label] = name
    devices = {label: by_name(name, threads=threads, precision=precision) for label, name in places.items()}
    return devices[""] if list(devices) == [""] else devices


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


def read_options(texts: list[str] | None) -> dict[str, Any]:
    """`["steps=500", "start=smallest"]` as keyword arguments; numbers become numbers."""
    options: dict[str, Any] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise BadInput("an option must be written KEY=VALUE", value=text, remedy="Write it like steps=500.")
        options[name.strip()] = parse_yaml(value, f"the value of {text}")
    return options
