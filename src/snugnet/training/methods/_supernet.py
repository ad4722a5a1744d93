"""Phases of training a super-network: the largest network alone, a path per image, a path per batch.

`classifier` gives a trained network a last layer for new classes.
`largest` is phase one of HardCoRe-NAS (250 epochs), `multipath` phase two (100 epochs): every image of a batch takes a path
of its own, so one step trains as many sub-networks as the batch has images, at about the price of an average one.
`singlepath`, one random sub-network per batch, is the baseline of its figure 4. With `distill` the largest network runs on
the same batch first, learns from the labels, and teaches the paths: their loss becomes (1 - distill) * cross entropy +
distill * T^2 * KL(teacher || path), or with another `loss` soft cross entropy or AlphaNet's divergence. Distillation in
place, the curriculum and what is done to the weights before a phase are ours, off by default; the latter lets sub-networks
start close to each other. Measured on digits (docs/LOG.md): with small kernels that start at random, a short multipath
phase does not leave chance level at all; with kernels taken from the large ones it does, and gates that start open help
every method.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, final

import numpy as np
import torch
from torch import Tensor, nn

from snugnet.nets.importance import sort_channels, sort_channels_by_images
from snugnet.space.layout import Layout
from snugnet.space.sampling import largest, mutate, mutate_many, sample
from snugnet.training.losses import Distillation, Divergence, cross_entropy
from snugnet.training.method import Images, Method, MethodState, PhaseContext, Rule, Step

SORTED_BY = 512  # training images of the Taylor criterion; 500 were measured


@final
@dataclass(frozen=True, kw_only=True)
class Classifier(Method):
    """Only the last layer of the largest network learns: new classes on features that are good already."""

    name: ClassVar[str] = "classifier"
    elastic: ClassVar[bool] = True
    epochs: int | float = 1

    def start(self, context: PhaseContext) -> MethodState:
        net: Any = context.net
        return MethodState(constants=list(net.head.classifier.parameters()))

    def step(self, step: Step, state: MethodState) -> dict[str, Tensor]:
        logits = step.net(step.images, largest(step.net.space))
        loss = cross_entropy(logits, step.targets, self.label_smoothing)
        step.backward(loss, inputs=state.constants)
        return {"loss": loss.detach()}


@final
@dataclass(frozen=True, kw_only=True)
class Largest(Method):
    """The network that holds all others, trained like any plain network."""

    name: ClassVar[str] = "largest"
    elastic: ClassVar[bool] = True
    kept_as: ClassVar[str | None] = "teacher.safetensors"  # before the paths train: the teacher of "2 for 1"
    epochs: int | float = 250
    se_bias_init: bool = False  # squeeze-excite gates start nearly open instead of half open

    def prepare(self, model: nn.Module) -> None:
        if self.se_bias_init:
            se_bias_init(model)

    def step(self, step: Step, state: MethodState) -> dict[str, Tensor]:
        logits = step.net(step.images, largest(step.net.space))
        loss = cross_entropy(logits, step.targets, self.label_smoothing)
        step.backward(loss)
        return {"loss": loss.detach()}


@dataclass(frozen=True, kw_only=True)
class Paths(Method):
    """Random paths, uniform over the choices of every block and the depths of every stage."""

    elastic: ClassVar[bool] = True
    epochs: int | float = 100
    # Channels ordered by importance first, so that narrow blocks keep the best ones: true: by the L1 norm of the projection;
    # taylor: by what the loss on training images would lose without each, which is better (docs/LOG.md).
    sort_channels: bool | Literal["taylor"] = False
    inherit_kernels: bool = False  # small kernels start as the centre of the largest one
    distill: float = 0.0
    temperature: float = 1.0
    loss: Divergence = "kl"  # between teacher and paths
    curriculum_epochs: float = 0.0  # paths leave the largest network step by step over this time; 0: uniform at once

    @abstractmethod
    def paths(self, step: Step, changed: float) -> Any:
        """The paths of this shard; `changed` is the share of choices that may differ from the largest network's."""

    def own_rules(self) -> list[Rule]:
        curriculum = self.curriculum_epochs
        return [
            *self.distillation.rules(),
            ("curriculum_epochs must not be negative", curriculum, curriculum >= 0),
        ]

    @property
    def distillation(self) -> Distillation:
        return Distillation(loss=self.loss, weight=self.distill, temperature=self.temperature)

    def prepare(self, model: nn.Module) -> None:
        if self.inherit_kernels:
            inherit_kernels(model)
        if self.sort_channels:
            supernet: Any = model
            sort_channels(supernet)

    def prepare_by_images(self, model: nn.Module, images: Images) -> None:
        if self.sort_channels != "taylor":
            return self.prepare(model)
        replace(self, sort_channels=False).prepare(model)
        supernet: Any = model
        sort_channels_by_images(supernet, images(SORTED_BY))
        return None

    def step(self, step: Step, state: MethodState) -> dict[str, Tensor]:
        """The teacher's pass, if any, comes first and learns from the labels only."""
        early = step.epoch < self.curriculum_epochs
        paths = self.paths(step, step.epoch / self.curriculum_epochs if early else 1.0)
        if self.distill == 0:
            loss = cross_entropy(step.net(step.images, paths), step.targets, self.label_smoothing)
            step.backward(loss)
            return {"loss": loss.detach()}
        teacher = step.net(step.images, largest(step.net.space))
        teacher_loss = cross_entropy(teacher, step.targets, self.label_smoothing)
        step.backward(teacher_loss)
        students = step.net(step.images, paths)
        loss, value = self.distillation(students, teacher.detach(), step.targets, self.label_smoothing)
        step.backward(loss)
        return {"loss": value, "teacher_loss": teacher_loss.detach()}


@final
@dataclass(frozen=True, kw_only=True)
class Multipath(Paths):
    """A path per image."""

    name: ClassVar[str] = "multipath"

    def paths(self, step: Step, changed: float) -> Any:
        rng, space = step.own.fold_in("paths").numpy(), step.net.space
        if changed == 1:
            return step.net.sample_paths(len(step.images), rng)
        start = Layout(space).encode([largest(space)]).take(np.zeros(len(step.images), dtype=np.int64))
        return mutate_many(space, start, rng, changed)


@final
@dataclass(frozen=True, kw_only=True)
class Singlepath(Paths):
    """A path per batch, the same on all shards."""

    name: ClassVar[str] = "singlepath"

    def paths(self, step: Step, changed: float) -> Any:
        rng, space = step.shared.fold_in("path").numpy(), step.net.space
        return sample(space, rng) if changed == 1 else mutate(space, largest(space), rng, changed)


@torch.no_grad()
def inherit_kernels(supernet: Any) -> None:
    """Where kernels have weights of their own: the smaller start as the centre of the largest, BN included."""
    for block in supernet.blocks():
        for operation in block.operations:
            sizes = sorted(int(size) for size in operation.depthwise)
            large = operation.depthwise[str(sizes[-1])]
            for size in sizes[:-1]:
                edge = (sizes[-1] - size) // 2
                small = operation.depthwise[str(size)]
                small.conv.weight.copy_(large.conv.weight[:, :, edge : edge + size, edge : edge + size])
                small.norm.load_state_dict(large.norm.state_dict())


@torch.no_grad()
def se_bias_init(network: nn.Module) -> None:
    """Squeeze-excite gates start at 5/6 (hard sigmoid) or 0.88 (sigmoid) instead of a half: on and off start alike."""
    for layer in network.modules():
        if all(hasattr(layer, name) for name in ("reduce", "expand", "gate")):
            expand: Any = layer.expand
            expand.bias.fill_(2.0)
