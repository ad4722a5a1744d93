"""What a training method is: what happens in a step, and what it keeps between steps.

A method is handed one shard of a batch (`Step`) and decides which paths are run, which losses are formed and which teacher
is heard; it calls `backward` as often as it likes (a sandwich calls it four times). Everything else - optimiser, schedule,
averaging, processes, checkpoints - is the loop's and is only parametrised here.

`prepare(model)` runs once, before a phase's first step, and may change the model's weights. `start(context)` runs at every
start of a phase and at every resume, and makes the method's own state: named tensors, optimisers over them, a second
stream of batches. The loop averages the gradients of those tensors over all shards, steps the optimisers after the
model's, keeps all of it in the checkpoint, and at a resume writes the saved values into what `start` made.

Where a method `alternates_at` a step, its second half `then` runs on the weights that the first half has moved, and the
method's own optimisers step after it. `end_epoch` runs after the last step of every epoch, in all processes alike.

The fields are the recipe. Optimiser, learning rate, weight decay, label smoothing, mixup and AutoAugment have the values
of HardCoRe-NAS, section 4.1.1; the decay of the averaged weights (the paper names none), the absence of a warm-up and of
clipping, and what decays are ours.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, Protocol, final

import numpy as np
import torch
from torch import Tensor, nn

from snugnet.budgets.limits import Limits
from snugnet.costs.table import CostTable
from snugnet.data.augmentation import Augmentation
from snugnet.data.dataset import LEARNABLE, About
from snugnet.errors import BadInput
from snugnet.seeds import Seed
from snugnet.space.space import SearchSpace
from snugnet.training.losses import CollapseWatch

Rule = tuple[str, Any, bool]  # what must hold, the value, whether it does
Images = Callable[[int], Iterator[tuple[Tensor, Tensor]]]
"""So many training images, where the model is, in batches with their labels, as for evaluation."""


class Net(Protocol):
    """What a method may ask of the model: logits, and of a super-network its space and random paths."""

    @property
    def space(self) -> Any: ...
    def __call__(self, images: Tensor, path: Any = ..., /, *more: Any, **options: Any) -> Tensor: ...
    def sample_paths(self, count: int, rng: np.random.Generator) -> Any: ...
    def with_features(self, images: Tensor) -> tuple[Tensor, Tensor]: ...


class Backward(Protocol):
    """Gradients of a loss, added up over the shards; with `inputs` of these tensors alone."""

    def __call__(self, loss: Tensor, inputs: Sequence[Tensor] | None = None) -> None: ...


@final
@dataclass(frozen=True, kw_only=True)
class PhaseContext:
    """What a method may know when its phase starts or goes on."""

    net: Net
    about: About
    space: SearchSpace | None  # None for a plain network
    tables: Mapping[str, CostTable]  # by resource, as given to `train`
    limits: Limits | None = None  # of the budget given to `train`
    steps: int
    epochs: int | float
    seed: Seed  # of the phase
    device: torch.device
    resumed: bool  # the loop will put saved values into the state


@final
@dataclass(frozen=True, kw_only=True)
class Stream:
    """A second stream of batches: `batch` images of `split` a step over all shards, in an order of its own.

    Which images a step gets depends on the step's number alone. Without `augmentation` they come as for evaluation. Steps
    of the phase that are not `needed` get none, and none are read for them.
    """

    batch: int
    split: str = "val"
    augmentation: Augmentation | None = None
    needed: Callable[[int], bool] | None = None  # by the step's number in the phase; None: every one


@final
@dataclass(frozen=True, kw_only=True)
class MethodState:
    """What a method owns during a phase.

    `tensors` lie on the context's device and start alike in all processes. Those that require a gradient have it averaged
    over the shards; the others may change in `step` only by what all shards compute alike. `optimisers` step over such
    tensors, and a tensor that got no gradient in a step is left alone. `constants` are made anew at every start.
    `survey` is asked of every shard before a step; all shards are handed the mean of the answers (`Step.agreed`), so
    that what is decided by images is decided alike. `watch` stops a run whose largest network falls back to chance; its
    tensor is among `tensors`.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    optimisers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    stream: Stream | None = None
    constants: Any = None
    survey: Callable[[Step], Tensor] | None = None
    watch: CollapseWatch | None = None

    @property
    def trained(self) -> list[Tensor]:
        return [tensor for tensor in self.tensors.values() if tensor.requires_grad]


@final
@dataclass(frozen=True, kw_only=True)
class Step:
    """One shard of one step. `shared` draws alike on all shards of the batch, `own` differently on each."""

    net: Net
    images: Tensor  # [N, 3, H, W], augmented and normalised
    targets: Tensor  # [N, classes], probabilities
    shared: Seed
    own: Seed
    backward: Backward
    teacher: Callable[[Tensor], Tensor] | None
    epoch: float  # epochs done, with the fraction
    second: Callable[[], tuple[Tensor, Tensor]]  # images and targets of the state's stream
    agreed: Tensor | None = None  # mean of the state's survey over all shards
    number: int = 0  # of the step in its epoch


