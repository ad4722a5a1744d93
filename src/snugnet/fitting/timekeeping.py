"""How long training takes here, and how many epochs the rest of a time allows.

A recipe for a time has to guess epochs before anything was measured: the found network is unknown, and so is what else the
machine will do. When it is found, the run knows what its steps took and can time a step of that very network, so the
epochs are set again, between half and twice the guess, for the whole to come out near the time that was asked for.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.nn.functional as F

from snugnet.data.dataset import Data
from snugnet.fitting.finetuning import AtResolution, finetune_method
from snugnet.fitting.recipe import FinetuneSection
from snugnet.nets import Network, build
from snugnet.nets.extraction import folded
from snugnet.space.architecture import Architecture
from snugnet.space.sampling import largest
from snugnet.space.space import SearchSpace

_STEPS = 3  # timed; the quickest counts
_BESIDE = 1.3  # a step with optimiser, augmentation and loader over its passes alone (measured: 1.29)
_AFTER = 20.0  # seconds of exporting, certifying and the page
_FEWEST, _MOST = 0.5, 2.0  # of the recipe's epochs


def training_speed(network: Network, batch: int, side: int, teacher: Any = None) -> float:
    """Images per second of a training step with `batch` images of `side` pixels, in channels-last memory."""
    move: Any = network.train().to  # the overload with a memory format is missing from torch's type stubs
    move(memory_format=torch.channels_last)
    first = next(network.parameters())
    images = torch.zeros(batch, network.plan.stem.in_channels, side, side, device=first.device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels, times = torch.zeros(batch, dtype=torch.long, device=first.device), []
    for _ in range(_STEPS):
        began = time.perf_counter()
        if teacher is not None:
            with torch.no_grad():
                teacher(images)
        F.cross_entropy(network(images), labels).backward()
        assert first.grad is not None
        float(first.grad.sum())  # waits for a GPU
        times.append(time.perf_counter() - began)
    return batch / min(times)


def epochs_left(
    section: FinetuneSection, space: SearchSpace, found: Architecture, data: Data, spent: float, device: torch.device
) -> int | float:
    """`epochs_within` for the found network, a step of which is timed now, its teacher included."""
    about, teacher = finetune_method(section).describe(), None
    if not section.scratch and (about.get("distill") or about.get("distill_features")):
        teacher = AtResolution(folded(build(largest(space), space)).to(device))
    speed = training_speed(build(found, space).to(device), section.batch, found.resolution, teacher)
    return epochs_within(section, spent, speed, data.size(str(about.get("split", "train"))))


def epochs_within(section: FinetuneSection, spent: float, speed: float, images: int) -> int | float:
    """The recipe's epochs, or as many as `section.run_seconds` leave after `spent` seconds; `images` are in an epoch."""
    if section.run_seconds is None or not section.epochs:
        return section.epochs
    possible = (section.run_seconds - spent - _AFTER) * speed / _BESIDE / images
    fewest = max(_FEWEST * section.epochs, float(finetune_method(section).describe().get("warmup_epochs", 0)))
    return rounded(min(max(possible, fewest), _MOST * section.epochs))


def rounded(epochs: float) -> int | float:
    """Whole ones where that changes little; else a part is trained, so that many images and little time go together."""
    return round(epochs) if epochs >= 10 else max(0.01, round(epochs, 2))
