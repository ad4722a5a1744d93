"""`snugnet search`: the best network of a run within a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from snugnet.cli.certify import read_limits
from snugnet.cli.printing import Json, print_json, print_table, say
from snugnet.cli.run_options import RunFolder, Seed, TableFiles, Threads, open_for_search, read_tables
from snugnet.errors import BadInput
from snugnet.files import write_json
from snugnet.progress import Quiet, Shown
from snugnet.space.space import SearchSpace
from snugnet.units import show

Limits = Annotated[
    list[str],
    typer.Option(
        "--budget", help="A hard limit such as latency=40ms, params=6M or latency=60% (of the heaviest); repeatable."
    ),
]
Method = Annotated[str, typer.Option("--method", help="bcsfw, instant, evolution or random.")]
Options = Annotated[
    list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="An option of the method, e.g. steps=500.")
]
ShowWorths = Annotated[
    bool, typer.Option("--worths", help="With instant: print what every choice is worth, with its standard error.")
]
Out = Annotated[Path | None, typer.Option("--out", help="Where to write the result (default: RUN/search.json).")]


def search(
    run: RunFolder,
    budget: Limits,
    table: TableFiles = None,
    method: Method = "bcsfw",
    option: Options = None,
    seed: Seed = 0,
    threads: Threads = None,
    out: Out = None,
    worths: ShowWorths = False,
    json: Json = False,
) -> None:
    """Find the most accurate network of a trained run within every budget."""
    from snugnet.search import search as run_search

    if worths and method != "instant":
        raise BadInput("only the instant method learns worths", value=method, remedy="Add --method instant.")
    limits, tables = read_limits(budget), read_tables(run, table)
    opened = open_for_search(run, threads)
    found = run_search(
        opened.supernet,
        opened.data,
        tables,
        limits,
        method,
        seed,
        out=run / "search",
        progress=Quiet() if json else Shown(),
        **read_options(option or []),
    )
    path = found.save(out or run / "search.json")
    if out is None:
        write_json(run / "architecture.json", found.architecture.to_json())
    if json:
        print_json(found.to_json())
    else:
        rows = [
            [name, show(cost, name), show(found.limits[name], name), f"{cost / found.limits[name]:.1%}"]
            for name, cost in found.predicted.items()
        ]
        title = f"{found.method}: accuracy {found.accuracy:.2%} on held-out images, {found.seconds:.1f} s"
        print_table(title, ["budget", "predicted", "limit", "used"], rows)
        print(found.architecture)
        if worths:
            _print_worths(found.details["worths"], opened.supernet.space)
        if "prediction" in found.details:
            say(
                f"worths of choices predict the value of networks they were not fitted to: {found.details['prediction']}"
            )
        for name in found.limits:
            if name in tables and (where := tables[name].origin.get("device")):
                told = [f"{key} {where[key]}" for key in ("device", "threads", "processor") if key in where]
                say(f"{name} as measured on {', '.join(told)}")
        kept = {name: table.margin for name, table in tables.items() if name in found.limits and table.margin}
        for name, margin in kept.items():
            say(f"asked: {name} <= {limits[name]}; {margin:.1%} of it is kept free, so that it fits as measured")
    say(f"read {run / 'supernet.safetensors'}; wrote {path}")


def _print_worths(saved: dict[str, Any], space: SearchSpace) -> None:
    """What every choice adds against the mean of its place, in thousandths, and its standard error."""
    import numpy as np

    from snugnet.search.worths import split

    for worth, doubt, title in (
        ("value", "error", "Value (accuracy minus loss) added by each choice, in thousandths (more is better)"),
        ("right", "right_error", "Right answers added by each choice on mixed paths, in thousandths (more is better)"),
        ("loss", "loss_error", "Loss added by each choice on mixed paths, in thousandths (less is better)"),
    ):
        (options, depths), (doubts, depth_doubts) = (split(space, np.array(saved[key])) for key in (worth, doubt))
        rows = []
        for s, stage in enumerate(space.stages):
            names, numbers = [choice.label for choice in stage.choices], [str(depth) for depth in stage.depths]
            for d, (row, errors) in enumerate(zip(options[s], doubts[s])):
                rows.append([f"stage {s + 1}, block {d + 1}", _cells(names, row, errors)])
            rows.append([f"stage {s + 1}, depth", _cells(numbers, depths[s], depth_doubts[s])])
        print_table(title, ["place", "choices"], [row for row in rows if row[1]], left=2)


def _cells(names: list[str], worth: Any, doubt: Any) -> str:
    """Empty where there is nothing to choose."""
    if len(names) == 1:
        return ""
    middle = sum(worth) / len(worth)
    return "  ".join(f"{n} {1e3 * (w - middle):+.1f} +- {1e3 * e:.1f}" for n, w, e in zip(names, worth, doubt))


def read_options(words: list[str]) -> dict[str, Any]:
    """`["steps=500", "start=lightest"]` as keyword arguments; numbers become numbers."""
    import yaml

    options: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise BadInput("an option must be written KEY=VALUE", value=word, remedy="Write it like steps=500.")
        options[name.strip()] = yaml.safe_load(text)
    return options
