"""`--devices all` of `snugnet certify` and `snugnet zoo`: the same network on every runtime, and which is the fastest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snugnet.cli.options import data_of_run, timing
from snugnet.cli.printing import print_json, print_table, say
from snugnet.errors import BadInput, DataMissing
from snugnet.progress import RichProgress

if TYPE_CHECKING:
    from snugnet.data.dataset import Data
    from snugnet.deploy.runtimes import Comparison, RuntimeResult

OnDevices = Annotated[
    str | None,
    typer.Option(
        "--devices",
        metavar="all|NAME,...",
        help="Compare runtimes instead: every one that is here, in every precision, and which is the fastest.",
    ),
]


def compare(
    network: str, devices: str, lose: float, threads: int, batch: int, seconds: float | None, json: bool
) -> None:
    """One network on all `devices`, judged on the test images of its run."""
    from snugnet.deploy.runtimes import compare_runtimes, devices_here
    from snugnet.deploy.source import home_of, open_source

    places = devices_here(devices, threads=threads)
    saved, home = open_source(network), home_of(network)
    say(f"read {network}")
    outcome = compare_runtimes(
        saved.network,
        places,
        data=_data(home, saved.plan.resolution),
        lose=lose,
        batch=batch,
        settings=timing(60.0 if seconds is None else seconds),
        progress=RichProgress(),
    )
    if json:
        print_json({"network": network, "batch": batch, **outcome.to_json()})
        return
    _print(f"{network}, {threads} thread(s), batch {batch}, {outcome.clock}", outcome)


def _data(home: Path | None, resolution: int) -> Data | None:
    try:
        return data_of_run(home, resolution)
    except (BadInput, DataMissing) as error:
        say(f"accuracy is not judged: {error.rule}")
        return None


def _print(title: str, outcome: Comparison) -> None:
    rows = [
        [
            row.label,
            "*" if row is outcome.fastest else "",
            f"{row.latency_ms:.4g}",
            f"{row.low_ms:.4g}-{row.high_ms:.4g}",
            "-" if row.accuracy is None else f"{row.accuracy:.2%}",
            "-" if row.lost is None else f"{row.lost:.2%}",
            {True: "yes", False: "no", None: "not known"}[row.within],
        ]
        for row in outcome.runtimes
    ]
    columns = ["runtime", "", "latency ms", "95 % interval", "accuracy", "lost", "within the accuracy"]
    print_table(f"{title} (* the fastest within the accuracy asked for)", columns, rows, left=2)
    _say_failed(outcome)
    say(outcome.message)


def _say_failed(outcome: Comparison) -> None:
    for label, why in outcome.failed.items():
        say(f"{label} does not run it: {why}")


def compare_published(
    rows: list[dict[str, Any]], devices: str, lose: float, threads: int, batch: int, seconds: float | None, json: bool
) -> None:
    """Every published network on all `devices`; its row gains `runtimes` and `fastest`."""
    from snugnet.deploy.runtimes import compare_runtimes, devices_here
    from snugnet.deploy.source import open_source

    places, progress = devices_here(devices, threads=threads), RichProgress()
    each = timing((120.0 if seconds is None else seconds) / len(rows), least_passes=10)
    say(f"{len(rows)} networks on {len(places)} runtimes: a few seconds each to prepare")
    labels = [f"{place.name} {place.precision}" for place in places]
    cells = []
    for number, row in enumerate(rows, 1):
        network = open_source(row["name"]).network
        outcome = compare_runtimes(network, places, lose=lose, batch=batch, settings=each, progress=progress)
        say(f"{number}/{len(rows)} {row['name']}: {outcome.message}")
        _say_failed(outcome)
        row |= outcome.to_json()
        times = {result.label: _star(result, outcome) for result in outcome.runtimes}
        cells.append([row["name"], *(times.get(label, "-") for label in labels)])
    if json:
        print_json(rows)
        return
    title = f"Milliseconds of published networks, {threads} thread(s), batch {batch} (* the fastest in float32; the papers' "
    print_table(f"{title}weights are not here, so fewer bits are timed and not judged)", ["network", *labels], cells)


def _star(result: RuntimeResult, outcome: Comparison) -> str:
    return f"{result.latency_ms:.3g}{' *' if result is outcome.fastest else ''}"
