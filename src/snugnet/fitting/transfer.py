"""A found network on another data set: AttentiveNAS's transfer (appendix G).

The network keeps everything but its last layer. Learning rate and weight decay are searched on a fifth of the training
images, held out; then the network is trained on all of them: 150 epochs of batches of 64, SGD with momentum 0.9, label
smoothing 0.1, dropout 0.5, images at the size it was found for. The paper gives neither the grid nor how long its trials
last: both are ours (`RATES`, `DECAYS`, a fifth of the epochs). Every trial has a folder of its own: each resumes by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, final

from snugnet.data.dataset import Data, load
from snugnet.deploy.network_file import NetworkFile, read_network, save_network
from snugnet.errors import BadInput
from snugnet.evaluate.scoring import ImageCache, accuracy
from snugnet.fitting.recipe import unknown_key
from snugnet.nets.network import Network, with_new_classifier
from snugnet.progress import NullProgress, Progress
from snugnet.store import fingerprint, write_json
from snugnet.training import methods, train
from snugnet.training.method import Method

RATES = (0.003, 0.01, 0.03, 0.1)
DECAYS = (0.0, 1e-5, 1e-4)


@final
@dataclass(frozen=True, kw_only=True)
class Transfer:
    """How long and with what; `lrs` and `weight_decays` are tried in all pairs, a single pair is not tried but taken."""

    epochs: int = 150
    batch: int = 64
    dropout: float = 0.5
    label_smoothing: float = 0.1
    lrs: Sequence[float] = RATES
    weight_decays: Sequence[float] = DECAYS
    trial_epochs: int | None = None  # None: a fifth of the epochs
    options: dict[str, Any] = field(default_factory=dict)  # of the method: crop_padding, auto_augment, ...

    @classmethod
    def of(cls, options: dict[str, Any]) -> Transfer:
        """From plain options: these settings, and those of the method; others are answered with the nearest."""
        own = {f.name for f in fields(cls)} - {"options"}
        known = [*own, *(f.name for f in fields(methods.finetune()) if f.name not in ("lr", "weight_decay", "split"))]
        for name in options:
            if name not in known:
                raise unknown_key("an option of transfer", name, known)
        chosen = {name: value for name, value in options.items() if name in own}
        for name in ("lrs", "weight_decays"):
            if isinstance(chosen.get(name), (int, float)):
                chosen[name] = [chosen[name]]
        return cls(**chosen, options={name: value for name, value in options.items() if name not in own})

    def method(self, lr: float, weight_decay: float, epochs: int, split: str) -> Method:
        calm = {"distill": 0.0, "mixup": 0.0, "auto_augment": None, "ema": None}
        each: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay, "epochs": epochs, "split": split}
        return methods.finetune(**{**calm, "label_smoothing": self.label_smoothing, **self.options, **each})

    def check(self) -> None:
        if not self.lrs or not self.weight_decays:
            raise BadInput("transfer needs a learning rate and a weight decay at least", value=0, remedy="Give some.")
        if not 0 <= self.dropout < 1:
            raise BadInput("dropout must lie in [0, 1)", value=self.dropout, remedy="The paper's is 0.5.")
        for lr in self.lrs:
            for decay in self.weight_decays:
                self.method(lr, decay, self.epochs, "train").check()


@final
@dataclass(frozen=True, kw_only=True)
class Transferred:
    """What came out: the accuracy on the test images, what it was trained with, and the trials on held-out images."""

    network: Path
    test: float
    lr: float
    weight_decay: float
    trials: list[dict[str, float]]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "network": str(self.network)}

    def __str__(self) -> str:
        return f"test accuracy {self.test:.1%} with lr {self.lr:g} and weight decay {self.weight_decay:g}"


def transfer(
    network: str | Path,
    data: str | Data,
    how: Transfer | None = None,
    *,
    out: str | Path,
    seed: int = 0,
    threads: int | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> Transferred:
    """Train the network in the file (or run folder) `network` on `data`; writes network.safetensors and transfer.json."""
    settings, folder, file = how or Transfer(), Path(out), read_network(network)
    settings.check()
    images = at_home(load(data, resolution=file.plan.resolution) if isinstance(data, str) else data, file)
    about = [file.weights_sha256, images.identity(), settings.batch, settings.dropout, seed]
    common: dict[str, Any] = {"seed": seed, "batch": settings.batch, "threads": threads, "device": device}
    common |= {"progress": progress or NullProgress(), "evaluator": None, "trackers": ()}

    def trained(lr: float, decay: float, epochs: int, split: str) -> Network:
        method = settings.method(lr, decay, epochs, split)
        pupil = with_new_classifier(file.network, images.classes, seed, settings.dropout)
        home = folder / "trials" / fingerprint([*about, method.describe()])[:12]
        train(pupil, images, method, out=home, start=home.name, **common)
        return pupil.eval()

    pairs = [(lr, decay) for lr in settings.lrs for decay in settings.weight_decays]
    short = settings.trial_epochs or max(1, settings.epochs // 5)
    cache, trials = ImageCache(images), []
    for lr, decay in pairs if len(pairs) > 1 else ():
        reached = accuracy(trained(lr, decay, short, "train"), cache)
        trials.append({"lr": lr, "weight_decay": decay, "accuracy": reached})
    best = max(trials, key=lambda row: row["accuracy"], default=dict(zip(("lr", "weight_decay"), pairs[0])))
    shipped = trained(best["lr"], best["weight_decay"], settings.epochs, "train+val")
    card = file.card.model_copy(
        update={"class_names": images.about.class_names, "crop": images.about.crop, "certificate_sha256": ""}
    )
    path = save_network(shipped, folder / "network.safetensors", card)
    rates = {name: best[name] for name in ("lr", "weight_decay")}
    result = Transferred(network=path, test=accuracy(shipped, cache, "test"), trials=trials, **rates)
    write_json(folder / "transfer.json", result.to_json())
    return result


def at_home(data: Data, file: NetworkFile) -> Data:
    """The images normalised as the network is used to."""
    if data.about.resolution != file.plan.resolution:
        raise BadInput(
            f"images must have the network's size, {file.plan.resolution}",
            value=data.about.resolution,
            remedy="Load the data with that resolution.",
        )
    return data.normalised_by(file.card.mean, file.card.std)
