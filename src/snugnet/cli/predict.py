"""`snugnet predict`: what a network sees in images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from snugnet.cli.printing import Json, print_json, print_table, say

NetworkFile = Annotated[
    Path, typer.Argument(metavar="NETWORK", help="A .onnx or .safetensors file, or a run folder.", show_default=False)
]
Images = Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Image files.", show_default=False)]
Top = Annotated[int | None, typer.Option("--top", help="How many classes to name; three unless told.")]


def predict(network: NetworkFile, images: Images, top: Top = None, json: Json = False) -> None:
    """Name the most probable classes of images."""
    from snugnet.deploy import prediction  # brings torch in: not for `snugnet --help`

    predictor = prediction.open_predictor(network)
    found = prediction.predict(predictor, images, top=top)
    if predictor.remark:
        say(f"snugnet: {predictor.remark}")
    if json:
        print_json(
            [
                {
                    "image": one.image,
                    "top": [
                        {"label": guess.label, "class": guess.name, "probability": guess.probability}
                        for guess in one.guesses
                    ],
                }
                for one in found
            ]
        )
        return
    rows = [
        [one.image if place == 0 else "", guess.name, f"{100 * guess.probability:.1f} %"]
        for one in found
        for place, guess in enumerate(one.guesses)
    ]
    print_table(str(network), ["image", "class", "probability"], rows, left=2)
