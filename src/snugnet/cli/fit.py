"""`snugnet fit`: own images and a trained network become a certified network; no recipe needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from snugnet.cli.options import read_limits
from snugnet.cli.printing import Json, print_json, say
from snugnet.progress import RichProgress

DataName = Annotated[
    str,
    typer.Argument(metavar="DATA", help="A folder with train/ and val/, a folder per class in each; or a data set."),
]
Start = Annotated[
    str,
    typer.Option("--start", help="The trained network to start from: efficientnet-lite0, timm:NAME, a file; or none."),
]
Limits = Annotated[
    list[str],
    typer.Option("--budget", help="A hard limit: latency=5ms, params=2M, latency=60% (of the start); repeatable."),
]
Time = Annotated[str, typer.Option("--time", help="About how long it may take: 10min, 2h.")]
Out = Annotated[Path, typer.Option("--out", metavar="RUN", help="The run folder; made if it is not there.")]
Device = Annotated[str | None, typer.Option("--device", help="Where the network will run (default: onnxruntime).")]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the chosen recipe.")]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads for training and search.")]


def fit(
    data: DataName,
    budget: Limits,
    out: Out,
    start: Start = "efficientnet-lite0",
    time: Time = "30min",
    device: Device = None,
    changes: Changes = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """The most accurate network within the budgets, from a trained one. Killed at any moment, the same command goes on."""
    from snugnet import fitting

    limits = read_limits(budget)
    result = fitting.fit(
        data,
        limits,
        out=out,
        device=device,
        start=start,
        time=time,
        changes=changes or [],
        threads=threads,
        say=say,
        progress=RichProgress(),
    )
    lines: dict[str, Any] = result.certificate["budgets"]
    facts = {
        "run": str(result.folder),
        "accuracy": result.accuracy,
        "fits": result.certificate["fits"],
        "limits": {name: line["limit"] for name, line in lines.items()},
        "measured": {name: line["measured"] for name, line in lines.items()},
        "seconds": sum(result.seconds.values()),
        "certificate": str(result.folder / "certificate.json"),
        "network": str(result.file),
        "report": str(result.report),
        "architecture": str(result.architecture),
    }
    if json:
        print_json(facts)
        return
    print(f"accuracy     {result.accuracy:.1%} of the test images")
    for name in ("network", "certificate", "report"):
        print(f"{name:12} {facts[name]}")
