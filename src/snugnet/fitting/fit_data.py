"""`fit`: data and a budget become a certified network; what `snugnet run` does, as a call.

    result = sn.fit("digits", {"latency": "60%"}, out="runs/digits")
    result.network, result.accuracy, result.certificate, result.report

A data set with a shipped recipe is fitted by it, any other by `default_recipe`, whose sizes follow the number and the side
of the images. The run folder is locked while it works; the same call again goes on where it was killed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
import yaml

from snugnet.data.dataset import Data
from snugnet.data.dataset import load as load_data
from snugnet.deploy.card import Card, read_certificate
from snugnet.deploy.network_file import load, save_network
from snugnet.errors import UnknownName
from snugnet.fitting.pipeline import Pipeline
from snugnet.fitting.recipe import Recipe, find, names, read
from snugnet.fitting.starting import DEFAULT_TIME, seconds_of, start_recipe
from snugnet.fitting.work import TeamWork, Work
from snugnet.nets.trained import read_trained
from snugnet.progress import NullProgress, Progress
from snugnet.space.architecture import Architecture
from snugnet.store import RunLock, Say, read_json, read_text
from snugnet.training.team import leads, open_team


@final
@dataclass(frozen=True, kw_only=True)
class FitResult:
    """A network that was measured within its budget, and all that is known of it."""

    network: torch.nn.Module  # in evaluation mode, on the CPU
    architecture: Architecture
    accuracy: float  # on test images, which nothing was chosen by
    accuracies: dict[str, float]  # test, val (unless trained on), and on held-out images what to compare with
    certificate: dict[str, Any]
    report: Path
    file: Path  # the ONNX file that was certified
    folder: Path
    seconds: dict[str, float]  # by step

    def to_json(self) -> dict[str, Any]:
        """What `snugnet run --json` prints."""
        return {
            "run": str(self.folder),
            "network": str(self.file),
            "certificate": str(self.folder / "certificate.json"),
            "report": str(self.report),
            "fits": self.certificate["fits"],
            "budgets": self.certificate["budgets"],
            "architecture": str(self.architecture),
            "accuracy": self.accuracies,
            "seconds": self.seconds,
        }


def fit(
    data: str | Path | Recipe,
    budget: Mapping[str, str] | None = None,
    *,
    out: str | Path,
    device: str | None = None,
    devices: Mapping[str, Mapping[str, Any]] | None = None,
    start: str | torch.nn.Module | None = None,
    time: str = DEFAULT_TIME,
    changes: Sequence[str] = (),
    threads: int | None = None,
    say: Say = lambda _: None,
    progress: Progress | None = None,
) -> FitResult:
    """The most accurate network within `budget` that the run in folder `out` can find, measured and certified.

    `data`: a data set ("digits", "folder:pets", the folder itself), a shipped recipe's name, a recipe file or a `Recipe`.
    `budget`: hard limits ({"latency": "5ms", "params": "2M"}); without one, the recipe's. `device`: where it will run;
    `devices`: where labelled limits (`latency@phone`) will, as sections of a recipe ({"phone": {"device": "openvino"}}).
    `start`: a trained network to start from ("efficientnet-lite0", "timm:NAME", a file, a module); resolution, batch and
    epochs are then chosen from the images and the `time` it may take ("10min"). `changes`: further settings as
    "key=value" ("train.batch=64"). Raises `Infeasible` or `BudgetExceeded` with what is possible if nothing fits.
    """
    seconds_of(time)  # a time nobody can read is refused before anything is
    with open_team() as team:
        if team is not None and not leads():
            team.follow()
            return _followed(Path(out))
        work = Work() if team is None else TeamWork(team)
        return _fit(data, budget, Path(out), device, devices, start, time, changes, threads, say, progress, work)


def _fit(
    data: str | Path | Recipe,
    budget: Mapping[str, str] | None,
    folder: Path,
    device: str | None,
    devices: Mapping[str, Mapping[str, Any]] | None,
    start: str | torch.nn.Module | None,
    time: str,
    changes: Sequence[str],
    threads: int | None,
    say: Say,
    progress: Progress | None,
    work: Work,
) -> FitResult:
    shown = progress or NullProgress()
    if isinstance(start, torch.nn.Module):
        start = _kept_start(start, folder)
    if start is not None and start != "none":
        recipe = _started(str(data), start, time, budget, changes, threads, folder, say, shown)
    else:
        recipe = _recipe_for(data)
        if start is not None:
            say(f"from nothing by the recipe {recipe.name!r}, which says how long to train; --time is for starts")
    recipe = _changed(recipe, budget, device, devices, changes)
    pipeline = Pipeline(recipe, folder, say=say, progress=shown, threads=threads, work=work)
    with RunLock(folder):
        pipeline.run()
        return _result(pipeline)


def _followed(folder: Path) -> FitResult:
    """What the leader's run came to, for the processes that trained with it."""
    recipe = read(read_text(folder / "recipe.yaml"), origin=str(folder / "recipe.yaml"))
    return _result(Pipeline(recipe, folder, say=lambda _: None, progress=NullProgress()))


