"""The super-network of separate operations: what runs, what is kept, what comes back."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from snugnet.errors import BadInput
from snugnet.nets import MixedSupernet, extract, recalibrate
from snugnet.nets.separate_operation import SeparateOperation
from snugnet.space import preset, sample
from snugnet.space.architecture import check
from snugnet.space.sampling import largest, smallest


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return MixedSupernet(preset("tfnas-lowres", classes=5, width=0.25, resolution=16)).to(
        memory_format=torch.channels_last
    )


IMAGES = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(0)).to(memory_format=torch.channels_last)


def uniform(net):
    return [torch.full((n,), 1.0 / n) for n in net.depth_counts]


def first(net, number=1):
    return [number if n > 1 else 0 for n in net.choice_counts]


def test_every_layer_has_the_eight_operations_of_the_paper_in_its_order(net):
    labels = [choice.label for choice in net.layout.choices(1, 0)]
    assert labels == ["k3e3", "k3e6", "k5e3", "k5e6", "k3e3s", "k3e6s", "k5e3s", "k5e6s"]
    full = MixedSupernet(preset("tfnas", classes=7))
    assert full.choice_counts == [1] + [8] * 18 and full.depth_counts == [1, 2, 3, 4, 4, 4, 1]
    small, large = full.operations(1)[4], full.operations(1)[5]
    assert (small.part.mid_channels, int(small.width), small.part.se) == (64, 48, 16)
    assert (large.part.mid_channels, int(large.width), large.part.se) == (128, 96, 32)
    assert small.kept.tolist() == list(range(48))
    assert not [m for m in full.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    for name in ("tfnas-wose", "tfnas-mbv2"):
        net = MixedSupernet(preset(f"{name}-lowres", classes=7, width=0.25))
        assert set(net.choice_counts[1:]) == {4} and all(op.part.se == 0 for n in range(19) for op in net.operations(n))


def test_only_the_sampled_operations_run(net, monkeypatch):
    ran = []
    run = SeparateOperation.run
    monkeypatch.setattr(SeparateOperation, "run", lambda self, x, rows: ran.append(self) or run(self, x, rows))
    net(IMAGES, first(net, 3), uniform(net))
    assert [id(op) for op in ran] == [id(net.operations(n)[c]) for n, c in enumerate(first(net, 3))]
    ran.clear()
    weights = [torch.tensor([1.0]) if n == 1 else torch.tensor([0, 0.3, 0, 0, 0.7, 0, 0, 0]) for n in net.choice_counts]
    net(IMAGES, weights, uniform(net))
    assert len(ran) == 1 + 2 * 18


def test_a_one_hot_mixture_is_the_operation_itself_and_weights_have_gradients(net):
    chosen = first(net, 6)
    hot = [F.one_hot(torch.tensor(c), n).float().requires_grad_() for c, n in zip(chosen, net.choice_counts)]
    one, mixed = net(IMAGES, chosen, uniform(net)), net(IMAGES, hot, uniform(net))
    torch.testing.assert_close(one, mixed)
    mixed.square().sum().backward()
    assert all(row.grad is not None for row in hot)


def test_depth_is_sink_connecting(net):
    chosen = first(net)
    hot = [F.one_hot(torch.tensor(0), n).float() for n in net.depth_counts]
    shallow = net(IMAGES, chosen, hot)
    architecture = net.layout.architecture(chosen, [stage.depths[0] for stage in net.space.stages])
    torch.testing.assert_close(shallow, net(IMAGES, architecture), rtol=1e-4, atol=1e-4)
    beta = uniform(net)
    deep = [row.clone().requires_grad_() for row in beta]
    net(IMAGES, chosen, deep).square().sum().backward()
    assert all(bool((row.grad != 0).all()) for row, n in zip(deep, net.depth_counts) if n > 1)
    x = torch.randn(2, 6, 4, 4)
    from snugnet.nets.mixed_supernet import _sink

    torch.testing.assert_close(_sink([x, 2 * x], torch.tensor([0.25, 0.75])), 1.75 * x)


def test_extracted_networks_compute_what_the_supernet_computes(net):
    rng = np.random.default_rng(1)
    for architecture in (smallest(net.space), largest(net.space), sample(net.space, rng), sample(net.space, rng)):
        check(architecture, net.space)
        plain = extract(net, architecture).train()
        torch.testing.assert_close(plain(IMAGES), net(IMAGES, architecture), rtol=1e-4, atol=1e-4)
        assert not {p.data_ptr() for p in plain.parameters()} & {p.data_ptr() for p in net.parameters()}
        still = recalibrate(plain, [IMAGES]).eval()(IMAGES)
        assert torch.isfinite(still).all()


def test_channels_are_ranked_by_l1_and_come_back_with_their_weights():
    torch.manual_seed(1)
    part = MixedSupernet(preset("tfnas-lowres", classes=5, width=0.25, resolution=16)).operations(1)[4].part
    operation = SeparateOperation(part, part.mid_channels * 3 // 4)
    full = part.mid_channels
    before = {name: p.detach().clone() for name, p in operation.named_parameters()}
    norms = operation.depthwise.weight.detach().abs().sum((1, 2, 3))
    operation.keep(full // 2)
    best = torch.argsort(norms, descending=True)[: full // 2].sort().values
    assert torch.equal(operation.kept, best) and int(operation.width) == full // 2
    # A step changes what runs and nothing else.
    x = torch.randn(4, part.in_channels, 8, 8)
    sgd = torch.optim.SGD(operation.parameters(), lr=0.5, momentum=0.9)
    (operation(x).square().mean() + 0.1 * operation.decay()).backward()
    sgd.step()
    dropped = operation.channels[full // 2 :]
    for name, parameter in operation.named_parameters():
        axis = 1 if name.startswith(("project", "reduce.weight")) else 0
        if name == "reduce.bias":
            continue
        now, then = parameter.detach(), before[name]
        assert torch.equal(now.index_select(axis, dropped), then.index_select(axis, dropped)), name
        assert not torch.equal(now.index_select(axis, best), then.index_select(axis, best)), name
    operation.keep(full)
    assert operation.kept.tolist() == list(range(full))
    # Dropped channels compete with the weights they had; the same width again keeps the set.
    operation.keep(full // 2)
    kept = operation.kept.clone()
    operation.depthwise.weight.data[kept[0]] = 0.0
    operation.keep(full // 2)
    assert torch.equal(operation.kept, kept)
    operation.keep(full // 2 + 1)
    assert int(kept[0]) not in operation.kept.tolist() and len(operation.kept) == full // 2 + 1


def test_squeeze_excite_has_the_blocks_own_activation(net):
    """Written out by the method's formula; ReLU inside would give something else."""
    number = next(n for n, slot in enumerate(net.layout.slots) if slot.stage == 3)
    operation = net.operations(number)[5]
    assert operation.part.act == operation.part.se_act == "swish"
    seen = {}
    for act in ("swish", "relu"):
        other = SeparateOperation(replace(operation.part, se_act=act), int(operation.width))
        other.load_state_dict(operation.state_dict())
        x = torch.randn(4, operation.part.in_channels, 8, 8, generator=torch.Generator().manual_seed(2))
        seen[act] = other(x)
    x = torch.randn(4, operation.part.in_channels, 8, 8, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(operation(x), seen["swish"])
    assert not torch.allclose(operation(x), seen["relu"], atol=1e-3)
    assert net.operations(1)[5].part.se_act == "relu"


def test_saved_widths_are_seen_again_however_they_are_written(net):
    space = net.space
    torch.manual_seed(3)
    one, two = MixedSupernet(space), MixedSupernet(space)
    one.operations(4)[2].keep(one.operations(4)[2].part.mid_channels - 3)
    two(IMAGES, first(two, 2), uniform(two))
    two.load_state_dict(one.state_dict())
    torch.testing.assert_close(two(IMAGES, first(two, 2), uniform(two)), one(IMAGES, first(one, 2), uniform(one)))
    three = MixedSupernet(space)
    three(IMAGES, first(three, 2), uniform(three))
    for name, tensor in three.state_dict().items():  # as a checkpoint does it
        tensor.copy_(one.state_dict()[name])
    torch.testing.assert_close(three(IMAGES, first(three, 2), uniform(three)), one(IMAGES, first(one, 2), uniform(one)))


def test_spaces_and_calls_it_cannot_serve_are_refused(net):
    with pytest.raises(BadInput, match="share: false"):
        MixedSupernet(preset("hardcore-lowres"))
    with pytest.raises(BadInput, match="an operation for each layer"):
        net(IMAGES, [0], uniform(net))
