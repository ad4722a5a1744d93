"""`snugnet certify`: does a network meet its budget on a device?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snugnet.cli.options import Batch, DeviceThreads, Precision, Seconds, read_limits
from snugnet.cli.printing import Json, print_json, print_table, say
from snugnet.costs.table import load_table
from snugnet.errors import BudgetExceeded
from snugnet.progress import RichProgress
from snugnet.units import show

if TYPE_CHECKING:
    from snugnet.deploy.card import Certificate

NetworkWord = Annotated[
    str,
    typer.Argument(
        metavar="NETWORK",
        help="A .onnx file, a .safetensors file, an architecture's .json file or a published network's name.",
    ),
]
Limits = Annotated[
    list[str],
    typer.Option("--budget", help="A hard limit such as latency=40ms, latency:p90=50ms, params=6M; repeatable."),
]
Table = Annotated[Path | None, typer.Option("--table", help="A measured table; adds what it predicts.")]
AnyDevice = Annotated[
    str | None, typer.Option("--device", help="Where to run (default: onnxruntime for .onnx files, else torch-cpu).")
]
Out = Annotated[Path, typer.Option("--out", help="Where to write the certificate.")]


def certify(
    network: NetworkWord,
    budget: Limits,
    device: AnyDevice = None,
    threads: DeviceThreads = 1,
    precision: Precision = "float32",
    batch: Batch = 1,
    table: Table = None,
    out: Out = Path("certificate.json"),
    seconds: Seconds = None,
    json: Json = False,
) -> None:
    """Measure a network against a budget and write a certificate; exit code 1 if it does not fit."""
    from snugnet.deploy import certificate
    from snugnet.deploy.card import read_certificate  # these bring torch in: not for `snugnet --help`
    from snugnet.devices import by_name

    usual = certificate.SETTINGS
    limits = read_limits(budget)
    settings = None if seconds is None else replace(usual, seconds=seconds)
    tables = {} if table is None else {name: load_table(table) for name in limits if name.split("@")[0] == "latency"}
    onnx = network.lower().endswith(".onnx")
    place = by_name(device or ("onnxruntime" if onnx else "torch-cpu"), threads=threads, precision=precision)
    if onnx and table is not None:
        say("an ONNX file does not say what its blocks are: the table cannot predict it; certify its .safetensors file")
    try:
        outcome = certificate.certify(
            network, limits, place, batch=batch, tables=tables, out=out, settings=settings, progress=RichProgress()
        )
    except BudgetExceeded:
        if json:
            print_json(read_certificate(out))
        say(f"wrote {out}")
        raise
    if json:
        print_json(outcome.to_json())
    else:
        _print(outcome)
    say(f"wrote {out}")


def _print(outcome: Certificate) -> None:
    rows = []
    for line in outcome.lines:
        between = "exact" if line.exact else " to ".join(show(end, line.name) for end in line.interval)
        guess = "-" if line.predicted is None else show(line.predicted, line.name)
        values = [show(value, line.name) for value in (line.limit, line.measured)]
        name = line.name if line.statistic is None else f"{line.name} ({line.statistic})"
        rows.append([name, values[0], guess, values[1], between, show(line.slack, line.name)])
    columns = ["limit on", "limit", "predicted", "measured", "95 % interval", "slack"]
    print_table(f"{outcome.network.name} fits: {outcome.fits}", columns, rows)
    if outcome.message:
        say(outcome.message)
