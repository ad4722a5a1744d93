"""Networks that begin as the last one did are answered for from there on, to the last bit as from the start."""

import pickle

import numpy as np
import pytest
import torch

from snugnet.evaluate import shared_blocks
from snugnet.evaluate.evaluator import Evaluator
from snugnet.evaluate.scoring import ImageCache, subnetwork_answers
from snugnet.evaluate.shared_blocks import SharedBlocks
from snugnet.nets import MixedSupernet, Supernet
from snugnet.space.presets import preset
from snugnet.space.sampling import largest, mutate, sample, smallest
from standin import SPACE, toy_data

SPACES = {
    "shared weights": (Supernet, SPACE),
    "separate operations": (MixedSupernet, preset("tfnas-lowres", classes=5, width=0.25, resolution=16)),
}


@pytest.fixture(scope="module")
def images():
    return ImageCache(toy_data())


@pytest.fixture(scope="module", params=SPACES)
def supernet(request):
    kind, space = SPACES[request.param]
    torch.manual_seed(0)
    return kind(space).eval()


def neighbours(space, count):
    """Every one with a few choices of the one before exchanged; now and then the same twice, or an extreme."""
    rng = np.random.default_rng(0)
    found = [sample(space, rng)]
    while len(found) < count:
        found.append(mutate(space, found[-1], rng, 0.1))
    return [*found, found[-1], largest(space), smallest(space), found[0]]


def test_the_answers_are_the_same_to_the_last_bit(supernet, images):
    shared = SharedBlocks(supernet, images, "val", 0)
    for number, network in enumerate(neighbours(supernet.space, 3)):
        for limit in (20, None) if number % 3 == 0 else (None,):
            got = shared.answers(network, limit)
            alone = subnetwork_answers(supernet, network, images, limit=limit)
            assert torch.equal(got.logits, alone.logits)
            assert torch.equal(got.labels, alone.labels)


def test_what_the_last_network_began_with_is_not_run_again(images, monkeypatch):
    torch.manual_seed(0)
    supernet = Supernet(SPACE).eval()
    shared, ran = SharedBlocks(supernet, images, "val", 0), []
    once = shared_blocks._recalibrated
    monkeypatch.setattr(shared_blocks, "_recalibrated", lambda *given: ran.append(given) or once(*given))
    shared.answers(largest(SPACE), 20)
    whole = len(ran)
    shared.answers(largest(SPACE), 20)
    assert len(ran) == whole
    shared.answers(largest(SPACE), 30)  # other images
    assert len(ran) == 2 * whole
    shared.answers(smallest(SPACE), 30)
    assert 2 * whole < len(ran) <= 3 * whole


def test_what_would_take_too_much_memory_is_not_kept(images, monkeypatch):
    torch.manual_seed(0)
    supernet = Supernet(SPACE).eval()
    shared, network = SharedBlocks(supernet, images, "val", 0), largest(SPACE)
    first = shared.answers(network, None)
    assert shared._way
    monkeypatch.setattr(shared_blocks, "KEEP_BYTES", 1000)
    assert torch.equal(shared.answers(network, None).logits, first.logits)
    assert shared._way == []


def test_an_evaluation_that_is_interrupted_leaves_nothing_behind(images, monkeypatch):
    torch.manual_seed(0)
    supernet = Supernet(SPACE).eval()
    shared = SharedBlocks(supernet, images, "val", 0)
    shared.answers(largest(SPACE), 20)

    def interrupted(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shared_blocks, "_recalibrated", interrupted)
        shared.answers(smallest(SPACE), 20)
    alone = subnetwork_answers(supernet, smallest(SPACE), images, limit=20)
    assert torch.equal(shared.answers(smallest(SPACE), 20).logits, alone.logits)


def test_a_worker_is_sent_the_weights_and_not_what_is_kept(images):
    torch.manual_seed(0)
    evaluator = Evaluator(Supernet(SPACE).eval(), images.data)
    before = len(pickle.dumps(evaluator.scorer))
    evaluator(largest(SPACE))
    assert len(pickle.dumps(evaluator.scorer)) < before + 1000
