"""Augmentation of whole batches: shift, mirror, AutoAugment, colours, mixup, each drawn from the step's seed.

Images go in as uint8 [N, 3, H, W] and come out normalised, with targets as probabilities [N, classes], because mixup
makes them soft. AutoAugment is kornia's; kornia draws one sub-policy for a whole batch, so a batch is cut into groups
with a sub-policy each, and kornia's use of torch's global generator is fenced in by a seed of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional

from snugnet.errors import BadInput, UnknownName
from snugnet.seeds import Seed

POLICIES = ("imagenet", "cifar10", "svhn")
GROUPS = 8  # sub-policies in a batch: more variety costs more small kernels


@final
@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Which augmentations a step uses; everything off by default."""

    crop_padding: int = 0  # pixels an image may move in each direction
    hflip: bool = False
    policy: str | None = None
    mixup: float = 0.0  # Beta(mixup, mixup)
    color_jitter: tuple[float, float, float, float] | None = None  # brightness, contrast, saturation, hue

    def check(self) -> None:
        if self.policy is not None and self.policy not in POLICIES:
            raise UnknownName("auto_augment policy", self.policy, POLICIES)
        if self.mixup < 0 or self.crop_padding < 0:
            raise BadInput(
                "mixup and crop_padding must not be negative", value=(self.mixup, self.crop_padding), remedy="0 is off."
            )
        jitter = self.color_jitter
        if jitter is not None and not (min(jitter) >= 0 and max(jitter[:3]) <= 1 and jitter[3] <= 0.5):
            raise BadInput(
                "color_jitter must be brightness, contrast and saturation in 0..1 and hue in 0..0.5",
                value=jitter,
                remedy="TF-NAS has [0.4, 0.4, 0.4, 0.2].",
            )

    def apply(
        self, images: Tensor, labels: Tensor, classes: int, seed: Seed, normalise: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """One batch: uint8 images and labels -> normalised images and soft targets."""
        if self.crop_padding:
            images = shifted(images, self.crop_padding, seed.fold_in("shift").torch())
        if self.hflip:
            images = mirrored(images, seed.fold_in("mirror").torch())
        floats = images.float() / 255
        if self.policy is not None:
            floats = auto_augmented(floats, self.policy, seed.fold_in("policy"))
        if self.color_jitter is not None:
            floats = jittered(floats, self.color_jitter, seed.fold_in("colours"))
        floats = normalise(floats)
        targets = functional.one_hot(labels, classes).to(floats.dtype)
        return mixed(floats, targets, self.mixup, seed.fold_in("mixup")) if self.mixup else (floats, targets)


def shifted(images: Tensor, pixels: int, generator: torch.Generator) -> Tensor:
    """Every image moved by its own -pixels..pixels in x and y, black coming in from outside."""
    count, channels, height, width = images.shape
    padded = functional.pad(images, (pixels,) * 4)
    moves = torch.randint(0, 2 * pixels + 1, (2, count), generator=generator).to(images.device)
    rows = (torch.arange(height, device=images.device) + moves[0, :, None]).view(count, 1, height, 1)
    columns = (torch.arange(width, device=images.device) + moves[1, :, None]).view(count, 1, 1, width)
    each = torch.arange(count, device=images.device).view(count, 1, 1, 1)
    return padded[each, torch.arange(channels, device=images.device).view(1, channels, 1, 1), rows, columns]


def mirrored(images: Tensor, generator: torch.Generator) -> Tensor:
    """Every image mirrored left to right with probability one half."""
    turn = (torch.rand(len(images), generator=generator) < 0.5).to(images.device)
    return torch.where(turn.view(-1, 1, 1, 1), images.flip(-1), images)


def auto_augmented(images: Tensor, policy: str, seed: Seed) -> Tensor:
    """AutoAugment on floats in [0, 1]; every group of the (shuffled) batch takes a sub-policy of its own."""
    operations = _policies(policy)
    rng = seed.fold_in("groups").numpy()
    groups = min(GROUPS, len(images))
    parts = torch.from_numpy(rng.permutation(len(images))).tensor_split(groups)
    chosen = rng.integers(len(operations), size=groups)
    result = torch.empty_like(images)
    with seed.fold_in("kornia").seed_globals(), torch.no_grad():
        for part, which in zip(parts, chosen):
            where = part.to(images.device)
            result[where] = operations[int(which)](images[where]).clamp(0, 1)
    return result


def jittered(images: Tensor, strength: tuple[float, float, float, float], seed: Seed) -> Tensor:
    """Brightness, contrast, saturation and hue of every image changed by factors of its own, in a random order."""
    from kornia.augmentation import ColorJitter

    with seed.seed_globals(), torch.no_grad():
        changed: Tensor = ColorJitter(*strength, p=1.0)(images)
    return changed.clamp(0, 1)


def mixed(images: Tensor, targets: Tensor, strength: float, seed: Seed) -> tuple[Tensor, Tensor]:
    """Mixup: every image and target blended with a partner's, one Beta(strength, strength) weight per batch."""
    rng = seed.numpy()
    weight = float(rng.beta(strength, strength))
    partner = torch.from_numpy(rng.permutation(len(images))).to(images.device)
    return torch.lerp(images[partner], images, weight), torch.lerp(targets[partner], targets, weight)


@lru_cache(maxsize=3)
def _policies(name: str) -> list[Any]:
    from kornia.augmentation.auto import AutoAugment

    return list(AutoAugment(name).children())
