"""`snugnet rank`: how good are sub-networks with inherited weights, and do they rank as elsewhere?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from snugnet.cli.printing import Json, print_json, print_table, say
from snugnet.errors import BadInput
from snugnet.progress import Progress, RichProgress
from snugnet.store import read_json, read_text, write_json

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a trained run.")]
Count = Annotated[int, typer.Option("--count", min=1, help="How many random sub-networks.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Which random sub-networks.")]
Given = Annotated[
    Path | None, typer.Option("--architectures", help="A file with an architecture a line, instead of random ones.")
]
Against = Annotated[Path | None, typer.Option("--against", metavar="RUN", help="Another run with the same space.")]
Alone = Annotated[
    int, typer.Option("--stand-alone", min=0, metavar="EPOCHS", help="Compare with networks trained from scratch.")
]
Split = Annotated[str, typer.Option("--split", help="val or test.")]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads (default: torch's choice).")]


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
    import torch

    from snugnet.evaluate import ranking
    from snugnet.fitting.runs import open_run

    if split not in ("val", "test"):
        raise BadInput("--split must be val or test", value=split, remedy="Training images say nothing here.")
    if threads is not None:
        torch.set_num_threads(threads)
    shown: Progress = RichProgress()
    opened = open_run(run)
    space = opened.supernet.space
    if architectures is not None:
        chosen = _read(architectures, space)
    else:
        chosen = ranking.random_architectures(space, count, seed)
    right = _inherited(opened, chosen, split, shown)
    facts: dict[str, Any] = {"run": str(run), "split": split, "images": right.shape[1]}
    facts["networks"] = [
        {"architecture": str(a), "accuracy": round(float(r.double().mean()), 6)} for a, r in zip(chosen, right)
    ]
    facts["spread"] = ranking.spread(right).to_json()
    if against is not None:
        other = open_run(against)
        if other.supernet.space != space or other.data.identity() != opened.data.identity():
            raise BadInput(
                "both runs must have one space and one data set", value=str(against), remedy="Take a fitting run."
            )
        facts["against"] = {"run": str(against), **_compare(right, _inherited(other, chosen, split, shown))}
    if stand_alone:
        alone = _stand_alone(opened, chosen, split, stand_alone, shown)
        facts["stand_alone"] = {"epochs": stand_alone, **_compare(right, alone)}
    write_json(run / "rank.json", facts)
    _tell(facts, run, json)


def _inherited(opened: Any, chosen: list[Any], split: str, shown: Progress) -> Any:
    from snugnet.evaluate.ranking import inherited

    seed = opened.recipe.seed
    return inherited(opened.supernet, opened.data, chosen, split=split, seed=seed, progress=shown)


def _stand_alone(opened: Any, chosen: list[Any], split: str, epochs: int, shown: Progress) -> Any:
    """Train each network from scratch with the settings of the run's last phase; results are kept as they come."""
    from snugnet.evaluate.ranking import stand_alone
    from snugnet.evaluate.scoring import ImageCache, answers
    from snugnet.training.run import scratch_like, train_standalone

    part, seed = opened.recipe.train, opened.recipe.seed
    phases = part.methods()
    path = opened.folder / "stand_alone.json"
    recipe = {"split": split, "batch": part.batch, "seed": seed, **scratch_like(phases[-1], epochs).describe()}
    saved = read_json(path) if path.exists() else {}
    known = saved.get("right", {}) if saved.get("recipe") == recipe else {}
    images = ImageCache(opened.data)
    options = {"batch": part.batch, "channels_last": part.channels_last}

    def train_one(architecture: Any) -> Any:
        space = opened.supernet.space
        net = train_standalone(architecture, space, opened.data, phases, epochs=epochs, seed=seed, **options)
        return answers(net, images, split).right

    return stand_alone(chosen, train_one, known, lambda: _keep(path, recipe, known), shown)


def _keep(path: Path, recipe: dict[str, Any], known: dict[str, list[bool]]) -> None:
    write_json(path, {"recipe": recipe, "right": known})


def _compare(right: Any, other: Any) -> dict[str, Any]:
    from snugnet.evaluate.ranking import agreement, spread

    ones, others = right.double().mean(1).tolist(), other.double().mean(1).tolist()
    return {
        **agreement(ones, others).to_json(),
        "spread": spread(other).to_json(),
        "accuracies": [round(value, 6) for value in others],
    }


def _read(path: Path, space: Any) -> list[Any]:
    from snugnet.space.architecture import parse

    lines = [line.strip() for line in read_text(path).splitlines()]
    chosen = [parse(line, space) for line in lines if line and not line.startswith("#")]
    if not chosen:
        raise BadInput(f"{path} must hold an architecture a line", remedy="`snugnet rank RUN --json` prints some.")
    return chosen


def _tell(facts: dict[str, Any], run: Path, json: bool) -> None:
    if json:
        print_json(facts)
        return
    rows = [[row["architecture"], f"{row['accuracy']:.2%}"] for row in facts["networks"]]
    print_table(
        f"Sub-networks of {run} on {facts['images']} images ({facts['split']})", ["architecture", "accuracy"], rows
    )
    _say_spread("inherited weights", facts["spread"])
    for key in ("against", "stand_alone"):
        if key in facts:
            found = facts[key]
            name = f"run {found['run']}" if key == "against" else f"stand-alone, {found['epochs']} epochs"
            _say_spread(name, found["spread"])
            print(f"{name}: tau {found['tau']:.3f} (p {found['tau_p']:.2g}), rho {found['rho']:.3f}")
    say(f"wrote {run / 'rank.json'}")


def _say_spread(name: str, spread: dict[str, float]) -> None:
    print(
        f"{name}: mean {spread['mean']:.2%}, {spread['lowest']:.2%} to {spread['highest']:.2%}, deviation "
        f"{spread['deviation']:.2%}; standard error of a difference {spread['error']:.2%}"
    )
