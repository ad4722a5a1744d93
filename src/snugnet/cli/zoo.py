"""`snugnet zoo`: the published networks, what their papers say, what we count, and what they cost on your device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from snugnet.cli.device_options import Batch, Precision, Seconds, Threads
from snugnet.cli.printing import Json, print_json, print_table, say
from snugnet.costs import analytic
from snugnet.errors import BadInput
from snugnet.progress import RichProgress
from snugnet.space import zoo as published
from snugnet.store import check_writable

OnDevice = Annotated[
    str | None, typer.Option("--device", help="Also measure them all here, in shuffled passes: see `snugnet devices`.")
]
Plot = Annotated[
    Path | None, typer.Option("--plot", help="With --device: draw accuracy against latency (.svg, .png, .pdf).")
]


def zoo(
    device: OnDevice = None,
    threads: Threads = 1,
    precision: Precision = "float32",
    batch: Batch = 1,
    plot: Plot = None,
    seconds: Seconds = None,
    json: Json = False,
) -> None:
    """List the published networks with the papers' figures and our own exact counts; with --device, measure them."""
    rows = [_row(entry) for entry in published.networks().values()]
    message = ""
    if device is not None:
        message = _measure(rows, device, threads, precision, batch, plot, seconds)
    elif plot is not None:
        raise BadInput("a picture needs measured networks", value=str(plot), remedy="Add --device torch-cpu.")
    if json:
        print_json(rows)
        return
    if device is not None:
        _print_measured(rows, f"{device}, {threads} thread(s), batch {batch}")
        say(message + (f" Wrote {plot}." if plot else ""))
        return
    cells = [
        [
            row["name"],
            row["space"] or "-",
            str(row["resolution"]),
            f"{row['mmacs']:.1f}",
            _figure(row, "mmacs"),
            f"{row['mparams']:.3f}",
            _figure(row, "top1"),
            _figure(row, "latency_ms"),
            row["published"].get("latency_on", ""),
        ]
        for row in rows
    ]
    columns = [
        "network",
        "space",
        "px",
        "MMACs",
        "published",
        "Mparams",
        "top-1 %",
        "latency ms",
        "measured by its authors on",
    ]
    print_table("Published networks: our counts, the papers' figures", columns, cells, left=2)


def _measure(
    rows: list[dict[str, Any]],
    device: str,
    threads: int,
    precision: str,
    batch: int,
    plot: Path | None,
    seconds: float | None,
) -> str:
    """Add what each network takes on `device` to its row."""
    from snugnet.costs.measure import time_networks
    from snugnet.costs.picture import check_format, picture_of_networks  # these bring torch in: not for the plain list
    from snugnet.devices import by_name
    from snugnet.devices.timing import TimingSettings

    if plot is not None:
        check_format(plot)
        check_writable(plot)
    settings = TimingSettings(seconds=120.0 if seconds is None else seconds)
    place = by_name(device, threads=threads, precision=precision)
    plans = {entry.name: entry.network for entry in published.networks().values()}
    found, message = time_networks(plans, place, batch=batch, settings=settings, progress=RichProgress())
    for row in rows:
        time = found[row["name"]]
        row["measured"] = {"latency_ms": time.ms, "low_ms": time.low, "high_ms": time.high, "on": place.fingerprint()}
    if plot is not None:
        points = [
            {"name": r["name"], "latency_ms": r["measured"]["latency_ms"], "top1": r["published"].get("top1")}
            for r in rows
        ]
        picture_of_networks(points, plot, f"Published networks on {device}, {threads} thread(s), batch {batch}")
    return message


def _print_measured(rows: list[dict[str, Any]], where: str) -> None:
    """Fastest first; a star marks those that no faster one beats in published accuracy."""
    best, cells = float("-inf"), []
    for row in sorted(rows, key=lambda row: float(row["measured"]["latency_ms"])):
        time, accuracy = row["measured"], row["published"].get("top1")
        ahead = accuracy is not None and accuracy > best
        best = accuracy if ahead else best
        interval = f"{time['low_ms']:.2f}-{time['high_ms']:.2f}"
        sizes = [str(row["resolution"]), f"{row['mmacs']:.1f}", f"{row['mparams']:.3f}"]
        star = "*" if ahead else ""
        cells.append([row["name"], star, f"{time['latency_ms']:.2f}", interval, *sizes, _figure(row, "top1")])
    columns = ["network", "", "latency ms", "95 % interval", "px", "MMACs", "Mparams", "published top-1 %"]
    print_table(f"Published networks on {where} (* no faster one is more accurate)", columns, cells, left=2)


def _row(entry: published.Published) -> dict[str, Any]:
    return {
        "name": entry.name,
        "space": entry.space,
        "architecture": str(entry.architecture) if entry.architecture else None,
        "resolution": entry.network.resolution,
        "mmacs": round(analytic.macs(entry.network, entry.convention) / 1e6, 6),
        "convention": entry.convention,
        "mparams": round(analytic.params(entry.network) / 1e6, 6),
        "peak_memory_bytes": analytic.peak_memory(entry.network),
        "published": entry.figures,
        "source": entry.source,
    }


def _figure(row: dict[str, Any], key: str) -> str:
    value = row["published"].get(key)
    return "-" if value is None else f"{value:g}"
