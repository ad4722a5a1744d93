"""`snugnet classes`: how well a trained network knows each class, so that a search can run on a part of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from snugnet.cli.options import Threads
from snugnet.cli.printing import Json, print_json, print_table, say
from snugnet.errors import BadInput
from snugnet.store import check_writable

NetworkName = Annotated[
    str,
    typer.Argument(metavar="NETWORK", help="A network file or run of ours, efficientnet-lite0, timm:NAME or a file."),
]
DataName = Annotated[
    str, typer.Argument(metavar="DATA", help="digits, fashion-mnist, cifar10, cifar100 or folder:PATH.")
]
Out = Annotated[Path, typer.Option("--out", help="The JSON file that a recipe's data.subset.accuracies names.")]
Root = Annotated[str | None, typer.Option("--root", help="Where a published set's files are.")]
Groups = Annotated[
    int | None, typer.Option("--groups", min=1, help="Show which class each of so many groups would give.")
]
Seed = Annotated[int, typer.Option("--seed", help="Of the draw.")]


def classes(
    network: NetworkName,
    data: DataName,
    out: Out = Path("classes.json"),
    root: Root = None,
    groups: Groups = None,
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Evaluate a network class by class on the training images of a data set, and keep the accuracies."""
    import dataclasses

    import torch

    from snugnet.data import load as load_data
    from snugnet.deploy.network_file import read_network
    from snugnet.evaluate.class_subset import class_accuracies, pick_classes
    from snugnet.nets.trained.starts import load_start

    if threads is not None:
        torch.set_num_threads(threads)
    check_writable(out)
    if Path(network).is_dir() or network.endswith(".safetensors"):
        file = read_network(network)
        net = file.network
        normalisation: dict[str, Any] = {"mean": file.card.mean, "std": file.card.std} if file.card.mean else {}
    else:
        start = load_start(network)
        net, normalisation = start.network(), start.normalisation
    images = load_data(data, resolution=net.plan.resolution, root=root)
    images = dataclasses.replace(images, about=dataclasses.replace(images.about, **normalisation))
    if net.plan.head.classes != images.classes:
        raise BadInput(
            f"{network} must know the {images.classes} classes of {data}",
            value=f"{net.plan.head.classes} classes",
            remedy="Take a network that was trained on this data.",
        )
    found = class_accuracies(net, images)
    found.save(out)
    picked = None if groups is None else pick_classes(found.accuracy, groups, seed)
    if json:
        print_json({**found.model_dump(), "out": str(out), **({} if picked is None else {"classes": picked})})
        return
    order = sorted(range(len(found.accuracy)), key=found.accuracy.__getitem__)
    shown = [c for c in order if picked is None or c in picked]
    rows = [[str(c), found.class_names[c], f"{found.accuracy[c]:.1%}"] for c in shown]
    print_table("Accuracy by class, hardest first", ["number", "class", "accuracy"], rows, left=2)
    say(f"wrote {out}; a recipe takes it as data: {{subset: {{accuracies: {out}, groups: N}}}}")
