"""Networks evaluated one after another share their first blocks: what these make of the images is kept.

A search near its limits changes a few choices at a time. Batch-norm statistics of a block follow from the blocks before it
alone, and so does what it makes of the images: up to the first block that differs from the last network's, both are as
they were. Blocks are run one by one over all batches, with the same kernels on the same numbers: the answers are the same
to the last bit as those of a network evaluated by itself (`scoring.subnetwork_answers`).

Kept is one network's way through its blocks, if `KEEP_BYTES` hold it: a few hundred small images. The weights must stay as
they are.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from snugnet.evaluate.scoring import Answers, ImageCache, device_of, require_images, resized, subnetwork_answers
from snugnet.nets import Network, Supernet, extract, recalibrate
from snugnet.nets.extraction import fold
from snugnet.space.architecture import Architecture
from snugnet.space.spec import NetworkSpec

KEEP_BYTES = (
    64 << 20
)  # more comes anew from the system, page by page: 200 MB cost random networks a fifth of their time


@final
@dataclass(frozen=True, kw_only=True)
class _Step:
    """A block, and what it made of the images: in training mode those for its statistics, in evaluation mode the others."""

    block: Hashable
    calibration: list[Tensor]
    images: list[Tensor]


@final
class SharedBlocks:
    """Answers of sub-networks, each beginning where it parts from the one before."""

    def __init__(self, supernet: Supernet, images: ImageCache, split: str, seed: int) -> None:
        self.supernet, self.images, self.split, self.seed = supernet, images, split, seed
        self._limit: int | None = None
        self._way: list[_Step] = []  # of the last network, for as many images as `_limit`

    def __reduce__(self) -> tuple[Any, ...]:
        """A worker's process begins anew."""
        return SharedBlocks, (self.supernet, self.images, self.split, self.seed)

    def answers(self, architecture: Architecture, limit: int | None) -> Answers:
        """As `subnetwork_answers` gives them."""
        network = extract(self.supernet, architecture)
        device, split = device_of(network), self.split
        size = require_images(self.images.data, split)
        count = min(size, size if limit is None else limit)
        calibration = self.images.calibration(device, self.seed)
        if _bytes(network.plan, count + sum(map(len, calibration))) > KEEP_BYTES:
            self._way = []
            return subnetwork_answers(self.supernet, architecture, self.images, split, limit=limit, seed=self.seed)
        batches = list(self.images.batches(split, device, count))
        side = architecture.resolution
        self._continue(network, count, calibration, [images for images, _ in batches], side)
        logits = [images.float() for images in self._way[-1].images]
        return Answers(torch.cat(logits), torch.cat([labels for _, labels in batches]))

    def _continue(
        self, network: Network, count: int, calibration: list[Tensor], images: list[Tensor], side: int | None
    ) -> None:
        """Make the way that of `network`."""
        blocks, modules = _blocks(network)
        same = 0
        if count == self._limit:
            while same < min(len(self._way), len(blocks)) and self._way[same].block == blocks[same]:
                same += 1
        self._limit, way = count, self._way[:same]
        self._way = []  # an evaluation that is interrupted leaves nothing behind
        if way:
            calibration, images = way[-1].calibration, way[-1].images
        else:
            calibration, images = [resized(batch, side) for batch in calibration], [resized(b, side) for b in images]
        for block, module in zip(blocks[same:], modules[same:]):
            calibration = _recalibrated(module, calibration)
            fold(module)
            with torch.no_grad():
                images = [module(batch) for batch in images]
            way.append(_Step(block=block, calibration=calibration, images=images))
        self._way = way


@final
class _Recorder(nn.Module):
    """A module, and what it gave."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.outputs = module, list[Tensor]()

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.module(images)
        self.outputs.append(output)
        return output


def _recalibrated(module: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    """Give a block its statistics; what it made of the batches meanwhile, by each batch's own."""
    move: Any = module.to  # the overload with a memory format is missing from torch's type stubs
    move(memory_format=torch.channels_last)
    recorder = _Recorder(module.eval())
    recalibrate(recorder, batches)
    if not recorder.outputs:  # nothing in it has statistics
        with torch.no_grad():
            return [recorder(batch) for batch in batches]
    return recorder.outputs


def _blocks(network: Network) -> tuple[list[Hashable], list[nn.Module]]:
    """Stem, blocks and head, in order: what tells each from others at the same place, and the module."""
    stages = network.plan.stages
    places = [((s, b), spec) for s, stage in enumerate(stages) for b, spec in enumerate(stage)]
    modules: list[Any] = [block for stage in network.stages for block in stage]  # type: ignore[attr-defined]
    return [network.plan.stem, *places, network.plan.head], [network.stem, *modules, network.head]


def _bytes(network_plan: NetworkSpec, images: int) -> int:
    """Of what all blocks see of so many images."""
    return 4 * images * sum(part.in_channels * part.resolution**2 for part in network_plan.parts)
