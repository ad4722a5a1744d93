"""How good networks are: `snugnet rank` sub-networks with inherited weights, against the same elsewhere; `snugnet classes` a
trained network on each class, so that a search can run on a part of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snugnet.cli.options import RunFolder, Seed, Threads, locks_run, open_for_search
from snugnet.cli.printing import Json, print_json, print_table, say
from snugnet.errors import BadInput
from snugnet.progress import Progress, RichProgress
from snugnet.store import Journal, check_writable, fingerprint, read_text, write_json

if TYPE_CHECKING:
    from torch import Tensor

    from snugnet.fitting.runs import Run
    from snugnet.space.architecture import Architecture
    from snugnet.space.space import SearchSpace

Count = Annotated[int, typer.Option("--count", min=1, help="How many random sub-networks.")]
Given = Annotated[
    Path | None, typer.Option("--architectures", help="A file with an architecture per line, instead of random ones.")
]
Against = Annotated[Path | None, typer.Option("--against", metavar="RUN", help="Another run with the same space.")]
Alone = Annotated[
    int, typer.Option("--stand-alone", min=0, metavar="EPOCHS", help="Compare with networks trained from scratch.")
]
Split = Annotated[str, typer.Option("--split", help="val or test.")]
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
DrawSeed = Annotated[int, typer.Option("--seed", help="Of the draw.")]


@locks_run
def rank(
    run: RunFolder,
    count: Count = 30,
    seed: Seed = 0,
    architectures: Given = None,
    against: Against = None,
    stand_alone: Alone = 0,
    split: Split = "val",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Evaluate sub-networks of a run (recalibrated), and correlate them with another run or with stand-alone training."""
    from snugnet.evaluate import ranking  # brings torch in: not for `snugnet --help`

    if split not in ("val", "test"):
        raise BadInput("--split must be val or test", value=split, remedy="Training images say nothing here.")
    progress: Progress = RichProgress()
    opened = open_for_search(run, threads)
    space = opened.supernet.space
    networks = _read(architectures, space) if architectures else ranking.random_architectures(space, count, seed)
    right = _inherited(opened, networks, split, progress)
    facts: dict[str, Any] = {"run": str(run), "split": split, "images": right.shape[1]}
    facts["networks"] = [
        {"architecture": str(a), "accuracy": round(float(r.double().mean()), 6)} for a, r in zip(networks, right)
    ]
    facts["spread"] = ranking.spread(right).to_json()
    if against is not None:
        other = open_for_search(against, threads)
        if other.supernet.space != space or other.data.identity() != opened.data.identity():
            remedy = "Name a run of the same space and data."
            raise BadInput("both runs must have one space and one data set", value=str(against), remedy=remedy)
        facts["against"] = {"run": str(against), **_compare(right, _inherited(other, networks, split, progress))}
    if stand_alone:
        alone = _stand_alone(opened, networks, split, stand_alone, progress)
        facts["stand_alone"] = {"epochs": stand_alone, **_compare(right, alone)}
    write_json(run / "rank.json", facts)
    _tell(facts, run, json)


def _inherited(opened: Run, networks: list[Architecture], split: str, progress: Progress) -> Tensor:
    from snugnet.evaluate.ranking import inherited

    seed = opened.recipe.seed
    return inherited(opened.supernet, opened.data, networks, split=split, seed=seed, progress=progress)


def _stand_alone(opened: Run, networks: list[Architecture], split: str, epochs: int, progress: Progress) -> Tensor:
    """Train each network from scratch with the settings of the run's last phase; results are kept as they come."""
    from snugnet.evaluate.ranking import stand_alone
    from snugnet.evaluate.scoring import ImageCache, answers
    from snugnet.training.run import scratch_like, train_standalone

    part, seed = opened.recipe.train, opened.recipe.seed
    phases = part.methods()
    recipe = {"split": split, "batch": part.batch, "seed": seed, **scratch_like(phases[-1], epochs).describe()}
    journal = Journal(opened.folder / "stand_alone.jsonl", fingerprint(recipe), ("architecture", "right"))
    images = ImageCache(opened.data)
    options: dict[str, Any] = {"batch": part.batch, "channels_last": part.channels_last}

    def train_one(architecture: Architecture) -> Tensor:
        space = opened.supernet.space
        net = train_standalone(architecture, space, opened.data, phases, epochs=epochs, seed=seed, **options)
        return answers(net, images, split).right

    return stand_alone(networks, train_one, journal, progress)


def _compare(right: Tensor, other: Tensor) -> dict[str, Any]:
    from snugnet.evaluate.ranking import agreement, spread

    ones, others = right.double().mean(1).tolist(), other.double().mean(1).tolist()
    return {
        **agreement(ones, others).to_json(),
        "spread": spread(other).to_json(),
        "accuracies": [round(value, 6) for value in others],
    }


def _read(path: Path, space: SearchSpace) -> list[Architecture]:
    from snugnet.space.architecture import parse

    lines = [line.strip() for line in read_text(path).splitlines()]
    networks = [parse(line, space) for line in lines if line and not line.startswith("#")]
    if not networks:
        raise BadInput(f"{path} must hold an architecture per line", remedy="`snugnet rank RUN --json` prints some.")
    return networks


def _tell(facts: dict[str, Any], run: Path, json: bool) -> None:
    if json:
        print_json(facts)
        return
    rows = [[row["architecture"], f"{row['accuracy']:.2%}"] for row in facts["networks"]]
    title = f"Sub-networks of {run} on {facts['images']} images ({facts['split']})"
    print_table(title, ["architecture", "accuracy"], rows)
    _say_spread("inherited weights", facts["spread"])
    for key in ("against", "stand_alone"):
        if key in facts:
            other = facts[key]
            name = f"run {other['run']}" if key == "against" else f"stand-alone, {other['epochs']} epochs"
            _say_spread(name, other["spread"])
            print(f"{name}: tau {other['tau']:.3f} (p {other['tau_p']:.2g}), rho {other['rho']:.3f}")
    say(f"wrote {run / 'rank.json'}")


def _say_spread(name: str, spread: dict[str, float]) -> None:
    print(
        f"{name}: mean {spread['mean']:.2%}, {spread['lowest']:.2%} to {spread['highest']:.2%}, deviation "
        f"{spread['deviation']:.2%}; standard error of a difference {spread['error']:.2%}"
    )


def classes(
    network: NetworkName,
    data: DataName,
    out: Out = Path("classes.json"),
    root: Root = None,
    groups: Groups = None,
    seed: DrawSeed = 0,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Evaluate a network class by class on the training images of a data set, and keep the accuracies."""
    import torch

    from snugnet.data import load as load_data
    from snugnet.deploy.network_file import read_network
    from snugnet.evaluate.class_subset import class_accuracies, pick_classes
    from snugnet.nets.trained import load_start

    if threads is not None:
        torch.set_num_threads(threads)
    check_writable(out)
    if Path(network).is_dir() or network.endswith(".safetensors"):
        file = read_network(network)
        net = file.network
        mean, std = file.card.mean, file.card.std
    else:
        start = load_start(network)
        net, mean, std = start.network(), start.mean, start.std
    images = load_data(data, resolution=net.plan.resolution, root=root).normalised_by(mean, std)
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
