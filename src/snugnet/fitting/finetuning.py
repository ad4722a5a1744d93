"""From a found architecture to a trained plain network in the run folder.

Inherited weights with batch-norm statistics of their own, then fine-tuning with the largest network as teacher; or the
weights of the trained network that a run started from; or training from scratch. A search on a part of the classes leaves a
network without a last layer for the others: it gets a new one, and has no answers to learn from. Every network and setting
has a folder of its own under `finetune/`, so each resumes by itself. Where fine-tuning left the network worse on held-out
images than it was, the network is shipped as it was, and that is said. With `split: train+val` it learns from the held-out
images too, once nothing is left to choose by them: their accuracy is then no longer reported, only that of test images.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, final

import torch
from pydantic import TypeAdapter, ValidationError

from snugnet.data.dataset import Data
from snugnet.deploy.card import Card
from snugnet.deploy.network_file import save_network
from snugnet.errors import BadInput
from snugnet.evaluate.scoring import ImageCache, accuracy, device_of, resized, subnetwork
from snugnet.fitting.recipe import FinetuneSection, unknown_key
from snugnet.nets import Network, Supernet, build, extract
from snugnet.nets.extraction import folded
from snugnet.nets.network import with_new_classifier
from snugnet.progress import Progress
from snugnet.space.architecture import Architecture
from snugnet.space.sampling import largest
from snugnet.store import fingerprint, tensors_fingerprint, write_json
from snugnet.training import methods, train
from snugnet.training.checkpoint import load_weights
from snugnet.training.method import Method
from snugnet.training.team import leads

M = TypeVar("M", bound=torch.nn.Module)
TEACHER = "teacher.safetensors"  # what `methods.largest` leaves in a run folder


@final
@dataclass(frozen=True, kw_only=True)
class Finetuned:
    """Accuracies of the shipped network on held-out (val) and test images, and, on held-out ones, what to compare with."""

    val: float | None  # None: it was trained on these images too
    test: float
    before: float | None = None  # of the network it started from
    teacher: float | None = None
    worse: float | None = None  # what fine-tuning came to where that was below `before`, so that it was not kept
    learnt: float | None = (
        None  # of held-out images that it was trained on too: far above `test`, it knows them by heart
    )

    def to_json(self) -> dict[str, float]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def __str__(self) -> str:
        """For people; with a hint where the teacher was no help."""
        beside = {"before": self.before, "its teacher": self.teacher}
        known = ", ".join(f"{name}: {value:.1%}" for name, value in beside.items() if value is not None)
        beside_it = f" ({known})" if known else ""
        if self.val is None:
            learnt = "" if self.learnt is None else f", of which it now knows {self.learnt:.1%}"
            text = f"test accuracy {self.test:.1%}; trained on the held-out images too{learnt}{beside_it}"
        else:
            text = f"held-out accuracy {self.val:.1%}{beside_it}, test {self.test:.1%}"
        if self.worse is not None:
            text += f"; fine-tuning came to {self.worse:.1%}, so the network is kept as it was before"
        reached = self.worse or self.val
        if self.teacher is not None and self.before is not None and reached is not None:
            gained, lead = reached - self.before, self.teacher - self.before
            if gained < 0.01 and lead < 0.02 and self.teacher < 0.97:
                text += (
                    "; a teacher hardly better than its pupil holds it back: try the options distill=0 and a larger lr"
                )
        return text


def finetune_found(
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
    device: str = "auto",
    budget: dict[str, str] | None = None,
    origin: Supernet | None = None,
    trackers: Sequence[str] | None = None,
) -> Finetuned:
    """Train the found network and write network.safetensors and accuracy.json. `origin`: a super-network whose weights it
    starts from, in place of those of `supernet`, which it must then not fall behind."""
    method = finetune_method(section)  # a misspelt option is refused even where there is nothing to train
    part = supernet.trained_space.classes != data.classes
    if part:
        require_training(section)
    images = ImageCache(data)  # placed where each network is: training may move it
    network, teacher = _pupil_and_teacher(supernet, images, architecture, section, seed, folder / TEACHER)
    if origin is not None and not method.describe().get("distill"):  # its features say something, its answers do not
        teacher = AtResolution(folded(extract(origin, largest(origin.space))).to(device_of(supernet)))
    beside: dict[str, float] = {}
    unseen = not section.epochs or "val" not in method.split  # are held-out images held out to the end?
    if section.epochs:
        if not section.scratch and not part:
            beside["before"] = accuracy(network, images)
        if teacher is not None and method.describe().get("distill"):
            beside["teacher"] = accuracy(teacher, images)
        start = network
        network = copy.deepcopy(start) if origin is None else extract(origin, architecture).to(device_of(supernet))
        home = _home(folder, supernet, architecture, section)
        options: dict[str, Any] = {"seed": seed, "channels_last": channels_last, "threads": threads, "device": device}
        options["trackers"] = trackers
        if not unseen:
            options["evaluator"] = None  # a curve of images it learns from would promise too much
        options["start"] = home.name  # recalibration has other last bits with other threads: the name says what it is
        train(network, data, method, out=home, batch=section.batch, teacher=teacher, progress=progress, **options)
        reached = accuracy(network, images)
        if reached < beside.get("before", 0.0):  # also a word on images it learnt from: so bad is a failure
            network, beside["worse"], unseen = start, reached, True
        if not unseen:
            beside["learnt"] = reached
    network.eval()
    held_out = accuracy(network, images) if unseen else None
    tuned = Finetuned(val=held_out, test=accuracy(network, images, "test"), **beside)
    if leads():
        save_network(network, folder / "network.safetensors", card_of(data, supernet, architecture, budget or {}))
        write_json(folder / "accuracy.json", {**tuned.to_json(), "architecture": str(architecture)})
    return tuned


def require_training(section: FinetuneSection) -> None:
    """Refuse settings that cannot make a network of all classes from a search on a part of them."""
    taught = finetune_method(section).describe().get("distill") and not section.scratch
    if section.epochs and not taught:
        return
    raise BadInput(
        "a network that was searched on a part of the classes must be trained on all of them, without that part's answers",
        value="distill" if section.epochs else "finetune.epochs: 0",
        remedy="Set finetune.scratch: true, or finetune.options.distill: 0, with some epochs.",
    )


def finetune_method(section: FinetuneSection) -> Method:
    """How the recipe wants the network trained; unknown options are answered with the nearest."""
    known = [field.name for field in fields(methods.finetune())]
    for name in section.options:
        if name not in known:
            raise unknown_key("an option of finetune", name, known)
    defaults = (methods.scratch if section.scratch else methods.finetune)(epochs=section.epochs or 1)
    try:  # YAML takes 1e-4 for text
        method: Method = TypeAdapter(type(defaults)).validate_python({**vars(defaults), **section.options})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        rule = f"option {place} of finetune cannot be used ({first['msg'][0].lower() + first['msg'][1:]})"
        raise BadInput(rule, value=first["input"], remedy="Give it the kind of value its default has.") from error
    return method


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


def _pupil_and_teacher(
    supernet: Supernet,
    images: ImageCache,
    architecture: Architecture,
    section: FinetuneSection,
    seed: int,
    kept: Path,
) -> tuple[Any, Any]:
    """The network to train and, unless it starts from scratch, its teacher; on the super-network's device."""
    if section.scratch:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return build(architecture, supernet.space).to(device_of(supernet)), None
    if supernet.trained_space.classes != images.data.classes:
        known = [subnetwork(supernet, network, images) for network in (architecture, largest(supernet.space))]
        return with_new_classifier(known[0], images.data.classes, seed), AtResolution(known[1])
    origins = [supernet]
    if section.epochs and kept.exists():
        before = copy.deepcopy(supernet)
        before.load_state_dict(load_weights(kept))
        origins.append(
            before
        )  # as phase one left it: the paper's teacher, and where few paths trained the better start
    pupil = _better([subnetwork(origin, architecture, images) for origin in origins], images)
    if not section.epochs:
        return pupil, None
    best = largest(supernet.space)
    return pupil, _better([AtResolution(subnetwork(origin, best, images)) for origin in origins], images)


def _better(networks: Sequence[M], images: ImageCache) -> M:
    """The one that is right more often on held-out images; the first wins a tie."""
    return networks[0] if len(networks) == 1 else max(networks, key=lambda network: accuracy(network, images))


@final
class AtResolution(torch.nn.Module):
    """A network that takes images of any size and sees them at its own."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.network(resized(images, self.network.plan.resolution))
        return logits

    def with_features(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.network.with_features(resized(images, self.network.plan.resolution))


def _home(folder: Path, supernet: Supernet, architecture: Architecture, section: FinetuneSection) -> Path:
    weights = tensors_fingerprint(supernet.state_dict())
    identity = fingerprint([str(architecture), weights, section.model_dump(mode="json")])
    return folder / "finetune" / identity[:12]
