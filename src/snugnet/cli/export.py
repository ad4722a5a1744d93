"""`snugnet export`: a network in the forms others take (ONNX, folders, ExecuTorch), each checked by what will read it."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snugnet.budgets.budget import Budget
from snugnet.cli.options import Lose, data_of_run, read_lose
from snugnet.cli.printing import Json, print_json, print_table, say
from snugnet.deploy.card import read_certificate
from snugnet.errors import BadInput, BudgetExceeded, DataMissing
from snugnet.progress import RichProgress
from snugnet.store import read_bytes, sha256
from snugnet.units import show

if TYPE_CHECKING:
    from torch import Tensor

    from snugnet.data.dataset import Data
    from snugnet.deploy.export import Exported
    from snugnet.deploy.network_file import NetworkFile

Source = Annotated[
    str,
    typer.Argument(
        metavar="RUN_OR_NETWORK",
        help="A run folder, a .safetensors file, a published network's name, or what a run can start from.",
        show_default=False,
    ),
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
TimmFolder = Annotated[
    Path | None,
    typer.Option(
        "--timm",
        metavar="FOLDER",
        help="Write a folder for timm instead: `import snugnet.timm` opens local-dir:FOLDER.",
    ),
]
HubFolder = Annotated[
    Path | None,
    typer.Option(
        "--hub", metavar="FOLDER", help="Write a folder for a model hub instead, with certificate and README."
    ),
]
PteFile = Annotated[
    Path | None, typer.Option("--pte", metavar="FILE", help="Write an ExecuTorch programme instead (needs executorch).")
]
Licence = Annotated[str, typer.Option("--licence", help="What the README of --hub says, e.g. apache-2.0.")]
Eight = Annotated[
    bool,
    typer.Option("--int8", help="Also write it in int8 (FILE.int8.onnx), calibrated on the run's training images."),
]
CHECK_IMAGES = 16


def export(
    network: Source,
    out: OnnxOut = None,
    program: Program = True,
    image: CheckImages = None,
    certificate: Sealed = None,
    timm: TimmFolder = None,
    hub: HubFolder = None,
    licence: Licence = "",
    pte: PteFile = None,
    int8: Eight = False,
    lose: Lose = "at-most=0.5%",
    json: Json = False,
) -> None:
    """Write a network to an ONNX file that computes exactly what PyTorch computes, or write nothing."""
    from snugnet.deploy.source import home_of, open_source  # brings torch in: not for `snugnet --help`

    most = read_lose(lose)
    saved, home = open_source(network), home_of(network)
    say(f"read {network}")
    data = data_of_run(home, saved.plan.resolution) if int8 else None
    answer: dict[str, Any] = {}
    if timm is not None:
        answer |= _timm(saved, timm)
    if hub is not None:
        answer |= _hub(network, saved, hub, licence, _images(home, saved, image or []))
    if pte is not None:
        answer |= _pte(saved, pte, _images(home, saved, image or []))
    if out is not None or int8 or not answer:
        answer |= _onnx(network, saved, home, out, program, image or [], certificate, table=not json)
    if data is not None:
        answer["int8"] = _int8(Path(answer["path"]), data, most, home)
    if json:
        print_json(answer)


def _pte(saved: NetworkFile, target: Path, images: Tensor | None) -> dict[str, Any]:
    from snugnet.deploy.executorch_file import export_executorch

    say(f"exporting to {target}, which takes 10 to 60 seconds")
    comparisons = export_executorch(saved.network, target, images=images)
    worst = max(row.largest for row in comparisons)
    say(f"wrote {target}; its logits differ from PyTorch's by {worst:.1e} at most")
    return {"pte": str(target), "pte_comparisons": [asdict(row) for row in comparisons]}


def _int8(graph: Path, data: Data, lose: float, home: Path | None) -> dict[str, Any]:
    """Written with a certificate of its own beside it, for the limits of the float network's."""
    from snugnet.deploy.certificate import certify
    from snugnet.deploy.int8 import export_int8
    from snugnet.devices.onnx_devices import OnnxRuntime

    target = graph.with_suffix(".int8.onnx")
    outcome = export_int8(graph, target, data, lose=lose, progress=RichProgress())
    say(outcome.message)
    answer = outcome.to_json()
    if outcome.path is None:
        return answer
    say(f"wrote {target} ({outcome.scheme})")
    promise = home / "certificate.json" if home is not None else None
    if promise is None or not promise.is_file():
        say("no certificate of the float network, so none for int8: `snugnet certify` makes one")
        return answer
    limits = _limits(read_certificate(promise))
    papers = target.with_name("certificate.int8.json")
    try:
        certify(target, limits, OnnxRuntime(), accuracy=outcome.accuracy, out=papers)
    except BudgetExceeded as error:
        say(str(error))
    say(f"wrote {papers}")
    return answer | {"certificate": read_certificate(papers)}


