"""Fused layers compute what torch's layers compute one after the other, gradients and running statistics included."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses import FakeTensorMode

from snugnet.nets import build, fused, native
from snugnet.nets.supernet import Supernet
from snugnet.space import preset, sample

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler here")
ACTS = [None, nn.ReLU(), nn.ReLU6(), nn.Hardswish(), nn.SiLU()]
MAPS = [(1, 3, 5, 5), (64, 17, 1, 1), (7, 100, 4, 4), (3, 64, 14, 14), (2, 19, 1, 7), (40, 33, 9, 9)]


def last(x: torch.Tensor) -> torch.Tensor:
    return x.to(memory_format=torch.channels_last)


def norm_of(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels)
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        nn.init.normal_(tensor)
    return norm


def outcomes(step, norm, inputs):
    """Outputs, gradients for weighted sums of them, and running statistics; of what torch computes, in double as well."""
    out = step(own := copy.deepcopy(norm), *inputs)
    out = out if isinstance(out, tuple) else (out,)
    some = torch.Generator().manual_seed(1)
    loss = sum((y * torch.randn(y.shape, generator=some).to(y)).sum() for y in out)
    grads = torch.autograd.grad(loss, [*inputs, own.weight, own.bias])
    return [*out, *grads, own.running_mean, own.running_var]


def assert_same(ours, theirs, exact):
    """As near to the result in double precision as torch's own layers come, up to a small factor."""
    for mine, other, true in zip(ours, theirs, exact, strict=True):
        allowed = 4 * (other - true).abs().max() + 1e-5 * true.abs().max() + 1e-5
        assert mine.shape == true.shape and (mine - true).abs().max() <= allowed


def compare(ours, usual, norm, inputs):
    double = [x.detach().double().requires_grad_() for x in inputs]
    exact = outcomes(usual, copy.deepcopy(norm).double(), double)
    assert_same(outcomes(ours, norm, inputs), outcomes(usual, norm, inputs), exact)


def by_torch(y: torch.Tensor, norm: nn.BatchNorm2d, act: nn.Module | None) -> torch.Tensor:
    c = y.shape[1]
    mean, var = norm.running_mean[:c], norm.running_var[:c]
    y = F.batch_norm(y, mean, var, norm.weight[:c], norm.bias[:c], True, norm.momentum, norm.eps)
    return y if act is None else act(y)


@pytest.mark.parametrize("act", ACTS, ids=lambda act: type(act).__name__)
@pytest.mark.parametrize("shape", MAPS)
@pytest.mark.parametrize("more", [0, 5])
def test_norm_and_activation(act, shape, more):
    torch.manual_seed(sum(shape))
    x = last(torch.randn(shape) * 2 + 5).requires_grad_()
    norm = norm_of(shape[1] + more)
    assert fused._fused(x, norm, act)
    compare(lambda norm, x: fused.norm_act(x, norm, act), lambda norm, x: by_torch(x, norm, act), norm, [x])


