"""One set of weights, three ways to call it: all must agree with plain networks and with each other."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snugnet.errors import BadInput, BadSpace
from snugnet.nets import Supernet, elastic, extract, extract_largest, recalibrate, sort_channels
from snugnet.space import (
    BlockChoice,
    BlockRules,
    Head,
    SearchSpace,
    Stage,
    Stem,
    largest,
    preset,
    sample,
    smallest,
)
from snugnet.space.layout import Layout, concatenate
from snugnet.space.presets import names


def lived_in(space: SearchSpace, seed: int = 0) -> Supernet:
    """A super-network whose BN has statistics and scales of its own, so that no slice can hide."""
    torch.manual_seed(seed)
    supernet = Supernet(space)
    with torch.no_grad():
        for module in supernet.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_(0, 0.1)
            elif isinstance(module, nn.Linear):
                module.weight.normal_(0, 0.1)
            if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
                module.bias.normal_(0, 0.1)
    return supernet.eval()


def small(name: str) -> SearchSpace:
    if name.endswith("lowres"):
        return preset(name, classes=5, resolution=16, width=0.5)
    return preset(name, classes=5, resolution=64, width=0.5)


def images(space: SearchSpace, count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, space.resolutions[-1], space.resolutions[-1], generator=generator)


def own_space() -> SearchSpace:
    """A user's space that mixes what presets keep apart: no expansion beside expansions, elastic and fixed widths."""
    mixed = Stage(
        widths=(8, 16),
        depths=(1, 3),
        choices=(
            BlockChoice(kernel=3, expand=1),
            BlockChoice(kernel=5, expand=2, se=0.25),
            BlockChoice(kernel=7, expand=3),
        ),
    )
    return SearchSpace(
        name="own",
        classes=4,
        resolutions=(12, 16),
        stem=Stem(widths=(8, 16), stride=1),
        stages=(mixed, Stage.of((16, 24), depth=(1, 2), stride=2, kernels=(3, 5), expands=(1, 2), per="stage")),
        head=Head(kind="conv-pool", widths=(16, 32)),
    )


def free_width_space() -> SearchSpace:
    """Free middle widths with a squeeze layer that follows them, and weights shared by all choices."""
    choices = tuple(
        BlockChoice(kernel=kernel, expand=2, se=se, expand_range=(1.5, 4)) for kernel in (3, 5) for se in (0.0, 0.5)
    )
    return SearchSpace(
        name="free",
        classes=4,
        resolutions=(12,),
        stem=Stem(widths=(16,), stride=1),
        stages=(
            Stage(widths=(16,), depths=(1, 2), choices=choices),
            Stage(widths=(24,), depths=(1, 2), choices=choices, stride=2, act="swish"),
        ),
        head=Head(kind="conv-pool", widths=(32,)),
        rules=BlockRules(se_of="middle", se_divisor=2, se_act="block"),
    )


SPACES = {**{name: small(name) for name in names()}, "own": own_space(), "free": free_width_space()}


@pytest.mark.parametrize("name", SPACES)
def test_extracted_networks_equal_the_supernets_output(name):
    space = SPACES[name]
    supernet, rng = lived_in(space), np.random.default_rng(0)
    for architecture in (largest(space), smallest(space), sample(space, rng), sample(space, rng)):
        x = images(space, 2)
        network = extract(supernet, architecture)
        size = architecture.resolution
        y = x if x.shape[-1] == size else F.interpolate(x, size=(size, size), mode="bicubic", align_corners=False)
        with torch.no_grad():
            difference = (supernet(x, architecture) - network(y)).abs().max()
        assert difference <= 1e-5


@pytest.mark.parametrize("name", SPACES)
def test_a_path_per_image_equals_each_image_alone(name):
    space = SPACES[name]
    supernet, rng = lived_in(space), np.random.default_rng(1)
    x, paths = images(space, 9), supernet.sample_paths(9, rng)
    with torch.no_grad():
        together = supernet(x, paths)
        alone = torch.cat([supernet(x[i : i + 1], a) for i, a in enumerate(Layout(space).decode(paths))])
    assert (together - alone).abs().max() <= 1e-6 * max(1.0, float(alone.abs().max()))


@pytest.mark.parametrize("name", ["hardcore-lowres", "tfnas-lowres", "attentive-lowres"])
def test_training_gradients_agree_when_all_images_take_one_path(name):
    space = SPACES[name]
    architecture = sample(space, np.random.default_rng(2))
    x = images(space, 6)
    labels = torch.arange(6) % 5
    gradients = []
    for what in (architecture, Layout(space).encode([architecture] * 6)):
        supernet = lived_in(space).train()
        supernet.head.dropout.p = 0.0
        F.cross_entropy(supernet(x, what), labels).backward()
        gradients.append({n: p.grad.clone() for n, p in supernet.named_parameters() if p.grad is not None})
        buffers = {n: b.clone() for n, b in supernet.named_buffers()}
        gradients[-1] |= {n: b for n, b in buffers.items() if b.is_floating_point()}
    assert gradients[0].keys() == gradients[1].keys()
    for key, value in gradients[0].items():
        assert torch.allclose(value, gradients[1][key], atol=1e-5, rtol=1e-3), key


