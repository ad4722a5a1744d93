"""`snugnet train`: a recipe becomes a trained super-network in a run folder."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from snugnet.cli.printing import Json, print_json, say
from snugnet.errors import UnknownName
from snugnet.progress import RichProgress
from snugnet.store import RunLock

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A shipped recipe's name or a YAML file.")]
Out = Annotated[Path, typer.Option("--out", metavar="RUN", help="The run folder; made if it is not there.")]
Resume = Annotated[
    bool, typer.Option("--resume/--no-resume", help="Go on with the run in the folder, or refuse a folder with a run.")
]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe: train.phases[0].epochs=3.")
]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads (default: torch's choice).")]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu or cuda (default: the recipe's).")]


def train(
    recipe: RecipeName,
    out: Out,
    resume: Resume = True,
    changes: Changes = None,
    threads: Threads = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Train a super-network. Killed at any moment, the same command goes on to the same result."""
    from snugnet import fitting
    from snugnet.fitting import runs
    from snugnet.fitting.pipeline import train_recipe

    if device not in (None, "auto", "cpu", "cuda"):
        raise UnknownName("device", device, ["auto", "cpu", "cuda"])
    plan = fitting.find(recipe, changes or [])
    data = plan.load_data()
    supernet = runs.first_supernet(plan, data)
    speaks = os.environ.get("RANK", "0") == "0"  # under torchrun one process speaks for all, and holds the folder
    with RunLock(out) if speaks else nullcontext():
        known = runs.init_run(out, plan)
        if speaks:
            origin = out / "recipe.yaml" if known else recipe
            say(f"{'going on with' if known else 'read'} {origin}; data {data.about.name}")
        options: dict[str, Any] = {"resume": resume, "threads": threads, "progress": RichProgress()}
        options |= {} if device is None else {"device": device}
        result = train_recipe(plan, supernet, data, out, **options)
    if not speaks:
        return
    for note in result.notes:
        say(f"passed over a damaged checkpoint: {note}")
    _tell(result, out, json)


def _tell(result: Any, out: Path, json: bool) -> None:
    facts = {
        "run": str(out),
        "steps": result.steps,
        "images": result.images,
        "seconds": round(result.seconds, 2),
        "loss": result.loss if result.loss == result.loss else None,
        "accuracy": {name: round(value, 6) for name, value in result.accuracies.items()},
        "resumed_at": result.resumed_at,
        "damaged": list(result.notes),
        "weights": str(result.weights),
    }
    if json:
        print_json(facts)
        return
    scores = ", ".join(f"{name} {value:.2%}" for name, value in result.accuracies.items())
    print(f"{result.steps} steps in {result.seconds:.0f} s; held-out accuracy: {scores}")
    say(f"wrote {result.weights}, {out / 'train.jsonl'}, {out / 'state'}")