@pytest.mark.parametrize("act", ACTS, ids=lambda act: type(act).__name__)
@pytest.mark.parametrize("kernel", [3, 5, 7])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shape", [*MAPS[:4], (4, 16, 2, 2), (3, 40, 9, 9)])
@pytest.mark.parametrize("pooled", [False, True])
def test_depthwise_norm_and_activation(act, kernel, stride, shape, pooled):
    torch.manual_seed(sum(shape))
    n, channels, rule = shape[0], shape[1], "same" if stride == 2 and pooled else "symmetric"
    x = last(torch.randn(shape) + 1).requires_grad_()
    weight, norm = torch.randn(channels + 3, 1, kernel, kernel, requires_grad=True), norm_of(channels + 3)
    if n * ((shape[2] - 1) // stride + 1) ** 2 < 2:
        pytest.skip("one value per channel has no variance")

    def unfused(norm, x, weight):
        seen, padding = fused.padded(x, kernel, stride, rule)
        y = F.conv2d(seen, weight[:channels], stride=stride, padding=padding, groups=channels)
        y = by_torch(y, norm, act)
        return (y, y[n // 2 :].mean((2, 3))) if pooled else y

    def ours(norm, x, weight):
        group = fused.Group(images=n, weight=weight, norm=norm, pool_from=n // 2 if pooled else None)
        out, means = fused.depthwise_unit(x, group, act, stride, rule)
        return out if means is None else (out, means)

    compare(ours, unfused, norm, [x, weight])


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("rule", ["symmetric", "same"])
@pytest.mark.parametrize("channels", [16, 37])
def test_groups_of_images_with_kernels_of_their_own(stride, rule, channels):
    """One map behind the other and one gradient: what every group comes to by itself, with its own BN or a shared one."""
    torch.manual_seed(channels)
    sizes, kernels, pool_from = [3, 1, 6], [3, 5, 3], [1, None, 0]
    x = last(torch.randn(sum(sizes), channels, 6, 6) + 1).requires_grad_()
    weights = [torch.randn(channels + 3, 1, kernel, kernel, requires_grad=True) for kernel in kernels]
    other, act = norm_of(channels + 3), nn.Hardswish()

    def groups_of(norm, weights, scale, shift):
        middle = copy.deepcopy(other)
        middle.weight, middle.bias = scale, shift
        return [
            fused.Group(images=n, weight=w, norm=own, pool_from=start)
            for n, w, own, start in zip(sizes, weights, [norm, middle, norm], pool_from)
        ]

    def apart(norm, x, *tensors):
        groups = groups_of(norm, tensors[:3], *tensors[3:])
        pairs = [fused.depthwise_unit(part, group, act, stride, rule) for part, group in zip(x.split(sizes), groups)]
        means = [mean for _, mean in pairs if mean is not None]
        return torch.cat([y for y, _ in pairs]), *means, groups[1].norm.running_mean, groups[1].norm.running_var

    def together(norm, x, *tensors):
        groups = groups_of(norm, tensors[:3], *tensors[3:])
        out, means = fused.depthwise_units(x, groups, act, stride, rule)
        return out, *[m for m in means if m is not None], groups[1].norm.running_mean, groups[1].norm.running_var

    norm, inputs = norm_of(channels + 3), [x, *weights, other.weight, other.bias]
    one, all_ = (outcomes(way, norm, inputs) for way in (apart, together))
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-5) for a, b in zip(one, all_, strict=True))
    as_one = type(together(norm, *inputs)[0].grad_fn).__name__ == "_DepthwiseUnitsBackward"
    assert as_one == (rule == "symmetric" or stride == 1)  # else each kernel wants another frame, and is run apart


def test_a_single_value_is_not_taken_for_a_variance():
    x, norm = last(torch.randn(1, 8, 2, 2)), norm_of(8)
    before = norm.running_var.clone()
    fused.depthwise_unit(x, fused.Group(images=1, weight=torch.randn(8, 1, 3, 3), norm=norm), None, 2)
    assert torch.equal(norm.running_var, before)


def test_gates():
    torch.manual_seed(0)
    x, gates = last(torch.randn(5, 19, 4, 4)).requires_grad_(), torch.randn(5, 19, requires_grad=True)
    incoming = torch.randn(5, 19, 4, 4)
    ours, usual = fused.scaled(x, gates), x * gates[:, :, None, None]
    assert torch.equal(ours, usual)
    for pair in zip(*(torch.autograd.grad(y, (x, gates), incoming) for y in (ours, usual))):
        torch.testing.assert_close(*pair, rtol=1e-5, atol=1e-5)


def test_the_variance_of_a_channel_far_from_zero():
    x = last(torch.randn(32, 20, 28, 28, generator=torch.Generator().manual_seed(0)) * 0.01 + 1000)
    x[0] = -1000.0 + x[0] * 1e-3  # and the first values say nothing about the rest
    norm = norm_of(20)
    fused.norm_act(x, norm)
    exact = x.double().var((0, 2, 3), unbiased=True).float()
    torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * exact, rtol=1e-5, atol=0)


def test_not_a_number_stays_one():
    x = last(torch.full((2, 8, 3, 3), float("nan")))
    for act in ACTS:
        assert fused.norm_act(x, norm_of(8), act).isnan().all()


def test_the_same_bits_with_one_thread_and_two():
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        x, weight = last(torch.randn(40, 200, 14, 14)).requires_grad_(), torch.randn(200, 1, 5, 5, requires_grad=True)

        def unit(norm, x, weight):
            group = fused.Group(images=len(x), weight=weight, norm=norm, pool_from=7)
            return fused.depthwise_unit(fused.norm_act(x, norm), group, ACTS[3], 1)

        results.append(outcomes(unit, norm_of(200), [x, weight]))
    torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*results))


def gradients(network: nn.Module, images: torch.Tensor, *what: object) -> dict[str, torch.Tensor]:
    network = copy.deepcopy(network).to(images.dtype).train()
    F.cross_entropy(network(images, *what), torch.arange(len(images)) % 10).backward()
    named = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    return named | dict(network.named_buffers())


@pytest.mark.parametrize("kind", ["paths", "one", "plain"])
def test_a_training_step_is_that_of_the_layers_one_by_one(kind, monkeypatch):
    space = preset("hardcore-lowres", classes=10)
    torch.manual_seed(0)
    images, rng = last(torch.randn(24, 3, 28, 28)), np.random.default_rng(0)
    supernet = Supernet(space).to(memory_format=torch.channels_last)
    if kind == "plain":
        network, what = build(sample(space, rng), space).to(memory_format=torch.channels_last), ()
    else:
        network, what = supernet, (supernet.sample_paths(24, rng) if kind == "paths" else sample(space, rng),)
    ours = gradients(network, images, *what)
    monkeypatch.setattr(native, "library", lambda: None)
    usual = gradients(network, images, *what)
    exact = gradients(network, images.double(), *what)
    assert ours.keys() == usual.keys() == exact.keys()
    for name, true in exact.items():
        allowed = 1e-4 * true.double().norm() + 4 * (usual[name] - true).double().norm() + 1e-5
        assert (ours[name] - true).double().norm() <= allowed, name


def test_where_torchs_own_layers_run(monkeypatch):
    x, norm = torch.randn(4, 8, 5, 5), norm_of(8)
    assert fused._fused(last(x), norm, None)
    assert not fused._fused(x, norm, None)
    assert not fused._fused(last(x).double(), norm, None)
    assert not fused._fused(last(x), copy.deepcopy(norm).eval(), None)
    assert not fused._fused(last(x), norm, nn.Tanh())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not fused._fused(last(x), norm, None)
    assert not native.fits(FakeTensorMode().from_tensor(last(x)))


def test_who_listens_at_a_layer_of_a_plain_network_hears_it():
    space = preset("hardcore-lowres", classes=10)
    network = build(sample(space, np.random.default_rng(0)), space).to(memory_format=torch.channels_last).train()
    heard = []
    network.stem.norm.register_forward_hook(lambda module, inputs, output: heard.append(output))
    network(last(torch.randn(2, 3, 28, 28)))
    assert len(heard) == 1 and int(network.stem.norm.num_batches_tracked) == 1
    assert int(network.head.conv.norm.num_batches_tracked) == 1