def test_gradients_of_mixed_paths_are_the_sum_of_each_images_own():
    """In evaluation mode images do not influence each other, so gradients add up: reordering must not mix them up."""
    space = SPACES["hardcore-lowres"]
    supernet = lived_in(space)
    x, labels = images(space, 7), torch.arange(7) % 5
    paths = supernet.sample_paths(7, np.random.default_rng(3))
    F.cross_entropy(supernet(x.to(memory_format=torch.channels_last), paths), labels, reduction="sum").backward()
    together = {n: p.grad.clone() for n, p in supernet.named_parameters() if p.grad is not None}
    supernet.zero_grad()
    for i, architecture in enumerate(Layout(space).decode(paths)):
        F.cross_entropy(supernet(x[i : i + 1], architecture), labels[i : i + 1], reduction="sum").backward()
    for name, parameter in supernet.named_parameters():
        if name in together:
            assert torch.allclose(together[name], parameter.grad, atol=1e-5, rtol=1e-3), name


def test_what_batch_norm_normalises_over():
    """A channel's statistics come from all images of the layer (and kernel), whatever their expansions."""
    space = SPACES["hardcore-lowres"]
    small_one, large_one = (Layout(space).encode([a]) for a in (smallest(space), largest(space)))
    supernet = lived_in(space).train()
    block = supernet.blocks()[1]
    norm = block.operations[0].expand.norm
    before = norm.running_mean.clone()
    x = images(space, 4)
    supernet(x, concatenate([small_one, small_one, large_one, large_one]))
    assert (norm.running_mean != before).all()  # channels beyond the small expansion are there for all four images


def one_hot(space: SearchSpace, architecture, dtype=torch.float64) -> tuple[list, list]:
    genes = Layout(space).encode([architecture])
    alpha, beta = [], []
    for s, stage in enumerate(space.stages):
        for d in range(stage.max_depth):
            alpha.append(F.one_hot(torch.tensor(genes.choice[0, s, d]), len(stage.choices)).to(dtype))
        beta.append(F.one_hot(torch.tensor(genes.depth[0, s]), len(stage.depths)).to(dtype))
    return alpha, beta


@pytest.mark.parametrize("name", ["hardcore-lowres", "hardcore-paper-lowres"])
def test_one_hot_weights_are_the_sub_network(name):
    space = SPACES[name]
    supernet = lived_in(space).double()
    x = images(space, 3).double()
    for seed in range(3):
        architecture = sample(space, np.random.default_rng(seed))
        alpha, beta = one_hot(space, architecture)
        with torch.no_grad():
            assert torch.allclose(supernet(x, alpha, beta), supernet(x, architecture), atol=1e-9)


def test_a_relaxed_block_is_the_mixture_of_its_choices():
    space = SPACES["hardcore-lowres"]
    supernet = lived_in(space).double()
    block = supernet.blocks()[2]
    x = torch.randn(3, block.in_widths[-1], 8, 8, dtype=torch.float64)
    weights = torch.rand(3, 12, dtype=torch.float64)
    with torch.no_grad():
        each = torch.stack([block.one(x, c, part) - x for c, part in enumerate(block.parts)])
        expected = x + torch.einsum("nc,cnkhw->nkhw", weights, each)
        assert torch.allclose(block.relaxed(x, weights), expected, atol=1e-10)
        assert torch.allclose(
            block.relaxed(x, weights[0]), x + torch.einsum("c,cnkhw->nkhw", weights[0], each), atol=1e-10
        )


def test_relaxed_gradient_against_finite_differences():
    space = preset("hardcore-lowres", classes=3, resolution=8, width=0.25)
    supernet = lived_in(space).double()
    x, labels = images(space, 2).double(), torch.tensor([0, 2])
    rng = np.random.default_rng(4)
    alpha = [torch.tensor(rng.dirichlet(np.ones(len(b.parts)))).requires_grad_() for b in supernet.blocks()]
    beta = [torch.tensor(rng.dirichlet(np.ones(len(s.depths)))).requires_grad_() for s in space.stages]

    def loss() -> torch.Tensor:
        return F.cross_entropy(supernet(x, alpha, beta), labels)

    gradients = torch.autograd.grad(loss(), [*alpha, *beta])
    step = 1e-6
    for which in (2, len(alpha) + 1):
        vector = [*alpha, *beta][which]
        for entry in range(len(vector)):
            with torch.no_grad():
                vector[entry] += step
                above = loss()
                vector[entry] -= 2 * step
                below = loss()
                vector[entry] += step
            assert float(gradients[which][entry]) == pytest.approx(float((above - below) / (2 * step)), abs=1e-7)


