"""What a training method is: the answer to "what happens in a step?".

A method is handed one shard of a batch (`Step`) and decides which paths are run, which losses are formed and which
teacher is heard; it calls `backward` as often as it likes (a sandwich calls it four times). Everything else -
optimiser, schedule, averaging, processes, checkpoints - is the loop's and is only parametrised here. The fields are
the recipe; the defaults are those of HardCoRe-NAS, section 4.1.1, and the classes beneath change them where a paper
says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol, final

import numpy as np
from torch import Tensor, nn

from snugnet.data.augmentation import Augmentation
from snugnet.data.dataset import SPLITS, About
from snugnet.errors import BadInput
from snugnet.seeds import Seed

Rule = tuple[str, Any, bool]  # what must hold, the value, whether it does


class Net(Protocol):
    """What a method may ask of the model: logits, and of a super-network its space and random paths."""

    @property
    def space(self) -> Any: ...
    def __call__(self, images: Tensor, path: Any = ..., /) -> Tensor: ...
    def sample_paths(self, count: int, rng: np.random.Generator) -> Any: ...


@final
@dataclass(frozen=True, kw_only=True)
class Step:
    """One shard of one step. `shared` seed fall alike on all shards of the batch, `own` seed differ between them."""

    net: Net
    images: Tensor  # [N, 3, H, W], augmented and normalised
    targets: Tensor  # [N, classes], probabilities
    shared: Seed
    own: Seed
    backward: Callable[[Tensor], None]
    teacher: Callable[[Tensor], Tensor] | None
    epoch: float  # epochs done, with the fraction


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A recipe for one phase of training."""

    name: ClassVar[str]
    elastic: ClassVar[bool]  # trains a super-network, not a plain network

    epochs: int
    lr: float = 0.1
    lr_per: int | None = None  # if given, `lr` is meant for a batch of this size and scaled with the batch
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 1e-4
    decay_norm_and_bias: bool = False  # weight decay also on biases and BN's scale
    warmup_epochs: float = 0.0
    label_smoothing: float = 0.1
    mixup: float = 0.2
    auto_augment: str | None = "imagenet"
    crop_padding: int = 0  # pixels; for small images the random crop that folders of large ones have
    hflip: bool | None = None  # None: as the data set advises
    ema: float | None = 0.9999  # decay of the averaged weights, which are the phase's product
    clip_norm: float | None = None
    clip_value: float | None = None
    split: str = "train"

    @abstractmethod
    def own_rules(self) -> list[Rule]:
        """Rules for the fields a class adds."""

    @abstractmethod
    def begin(self, model: nn.Module) -> None:
        """Before the phase's first step: change the weights where the method asks for it (channel sorting)."""

    @abstractmethod
    def step(self, step: Step) -> dict[str, Tensor]:
        """Forward, losses, `step.backward`; returns detached scalars to log, among them `loss`."""

    def augmentation(self, about: About) -> Augmentation:
        hflip = about.hflip if self.hflip is None else self.hflip
        return Augmentation(crop_padding=self.crop_padding, hflip=hflip, policy=self.auto_augment, mixup=self.mixup)

    def check(self) -> None:
        """Reject settings no run can use, before anything is written."""
        rules: list[Rule] = [
            ("epochs must be at least 1", self.epochs, self.epochs >= 1),
            ("lr must be positive", self.lr, self.lr > 0),
            ("lr_per must be positive", self.lr_per, self.lr_per is None or self.lr_per > 0),
            ("momentum must lie in [0, 1)", self.momentum, 0 <= self.momentum < 1),
            ("weight_decay must not be negative", self.weight_decay, self.weight_decay >= 0),
            ("warmup_epochs must lie in [0, epochs]", self.warmup_epochs, 0 <= self.warmup_epochs <= self.epochs),
            ("label_smoothing must lie in [0, 1)", self.label_smoothing, 0 <= self.label_smoothing < 1),
            ("ema must lie in (0, 1)", self.ema, self.ema is None or 0 < self.ema < 1),
            ("clip_norm must be positive", self.clip_norm, self.clip_norm is None or self.clip_norm > 0),
            ("clip_value must be positive", self.clip_value, self.clip_value is None or self.clip_value > 0),
            ("only one of clip_norm, clip_value", self.clip_norm, self.clip_norm is None or self.clip_value is None),
            (f"split must be one of {SPLITS}", self.split, self.split in SPLITS),
            *self.own_rules(),
        ]
        for rule, value, holds in rules:
            if not holds:
                raise BadInput(rule, value=value, remedy=f"Change it in methods.{self.name}(...).")
        Augmentation(crop_padding=self.crop_padding, policy=self.auto_augment, mixup=self.mixup).check()

    def describe(self) -> dict[str, Any]:
        return {"method": self.name, **asdict(self)}
