"""A super-network on another device than the CPU: no call mixes the two."""

import numpy as np
import pytest
import torch

from fake_device import CUDA, fake_device
from snugnet.nets import Supernet, extract, recalibrate, sort_channels
from snugnet.space import preset, sample


@pytest.mark.parametrize("name", ["hardcore-lowres", "attentive-lowres", "tfnas-lowres"])
def test_every_way_to_run_stays_on_the_device(name):
    space = preset(name, classes=4, resolution=16, width=0.5)
    supernet, rng = Supernet(space), np.random.default_rng(0)
    architecture, paths = sample(space, rng), supernet.sample_paths(6, rng)
    images, labels = torch.randn(6, 3, space.resolutions[-1], space.resolutions[-1]), torch.arange(6) % 4
    with fake_device():
        supernet.to(CUDA)
        images, labels = images.to(CUDA), labels.to(CUDA)
        sort_channels(supernet)
        torch.nn.functional.cross_entropy(supernet(images, paths), labels).backward()
        supernet(images, architecture)
        network = extract(supernet, architecture)
        recalibrate(network, [images])
        network(images)
        if not supernet.layout.why_not_additive:
            alpha = [torch.full((len(block.choices),), 1 / len(block.choices)).to(CUDA) for block in supernet.blocks()]
            beta = [torch.full((len(stage.depths),), 1 / len(stage.depths)).to(CUDA) for stage in space.stages]
            supernet(images, alpha, beta)
