"""A super-network in thirty lines with the calling convention of the real one, for tests of the loop alone.

One stage; a block has a 3x3 and a 5x5 depthwise kernel with a BN each, and images leave at their own depth: some parameters
get no gradient in some steps, as in the real thing.
"""

import numpy as np
import torch
from torch import nn

from snugnet.data.dataset import About, InMemory, split_train_val
from snugnet.space.layout import Layout
from snugnet.space.sampling import sample_many
from snugnet.space.space import Head, SearchSpace, Stage, Stem

SPACE = SearchSpace(
    name="standin",
    classes=4,
    resolutions=(8,),
    stem=Stem(widths=(8,), stride=1),
    stages=(Stage.of(8, depth=(1, 3), kernels=(3, 5), expands=(1,)),),
    head=Head(kind="conv-pool", widths=(16,)),
)


class Standin(nn.Module):
    def __init__(self, seed=0, dropout=0.1):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
            self.blocks = nn.ModuleList(nn.ModuleList(_kernel(k) for k in (3, 5)) for _ in range(3))
            self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(8, 4))
        self.space = SPACE

    def sample_paths(self, count, rng):
        return sample_many(self.space, count, rng)

    def forward(self, images, path, *, regularise=None):
        genes = path if hasattr(path, "choice") else Layout(self.space).encode([path])
        rows = np.arange(len(images)) if len(genes) > 1 else np.zeros(len(images), dtype=int)
        x = self.stem(images)
        for b, kernels in enumerate(self.blocks):
            alive = genes.depth[rows, 0] >= b
            for k, kernel in enumerate(kernels):
                taken = torch.from_numpy(np.flatnonzero(alive & (genes.choice[rows, 0, b] == k))).to(x.device)
                if len(taken) > 1:
                    x = x.index_add(0, taken, kernel(x[taken]))
        return self.head(x)


class Plain(nn.Module):
    def __init__(self, seed=0, classes=4):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.layers = nn.Sequential(
                nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
            )
            self.last = nn.Linear(32, classes)

    def forward(self, images):
        return self.last(self.layers(images))


def toy_data(count=320, classes=4):
    """Each class is a bright corner in noise: learnable in a few steps."""
    rng = np.random.default_rng(7)
    labels = rng.integers(classes, size=count)
    images = rng.integers(0, 120, size=(count, 3, 8, 8))
    for i, label in enumerate(labels):
        images[i, :, 4 * (label // 2) :, 4 * (label % 2) :][:, :4, :4] += 90
    names = tuple("abcdefgh"[:classes])
    about = About(name="toy", class_names=names, resolution=8, mean=(0.3,) * 3, std=(0.2,) * 3, hflip=False)
    train = count * 4 // 5
    index = {**split_train_val(train, 0), "test": torch.arange(train, count)}
    pixels = torch.from_numpy(images).to(torch.uint8)
    return InMemory(about=about, index=index, images=pixels, labels=torch.from_numpy(labels).long())


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def _kernel(size):
    return nn.Sequential(nn.Conv2d(8, 8, size, 1, size // 2, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU())
