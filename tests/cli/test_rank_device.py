"""`rank --stand-alone` evaluates a network where training left it."""

from pathlib import Path
from types import SimpleNamespace

import torch

from fake_device import CUDA, fake_device
from snugnet.cli.rank import _stand_alone
from snugnet.data import load
from snugnet.progress import NullProgress


def test_images_follow_a_network_that_training_moved(tmp_path: Path, monkeypatch):
    data = load("digits")

    with fake_device():
        images, _ = next(iter(data.batches("val", 2)))
        net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(images[0].numel(), 10)).to(CUDA)
        monkeypatch.setattr("snugnet.training.run.train_standalone", lambda *args, **options: net)
        phase = SimpleNamespace(describe=dict)
        monkeypatch.setattr("snugnet.training.run.scratch_like", lambda phase, epochs: phase)
        part = SimpleNamespace(methods=lambda: [phase], batch=8, channels_last=False)
        recipe = SimpleNamespace(train=part, seed=0)
        run = SimpleNamespace(recipe=recipe, folder=tmp_path, data=data, supernet=SimpleNamespace(space=None))
        right = _stand_alone(run, ["a network"], "val", 1, NullProgress())
    assert right.shape == (1, data.size("val"))