def _timm(saved: NetworkFile, folder: Path) -> dict[str, Any]:
    from snugnet.deploy.folder import write_folder

    write_folder(saved, folder)
    say(f"wrote {folder}; open it with: import timm, snugnet.timm; timm.create_model('local-dir:{folder}')")
    return {"timm": str(folder), "weights_sha256": saved.weights_sha256}


def _hub(name: str, saved: NetworkFile, folder: Path, licence: str, images: Tensor | None) -> dict[str, Any]:
    from snugnet.deploy.hub import write_hub_folder

    write_hub_folder(name, folder, licence=licence, images=images)
    names = ", ".join(sorted(path.name for path in folder.iterdir()))
    say(f"wrote {folder}: {names}")
    return {"hub": str(folder), "weights_sha256": saved.weights_sha256}


def _onnx(
    name: str,
    saved: NetworkFile,
    home: Path | None,
    out: Path | None,
    program: bool,
    images: list[Path],
    certificate: Path | None,
    *,
    table: bool,
) -> dict[str, Any]:
    from snugnet.deploy.export import check_path
    from snugnet.deploy.export import export as export_network

    if out is None and home is None:
        rule = "an ONNX file of a network without a file of its own must be named"
        raise BadInput(rule, value=name, remedy="Say --out network.onnx.")
    target = out or _beside(name)
    check_path(target, ".onnx")
    promise = _certificate(home, saved, certificate)
    checked = _images(home, saved, images)
    say(f"exporting to {target}, which takes 5 to 60 seconds")
    beside = target.with_suffix(".pt2") if program else None
    exported = export_network(saved.network, target, card=saved.card, images=checked, program=beside)
    exported = _stamp(exported, saved, promise, certificate)
    if table:
        rows = [[r.form, r.images, str(r.batch), f"{r.largest:.1e}", f"{r.relative:.1e}"] for r in exported.comparisons]
        print_table(str(exported.path), ["form", "images", "batch", "largest difference", "relative"], rows, left=2)
        size = exported.path.stat().st_size / 2**20
        say(f"{exported.classes} classes, input {list(exported.input_shape)}, opset {exported.opset}, {size:.2f} MiB")
    say(f"wrote {exported.path}" + (f" and {beside}" if beside else ""))
    return asdict(exported) | {"path": str(exported.path), "program": str(beside) if beside else None}


def _beside(name: str) -> Path:
    """network.onnx in a run folder, net.onnx beside net.safetensors."""
    from snugnet.deploy.network_file import find_network

    path = Path(name)
    return (path if path.suffix in (".pth", ".pt") else find_network(path)).with_suffix(".onnx")


def _certificate(home: Path | None, saved: NetworkFile, given: Path | None) -> dict[str, Any]:
    """The certificate to name in the file; empty if there is none."""
    path = given or (home / "certificate.json" if home is not None else None)
    if path is None or (given is None and not path.is_file()):
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
    limits = _limits(promise).to_json()
    stamp(exported.path, certificate_sha256=promise["sha256"], budget=saved.card.budget or limits)
    return replace(exported, sha256=sha256(read_bytes(exported.path)))


def _limits(promise: dict[str, Any]) -> Budget:
    """What a certificate's network was held against."""
    return Budget(
        {
            name: {
                "limit": show(line["limit"], name),
                **({"statistic": line["statistic"]} if "statistic" in line else {}),
            }
            for name, line in promise["budgets"].items()
        }
    )


def _of_another(path: Path) -> BadInput:
    remedy = "Certify the network that is exported."
    return BadInput("the certificate must be of this network", value=str(path), remedy=remedy)


def _images(home: Path | None, saved: NetworkFile, paths: list[Path]) -> Tensor | None:
    """Real images to check on: the given files, else the run's own test images."""
    import torch

    from snugnet.deploy.prediction import predictor_of, prepare

    if paths:
        predictor = predictor_of(saved)
        return torch.stack([prepare(path, predictor) for path in paths])
    if home is None or not (home / "recipe.yaml").is_file():
        return None
    recipe = home / "recipe.yaml"
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
