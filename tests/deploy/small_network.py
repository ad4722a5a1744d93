"""A network of four blocks with every kind of layer there is, and trained-looking weights: quick to export."""

import torch

from snugnet.deploy.card import Card
from snugnet.nets.network import Network, build
from snugnet.space import BlockRules, Head, SearchSpace, Stage, Stem, largest

SPACE = SearchSpace(
    name="small",
    classes=4,
    resolutions=(9,),  # odd: pooling of the shortcut meets a ragged edge
    stem=Stem(widths=(8,), stride=1, act="hard-swish"),
    stages=(
        Stage.of(8, depth=1, expands=(1,)),
        Stage.of(12, depth=2, kernels=(5,), expands=(2,), se=(0.25,), stride=2, act="swish"),
    ),
    head=Head(kind="pool-conv", widths=(16,), hidden_expand=2, act="hard-swish", dropout=0.2),
    rules=BlockRules(shortcut="always"),
)
CARD = Card(
    class_names=("ant", "bee", "cow", "düne"),
    mean=(0.5, 0.4, 0.3),
    std=(0.2, 0.25, 0.3),
    space="small",
    architecture=str(largest(SPACE)),
    budget={"latency": "40ms"},
)


def small_network(seed: int = 0) -> Network:
    torch.manual_seed(seed)
    network = build(largest(SPACE), SPACE)
    with torch.no_grad():  # statistics as after training: the logits are of the order of one and depend on the image
        for layer in network.modules():
            if isinstance(layer, torch.nn.BatchNorm2d):
                layer.weight.uniform_(0.5, 1.5)
                layer.bias.normal_(std=0.3)
        network.head.features.weight.normal_()
        network.head.classifier.weight.normal_()
        network.train()
        for _ in range(20):
            network(torch.randn(16, 3, 9, 9))
    return network.eval()
