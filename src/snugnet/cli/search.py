"""`snugnet search`: the best network of a run within a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from snugnet.cli.certify import read_limits
from snugnet.cli.printing import Json, print_json, print_table, say
from snugnet.cli.run_options import RunFolder, Seed, TableFiles, Threads, locks_run, open_for_search, read_tables
from snugnet.cli.worths import named_worths, print_worths
from snugnet.errors import BadInput
from snugnet.progress import RichProgress
from snugnet.store import check_writable, write_json
from snugnet.units import show

Limits = Annotated[
    list[str],
    typer.Option(
        "--budget", help="A hard limit such as latency=40ms, params=6M or latency=60% (of the largest); repeatable."
    ),
]
Method = Annotated[str, typer.Option("--method", help="adaptive, bcsfw, instant, evolution or random.")]
Options = Annotated[
    list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="An option of the method, e.g. steps=500.")
]
Evaluations = Annotated[
    int | None, typer.Option("--evaluations", min=0, help="With adaptive: networks to evaluate at most (30).")
]
ShowWorths = Annotated[
    bool, typer.Option("--worths", help="With instant: tell what every choice is worth, with its standard error.")
]
Out = Annotated[Path | None, typer.Option("--out", help="Where to write the result (default: RUN/search.json).")]


@locks_run
def search(
    run: RunFolder,
    budget: Limits,
    table: TableFiles = None,
    method: Method = "adaptive",
    evaluations: Evaluations = None,
    option: Options = None,
    seed: Seed = 0,
    threads: Threads = None,
    out: Out = None,
    effects: ShowWorths = False,
    json: Json = False,
) -> None:
    """Find the most accurate network of a trained run within every budget."""
    from snugnet.searching.search import search as run_search

    if effects and method != "instant":
        raise BadInput("only the instant method learns worths", value=method, remedy="Add --method instant.")
    limits, tables = read_limits(budget), read_tables(run, table)
    opened = open_for_search(run, threads)
    check_writable(out or run / "search.json")
    options = read_options(option or []) | ({} if evaluations is None else {"evaluations": evaluations})
    found = run_search(
        opened.supernet,
        opened.data,
        tables,
        limits,
        method,
        seed,
        out=run / "search",
        progress=RichProgress(),
        **options,
    )
    path = found.save(out or run / "search.json")
    if out is None:
        write_json(run / "architecture.json", found.architecture.to_json())
    if json:
        told = found.to_json()
        if effects:
            told["worths"] = named_worths(found.details["worths"], opened.supernet.space)
        print_json(told)
    else:
        rows = [
            [name, show(cost, name), show(found.limits[name], name), f"{cost / found.limits[name]:.1%}"]
            for name, cost in found.predicted.items()
        ]
        expected = f"expected {found.expected:.2%} +- {found.error:.2%}"
        title = f"{found.method}: accuracy {found.accuracy:.2%} on held-out images ({expected}), {found.seconds:.1f} s"
        print_table(title, ["budget", "predicted", "limit", "used"], rows)
        print(found.architecture)
        if effects:
            print_worths(found.details["worths"], opened.supernet.space)
        if "prediction" in found.details:
            say(
                f"worths of choices predict the value of networks they were not fitted to: {found.details['prediction']}"
            )
    for name in found.limits:
        if name in tables and (where := tables[name].origin.get("device")):
            words = [f"{key} {where[key]}" for key in ("device", "threads", "processor") if key in where]
            say(f"{name} as measured on {', '.join(words)}")
        if found.effective_limits[name] < found.limits[name]:
            free = 1 - found.effective_limits[name] / found.limits[name]
            aim = show(found.effective_limits[name], name)
            say(
                f"{free:.1%} of the limit on {name} is kept free (predictions up to {aim}), so that it fits as measured"
            )
    also = "" if out is not None else f" and {run / 'architecture.json'}"
    say(f"read {run / 'supernet.safetensors'}; wrote {path}{also}")


def read_options(words: list[str]) -> dict[str, Any]:
    """`["steps=500", "start=smallest"]` as keyword arguments; numbers become numbers."""
    import yaml

    options: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise BadInput("an option must be written KEY=VALUE", value=word, remedy="Write it like steps=500.")
        options[name.strip()] = yaml.safe_load(text)
    return options
