"""`snugnet finetune`: the found network of a run, trained."""

from __future__ import annotations

from typing import Annotated

import typer

from snugnet.budgets.budget import Budget
from snugnet.cli.options import RunFolder, Threads, locks_run, open_for_search, read_options
from snugnet.cli.printing import Json, print_json, say
from snugnet.errors import BadInput
from snugnet.progress import RichProgress
from snugnet.space.architecture import from_json
from snugnet.store import read_json

Epochs = Annotated[int | None, typer.Option("--epochs", min=0, help="Epochs (default: the recipe's).")]
Scratch = Annotated[bool, typer.Option("--scratch", help="From random weights instead of inherited ones.")]
Options = Annotated[
    list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="An option of the method, e.g. lr=0.02.")
]


@locks_run
def finetune(
    run: RunFolder,
    epochs: Epochs = None,
    scratch: Scratch = False,
    option: Options = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Train the network that `snugnet search` found, with the largest network as teacher; killed, it goes on."""
    from snugnet.fitting.finetuning import finetune_found

    opened = open_for_search(run, threads)
    path = run / "architecture.json"
    if not path.exists():
        raise BadInput(f"{run} must hold a found network", value=str(path), remedy="Run `snugnet search` first.")
    architecture = from_json(read_json(path), opened.supernet.space)
    section = opened.recipe.finetune
    changes = {"scratch": scratch or section.scratch, "options": {**section.options, **read_options(option or [])}}
    if epochs is not None:
        changes["epochs"] = epochs
    tuned = finetune_found(
        opened.supernet,
        opened.data,
        architecture,
        section.model_copy(update=changes),
        run,
        seed=opened.recipe.seed,
        channels_last=opened.recipe.train.channels_last,
        threads=threads,
        device=opened.recipe.train.device,
        progress=RichProgress(),
        budget=Budget(opened.recipe.budget).to_json(),
    )
    facts = {"network": str(run / "network.safetensors"), "accuracy": tuned.val, "test_accuracy": tuned.test}
    facts |= {name: value for name, value in tuned.to_json().items() if name in ("before", "teacher", "worse")}
    if json:
        print_json({**facts, "architecture": str(architecture)})
    else:
        print(tuned)
    say(f"read {path}; wrote {run / 'network.safetensors'}")
