"""Architecture -> plain network: readable layers, nothing of the search machinery, exportable.

The modules follow the plan part by part: `network.stem`, `network.stages[s][b]`, `network.head`. Weights start at
random (seeded by torch's generator); trained ones come from `nets.extraction` or from a file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import final

import torch
from torch import Tensor, nn

from snugnet.nets.blocks import ClassifierHead, InvertedResidual, initialise, stem_module
from snugnet.seeds import Seed
from snugnet.space.architecture import Architecture
from snugnet.space.space import SearchSpace
from snugnet.space.spec import BlockSpec, LayerSpec, NetworkSpec, StemSpec, plan


@final
class Network(nn.Module):
    """A plain convolutional network; `plan` says what it is."""

    def __init__(self, network_plan: NetworkSpec) -> None:
        super().__init__()
        self.plan = network_plan
        self.stem = stem_module(network_plan.stem)
        self.stages = nn.Sequential(
            *(nn.Sequential(*(InvertedResidual(part) for part in stage)) for stage in network_plan.stages)
        )
        self.head = ClassifierHead(network_plan.head)

    def forward(self, images: Tensor) -> Tensor:
        """images [N, C, H, W] -> logits [N, classes]."""
        logits: Tensor = self.head(self.stages(self.stem(images)))
        return logits

    def with_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and what the classifier saw: [N, features]. A method of its own: exporters take no options of forward."""
        pooled = self.head.pooled(self.stages(self.stem(images)))
        return self.head.classifier(self.head.dropout(pooled)), pooled


def build(architecture: Architecture, space: SearchSpace) -> Network:
    """The plain network that `architecture` describes, with fresh weights."""
    return build_plan(plan(architecture, space), zero_last=space.rules.shortcut == "always")


def build_plan(network_plan: NetworkSpec, *, zero_last: bool = False) -> Network:
    """The plain network of a plan, with fresh weights."""
    network = Network(network_plan)
    initialise(network, zero_last=zero_last)
    return network


def with_new_classifier(network: Network, classes: int, seed: int, dropout: float | None = None) -> Network:
    """A copy of the network with a new last layer for `classes`, drawn from the seed; with another dropout if given."""
    head = replace(network.plan.head, classes=classes)
    head = head if dropout is None else replace(head, dropout=dropout)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Seed(seed).fold_in("classifier").number())
        renewed = build_plan(replace(network.plan, head=head))
    kept = {n: t for n, t in network.state_dict().items() if not n.startswith("head.classifier.")}
    renewed.load_state_dict(kept, strict=False)
    return renewed.to(next(network.parameters()).device)


def build_part(part: LayerSpec) -> nn.Module:
    """One part as a module of its own: what a device measures."""
    if isinstance(part, StemSpec):
        module: nn.Module = stem_module(part)
    elif isinstance(part, BlockSpec):
        module = InvertedResidual(part)
    else:
        module = ClassifierHead(part)
    initialise(module)
    return module


@contextlib.contextmanager
def fixed_weights(network: nn.Module) -> Iterator[None]:
    """Inside, nothing is recorded for gradients of the weights: only those of probabilities are taken."""
    trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)
