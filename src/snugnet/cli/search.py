"""`snugnet search`: the best network of a run within a budget; `snugnet front`: the best networks along one resource."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snugnet.cli.options import (
    Limits,
    MethodOptions,
    RunFolder,
    Seed,
    TableFiles,
    Threads,
    locks_run,
    open_for_search,
    read_limits,
    read_options,
    read_tables,
)
from snugnet.cli.printing import Json, check_picture, picture_of_front, print_json, print_table, say
from snugnet.costs.table import CostTable
from snugnet.errors import BadInput
from snugnet.progress import RichProgress
from snugnet.space.space import SearchSpace
from snugnet.store import check_writable, write_json, write_text
from snugnet.units import resource as known_resource
from snugnet.units import show

if TYPE_CHECKING:
    from snugnet.searching.result import SearchResult

Method = Annotated[str, typer.Option("--method", help="adaptive, bcsfw, instant, evolution, random or tfnas.")]
Evaluations = Annotated[
    int | None, typer.Option("--evaluations", min=0, help="With adaptive: networks to evaluate at most (30).")
]
ShowWorths = Annotated[
    bool, typer.Option("--worths", help="With instant: tell what every choice is worth, with its standard error.")
]
Out = Annotated[Path | None, typer.Option("--out", help="Where to write the result (default: RUN/search.json).")]
ResourceName = Annotated[str, typer.Option("--resource", help="latency, macs, params, model_size or memory.")]
Points = Annotated[int, typer.Option("--points", min=2, help="How many budgets along the resource.")]
CsvFile = Annotated[Path | None, typer.Option("--csv", help="Write the points as CSV too.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw accuracy against the resource (.png, .svg or .pdf).")]
_TITLES = {
    "value": ("error", "Value (accuracy minus loss) added by each choice, in thousandths (more is better)"),
    "right": ("right_error", "Right answers added by each choice on mixed paths, in thousandths (more is better)"),
    "loss": ("loss_error", "Loss added by each choice on mixed paths, in thousandths (less is better)"),
}


@locks_run
def search(
    run: RunFolder,
    budget: Limits,
    table: TableFiles = None,
    method: Method = "adaptive",
    evaluations: Evaluations = None,
    option: MethodOptions = None,
    seed: Seed = 0,
    threads: Threads = None,
    out: Out = None,
    effects: ShowWorths = False,
    json: Json = False,
) -> None:
    """Find the most accurate network of a trained run within every budget."""
    from snugnet.searching.search import search as run_search

    if effects and method != "instant":
        raise BadInput("only the instant method learns what choices add", value=method, remedy="Add --method instant.")
    limits, tables = read_limits(budget), read_tables(run, table)
    opened = open_for_search(run, threads)
    check_writable(out or run / "search.json")
    options = read_options(option) | ({} if evaluations is None else {"evaluations": evaluations})
    shared: dict[str, Any] = {"out": run / "search", "progress": RichProgress()}
    result = run_search(opened.supernet, opened.data, tables, limits, method, seed, **shared, **options)
    path = result.save(out or run / "search.json")
    if out is None:
        write_json(run / "architecture.json", result.architecture.to_json())
    if json:
        worths = named_worths(result.details["worths"], opened.supernet.space) if effects else None
        print_json(result.to_json() | ({} if worths is None else {"worths": worths}))
    else:
        _print_result(result)
        if effects:
            print_worths(result.details["worths"], opened.supernet.space)
        if "prediction" in result.details:
            fit = result.details["prediction"]
            say(f"effects of choices predict the score of networks they were not fitted to: {fit}")
    _say_limits(result, tables)
    also = "" if out is not None else f" and {run / 'architecture.json'}"
    say(f"read {run / 'supernet.safetensors'}; wrote {path}{also}")


def _print_result(result: SearchResult) -> None:
    rows = [
        [name, show(cost, name), show(result.limits[name], name), f"{cost / result.limits[name]:.1%}"]
        for name, cost in result.predicted.items()
    ]
    expected = f"expected {result.expected:.2%} +- {result.error:.2%}"
    title = f"{result.method}: accuracy {result.accuracy:.2%} on held-out images ({expected}), {result.seconds:.1f} s"
    print_table(title, ["budget", "predicted", "limit", "used"], rows)
    print(result.architecture)


def _say_limits(result: SearchResult, tables: dict[str, CostTable]) -> None:
    """Whose milliseconds a limit is about, and how much of it is kept free."""
    for name, limit in result.limits.items():
        if name in tables and (device := tables[name].origin.get("device")):
            facts = [f"{key} {device[key]}" for key in ("device", "threads", "processor") if key in device]
            say(f"{name} as measured on {', '.join(facts)}")
        effective = result.effective_limits[name]
        if effective < limit:
            free = f"{1 - effective / limit:.1%} of the limit on {name} is kept free"
            say(f"{free} (predictions up to {show(effective, name)}), so that it fits as measured")


def print_worths(saved: dict[str, Any], space: SearchSpace) -> None:
    """Against the mean of each place, in thousandths, with standard errors; places without a choice are left out."""
    for kind, (_, title) in _TITLES.items():
        rows = []
        for place, choices in _places(saved, space, kind):
            mean = sum(effect for _, effect, _ in choices) / len(choices)
            cells = "  ".join(f"{n} {1e3 * (w - mean):+.1f} +- {1e3 * e:.1f}" for n, w, e in choices)
            rows.append([place, cells])
        print_table(title, ["place", "choices"], rows, left=2)


def named_worths(saved: dict[str, Any], space: SearchSpace) -> list[dict[str, Any]]:
    """A row for every choice of every place: what it adds, and how exactly that is known."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for kind, (doubt, _) in _TITLES.items():
        for place, choices in _places(saved, space, kind):
            for name, effect, error in choices:
                row = rows.setdefault((place, name), {"place": place, "choice": name})
                row |= {kind: effect, doubt: error}
    return list(rows.values())


