"""Networks as files: `snugnet certify` measures one against a budget, `snugnet export` writes an ONNX file checked against
PyTorch, `snugnet predict` runs one on images."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snugnet.budgets.budget import Budget
from snugnet.cli.options import Batch, DeviceThreads, Limits, Precision, Seconds, read_limits
from snugnet.cli.printing import Json, print_json, print_table, say
from snugnet.costs.table import load_table
from snugnet.deploy.card import Certificate, read_certificate
from snugnet.errors import BadInput, BudgetExceeded, DataMissing
from snugnet.progress import RichProgress
from snugnet.store import read_bytes, sha256
from snugnet.units import show

if TYPE_CHECKING:
    from torch import Tensor

    from snugnet.deploy.export import Exported
    from snugnet.deploy.network_file import NetworkFile

AnyNetwork = Annotated[
    str,
    typer.Argument(
        metavar="NETWORK",
        help="A .onnx file, a .safetensors file, an architecture's .json file or a published network's name.",
    ),
]
PredictingTable = Annotated[Path | None, typer.Option("--table", help="A measured table; adds what it predicts.")]
AnyDevice = Annotated[
    str | None, typer.Option("--device", help="Where to run (default: onnxruntime for .onnx files, else torch-cpu).")
]
CertificateOut = Annotated[Path, typer.Option("--out", help="Where to write the certificate.")]
Source = Annotated[
    Path, typer.Argument(metavar="RUN_OR_NETWORK", help="A run folder or a .safetensors file.", show_default=False)
]
OnnxOut = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="The .onnx file to write; beside the network unless told.")
]
Program = Annotated[
    bool, typer.Option("--program/--no-program", help="Write the torch.export programme (.pt2) beside it as well.")
]
CheckImages = Annotated[
    list[Path] | None,
    typer.Option("--image", metavar="FILE", help="An image to check the file on; repeatable. A run brings its own."),
]
Sealed = Annotated[
    Path | None,
    typer.Option("--certificate", metavar="FILE", help="The network's certificate; a run's own unless told."),
]
Runnable = Annotated[
    Path, typer.Argument(metavar="NETWORK", help="A .onnx or .safetensors file, or a run folder.", show_default=False)
]
Inputs = Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Image files.", show_default=False)]
Top = Annotated[int | None, typer.Option("--top", help="How many classes to name; three unless told.")]
CHECK_IMAGES = 16


def certify(
    network: AnyNetwork,
    budget: Limits,
    device: AnyDevice = None,
    threads: DeviceThreads = 1,
    precision: Precision = "float32",
    batch: Batch = 1,
    table: PredictingTable = None,
    out: CertificateOut = Path("certificate.json"),
    seconds: Seconds = None,
    json: Json = False,
) -> None:
    """Measure a network against a budget and write a certificate; exit code 1 if it does not fit."""
    from snugnet.deploy import certificate  # these bring torch in: not for `snugnet --help`
    from snugnet.devices import by_name

    limits = read_limits(budget)
    settings = None if seconds is None else replace(certificate.SETTINGS, seconds=seconds)
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


def export(
    network: Source,
    out: OnnxOut = None,
    program: Program = True,
    image: CheckImages = None,
    certificate: Sealed = None,
    json: Json = False,
) -> None:
    """Write a network to an ONNX file that computes exactly what PyTorch computes, or write nothing."""
    from snugnet.deploy.export import check_path  # these bring torch in: not for `snugnet --help`
    from snugnet.deploy.export import export as export_network
    from snugnet.deploy.network_file import find_network, read_network

    file = find_network(network)
    saved = read_network(file)
    say(f"read {file}")
    target = out or file.with_suffix(".onnx")
    check_path(target, ".onnx")
    promise = _certificate(file, saved, certificate)
    images = _images(file, saved, image or [])
    say(f"exporting to {target}, which takes 5 to 60 seconds")
    beside = target.with_suffix(".pt2") if program else None
    exported = export_network(saved.network, target, card=saved.card, images=images, program=beside)
    exported = _stamp(exported, saved, promise, certificate)
    if json:
        print_json(asdict(exported) | {"path": str(exported.path), "program": str(beside) if beside else None})
    else:
        rows = [[r.form, r.images, str(r.batch), f"{r.largest:.1e}", f"{r.relative:.1e}"] for r in exported.comparisons]
        print_table(str(exported.path), ["form", "images", "batch", "largest difference", "relative"], rows, left=2)
        size = exported.path.stat().st_size / 2**20
        say(f"{exported.classes} classes, input {list(exported.input_shape)}, opset {exported.opset}, {size:.2f} MiB")
    say(f"wrote {exported.path}" + (f" and {beside}" if beside else ""))


def _certificate(file: Path, saved: NetworkFile, given: Path | None) -> dict[str, Any]:
    """The certificate to name in the file; empty if there is none."""
    path = given or file.parent / "certificate.json"
    if given is None and not path.is_file():
        return {}
    promise = read_certificate(path)
    say(f"read {path}")
    about = promise["network"]
    if given is not None and about["form"] != "onnx" and about["weights_sha256"] != saved.weights_sha256:
        raise _of_another(given)
    return promise


def _stamp(exported: Exported, saved: NetworkFile, promise: dict[str, Any], given: Path | None) -> Exported:
    """With the certificate's hash and limits inside, if it is of this network, as weights or as a graph."""
    from snugnet.deploy.export import stamp

    if not promise:
        return exported
    if promise["network"]["weights_sha256"] not in (exported.weights_sha256, exported.graph_sha256):
        if given is not None:
            raise _of_another(given)
        say("the certificate in the folder is of another network: not named in the file")
        return exported
    texts = {
        name: {"limit": show(line["limit"], name), **({"statistic": line["statistic"]} if "statistic" in line else {})}
        for name, line in promise["budgets"].items()
    }
    limits = Budget(texts).to_json()
    stamp(exported.path, certificate_sha256=promise["sha256"], budget=saved.card.budget or limits)
    return replace(exported, sha256=sha256(read_bytes(exported.path)))


def _of_another(path: Path) -> BadInput:
    remedy = "Certify the network that is exported."
    return BadInput("the certificate must be of this network", value=str(path), remedy=remedy)


def _images(file: Path, saved: NetworkFile, paths: list[Path]) -> Tensor | None:
    """Real images to check on: the given files, else the run's own test images."""
    import torch

    from snugnet.deploy.prediction import predictor_of, prepare

    if paths:
        predictor = predictor_of(saved)
        return torch.stack([prepare(path, predictor) for path in paths])
    recipe = file.parent / "recipe.yaml"
    if not recipe.is_file():
        return None
    from snugnet import fitting

    try:
        data = fitting.find(str(recipe)).data.load()
    except DataMissing as error:
        say(f"checked on random images only: {error.rule}")
        return None
    images: torch.Tensor = next(iter(data.batches("test", CHECK_IMAGES, limit=CHECK_IMAGES)))[0]
    if tuple(images.shape[1:]) != (saved.plan.stem.in_channels, saved.plan.resolution, saved.plan.resolution):
        say(f"checked on random images only: the run's images are {list(images.shape[1:])}")
        return None
    return images


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
