"""Networks as files: `snugnet export` writes an ONNX file checked against PyTorch, `snugnet predict` runs one on images."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snugnet.budgets.budget import Budget
from snugnet.cli.printing import Json, print_json, print_table, say
from snugnet.errors import BadInput, DataMissing
from snugnet.store import read_bytes, sha256
from snugnet.units import show

if TYPE_CHECKING:
    from torch import Tensor

    from snugnet.deploy.export import Exported
    from snugnet.deploy.network_file import NetworkFile

Source = Annotated[
    Path, typer.Argument(metavar="RUN_OR_NETWORK", help="A run folder or a .safetensors file.", show_default=False)
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="The .onnx file to write; beside the network unless told.")
]
Program = Annotated[
    bool, typer.Option("--program/--no-program", help="Write the torch.export programme (.pt2) beside it as well.")
]
Images = Annotated[
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


def export(
    network: Source,
    out: Out = None,
    program: Program = True,
    image: Images = None,
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
    exported = export_network(
        saved.network,
        target,
        card=saved.card,
        images=images,
        program=target.with_suffix(".pt2") if program else None,
    )
    exported = _stamp(exported, saved, promise, certificate)
    if json:
        print_json(
            asdict(exported)
            | {"path": str(exported.path), "program": str(exported.program) if exported.program else None}
        )
    else:
        _print(exported)
    say(f"wrote {exported.path}" + (f" and {exported.program}" if exported.program else ""))


def _certificate(file: Path, saved: NetworkFile, given: Path | None) -> dict[str, Any]:
    """The certificate to name in the file; empty if there is none."""
    from snugnet.deploy.card import read_certificate

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
    from snugnet.deploy.onnx_file import stamp

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
    stamp(exported.path, certificate_sha256=promise["sha256"], budget=dict(saved.card.budget) or limits)
    return replace(exported, sha256=sha256(read_bytes(exported.path)))


def _of_another(path: Path) -> BadInput:
    return BadInput(
        "the certificate must be of this network", value=str(path), remedy="Certify the network that is exported."
    )


def _images(file: Path, saved: NetworkFile, paths: list[Path]) -> Tensor | None:
    """Real images to check on: the given files, else the run's own test images."""
    import torch

    from snugnet.deploy.prediction import predictor_of, prepare

    plan = saved.plan
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
    if tuple(images.shape[1:]) != (plan.stem.in_channels, plan.resolution, plan.resolution):
        say(f"checked on random images only: the run's images are {list(images.shape[1:])}")
        return None
    return images


def _print(exported: Exported) -> None:
    rows = [
        [row.form, row.images, str(row.batch), f"{row.largest:.1e}", f"{row.relative:.1e}"]
        for row in exported.comparisons
    ]
    print_table(str(exported.path), ["form", "images", "batch", "largest difference", "relative"], rows, left=2)
    size = exported.path.stat().st_size / 2**20
    say(f"{exported.classes} classes, input {list(exported.input_shape)}, opset {exported.opset}, {size:.2f} MiB")


def predict(network: Runnable, images: Inputs, top: Top = None, json: Json = False) -> None:
    """Name the most probable classes of images."""
    from snugnet.deploy import prediction  # brings torch in: not for `snugnet --help`

    predictor = prediction.open_predictor(network)
    predictions = prediction.predict(predictor, images, top=top)
    if predictor.remark:
        say(f"snugnet: {predictor.remark}")
    if json:
        print_json(
            [
                {
                    "image": row.image,
                    "top": [
                        {"label": guess.label, "class": guess.name, "probability": guess.probability}
                        for guess in row.guesses
                    ],
                }
                for row in predictions
            ]
        )
        return
    rows = [
        [row.image if place == 0 else "", guess.name, f"{100 * guess.probability:.1f} %"]
        for row in predictions
        for place, guess in enumerate(row.guesses)
    ]
    print_table(str(network), ["image", "class", "probability"], rows, left=2)