def _result(pipeline: Pipeline) -> FitResult:
    folder = pipeline.folder
    accuracies = read_json(folder / "accuracy.json")
    return FitResult(
        network=load(folder / "network.safetensors").eval(),
        architecture=pipeline.result.architecture,
        accuracy=float(accuracies["test"]),
        accuracies={name: value for name, value in accuracies.items() if isinstance(value, float)},
        certificate=read_certificate(folder / "certificate.json"),
        report=folder / "report.html",
        file=folder / "network.onnx",
        folder=folder,
        seconds=pipeline.steps.seconds,
    )


def default_recipe(name: str, data: Data) -> Recipe:
    """Settings for a data set nobody has written a recipe for: ours, from the number of images and their side.

    Both phases together see about 300,000 images (at most 60 and 90 epochs, at least 3 and 5), fine-tuning 60,000."""
    images, side = data.size("train"), data.about.resolution
    batch = min(images, 64 if images < 10_000 else 128)
    plain = {"mixup": 0, "auto_augment": None, "crop_padding": max(1, side // 8)}
    phases = [
        {"method": "largest", "epochs": _epochs(120_000, images, 3, 60), "warmup_epochs": 1, "se_bias_init": True},
        {"method": "multipath", "epochs": _epochs(180_000, images, 5, 90), "inherit_kernels": True, "distill": 0.5},
    ]
    small = {"name": "hardcore-lowres", "width": 0.25 if images < 10_000 else 0.5}
    value = {
        "name": "default",
        "about": f"chosen from {images} training images of {side} px",
        "data": {"name": name, "resolution": side},
        "space": small if side <= 64 else {"name": "hardcore"},
        "train": {
            "batch": batch,
            "channels_last": True,
            "eval_times": 3,
            "phases": [{**phase, **plain} for phase in phases],
        },
        "finetune": {"epochs": _epochs(60_000, images, 2, 20), "batch": batch, "options": {"lr": 0.02, **plain}},
    }
    return read(yaml.safe_dump(value), origin="default recipe")


def _epochs(images: int, size: int, least: int, most: int) -> int:
    return min(most, max(least, round(images / size)))


def _recipe_for(data: str | Path | Recipe) -> Recipe:
    if isinstance(data, Recipe):
        return data
    word = str(data)
    if word in names() or word.lower().endswith((".yaml", ".yml")):
        return find(word)
    if Path(word).is_dir():
        word = f"folder:{word}"
    try:
        return default_recipe(word, load_data(word))
    except UnknownName as error:
        known = ["cifar100", "FOLDER", "folder:PATH", *names(), "FILE.yaml"]
        raise UnknownName("data set or recipe", word, known) from error


def _kept_start(network: torch.nn.Module, folder: Path) -> str:
    """A module as a file of the run, so that the recipe can name it and a killed run finds it again."""
    trained = read_trained(network)
    card = Card(mean=trained.mean, std=trained.std)
    return str(save_network(trained.network(), folder / "start.safetensors", card))


def _started(
    data: str,
    start: str,
    text: str,
    budget: Mapping[str, str] | None,
    changes: Sequence[str],
    threads: int | None,
    folder: Path,
    say: Say,
    progress: Progress,
) -> Recipe:
    """The recipe for a start; a folder that has one already goes on with it, whatever this moment's speed would say."""
    seconds = seconds_of(text)
    known = folder / "recipe.yaml"
    if known.exists():
        say(f"going on with {known}")
        return read(read_text(known), origin=str(known))
    name = f"folder:{data}" if Path(data).is_dir() else data
    skip = "data.on_corrupt=skip" in changes
    recipe = start_recipe(
        name,
        start,
        seconds=seconds,
        budget=dict(budget or {}),
        on_corrupt="skip" if skip else "refuse",
        threads=threads,
        progress=progress,
    )
    say(f"{recipe.about}; it will take about {text} (another time: --time); the recipe is in {known}")
    return recipe


def _changed(
    recipe: Recipe,
    budget: Mapping[str, str] | None,
    device: str | None,
    devices: Mapping[str, Mapping[str, Any]] | None,
    changes: Sequence[str],
) -> Recipe:
    value = recipe.resolved()
    if budget is not None:
        value["budget"] = dict(budget)
    if device is not None:
        value["measure"]["device"] = device
    value["devices"].update({label: dict(section) for label, section in (devices or {}).items()})
    return read(yaml.safe_dump(value, sort_keys=False), changes, origin=recipe.name)
