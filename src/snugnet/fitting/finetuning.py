"""From a found architecture to a trained plain network in the run folder.

Inherited weights with batch-norm statistics of their own, then fine-tuning with the largest network as teacher, or
training from scratch. Every network and setting has a folder of its own under `finetune/`, so each resumes by itself.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from snugnet.data.dataset import Data
from snugnet.deploy.card import Card
from snugnet.deploy.network_file import save_network
from snugnet.errors import UnknownName
from snugnet.evaluate.scoring import ImageCache, subnetwork
from snugnet.fitting.recipe import FinetuneSection
from snugnet.nets import Supernet, build
from snugnet.progress import Progress
from snugnet.space.architecture import Architecture
from snugnet.space.sampling import largest
from snugnet.store import sha256, tensors_fingerprint, write_json
from snugnet.training import accuracy, methods, train
from snugnet.training.method import Method


def finetuned(
    supernet: Supernet,
    data: Data,
    architecture: Architecture,
    section: FinetuneSection,
    folder: Path,
    *,
    seed: int,
    channels_last: bool,
    threads: int | None,
    progress: Progress,
    budget: dict[str, str] | None = None,
) -> dict[str, float]:
    """Writes network.safetensors and accuracy.json; the accuracies on held-out (val) and test images, and for
    comparison those of the network `before` and of its `teacher` on held-out ones."""
    method = finetune_method(section)  # a misspelt option is refused even where there is nothing to train
    compared: dict[str, float] = {}
    images = ImageCache(data)
    if section.scratch:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = build(architecture, supernet.space)
    else:
        network = subnetwork(supernet, architecture, images)
    if section.epochs:
        teacher = None if section.scratch else subnetwork(supernet, largest(supernet.space), images)
        if not section.scratch:
            compared["before"] = accuracy(network, images)
        if teacher is not None and method.describe().get("distill"):
            compared["teacher"] = accuracy(teacher, images)
        home = _home(folder, supernet, architecture, section)
        # Recalibration gives other last bits with another number of threads: the folder's name says what both come from.
        options: dict[str, Any] = {"seed": seed, "channels_last": channels_last, "threads": threads, "start": home.name}
        train(network, data, method, out=home, batch=section.batch, teacher=teacher, progress=progress, **options)
    network.eval()
    card = card_of(data, supernet, architecture, budget or {})
    save_network(network, folder / "network.safetensors", card)
    found = {split: accuracy(network, images, split) for split in ("val", "test")} | compared
    write_json(folder / "accuracy.json", {**found, "architecture": str(architecture)})
    return found


def in_words(reached: dict[str, float]) -> str:
    """What fine-tuning came to, for people; with a hint where the teacher was no help."""
    beside = {"before": "before: {:.1%}", "teacher": "its teacher: {:.1%}"}
    told = ", ".join(words.format(reached[name]) for name, words in beside.items() if name in reached)
    text = f"held-out accuracy {reached['val']:.1%}{f' ({told})' if told else ''}, test {reached['test']:.1%}"
    if "teacher" in reached:
        gained, lead = reached["val"] - reached["before"], reached["teacher"] - reached["before"]
        if gained < 0.01 and lead < 0.02 and reached["teacher"] < 0.97:
            text += "; a teacher hardly better than its pupil holds it back: try the options distill=0 and a larger lr"
    return text


def finetune_method(section: FinetuneSection) -> Method:
    """How the recipe wants the network trained; unknown options are answered with the nearest."""
    known = [field.name for field in fields(methods.finetune())]
    for name in section.options:
        if name not in known:
            raise UnknownName("an option of finetune", name, known)
    make = methods.scratch if section.scratch else methods.finetune
    return make(**{"epochs": section.epochs or 1, **section.options})


def card_of(data: Data, supernet: Supernet, architecture: Architecture, budget: dict[str, str]) -> Card:
    """What a network's file tells about it."""
    about = data.about
    return Card(
        class_names=about.class_names,
        mean=about.mean,
        std=about.std,
        crop=about.crop,
        space=supernet.space.name,
        architecture=str(architecture),
        budget=budget,
    )


def _home(folder: Path, supernet: Supernet, architecture: Architecture, section: FinetuneSection) -> Path:
    words = f"{architecture} {tensors_fingerprint(supernet.state_dict())} {section.model_dump_json()}"
    return folder / "finetune" / sha256(words.encode())[:12]