def _places(
    saved: dict[str, Any], space: SearchSpace, kind: str
) -> Iterator[tuple[str, list[tuple[str, float, float]]]]:
    """Every place with something to choose: its choices as (name, effect, standard error)."""
    import numpy as np

    from snugnet.space.layout import Layout

    layout = Layout(space)
    effects, errors = layout.split(np.array(saved[kind])), layout.split(np.array(saved[_TITLES[kind][0]]))
    options, doubts = layout.by_stage(effects.options), layout.by_stage(errors.options)
    for s, stage in enumerate(space.stages):
        for d, (row, doubt) in enumerate(zip(options[s], doubts[s])):
            names = [choice.label for choice in layout.choices(s, d)]
            if len(names) > 1:
                yield f"stage {s + 1}, block {d + 1}", list(zip(names, row.tolist(), doubt.tolist()))
        if len(stage.depths) > 1:
            numbers = [str(depth) for depth in stage.depths]
            yield f"stage {s + 1}, depth", list(zip(numbers, effects.depths[s].tolist(), errors.depths[s].tolist()))


@locks_run
def front(
    run: RunFolder,
    resource: ResourceName = "latency",
    points: Points = 20,
    table: TableFiles = None,
    seed: Seed = 0,
    threads: Threads = None,
    csv: CsvFile = None,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Networks along a resource, from the cheapest to the dearest, each validated."""
    from snugnet.searching.front import as_rows
    from snugnet.searching.front import front as find_front

    known_resource(resource)
    check_picture(plot)
    tables = read_tables(run, table)
    opened = open_for_search(run, threads)
    for target in filter(None, (run / "front.json", csv)):
        check_writable(target)
    shared: dict[str, Any] = {"out": run / "search", "progress": RichProgress()}
    networks = find_front(opened.supernet, opened.data, tables, resource, points, seed=seed, **shared)
    rows = as_rows(networks)
    value = {"resource": resource, "unit": known_resource(resource).unit, "points": rows}
    say(f"wrote {write_json(run / 'front.json', value)}")
    if csv is not None:
        say(f"wrote {write_text(csv, _as_csv(rows, resource))}")
    if plot is not None:
        say(f"wrote {picture_of_front(rows, resource, plot)}")
    if json:
        print_json(value)
        return
    cells = []
    for row in rows:
        cost = show(row["predicted"][resource], resource)
        cells.append([show(row["limit"], resource), cost, f"{row['accuracy']:.2%}", row["architecture"]])
    print_table(f"Front along {resource}", ["limit", "predicted", "accuracy", "network"], cells, left=0)


def _as_csv(rows: list[dict[str, Any]], resource: str) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([f"limit_{resource}", f"predicted_{resource}", "accuracy", "loss", "architecture"])
    for row in rows:
        writer.writerow([row["limit"], row["predicted"][resource], row["accuracy"], row["loss"], row["architecture"]])
    return text.getvalue()
