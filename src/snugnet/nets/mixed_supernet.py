"""A super-network of separate operations: in every layer several, each with weights of its own (TF-NAS).

    logits = supernet(images, operations, beta)      # `operations`: per slot the number of one, or weights over all
    logits = supernet(images, architecture)          # one sub-network, at any widths

A layer whose operation is a number runs that one alone; one with weights runs those that are not zero and sums them:
x_i = sum_o g_o * op_o(x_{i-1}). Depth is sink-connecting: a stage puts out sum_l beta_l * x_l over its allowed depths, so
every layer's output also goes to the stage's end. Batch norm uses the batch's statistics always; a sub-network that is
extracted gets affine ones whose statistics must be gathered (`recalibrate`). Beside the weights it carries what a search
has come to: log-probabilities of operations and depths, and which channels every operation keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from snugnet.errors import BadInput
from snugnet.nets.blocks import activation
from snugnet.nets.elastic import pointwise
from snugnet.nets.network import Network, build
from snugnet.nets.separate_operation import SeparateOperation, normalised
from snugnet.space.architecture import Architecture
from snugnet.space.layout import FloatArray, Layout
from snugnet.space.space import SearchSpace
from snugnet.space.spec import HeadSpec, StemSpec

Operation = int | Tensor
"""What runs in a layer: the number of one operation, or weights [C] over all."""


@final
class MixedSupernet(nn.Module):
    """All operations of `space`, none sharing weights with another. `classes`: of its last layer, where it learns a part
    of the space's."""

    log_alpha: Tensor  # flat over [slot, choice]
    log_beta: Tensor  # flat over [stage, depth]

    def __init__(self, space: SearchSpace, classes: int | None = None) -> None:
        super().__init__()
        self.trained_space = space if classes is None else replace(space, classes=classes)
        layout = Layout(space)
        layout.require_additive()
        self.space, self.layout = space, layout
        stem, head = layout.ends
        self._stem_part, self._head_part = stem, head
        self._check(stem, head)
        self.stem = nn.Conv2d(
            stem.in_channels, stem.out_channels, stem.kernel, stem.stride, stem.kernel // 2, bias=False
        )
        self.layers = nn.ModuleList([self._layer(number) for number in range(len(layout.slots))])
        self.hidden = nn.Conv2d(head.in_channels, head.hidden, 1, bias=False)
        self.features = nn.Linear(head.hidden, head.pooled, bias=head.pooled_bias) if head.pooled else None
        self.classifier = nn.Linear(head.features, self.trained_space.classes)
        self.stem_act, self.head_act = activation(stem.act), activation(head.act)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        self.choice_counts = [len(layout.choices(*slot)) for slot in layout.slots]
        self.depth_counts = [len(stage.depths) for stage in space.stages]
        self.register_buffer("log_alpha", torch.cat([torch.full((n,), -float(np.log(n))) for n in self.choice_counts]))
        self.register_buffer("log_beta", torch.zeros(sum(self.depth_counts)))

    def forward(
        self, images: Tensor, what: Architecture | Sequence[Operation], beta: Sequence[Tensor] | None = None
    ) -> Tensor:
        """images [N, C, H, W] -> logits [N, classes]."""
        if isinstance(what, Architecture):
            return self._one(images, what)
        if beta is None or len(what) != len(self.layers) or len(beta) != len(self.space.stages):
            raise BadInput(
                f"a super-network of {len(self.layers)} layers, {len(self.space.stages)} stages needs an operation for each"
                " layer and weights of depths for each stage",
                value=(len(what), None if beta is None else len(beta)),
                remedy="Pass both.",
            )
        x, number = self._stem(images), 0
        for stage, weights in zip(self.space.stages, beta):
            outputs = []
            for position in range(stage.max_depth):
                x = self.layer(x, number, what[number])
                number += 1
                if position + 1 in stage.depths:
                    outputs.append(x)
            x = outputs[0] if len(outputs) == 1 else _sink(outputs, weights)
        return self._head(x)

    def layer(self, x: Tensor, number: int, operation: Operation) -> Tensor:
        """One layer: the operation of that number, or the weighted sum of those whose weight is not zero."""
        operations, keeps = self.operations(number), self.layout.slot_specs[number][0].shortcut == "identity"
        if isinstance(operation, int):
            y: Tensor = operations[operation](x)
            return y + x if keeps else y
        terms = [operation[c] * operations[c](x) for c in operation.detach().nonzero().flatten().tolist()]
        mixture = torch.stack(terms).sum(0) if len(terms) > 1 else terms[0]
        return mixture + operation.sum() * x if keeps else mixture

    def operations(self, number: int) -> list[SeparateOperation]:
        """All operations of a layer."""
        layer = self.layers[number]
        assert isinstance(layer, nn.ModuleList)
        return [operation for operation in layer if isinstance(operation, SeparateOperation)]

    def extract(self, architecture: Architecture) -> Network:
        """The plain network of `architecture` with these weights; its batch norms are affine and have no statistics yet."""
        network = build(architecture, self.trained_space)
        reference = next(self.parameters())
        network.to(device=reference.device, dtype=reference.dtype)
        with torch.no_grad():
            network.stem.conv.weight.copy_(self.stem.weight)  # type: ignore[union-attr,operator]
            for number, choice, width in self._running(architecture):
                slot = self.layout.slots[number]
                self.operations(number)[choice].copy_to(network.stages[slot.stage][slot.position], width)  # type: ignore[index,arg-type]
            head = network.head
            head.conv.conv.weight.copy_(self.hidden.weight)  # type: ignore[union-attr,operator]
            if self.features is not None:
                head.features.load_state_dict(self.features.state_dict())
            head.classifier.load_state_dict(self.classifier.state_dict())
        return network.train(self.training)

    def decay(self, *paths: Sequence[int]) -> Tensor:
        """Half the squares of all weights that run on these paths, each counted once."""
        ends = [*self.hidden.parameters(), *self.stem.parameters(), *self.classifier.parameters()]
        ends += [] if self.features is None else list(self.features.parameters())
        squares = torch.stack([weight.square().sum() for weight in ends]).sum() / 2
        running = dict.fromkeys(pair for path in paths for pair in enumerate(path))
        layers = [self.operations(number)[choice].decay() for number, choice in running]
        return squares + torch.stack(layers).sum()

    def widths(self) -> list[list[int]]:
        """[slot][choice]: how many middle channels every operation keeps."""
        return [[int(operation.width) for operation in self.operations(n)] for n in range(len(self.layers))]

    def probabilities(self) -> tuple[list[FloatArray], list[FloatArray]]:
        """Strengths of operations (per slot) and of depths (per stage), as the search left them."""
        rows = []
        for flat, counts in ((self.log_alpha, self.choice_counts), (self.log_beta, self.depth_counts)):
            rows.append([row.double().softmax(0).cpu().numpy() for row in flat.split(counts)])
        return rows[0], rows[1]

    @torch.no_grad()
    def remember(self, log_alpha: Tensor, log_beta: Tensor) -> None:
        """Write down what the search has come to."""
        self.log_alpha.copy_(log_alpha)
        self.log_beta.copy_(log_beta)

    def sample_paths(self, count: int, rng: np.random.Generator) -> list[int]:
        """Uniform over the operations of every layer: one path for all images of a batch, whatever their number."""
        return [int(rng.integers(n)) for n in self.choice_counts]

    def _one(self, images: Tensor, architecture: Architecture) -> Tensor:
        x = self._stem(images)
        for number, choice, width in self._running(architecture):
            y = self.operations(number)[choice].at_width(x, width)
            x = y + x if self.layout.slot_specs[number][choice].shortcut == "identity" else y
        return self._head(x)

    def _running(self, architecture: Architecture) -> Iterator[tuple[int, int, int]]:
        """(slot, choice, width) of every block, front to back."""
        places = {slot: number for number, slot in enumerate(self.layout.slots)}
        for s, numbers in enumerate(self.layout.numbers(architecture)):
            for d, choice in enumerate(numbers):
                number = places[(s, d)]  # type: ignore[index]
                width = architecture.stages[s].blocks[d].mid_channels
                yield number, choice, width or self.layout.slot_specs[number][choice].mid_channels

    def _layer(self, number: int) -> nn.ModuleList:
        slot, operations = self.layout.slots[number], []
        places = [*self.layout.places(slot.stage, self.space.resolutions[0])]
        place = places[min(slot.position, len(places) - 1)]
        for choice, start in enumerate(self.layout.slot_specs[number]):
            full = self.layout.mid_range(place, choice)[-1]
            operations.append(SeparateOperation(self.layout.block_spec(place, choice, full), start.mid_channels))
        return nn.ModuleList(operations)

    def _stem(self, images: Tensor) -> Tensor:
        out: Tensor = self.stem_act(normalised(self.stem(images), self._stem_part.norm_eps))
        return out

    def _head(self, x: Tensor) -> Tensor:
        x = self.head_act(normalised(pointwise(x, self.hidden.weight), self._head_part.norm_eps)).mean((2, 3))
        if self.features is not None:
            x = self.head_act(self.features(x))
        logits: Tensor = self.classifier(x)
        return logits

    def _check(self, stem: StemSpec, head: HeadSpec) -> None:
        rules = self.space.rules
        if rules.share or rules.padding != "symmetric" or rules.shortcut != "identity":
            raise BadInput(
                f"space {self.space.name!r} must have rules share: false, padding: symmetric and shortcut: identity for a "
                "super-network of separate operations",
                value=(rules.share, rules.padding, rules.shortcut),
                remedy="Take tfnas, tfnas-wose, tfnas-mbv2 or a low-resolution form of them, or change the rules.",
            )


def _sink(outputs: Sequence[Tensor], weights: Tensor) -> Tensor:
    total = outputs[0] * weights[0]
    for number, output in enumerate(outputs[1:], 1):
        total = torch.addcmul(total, output, weights[number])
    return total
