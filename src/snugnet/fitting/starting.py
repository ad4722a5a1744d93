"""A recipe for a trained network and the images at hand, sized by a time.

What users have is a few thousand images and a published network. The starting network learns the new classes first (its
last layer, then all of it), at the resolution that suits the images; the network within the budget is then searched among
its sub-networks and trained for most of the time.

With much time the space around the start has widths and kernels to choose too and trains in between, with a path per image,
and the start teaches the found network. With little time none of that pays. Measured on CIFAR-10 (docs/LOG.md): a few
thousand images of path training leave sub-networks worse than the weights they began with; blocks that lost channels or
the edge of their kernels do not recover, where networks with fewer blocks soon do as well as the whole one; a start that
has hardly learnt the new classes gives no good answers, and its own published weights are the better beginning for the
found network. So depth and resolution are searched, the first phases only serve to compare sub-networks, and the found
network is taught by the features of the start as it was published, on all images, the held-out ones included.

How many images each phase sees follows from the time and from how fast one training step of the starting network is here;
the found network's epochs are set again when it is known and the time that is left, too (`timekeeping`).
The recipe is written into the run like any other, so that it can be edited and run again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from statistics import median
from typing import Any, final

import torch
import yaml

from snugnet.data.dataset import load as load_data
from snugnet.data.dataset import native_sides
from snugnet.errors import BadInput
from snugnet.fitting.recipe import Recipe, read
from snugnet.fitting.timekeeping import rounded, training_speed
from snugnet.nets.trained import Trained, load_start
from snugnet.progress import NullProgress, Progress

DEFAULT_TIME = "30min"
_UNITS = {"s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_STEP = 16  # resolutions are multiples of it
# How far small images are enlarged, at most and at least: a network made for 224 px sees little in a few pixels, and more
# pixels of the same picture still help (EfficientNet-Lite0 on 32 px images: 67 % at 40 px, 81 % at 64, 86 % at 96).
_UPSCALED = (2.0, 3.0)
_SMALLEST = 0.5  # of the start's own resolution: large images may become as small where time is short; a guess
_RESOLUTIONS = (0.33, 0.5, 0.67, 0.83)  # smaller ones to choose from, as shares of the start's own
# Over the training images, in all; a smaller resolution is taken where time does not allow them. Not tuned: 24 passes at
# 96 px did well with 1,200 images, and four at 64 px with 5,000.
_LEAST_PASSES = 12
# Shares of the time: at most for measuring, and for training if every step cost what the start's do. Those of the found
# network cost less, which leaves time for searching, exporting, certifying and the page. With 0.9 ten minutes on one core
# became 11.4, three quarters of them training the found network.
_MEASURE, _TRAIN = 0.10, 0.74
# Shares of the images seen in training, without and with a phase of paths. The first were measured (docs/LOG.md, up to
# 36,000 images), the second are a guess.
SHORT = {"classifier": 0.03, "largest": 0.12, "finetune": 0.85}
LONG = {"classifier": 0.03, "largest": 0.30, "multipath": 0.30, "finetune": 0.37}
FEATURES = 2.0  # weight of the start's features where it has not learnt the new classes
# Images of a phase of paths; with fewer there is none. Measured is only that 8,000 do harm. Where paths, widths and kernels
# begin to pay is not known; what is known to work stays in charge until there is time for hours of training.
_LEAST_PATHS = 200_000


def seconds_of(text: str) -> float:
    """`seconds_of("30min") == 1800.0`"""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", text)
    if match is None or match[2] not in _UNITS or not float(match[1]) > 0:
        raise BadInput("a time must be a number with s, min or h", value=text, remedy="Write it like 10min.")
    return float(match[1]) * _UNITS[match[2]]


def start_recipe(
    name: str,
    start: str,
    *,
    seconds: float,
    budget: dict[str, str],
    on_corrupt: str = "refuse",
    threads: int | None = None,
    progress: Progress | None = None,
) -> Recipe:
    """Resolution, batch and epochs from the images, the starting network, and the time."""
    trained = load_start(start)
    side = round(median(native_sides(name)))
    shown = progress or NullProgress()
    shown.start(f"timing a training step of {start}", 1)
    speed = _speed(trained, threads)
    shown.stop()
    data = load_data(name, resolution=32, on_corrupt=on_corrupt)  # to count, and to hear of damage first
    sizes = _Sizes.of(data.size("train"), side, trained.resolution, speed, seconds * _TRAIN)
    batch = max(2, min(64, data.size("train")))
    phases, finetune, space = schedule(sizes.images, data.size("val"), sizes.seen, sizes.resolution)
    value = {
        "name": "start",
        "about": f"chosen for {start}, {data.size('train')} training images of {side} px and {seconds / 60:.3g} minutes",
        "data": {"name": name, "resolution": sizes.resolution, "on_corrupt": on_corrupt},
        "start": {"name": start, "resolutions": sizes.resolutions, **space},
        "train": {"batch": batch, "channels_last": True, "eval_times": 3, "phases": phases},
        "budget": budget,
        "measure": {"seconds": max(20.0, seconds * _MEASURE), "check": 0},
        "search": {"front": 0, "rounds": 5},
        "finetune": {"batch": batch, "run_seconds": seconds, **finetune},
    }
    return read(yaml.safe_dump(value), origin="recipe for a start")


def schedule(
    images: int, held_out: int, seen: float, resolution: int
) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """The phases of the super-network, the fine-tuning of the found network and the choices of the space, as a recipe has
    them, when `seen` images are trained on in all. An epoch has `images`, that of the found network `held_out` more: once it
    is found, nothing is chosen by them any longer, and they are a fifth of what users have."""
    long = LONG["multipath"] * seen >= _LEAST_PATHS
    sizes = {"finetune": images + held_out}
    shares = (LONG if long else SHORT).items()
    epochs = {name: rounded(share * seen / sizes.get(name, images)) for name, share in shares}
    calm = {"mixup": 0, "auto_augment": None, "crop_padding": max(1, resolution // 8)}
    phases: list[dict[str, Any]] = [
        {"method": "classifier", "epochs": epochs["classifier"], "lr": 0.1, **calm},
        {"method": "largest", "epochs": epochs["largest"], "lr": 0.02, **calm},
    ]
    if long:
        phases.append(
            {"method": "multipath", "epochs": epochs["multipath"], "lr": 0.02, "sort_channels": "taylor", "distill": 0.5,
             "curriculum_epochs": epochs["multipath"] / 4, **calm}
        )  # fmt: skip
    teacher = {"distill": 0.5, "temperature": 2.0} if long else {"distill": 0.0, "distill_features": FEATURES}
    options = {"lr": 0.02, "split": "train+val", **teacher, **calm}
    finetune = {"epochs": epochs["finetune"], "from_start": not long, "options": options}
    space = {"expands": [0.5, 0.75, 1.0], "kernels": True} if long else {"expands": [1.0], "kernels": False}
    return phases, finetune, space


@final
@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """The resolutions of a space and how many training images there is time for."""

    resolution: int
    resolutions: list[int]
    images: int  # of one epoch
    seen: float  # in all phases together

    @classmethod
    def of(cls, images: int, side: int, own: int, speed: float, seconds: float) -> _Sizes:
        """`speed`: images per second of a training step at 64 px; its price grows with the area."""
        least, most = (min(own, max(2 * _STEP, round(share * side / _STEP) * _STEP)) for share in _UPSCALED)
        least = min(least, round(_SMALLEST * own / _STEP) * _STEP)
        for resolution in range(most, least - 1, -_STEP):
            seen = seconds * speed * (64 / resolution) ** 2
            if seen >= _LEAST_PASSES * images:
                break
        lower = {max(2 * _STEP, round(share * resolution / _STEP) * _STEP) for share in _RESOLUTIONS}
        return cls(resolution=resolution, resolutions=sorted({*lower, resolution}), images=images, seen=seen)


def _speed(trained: Trained, threads: int | None) -> float:
    """Images per second of a training step at 64 px."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        return training_speed(trained.network(), 32, 64)
    finally:
        torch.set_num_threads(before)
