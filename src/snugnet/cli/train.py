"""`snugnet train`: a recipe becomes a trained super-network in a run folder; `snugnet finetune`: the network found in it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snugnet.budgets.budget import Budget
from snugnet.cli.options import (
    Changes,
    MethodOptions,
    NewRun,
    RecipeName,
    RunFolder,
    Threads,
    TrackerNames,
    locks_run,
    open_for_search,
    read_options,
    with_trackers,
)
from snugnet.cli.printing import Json, print_json, say
from snugnet.errors import BadInput, UnknownName
from snugnet.progress import RichProgress
from snugnet.space.architecture import Architecture, from_json
from snugnet.store import RunLock, read_json

if TYPE_CHECKING:
    from snugnet.fitting.runs import Run

Resume = Annotated[
    bool, typer.Option("--resume/--no-resume", help="Go on with the run in the folder, or refuse a folder with a run.")
]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu or cuda (default: the recipe's).")]
Epochs = Annotated[int | None, typer.Option("--epochs", min=0, help="Epochs (default: the recipe's).")]
TransferTo = Annotated[
    str | None, typer.Option("--transfer", metavar="DATA", help="Train the finished network on this data set.")
]
Scratch = Annotated[bool, typer.Option("--scratch", help="From random weights instead of inherited ones.")]


def train(
    recipe: RecipeName,
    out: NewRun,
    resume: Resume = True,
    changes: Changes = None,
    threads: Threads = None,
    device: Device = None,
    tracker: TrackerNames = None,
    json: Json = False,
) -> None:
    """Train a super-network. Killed at any moment, the same command goes on to the same result."""
    from snugnet import fitting
    from snugnet.fitting import runs
    from snugnet.fitting.places import training_costs
    from snugnet.fitting.tasks import train_recipe
    from snugnet.training.team import leads

    if device not in (None, "auto", "cpu", "cuda"):
        raise UnknownName("device", device, ["auto", "cpu", "cuda"])
    plan = fitting.find(recipe, with_trackers(changes, tracker))
    data = plan.load_data()
    supernet = runs.first_supernet(plan, data)
    speaks = leads()  # under torchrun one process speaks for all, and holds the folder
    with RunLock(out) if speaks else nullcontext():
        known = runs.init_run(out, plan)
        if speaks:
            origin = out / "recipe.yaml" if known else recipe
            say(f"{'going on with' if known else 'read'} {origin}; data {data.about.name}")
        options: dict[str, Any] = {"resume": resume, "threads": threads, "progress": RichProgress()}
        options |= {} if device is None else {"device": device}
        options |= training_costs(plan, out, supernet.space)
        result = train_recipe(plan, supernet, data, out, **options)
    if not speaks:
        return
    for note in result.notes:
        say(f"passed over a damaged checkpoint: {note}")
    if json:
        facts = {"run": str(out), "steps": result.steps, "images": result.images, "seconds": round(result.seconds, 2)}
        facts["loss"] = result.loss if result.loss == result.loss else None
        facts["accuracy"] = {name: round(value, 6) for name, value in result.accuracies.items()}
        facts |= {"resumed_at": result.resumed_at, "damaged": list(result.notes), "weights": str(result.weights)}
        print_json(facts)
        return
    scores = ", ".join(f"{name} {value:.2%}" for name, value in result.accuracies.items())
    print(f"{result.steps} steps in {result.seconds:.0f} s; held-out accuracy: {scores}")
    say(f"wrote {result.weights}, {out / 'train.jsonl'}, {out / 'state'}")


@locks_run
def finetune(
    run: RunFolder,
    epochs: Epochs = None,
    scratch: Scratch = False,
    option: MethodOptions = None,
    transfer: TransferTo = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Train the network that `snugnet search` found, with the largest network as teacher; killed, it goes on.

    With --transfer DATA, train the run's finished network on other images instead (150 epochs of AttentiveNAS's settings,
    learning rate and weight decay searched on held-out images)."""
    from snugnet.fitting.finetuning import finetune_found
    from snugnet.fitting.runs import first_supernet

    if transfer is not None:
        _transfer(run, transfer, epochs, scratch, read_options(option), threads, json)
        return
    opened = open_for_search(run, threads)
    path = run / "architecture.json"
    if not path.exists():
        raise BadInput(f"{run} must hold a found network", value=str(path), remedy="Run `snugnet search` first.")
    architecture = from_json(read_json(path), opened.supernet.space)
    section = opened.recipe.finetune
    changes = {"scratch": scratch or section.scratch, "options": {**section.options, **read_options(option)}}
    if epochs is not None:
        changes["epochs"] = epochs
    recipe, section = opened.recipe, section.model_copy(update=changes)
    tuned = finetune_found(
        opened.supernet,
        recipe.load_data(architecture.resolution, whole=True),  # at its own resolution; a subset was for the search
        architecture,
        section,
        run,
        seed=opened.recipe.seed,
        channels_last=opened.recipe.train.channels_last,
        threads=threads,
        device=opened.recipe.train.device,
        progress=RichProgress(),
        budget=_found_for(opened, architecture).to_json(),
        origin=first_supernet(opened.recipe, opened.data) if section.from_start and not section.scratch else None,
        trackers=opened.recipe.trackers,
    )
    network = run / "network.safetensors"
    if json:
        facts = {"network": str(network), "accuracy": tuned.val, "test_accuracy": tuned.test}
        facts |= {
            name: value for name, value in tuned.to_json().items() if name in ("before", "teacher", "worse", "learnt")
        }
        print_json({**facts, "architecture": str(architecture)})
    else:
        print(tuned)
    say(f"read {path}; wrote {network}")


def _transfer(
    run: Path, data: str, epochs: int | None, scratch: bool, options: dict[str, Any], threads: int | None, json: bool
) -> None:
    from snugnet.fitting.transfer import Transfer
    from snugnet.fitting.transfer import transfer as train_on

    if scratch:
        raise BadInput("--transfer starts from the network's weights", value="--scratch", remedy="Leave one out.")
    how = Transfer.of(options if epochs is None else {**options, "epochs": epochs})
    out = run / "transfer" / "".join(c if c.isalnum() else "-" for c in data)
    done = train_on(run, data, how, out=out, threads=threads, progress=RichProgress())
    if json:
        print_json(done.to_json())
    else:
        print(done)
    say(f"read {run}; wrote {done.network}, {out / 'transfer.json'}")


def _found_for(opened: Run, architecture: Architecture) -> Budget:
    """The budget of the search that found the network; the recipe's, if the last search found another one."""
    from snugnet.searching.result import load_result

    path = opened.folder / "search.json"
    if path.exists():
        result = load_result(path, opened.supernet.space)
        if result.architecture == architecture:
            return result.budget
    return Budget(opened.recipe.budget)
