"""The piecewise weight gradient is the ordinary one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from snugnet.nets.depthwise import _helps, depthwise


@pytest.mark.parametrize("kernel", [3, 5, 7])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [1, 2, 4, 7, 12])
def test_same_values_and_gradients_as_an_ordinary_convolution(kernel, stride, size):
    torch.manual_seed(kernel * stride + size)
    x = torch.randn(3, 24, size, size).to(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(24, 1, kernel, kernel, requires_grad=True)
    assert _helps(x)
    ours = depthwise(x, weight, stride)
    usual = F.conv2d(x, weight, stride=stride, padding=kernel // 2, groups=24)
    torch.testing.assert_close(ours, usual, rtol=0, atol=1e-5)
    incoming = torch.randn_like(usual)
    for mine, theirs in zip(
        torch.autograd.grad(ours, (x, weight), incoming), torch.autograd.grad(usual, (x, weight), incoming)
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_sliced_and_cropped_weights_get_their_gradient_back():
    torch.manual_seed(0)
    whole = torch.randn(32, 1, 7, 7, requires_grad=True)
    x = torch.randn(2, 16, 9, 9).to(memory_format=torch.channels_last)
    cut = whole[:16, :, 1:-1, 1:-1]
    (mine,) = torch.autograd.grad(depthwise(x, cut, 1).square().sum(), whole)
    (theirs,) = torch.autograd.grad(F.conv2d(x, cut, padding=2, groups=16).square().sum(), whole)
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-3)


def test_other_types_and_layouts_take_the_ordinary_way():
    assert not _helps(torch.randn(2, 4, 5, 5))
    assert not _helps(torch.randn(2, 4, 5, 5, dtype=torch.float64).to(memory_format=torch.channels_last))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not _helps(torch.randn(2, 4, 5, 5).to(memory_format=torch.channels_last))
