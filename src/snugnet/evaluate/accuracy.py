"""Accuracy: of a network, and of sub-networks of a super-network.

BN statistics gathered over mixed paths fit no single sub-network, so a sub-network is taken out, its statistics are
gathered anew on training images (`recalibrate`), and only then it is evaluated. Both steps come in as functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from snugnet.data.dataset import Data
from snugnet.errors import BadInput
from snugnet.seeds import Seed
from snugnet.space.architecture import Architecture
from snugnet.space.sampling import largest, sample, smallest

Extract = Callable[[Any, Architecture], nn.Module]
Recalibrate = Callable[[nn.Module, Sequence[Tensor]], Any]
Evaluator = Callable[[nn.Module], Mapping[str, float]]


def accuracy(
    net: Callable[[Tensor], Tensor],
    data: Data,
    split: str = "val",
    *,
    batch: int = 256,
    limit: int | None = None,
    device: torch.device | str = "cpu",
) -> float:
    """Share of images whose class gets the largest logit. A module is evaluated in evaluation mode and left as it was."""
    return float(correct(net, data, split, batch=batch, limit=limit, device=device).double().mean())


def correct(
    net: Callable[[Tensor], Tensor],
    data: Data,
    split: str = "val",
    *,
    batch: int = 256,
    limit: int | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """For every image of the split, in order, whether the network is right: bool [N]."""
    if data.size(split) == 0:
        raise BadInput(
            f"split {split!r} of {data.about.name} must hold images", value=0, remedy="Choose another split."
        )
    was_training = net.training if isinstance(net, nn.Module) else False
    if isinstance(net, nn.Module):
        net.eval()
    right = []
    with torch.no_grad():
        for images, labels in data.batches(split, batch, limit=limit):
            right.append(net(images.to(device)).argmax(-1).cpu() == labels)
    if isinstance(net, nn.Module):
        net.train(was_training)
    return torch.cat(right)


def calibration_batches(data: Data, *, images: int = 384, batch: int = 128, seed: int = 0) -> list[Tensor]:
    """Training images for BN recalibration, drawn once and reused: normalised, not augmented."""
    positions = data.positions("train")
    order = torch.from_numpy(Seed(seed).fold_in("calibration").numpy().permutation(len(positions))[:images])
    return [data.normalise(part.float() / 255) for part, _ in data.fetch(list(positions[order].split(batch)))]


def subnetwork_correct(
    supernet: nn.Module,
    architecture: Architecture,
    data: Data,
    extract: Extract,
    recalibrate: Recalibrate,
    batches: Sequence[Tensor],
    *,
    split: str = "val",
    limit: int | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Right answers of one sub-network: taken out, recalibrated, fed at its own resolution."""
    net = extract(supernet, architecture)
    side = architecture.resolution
    recalibrate(net, [resized(part, side) for part in batches])
    net.eval()
    return correct(lambda images: net(resized(images, side)), data, split, limit=limit, device=device)


def resized(images: Tensor, side: int) -> Tensor:
    """Bicubic, as the super-network does it for spaces with several resolutions."""
    if images.shape[-1] == side:
        return images
    return functional.interpolate(images, size=(side, side), mode="bicubic", align_corners=False)


@final
class SubnetworkEvaluator:
    """Accuracies of the largest, the smallest and the mean of a few random sub-networks, recalibrated."""

    def __init__(
        self,
        data: Data,
        extract: Extract,
        recalibrate: Recalibrate,
        *,
        split: str = "val",
        limit: int | None = 2000,
        randoms: int = 3,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self._data, self._extract, self._recalibrate = data, extract, recalibrate
        self._split, self._limit, self._device = split, limit, device
        self._randoms, self._seed = randoms, seed
        self._batches = [part.to(device) for part in calibration_batches(data, seed=seed)]

    def __call__(self, supernet: nn.Module) -> dict[str, float]:
        space: Any = supernet.space
        rng = Seed(self._seed).fold_in("evaluated sub-networks").numpy()
        randoms = [self.one(supernet, sample(space, rng)) for _ in range(self._randoms)]
        found = {"largest": self.one(supernet, largest(space)), "smallest": self.one(supernet, smallest(space))}
        return {**found, "random": sum(randoms) / len(randoms)} if randoms else found

    def one(self, supernet: nn.Module, architecture: Architecture) -> float:
        """One sub-network with inherited weights and statistics of its own; the super-network is left as it was."""
        right = subnetwork_correct(
            supernet,
            architecture,
            self._data,
            self._extract,
            self._recalibrate,
            self._batches,
            split=self._split,
            limit=self._limit,
            device=self._device,
        )
        return float(right.double().mean())


@final
class NetworkEvaluator:
    """Accuracy of a plain network as it is."""

    def __init__(
        self, data: Data, *, split: str = "val", limit: int | None = 2000, device: torch.device | str = "cpu"
    ) -> None:
        self._data, self._split, self._limit, self._device = data, split, limit, device

    def __call__(self, net: nn.Module) -> dict[str, float]:
        return {"accuracy": accuracy(net, self._data, self._split, limit=self._limit, device=self._device)}
