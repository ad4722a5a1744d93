"""The fake device fails where a GPU would and nowhere else."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from fake_device import CUDA, DeviceMixing, fake_device, on_device


def test_a_network_on_the_device_refuses_images_that_are_not():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    images = torch.rand(5, 3, 8, 8)
    expected = net(images).detach()
    with fake_device() as device:
        assert next(net.parameters()).device.type == "cpu"
        net.to(CUDA)
        assert {t.device for t in net.state_dict().values()} == {CUDA}
        with pytest.raises(DeviceMixing, match="conv2d"):
            net(images)
        logits = net(images.to(CUDA))
        assert logits.device == CUDA and logits.cpu().device.type == "cpu"
        with pytest.raises(DeviceMixing):
            logits + torch.zeros(5, 2)
        with pytest.raises(DeviceMixing):
            functional.cross_entropy(logits, torch.zeros(5, dtype=torch.long))
        with pytest.raises(TypeError, match="cpu"):
            logits.detach().numpy()
        assert on_device(copy.deepcopy(net)[0].weight) and not on_device(images)
        assert torch.equal(net.cpu()[0].weight.detach(), copy.deepcopy(net)[0].weight.detach())
        assert net[0].weight.device.type == "cpu"
    assert torch.allclose(logits, expected)
    assert device.moves["to"] >= 5


def test_what_a_gpu_allows_is_allowed():
    net = nn.Linear(4, 3)
    with fake_device():
        net.to("cuda")
        adam = torch.optim.Adam(net.parameters())
        for _ in range(2):
            adam.zero_grad()
            loss = functional.cross_entropy(net(torch.rand(6, 4, device="cuda")), torch.zeros(6, 3).to("cuda"))
            loss.backward()
            assert on_device(net.weight.grad)
            adam.step()
        weights = torch.rand(4, 3).to(CUDA)
        assert on_device(weights[torch.tensor([0, 2])]) and on_device(weights * torch.tensor(2.0))
        assert on_device(functional.one_hot(torch.tensor([1]).to(CUDA), 3))
        host = torch.zeros(4, 3)
        host.copy_(weights)
        assert not on_device(host) and torch.equal(host, weights.cpu())
        with pytest.raises(DeviceMixing):
            host[torch.tensor([0]).to(CUDA)]
