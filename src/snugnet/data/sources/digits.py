"""Handwritten digits, 1797 images of 8 x 8, part of scikit-learn: nothing to fetch.

The set has no published test part, so every fifth image (ordered within its class) is the test part, whatever the seed;
neighbouring images often come from one writer, so a random cut would be no harder. Values run from 0 to 16.
"""

from __future__ import annotations

import torch

from snugnet.data.dataset import About, InMemory, in_memory


def load(resolution: int | None, seed: int) -> InMemory:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = (torch.from_numpy(bunch.images) * (255 / 16)).round().to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(bunch.target).long()
    test = torch.zeros(len(labels), dtype=torch.bool)
    for digit in range(10):
        test[(labels == digit).nonzero().flatten()[4::5]] = True
    about = About(
        name="digits",
        class_names=tuple(str(digit) for digit in range(10)),
        resolution=resolution or 8,
        mean=(0.305,) * 3,
        std=(0.376,) * 3,
        hflip=False,
    )
    return in_memory(about, (images[~test], labels[~test]), (images[test], labels[test]), resolution, seed)
