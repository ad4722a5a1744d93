"""Networks as files: `snugnet certify` measures one, against a budget or on every runtime; `snugnet predict` runs one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from snugnet.cli.options import Batch, DeviceThreads, Lose, Precision, Seconds, read_devices, read_limits, read_lose
from snugnet.cli.printing import Json, print_json, print_table, say
from snugnet.cli.runtimes import OnDevices, compare
from snugnet.deploy.card import Certificate, read_certificate
from snugnet.errors import BadInput, BudgetExceeded
from snugnet.progress import RichProgress
from snugnet.units import show

AnyNetwork = Annotated[
    str,
    typer.Argument(
        metavar="NETWORK",
        help="A .onnx file, a .safetensors file, a run folder, an architecture's .json file or a published network's name.",
    ),
]
CertifiedLimits = Annotated[
    list[str] | None,
    typer.Option("--budget", help="A hard limit such as latency=40ms, latency:p90=50ms or params=6M; repeatable."),
]
PredictingTable = Annotated[Path | None, typer.Option("--table", help="A measured table; adds what it predicts.")]
AnyDevice = Annotated[
    list[str] | None,
    typer.Option(
        "--device",
        metavar="DEVICE|NAME=DEVICE",
        help="Where to run (default: onnxruntime for .onnx files, else torch-cpu). With several, each has the name that the "
        "budget repeats: --device pi4=command:... --budget latency@pi4=40ms.",
    ),
]
CertificateOut = Annotated[Path, typer.Option("--out", help="Where to write the certificate.")]
Runnable = Annotated[
    Path, typer.Argument(metavar="NETWORK", help="A .onnx or .safetensors file, or a run folder.", show_default=False)
]
Inputs = Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Image files.", show_default=False)]
Top = Annotated[int | None, typer.Option("--top", help="How many classes to name; three unless told.")]


def certify(
    network: AnyNetwork,
    budget: CertifiedLimits = None,
    device: AnyDevice = None,
    threads: DeviceThreads = 1,
    precision: Precision = "float32",
    batch: Batch = 1,
    table: PredictingTable = None,
    out: CertificateOut = Path("certificate.json"),
    seconds: Seconds = None,
    devices: OnDevices = None,
    lose: Lose = "at-most=0.5%",
    json: Json = False,
) -> None:
    """Measure a network against a budget and write a certificate (exit code 1 if it does not fit), or on every runtime."""
    if devices is not None:
        if budget or device is not None or table is not None:
            rule = "--devices compares runtimes, without --budget, --device and --table"
            raise BadInput(rule, value=devices, remedy="Leave those out; certify on the runtime you then choose.")
        compare(network, devices, read_lose(lose), threads, batch, seconds, json)
        return
    from snugnet.costs.table import open_table  # these bring torch in: not for `snugnet --help`
    from snugnet.deploy import certificate

    limits = read_limits(budget or [])
    settings = None if seconds is None else replace(certificate.SETTINGS, seconds=seconds)
    tables = {} if table is None else {name: open_table(table) for name in limits if name.split("@")[0] == "latency"}
    onnx = network.lower().endswith(".onnx")
    place = read_devices(device or ["onnxruntime" if onnx else "torch-cpu"], threads, precision)
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
        _print_certificate(outcome)
    say(f"wrote {out}")


def _print_certificate(outcome: Certificate) -> None:
    rows = []
    for name, line in outcome.budgets.items():
        between = "exact" if line.exact else " to ".join(show(end, name) for end in line.interval)
        guess = "-" if line.predicted is None else show(line.predicted, name)
        title = name if line.statistic is None else f"{name} ({line.statistic})"
        rows.append([title, show(line.limit, name), guess, show(line.measured, name), between, show(line.slack, name)])
    columns = ["limit on", "limit", "predicted", "measured", "95 % interval", "slack"]
    print_table(f"{outcome.network.name} fits: {outcome.fits}", columns, rows)
    if outcome.message:
        say(outcome.message)


def predict(network: Runnable, images: Inputs, top: Top = None, json: Json = False) -> None:
    """Name the most probable classes of images."""
    from snugnet.deploy import prediction  # brings torch in: not for `snugnet --help`

    predictor = prediction.open_predictor(network)
    predictions = prediction.predict(predictor, images, top=top)
    if predictor.remark:
        say(f"snugnet: {predictor.remark}")
    if json:
        tops = [
            [{"label": guess.label, "class": guess.name, "probability": guess.probability} for guess in row.guesses]
            for row in predictions
        ]
        print_json([{"image": row.image, "top": guesses} for row, guesses in zip(predictions, tops)])
        return
    rows = [
        [row.image if place == 0 else "", guess.name, f"{100 * guess.probability:.1f} %"]
        for row in predictions
        for place, guess in enumerate(row.guesses)
    ]
    print_table(str(network), ["image", "class", "probability"], rows, left=2)