def test_per_image_one_hot_gradient_is_the_inner_product_with_every_choice():
    space = preset("hardcore-lowres", classes=3, resolution=8, width=0.25)
    supernet = lived_in(space).double()
    x, labels = images(space, 4).double(), torch.tensor([0, 1, 2, 0])
    architectures = Layout(space).decode(supernet.sample_paths(4, np.random.default_rng(5)))
    singles = [one_hot(space, a) for a in architectures]
    alpha = [torch.stack([s[0][b] for s in singles]).requires_grad_() for b in range(len(supernet.blocks()))]
    beta = [torch.stack([s[1][b] for s in singles]).requires_grad_() for b in range(len(space.stages))]
    gradient = torch.autograd.grad(F.cross_entropy(supernet(x, alpha, beta), labels, reduction="sum"), [*alpha, *beta])
    for n, (a, b) in enumerate(singles):
        a1, b1 = [v.clone().requires_grad_() for v in a], [v.clone().requires_grad_() for v in b]
        alone = torch.autograd.grad(F.cross_entropy(supernet(x[n : n + 1], a1, b1), labels[n : n + 1]), [*a1, *b1])
        for whole, part in zip(gradient, alone):
            assert torch.allclose(whole[n], part, atol=1e-10)


def test_calls_leave_no_trace():
    space = SPACES["hardcore-lowres"]
    supernet = lived_in(space)
    x = images(space, 3)
    with torch.no_grad():
        first = supernet(x, largest(space))
        supernet(x, smallest(space))
        supernet(x, supernet.sample_paths(3, np.random.default_rng(6)))
        assert torch.equal(supernet(x, largest(space)), first)


@pytest.mark.parametrize("name", ["hardcore-lowres", "tfnas-lowres", "attentive-lowres"])
def test_sorting_channels_keeps_the_largest_network_and_serves_the_small(name):
    space = SPACES[name]
    supernet = lived_in(space)
    x = images(space, 2)
    with torch.no_grad():
        before = supernet(x, largest(space))
        sort_channels(supernet)
        assert torch.allclose(supernet(x, largest(space)), before, atol=1e-4)
    weight = supernet.blocks()[-1].operations[0].project.conv.weight.detach().abs().sum((0, 2, 3))
    assert (weight.diff() <= 1e-6).all()


def test_recalibration_gives_the_statistics_of_the_batches():
    torch.manual_seed(0)
    space = SPACES["hardcore-lowres"]
    network = extract_largest(lived_in(space))
    batches = [images(space, 8, seed) for seed in range(3)]
    weights = {n: p.clone() for n, p in network.named_parameters()}
    recalibrate(network, batches)
    assert not network.training
    assert all(torch.equal(p, weights[n]) for n, p in network.named_parameters())
    with torch.no_grad():
        outputs = [network.stem.conv(batch) for batch in batches]
    assert torch.allclose(
        network.stem.norm.running_mean, torch.stack([o.mean((0, 2, 3)) for o in outputs]).mean(0), atol=1e-5
    )
    assert torch.allclose(
        network.stem.norm.running_var, torch.stack([o.var((0, 2, 3)) for o in outputs]).mean(0), rtol=1e-4
    )
    assert network.stem.norm.momentum == 0.1
    with pytest.raises(BadInput, match="at least one batch"):
        recalibrate(network, [])


def test_a_lone_value_per_channel_does_not_break_training():
    space = preset("hardcore", classes=3, resolution=32, width=0.5)  # the last stage sees one position
    supernet = lived_in(space).train()
    logits = supernet(images(space, 2), supernet.sample_paths(2, np.random.default_rng(7)))
    logits.sum().backward()
    assert all(torch.isfinite(b).all() for b in supernet.buffers())


def test_misuse_is_explained():
    space = SPACES["hardcore-lowres"]
    supernet = lived_in(space)
    x = images(space, 2)
    with pytest.raises(BadInput, match="path for every image"):
        supernet(x, supernet.sample_paths(3, np.random.default_rng(0)))
    with pytest.raises(BadInput, match="alpha and beta"):
        supernet(x, [torch.ones(1)])
    with pytest.raises(BadInput, match="must have"):
        supernet(x, [torch.ones(1)], [torch.ones(1)])
    attentive = lived_in(SPACES["attentive-lowres"])
    with pytest.raises(BadSpace, match="several stem or head widths"):
        attentive(images(SPACES["attentive-lowres"], 1), [torch.ones(1)], [torch.ones(1)])


@pytest.mark.parametrize("images, side", [(1, 7), (3, 16), (5, 13), (8, 8), (15, 4), (16, 8), (40, 8)])
@pytest.mark.parametrize("slow_products", [True, False])
def test_a_pointwise_convolution_is_one_however_its_images_are_cut(images, side, slow_products, monkeypatch):
    monkeypatch.setattr(elastic, "_slow_products", lambda: slow_products)
    torch.manual_seed(images)
    x = torch.randn(images, 80, side, side).contiguous(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(480, 80, 1, 1).requires_grad_()
    ours, plain = elastic.pointwise(x, weight), F.conv2d(x, weight)
    gradient = torch.randn_like(plain)
    for mine, theirs in zip(
        (ours, *torch.autograd.grad(ours, (x, weight), gradient)),
        (plain, *torch.autograd.grad(plain, (x, weight), gradient)),
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-3)
    assert ours.is_contiguous(memory_format=torch.channels_last)
