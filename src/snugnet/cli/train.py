"""`snugnet train`: a recipe becomes a trained super-network in a run folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from snugnet.cli.printing import Json, print_json, say
from snugnet.progress import RichProgress

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A shipped recipe's name or a YAML file.")]
Out = Annotated[Path, typer.Option("--out", metavar="RUN", help="The run folder; made if it is not there.")]
Resume = Annotated[
    bool, typer.Option("--resume/--no-resume", help="Go on with the run in the folder, or refuse a folder with a run.")
]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe: train.phases[0].epochs=3.")
]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads (default: torch's choice).")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]


def train(
    recipe: RecipeName,
    out: Out,
    resume: Resume = True,
    changes: Changes = None,
    threads: Threads = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Train a super-network. Killed at any moment, the same command goes on to the same result."""
    from snugnet import fitting
    from snugnet.fitting import runs
    from snugnet.training import train as run_training

    wanted = fitting.find(recipe, changes or [])
    data = wanted.data.load()
    space = wanted.space.build(data)
    known = runs.init_run(out, wanted)
    if os.environ.get("RANK", "0") == "0":
        say(
            f"{'going on with' if known else 'read'} {out / 'recipe.yaml' if known else recipe}; data {data.about.name}"
        )
    part = wanted.train
    result = run_training(
        runs.fresh_supernet(space, wanted.seed),
        data,
        part.methods(),
        out=out,
        seed=wanted.seed,
        batch=part.batch,
        accumulate=part.accumulate,
        resume=resume,
        threads=threads,
        device=device,
        precision=part.precision,
        channels_last=part.channels_last,
        eval_times=part.eval_times,
        checkpoint_seconds=part.checkpoint_seconds,
        progress=RichProgress(),
    )
    if os.environ.get("RANK", "0") != "0":
        return  # under torchrun one process speaks for all
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
