"""A network of two blocks that has learnt the digits, in seconds."""

from functools import cache

import torch
from torch.nn import functional as F

from snugnet import data as datasets
from snugnet.nets.network import Network, build
from snugnet.space import BlockRules, Head, SearchSpace, Stage, Stem, largest

SPACE = SearchSpace(
    name="small",
    classes=10,
    resolutions=(8,),
    stem=Stem(widths=(8,), stride=1, act="relu"),
    stages=(Stage.of(8, depth=1, expands=(2,)), Stage.of(16, depth=1, expands=(2,), se=(0.25,), stride=2)),
    head=Head(kind="conv-pool", widths=(32,), act="relu"),
    rules=BlockRules(),
)


@cache
def digits_network() -> Network:
    torch.manual_seed(0)
    network = build(largest(SPACE), SPACE).train()
    optimiser = torch.optim.Adam(network.parameters(), 0.01)
    for _ in range(12):
        for images, labels in datasets.load("digits", resolution=8).batches("train", 64):
            optimiser.zero_grad()
            F.cross_entropy(network(images), labels).backward()
            optimiser.step()
    return network.eval()
