"""Evaluation where the machine has a second device: images are placed where the network is, once."""

import pytest
import torch

from fake_device import CUDA, fake_device, on_device
from snugnet.evaluate.evaluator import Evaluator, training_curves
from snugnet.evaluate.ranking import inherited, random_architectures
from snugnet.evaluate.scoring import ImageCache, answers, subnetwork
from snugnet.nets import Supernet, build
from snugnet.space import largest, smallest
from standin import SPACE, toy_data


@pytest.fixture
def data():
    return toy_data()


@pytest.fixture
def supernet():
    torch.manual_seed(0)
    return Supernet(SPACE).eval()


def test_scores_on_the_device_are_those_on_the_cpu(data, supernet):
    networks = [largest(SPACE), smallest(SPACE)]
    here = [Evaluator(supernet, data, limit=64, closer=64)(network) for network in networks]
    with fake_device():
        supernet.to(CUDA)
        evaluator = Evaluator(supernet, data, limit=64, closer=64)
        there = [evaluator(network) for network in networks]
        assert evaluator.best(networks) in networks
    assert [score.score for score in there] == pytest.approx([score.score for score in here], abs=1e-4)


def test_sub_networks_plain_networks_and_curves_are_fed_on_the_device(data, supernet):
    images = ImageCache(data)
    with fake_device() as device:
        supernet.to(CUDA)
        network = subnetwork(supernet, largest(SPACE), images)
        assert on_device(next(network.parameters()))
        assert len(answers(network, images, limit=32).right) == 32
        moves = device.moves["to"]
        answers(network, images, limit=32)
        images.calibration(CUDA)
        assert device.moves["to"] == moves, "images are placed once"
        plain = build(smallest(SPACE), SPACE).to(CUDA)
        assert not on_device(answers(plain, images, limit=32).right)
        assert set(training_curves(supernet, data, limit=32)(supernet)) == {"largest", "smallest", "random"}
        assert inherited(supernet, data, random_architectures(SPACE, 2, 0), limit=32).shape == (2, 32)
