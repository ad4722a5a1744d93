"""A super-network small enough to search in a second, with weights that make choices matter."""

import numpy as np
import pytest
import torch

from snugnet.costs.table import CostTable, exact_table
from snugnet.data import load
from snugnet.nets import Supernet
from snugnet.space import Head, SearchSpace, Stage, Stem
from snugnet.space.layout import Layout
from snugnet.training import methods, train


@pytest.fixture(scope="session")
def digits():
    return load("digits", resolution=8)


def tiny_space() -> SearchSpace:
    return SearchSpace(
        name="tiny",
        classes=10,
        resolutions=(8,),
        stem=Stem(widths=(8,), stride=1),
        stages=(
            Stage.of(8, depth=(1, 2), stride=2, kernels=(3, 5), expands=(1, 2), se=(0,)),
            Stage.of(16, depth=(1, 2), stride=2, kernels=(3, 5), expands=(2, 3), se=(0, 0.25)),
        ),
        head=Head(kind="conv-pool", widths=(32,)),
    )


def fake_latency(space: SearchSpace) -> CostTable:
    """A measured-looking table: milliseconds that grow with MACs, plus a little of everything else."""
    rng = np.random.default_rng(0)
    macs = exact_table(space, "macs")
    costs = {part: 1e-6 * macs.of_part(part) + 0.01 + 0.005 * rng.random() for part in Layout(space).distinct_specs()}
    return CostTable(resource="latency", costs=costs)


@pytest.fixture(scope="session")
def tiny_supernet(digits):
    torch.manual_seed(0)
    supernet = Supernet(tiny_space())
    method = methods.multipath(epochs=4, lr=0.1, warmup_epochs=0, mixup=0.0, auto_augment=None, ema=None)
    train(supernet, digits, method, batch=64, threads=1, evaluator=None)
    return supernet.eval()


@pytest.fixture
def tables(tiny_supernet):
    return fake_latency(tiny_supernet.space)