@final
@dataclass(frozen=True, kw_only=True)
class EpochEnd:
    """What a method may know and touch at the end of an epoch."""

    net: Net
    epoch: int  # the one that is over, from 0
    optimisers: Sequence[torch.optim.Optimizer]  # the model's, then the method's own


@final
@dataclass(frozen=True, kw_only=True)
class EpochReport:
    """`facts` go into the run's log as they are; `stop`: the phase ends here."""

    facts: dict[str, Any] = field(default_factory=dict)
    stop: bool = False


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A recipe for one phase of training."""

    name: ClassVar[str]
    elastic: ClassVar[bool]  # trains a super-network, not a plain network
    schedule: ClassVar[Literal["after-warmup", "throughout"]] = "after-warmup"  # where the cosine begins
    norm_momentum: ClassVar[float | None] = None  # of BN's running statistics in training; None: the model's own
    separate: ClassVar[bool] = False  # and one whose operations have weights of their own (`nets.MixedSupernet`)
    needs_budget: ClassVar[bool] = False  # what it learns depends on the limits given to `train`
    decays_itself: ClassVar[bool] = False  # its losses hold the weight decay already; the optimiser adds none
    kept_as: ClassVar[str | None] = None  # the file in the run folder that keeps the weights of the phase's end

    epochs: int | float  # a part of an epoch is trained where it says so
    lr: float = 0.1
    lr_per: int | None = None  # if given, `lr` is meant for a batch of this size and scaled with the batch
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 1e-4
    decay_norm_and_bias: bool = False  # weight decay also on biases and BN's scale
    warmup_epochs: float = 0.0
    lr_every: Literal["step", "epoch"] = "step"  # how often the learning rate changes
    label_smoothing: float = 0.1
    mixup: float = 0.2
    auto_augment: str | None = "imagenet"
    crop_padding: int = 0  # pixels; for small images the random crop that folders of large ones have
    hflip: bool | None = None  # None: as the data set advises
    color_jitter: tuple[float, float, float, float] | None = None  # brightness, contrast, saturation, hue
    ema: float | None = 0.9999  # decay of the averaged weights, which are the phase's product
    clip_norm: float | None = None
    clip_value: float | None = None
    split: str = "train"

    @abstractmethod
    def step(self, step: Step, state: MethodState) -> dict[str, Tensor]:
        """Forward, losses, `step.backward`; returns detached scalars to log, among them `loss`."""

    # What most methods have no use for:

    def own_rules(self) -> list[Rule]:
        """Rules for the fields a class adds."""
        return []

    def prepare(self, model: nn.Module) -> None:  # noqa: B027
        """Once, before the phase's first step: change the weights where the method asks for it (channel sorting)."""

    def prepare_by_images(self, model: nn.Module, images: Images) -> None:
        """What the loop calls for it: the same, for methods that look at training images first. All processes see the
        same ones."""
        self.prepare(model)

    def start(self, context: PhaseContext) -> MethodState:
        """At every start of the phase and every resume: the method's own state, as it is before the first step."""
        return MethodState()

    def alternates_at(self, epoch: float, number: int) -> bool:
        """Whether step `number` of its epoch has a second half."""
        return False

    def then(self, step: Step, state: MethodState) -> dict[str, Tensor]:
        """The second half of a step, on the weights that the first half has moved; returns scalars to log."""
        return {}

    def end_epoch(self, end: EpochEnd, state: MethodState) -> EpochReport:
        """After the last step of an epoch."""
        return EpochReport()

    def augmentation(self, about: About) -> Augmentation:
        hflip = about.hflip if self.hflip is None else self.hflip
        return Augmentation(
            crop_padding=self.crop_padding,
            hflip=hflip,
            policy=self.auto_augment,
            mixup=self.mixup,
            color_jitter=self.color_jitter,
        )

    def check(self) -> None:
        """Reject settings no run can use, before anything is written."""
        rules: list[Rule] = [
            ("epochs must be positive", self.epochs, self.epochs > 0),
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
            (f"split must be one of {LEARNABLE}", self.split, self.split in LEARNABLE),
            *self.own_rules(),
        ]
        for rule, value, holds in rules:
            if not holds:
                raise BadInput(rule, value=value, remedy=f"Change it in methods.{self.name}(...).")
        Augmentation(
            crop_padding=self.crop_padding, policy=self.auto_augment, mixup=self.mixup, color_jitter=self.color_jitter
        ).check()

    def describe(self) -> dict[str, Any]:
        return {"method": self.name, **asdict(self)}
