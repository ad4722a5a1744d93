"""Every search method where the super-network is on a second device: what meets in an operation lies on one of them."""

import copy

import pytest
import torch

from conftest import fake_latency
from fake_device import CUDA, fake_device
from snugnet.nets import MixedSupernet
from snugnet.searching.search import METHODS, search
from snugnet.space import preset

QUICK = {
    "bcsfw": {"steps": 4, "batch": 16, "candidates": 2},
    "instant": {"paths": 4, "images": 64, "evidence": 6, "most_evidence": 6, "candidates": 2},
    "evolution": {"population": 4, "rounds": 1, "mutations": 2, "crossovers": 2},
    "random": {"networks": 3},
}


@pytest.mark.parametrize("method", [name for name in METHODS if name != "tfnas"])
def test_searches_on_the_device(method, tiny_supernet, digits, tables):
    twin = copy.deepcopy(tiny_supernet)
    with fake_device():
        twin.to(CUDA)
        options = QUICK.get(method, {})
        found = search(twin, digits, tables, {"latency": "70%"}, method, eval_images=64, final_images=64, **options)
    assert found.fits and found.evaluated >= 1


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.separate])
def test_separate_operations_are_searched_on_the_device(method, digits):
    torch.manual_seed(0)
    net = MixedSupernet(preset("tfnas-thin-lowres", classes=10, resolution=8)).eval()
    table = fake_latency(net.space)
    with fake_device():
        net.to(CUDA)
        options = QUICK.get(method, {})
        found = search(net, digits, table, {"latency": "60%"}, method, eval_images=64, final_images=64, **options)
    assert found.fits and found.evaluated >= 1


def test_expected_gradients_are_taken_on_the_device(tiny_supernet, digits, tables):
    twin = copy.deepcopy(tiny_supernet)
    with fake_device():
        twin.to(CUDA)
        options = {**QUICK["bcsfw"], "gradient": "expected"}
        found = search(twin, digits, tables, {"latency": "70%"}, "bcsfw", eval_images=64, final_images=64, **options)
    assert found.fits
