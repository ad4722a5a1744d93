"""From a found architecture to a trained plain network in the run folder.

Inherited weights with batch-norm statistics of their own, then fine-tuning with the heaviest network as teacher, or
training from scratch. Every network and setting has a folder of its own under `finetune/`, so each resumes by itself.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from snugnet.deploy.card import Card
from snugnet.deploy.network_file import save_network
from snugnet.errors import UnknownName
from snugnet.files import sha256, write_json
from snugnet.nets import Network, Supernet, build, extract, extract_heaviest, recalibrate
from snugnet.progress import Tracker
from snugnet.recipes.recipe import FinetuneSection
from snugnet.search.judge import weights_id
from snugnet.space.architecture import Architecture
from snugnet.train import accuracy, methods, train
from snugnet.train.data import Data
from snugnet.train.evaluate import calibration_batches
from snugnet.train.method import Method


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
    progress: Tracker,
    budget: dict[str, str] | None = None,
) -> dict[str, float]:
    """Writes network.safetensors and accuracy.json; the accuracies on held-out (val) and test images."""
    finetune_method(section)  # a misspelt option is refused even where there is nothing to train
    batches = calibration_batches(data)
    if section.scratch:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = build(architecture, supernet.space)
    else:
        network = recalibrate(extract(supernet, architecture), batches)
    if section.epochs:
        _train(network, supernet, data, section, _home(folder, supernet, architecture, section), batches,
               seed=seed, channels_last=channels_last, threads=threads, progress=progress)  # fmt: skip
    network.eval()
    card = card_of(data, supernet, architecture, budget or {})
    save_network(network, folder / "network.safetensors", card)
    found = {split: accuracy(network, data, split) for split in ("val", "test")}
    write_json(folder / "accuracy.json", {**found, "architecture": str(architecture)})
    return found


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


def _train(
    network: Network,
    supernet: Supernet,
    data: Data,
    section: FinetuneSection,
    home: Path,
    batches: list[torch.Tensor],
    **loop: Any,
) -> None:
    train(
        network,
        data,
        finetune_method(section),
        out=home,
        batch=section.batch,
        teacher=None if section.scratch else recalibrate(extract_heaviest(supernet), batches),
        **loop,
    )


def _home(folder: Path, supernet: Supernet, architecture: Architecture, section: FinetuneSection) -> Path:
    words = f"{architecture} {weights_id(supernet)} {section.model_dump_json()}"
    return folder / "finetune" / sha256(words.encode())[:12]
