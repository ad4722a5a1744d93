"""`snugnet export`: a trained network as an ONNX file, checked against PyTorch."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
COUNT = 16


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
    read = read_network(file)
    say(f"read {file}")
    target = out or file.with_suffix(".onnx")
    check_path(target, ".onnx")
    found = _certificate(file, read, certificate)
    images = _images(file, read, image or [])
    say(f"exporting to {target}, which takes 5 to 60 seconds")
    made = export_network(
        read.network,
        target,
        card=read.card,
        images=images,
        program=target.with_suffix(".pt2") if program else None,
    )
    made = _stamped(made, read, found, certificate)
    if json:
        print_json(asdict(made) | {"path": str(made.path), "program": str(made.program) if made.program else None})
    else:
        _print(made)
    say(f"wrote {made.path}" + (f" and {made.program}" if made.program else ""))


def _certificate(file: Path, read: NetworkFile, given: Path | None) -> dict[str, Any]:
    """The certificate to name in the file; empty if there is none."""
    from snugnet.deploy.certificate import read_certificate

    path = given or file.parent / "certificate.json"
    if given is None and not path.is_file():
        return {}
    found = read_certificate(path)
    say(f"read {path}")
    about = found["network"]
    if given is not None and about["form"] != "onnx" and about["weights_sha256"] != read.weights_sha256:
        raise _of_another(given)
    return found


def _stamped(made: Exported, read: NetworkFile, found: dict[str, Any], given: Path | None) -> Exported:
    """With the certificate's hash and limits inside, if it is of this network, as weights or as a graph."""
    from snugnet.deploy.onnx_file import stamp

    if not found:
        return made
    if found["network"]["weights_sha256"] not in (made.weights_sha256, made.graph_sha256):
        if given is not None:
            raise _of_another(given)
        say("the certificate in the folder is of another network: not named in the file")
        return made
    limits = {name: show(line["limit"], name) for name, line in found["budgets"].items()}
    stamp(made.path, certificate_sha256=found["sha256"], budget=dict(read.card.budget) or limits)
    return replace(made, sha256=sha256(read_bytes(made.path)))


def _of_another(path: Path) -> BadInput:
    return BadInput(
        "the certificate must be of this network", value=str(path), remedy="Certify the network that is exported."
    )


def _images(file: Path, read: NetworkFile, paths: list[Path]) -> Tensor | None:
    """Real images to check on: the given files, else the run's own test images."""
    import torch

    from snugnet.deploy.prediction import Predictor, prepare

    plan = read.plan
    if paths:
        predictor = Predictor(
            card=read.card,
            channels=plan.stem.in_channels,
            resolution=plan.resolution,
            classes=plan.head.classes,
            logits=read.network,
        )
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
    images: torch.Tensor = next(iter(data.batches("test", COUNT, limit=COUNT)))[0]
    if tuple(images.shape[1:]) != (plan.stem.in_channels, plan.resolution, plan.resolution):
        say(f"checked on random images only: the run's images are {list(images.shape[1:])}")
        return None
    return images


def _print(made: Exported) -> None:
    rows = [
        [row.form, row.images, str(row.batch), f"{row.largest:.1e}", f"{row.relative:.1e}"] for row in made.comparisons
    ]
    print_table(str(made.path), ["form", "images", "batch", "largest difference", "relative"], rows, left=2)
    size = made.path.stat().st_size / 2**20
    say(f"{made.classes} classes, input {list(made.input_shape)}, opset {made.opset}, {size:.2f} MiB")
