"""Dropout and stochastic depth of one call: where they act, at what rate, and that they leave no trace."""

import numpy as np
import pytest
import torch

from snugnet.errors import BadInput
from snugnet.nets.elastic_block import drop_connect
from snugnet.nets.supernet import Regularisation, Supernet
from snugnet.space import largest, preset, smallest
from snugnet.training.optimiser import norm_momentum


def supernet():
    torch.manual_seed(0)
    net = Supernet(preset("attentive-lowres", classes=4, resolution=16, width=0.125))
    for block in net.blocks():
        torch.nn.init.ones_(block.operations[0].project.norm.weight)
    return net


def test_rates_are_the_papers():
    rates = Regularisation(drop_connect=0.2).rates(preset("attentive"))
    flat = [rate for row in rates for rate in row]
    assert len(flat) == 37 and flat[:27] == [0.0] * 27
    assert flat[27:] == pytest.approx([0.2 * i / 37 for i in range(27, 37)])
    assert flat[27] == pytest.approx(0.146, abs=1e-3) and flat[36] == pytest.approx(0.195, abs=1e-3)


def test_a_dropped_branch_is_zero_and_the_mean_stays():
    torch.manual_seed(0)
    kept = drop_connect(torch.ones(20_000, 2, 1, 1), 0.2)
    assert set(kept.unique().tolist()) == {0.0, 1.25}
    assert (kept[:, 0] == kept[:, 1]).all() and kept.mean().item() == pytest.approx(1.0, abs=0.02)
    branch = torch.ones(3, 2, 1, 1)
    assert drop_connect(branch, 0.0) is branch


def test_blocks_are_dropped_in_training_and_with_an_identity_shortcut_only():
    net, images = supernet(), torch.rand(8, 3, 16, 16)
    seen = []
    for block in net.blocks():
        block.one = lambda x, number, part, drop, one=block.one: (
            seen.append((part, drop)),
            one(x, number, part, drop),
        )[1]
    with torch.no_grad():
        calm = net(images, largest(net.space), regularise=Regularisation())
        assert torch.equal(calm, net(images, largest(net.space), regularise=Regularisation()))
        wild = net(images, largest(net.space), regularise=Regularisation(drop_connect=0.9))
        assert not torch.allclose(calm, wild)
        assert max(drop for _, drop in seen) > 0.8 and any(part.shortcut != "identity" and d for part, d in seen)
        strided = next(b for b in reversed(net.blocks()) if b.stride == 2)
        place = net.blocks().index(strided)
        part = seen[-len(net.blocks()) + place][0]
        x = torch.rand(8, part.in_channels, part.resolution, part.resolution)
        assert torch.equal(strided.one(x, 0, part, 0.9), strided.one(x, 0, part, 0.0))
        net.eval()
        quiet = net(images, largest(net.space))
        assert torch.equal(
            quiet, net(images, largest(net.space), regularise=Regularisation(dropout=0.5, drop_connect=0.9))
        )


def test_students_have_no_dropout_though_the_space_has():
    net, images = supernet(), torch.rand(4, 3, 16, 16)
    small = smallest(net.space)
    assert net.head.dropout.p == 0.2
    with torch.no_grad():
        plain = [net(images, small, regularise=Regularisation()) for _ in range(2)]
        assert torch.equal(*plain)
        assert not torch.equal(net(images, small), plain[0])
        assert not torch.equal(net(images, small, regularise=Regularisation(dropout=0.2)), plain[0])


def test_paths_are_refused():
    net = supernet()
    paths = net.sample_paths(2, np.random.default_rng(0))
    with pytest.raises(BadInput, match="one network at a time"):
        net(torch.rand(2, 3, 16, 16), paths, regularise=Regularisation())


def test_momentum_of_zero_keeps_statistics_and_goes_back_afterwards():
    net, images = supernet(), torch.rand(4, 3, 16, 16)
    before = {name: tensor.clone() for name, tensor in net.named_buffers()}
    with norm_momentum(net, 0.0):
        net(images, largest(net.space))
    assert all(torch.equal(before[name], tensor) for name, tensor in net.named_buffers())
    assert {m.momentum for m in net.modules() if isinstance(m, torch.nn.BatchNorm2d)} == {0.1}
    net(images, largest(net.space))
    assert not torch.equal(before["stem.norm.running_mean"], net.stem.norm.running_mean)
