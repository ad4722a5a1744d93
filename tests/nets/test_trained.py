"""Networks of others: read exactly, refused by name, made elastic without changing what they compute."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from published import lite0, load_package, randomised
from torch import nn

import snugnet as sn
from snugnet.costs import analytic
from snugnet.costs.table import exact_table
from snugnet.costs.vectorised import cost_range, costs_of_many
from snugnet.errors import BadInput, DamagedFile, UnknownName
from snugnet.nets.blocks import SameConv2d
from snugnet.nets.depthwise import depthwise
from snugnet.nets.elasticise import space_around
from snugnet.nets.extraction import folded
from snugnet.nets.importance import taylor_importance
from snugnet.nets.trained import load_start, read_trained
from snugnet.space.architecture import parse
from snugnet.space.layout import Layout
from snugnet.space.sampling import largest, sample, sample_many, smallest
from snugnet.space.space import BlockRules, Head, SearchSpace, Stage, Stem
from snugnet.space.spec import plan, plan_from_json, plan_to_json


@pytest.fixture(scope="module")
def lite() -> sn.Supernet:
    return sn.elastic(lite0(), resolutions=(64, 96, 224)).eval()


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).detach().abs().max())


@torch.no_grad()
def test_lite0_is_read_exactly_from_module_and_file_and_its_space_ends_in_it(lite):
    images = torch.randn(2, 3, 224, 224)
    expected = lite0()(images)
    trained = load_start("efficientnet-lite0")
    assert (trained.resolution, trained.plan.stem.padding, trained.plan.stem.norm_eps) == (224, "same", 1e-3)
    assert difference(trained.network()(images), expected) < 1e-4
    assert read_trained(lite0()).plan == trained.plan
    assert difference(lite(images, largest(lite.space)), expected) < 1e-4
    assert difference(sn.extract(lite, largest(lite.space))(images), expected) < 1e-4
    assert float(expected.abs().max()) > 3  # these are real answers, not zeros
    assert analytic.params(trained.plan) == sum(p.numel() for p in lite0().parameters())


def test_the_space_around_lite0(lite):
    rng = np.random.default_rng(0)
    median = np.median(costs_of_many(lite.space, sample_many(lite.space, 2000, rng), analytic.macs))
    least, most = (analytic.macs(plan(end(lite.space), lite.space)) for end in (smallest, largest))
    assert least < median / 4 < most / 8
    genes = sample_many(lite.space, 50, rng)
    networks = Layout(lite.space).decode(genes)
    assert Layout(lite.space).decode(Layout(lite.space).encode(networks)) == networks
    listed = set(Layout(lite.space).distinct_specs())  # what a device has to measure, at every resolution
    for network in networks:
        assert parse(str(network), lite.space) == network
        assert set(plan(network, lite.space).parts) <= listed
    for part in listed:
        if hasattr(part, "mid_channels"):
            assert part.mid_channels % 8 == 0
    assert {network.resolution for network in networks} == {64, 96, 224}


@torch.no_grad()
def test_sub_networks_agree_in_all_three_forms(lite):
    rng = np.random.default_rng(1)
    space = lite.space
    networks = [smallest(space), *(sample(space, rng) for _ in range(3))]
    networks = [network for network in networks if network.resolution < 224] + [smallest(space)]
    images = torch.randn(len(networks), 3, 96, 96)
    together = lite(images, Layout(space).encode(networks))
    for number, network in enumerate(networks):
        one = lite(images[number : number + 1], network)
        small = F.interpolate(images, size=(network.resolution,) * 2, mode="bicubic", align_corners=False)
        small = images if network.resolution == 96 else small
        assert difference(one[0], together[number]) < 1e-3 * max(1, float(one.abs().max()))
        assert difference(sn.extract(lite, network)(small[number : number + 1]), one) < 1e-3


def test_paths_train_and_a_sub_network_is_recalibrated():
    supernet = sn.elastic(lite0(), resolutions=(32, 64), classes=5)
    paths = supernet.sample_paths(8, np.random.default_rng(0))
    optimiser = torch.optim.SGD(supernet.parameters(), lr=0.01)
    before = supernet.blocks()[3].operations[0].project.conv.weight.detach().clone()
    images, labels = torch.randn(8, 3, 64, 64), torch.arange(8) % 5
    loss = F.cross_entropy(supernet(images, paths), labels)
    loss.backward()
    optimiser.step()
    assert torch.isfinite(loss)
    assert difference(before, supernet.blocks()[3].operations[0].project.conv.weight) > 0
    network = sn.extract(supernet, smallest(supernet.space))
    sn.recalibrate(network, [torch.randn(8, 3, 32, 32)])
    assert network.eval()(torch.randn(2, 3, 32, 32)).shape == (2, 5)


@torch.no_grad()
def test_other_classes_keep_the_features():
    images = torch.randn(2, 3, 64, 64)
    network = read_trained(lite0(), resolution=64).network()
    supernet = sn.elastic(network, classes=7).eval()
    assert supernet(images, largest(supernet.space)).shape == (2, 7)
    features = sn.extract(supernet, largest(supernet.space)).head.conv
    assert torch.equal(features.conv.weight, network.head.conv.conv.weight)


def test_importance_orders_channels_and_changes_nothing(lite):
    network = read_trained(lite0(), resolution=64).network()
    block = network.stages[1][0]
    with torch.no_grad():
        block.project.conv.weight[:, 5] = 0  # nothing is lost with this channel
    batches = [torch.randn(2, 3, 64, 64)]
    scores = taylor_importance(network, batches)
    assert [len(score) for score in scores] == [part.mid_channels for part in network.plan.blocks]
    assert float(scores[1][5]) == 0
    with torch.no_grad():
        supernet = sn.elastic(network, importance="taylor", batches=batches).eval()
        assert difference(supernet(batches[0], largest(supernet.space)), network(batches[0])) < 1e-4
        moved = supernet.blocks()[1].operations[0].project.conv.weight[:, -1]
        assert float(moved.abs().max()) < 1e-6  # now the last, so that smaller expansions leave it out first
    with pytest.raises(BadInput, match="needs images"):
        sn.elastic(network, importance="taylor")


@torch.no_grad()
def test_a_network_that_only_answers_needs_no_norms(lite):
    network = read_trained(lite0(), resolution=64).network()
    quick, images = folded(network), torch.randn(2, 3, 64, 64)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in quick.modules())
    for ours, theirs in zip(quick.with_features(images), network.with_features(images)):
        assert difference(ours, theirs) < 1e-4
    assert any(isinstance(module, nn.BatchNorm2d) for module in network.modules())  # the original is left alone


def test_depth_and_kernels_can_be_left_alone():
    network = read_trained(lite0()).plan
    space = space_around(network, expands=(1,), kernels=False, depth=False)
    assert space.count == 1
    deep = space_around(network, expands=(1,), kernels=False)
    assert deep.count == 2 * 2 * 3 * 3 * 4
    with pytest.raises(BadInput, match="shares in"):
        space_around(network, expands=(0, 1))


@pytest.mark.parametrize("size", [7, 8, 9, 12])
@pytest.mark.parametrize("kernel", [3, 5])
def test_padding_is_tensorflows(size, kernel):
    """Written out: output i looks at inputs 2i - before, ..., with the smaller half of the padding before."""
    weight, x = torch.randn(4, 1, kernel, kernel), torch.randn(2, 4, size, size)
    out = -(-size // 2)
    before = ((out - 1) * 2 + kernel - size) // 2
    wide = torch.zeros(2, 4, size + 2 * kernel, size + 2 * kernel)
    wide[:, :, kernel : kernel + size, kernel : kernel + size] = x
    expected = torch.zeros(2, 4, out, out)
    for i in range(out):
        for j in range(out):
            top, left = kernel + 2 * i - before, kernel + 2 * j - before
            expected[:, :, i, j] = (wide[:, :, top : top + kernel, left : left + kernel] * weight[:, 0]).sum((2, 3))
    conv = SameConv2d(4, 4, kernel, 2, kernel // 2, groups=4, bias=False)
    conv.weight.data = weight
    assert difference(conv(x), expected) < 1e-4
    weight = weight.requires_grad_()
    fast = depthwise(x.to(memory_format=torch.channels_last), weight, 2, "same")  # with a gradient of its own
    assert difference(fast, expected) < 1e-4
    fast.square().sum().backward()
    plain = weight.detach().clone().requires_grad_()
    pads = [before, (out - 1) * 2 + kernel - size - before] * 2
    F.conv2d(F.pad(x, pads), plain, stride=2, groups=4).square().sum().backward()
    torch.testing.assert_close(weight.grad, plain.grad, rtol=1e-3, atol=1e-3)


def test_same_padding_exports(tmp_path):
    """The exporter compares ONNX Runtime's answers with the network's and writes nothing if they differ."""
    space = SearchSpace(
        name="same",
        classes=3,
        resolutions=(30,),  # 15 and 8 behind strides: an even and an odd size
        stem=Stem(widths=(8,)),
        stages=(Stage.of(8, depth=1, kernels=(5,), stride=2), Stage.of(16, depth=1, kernels=(3,), stride=2)),
        head=Head(kind="conv-pool", widths=(16,)),
        rules=BlockRules(padding="same", norm_eps=1e-3),
    )
    network = randomised(sn.build(largest(space), space))
    sn.export(network, tmp_path / "small.onnx")
    sn.save(network, tmp_path / "small.safetensors")
    back = read_trained(tmp_path / "small.safetensors")
    assert back.plan == network.plan
    assert plan_from_json(plan_to_json(network.plan)) == network.plan


def test_what_is_not_understood_is_named(tmp_path):
    with pytest.raises(BadInput, match=r"known family.*got Sequential.*Understood are networks of timm"):
        read_trained(nn.Sequential(nn.Linear(3, 2)))
    changed = read_trained(lite0())  # a copy is needed: the module is shared by the tests
    module = type("Odd", (nn.Module,), {})()
    for name, child in lite0().named_children():
        setattr(module, name, child)
    module._swish = nn.GELU()
    with pytest.raises(BadInput, match=r"_conv_stem is not understood; there must be one of relu, .*got GELU"):
        read_trained(module)
    module._swish, module._attention = nn.ReLU6(), nn.Linear(2, 2)
    with pytest.raises(BadInput, match=r"Odd\._attention is not understood.*got Linear"):
        read_trained(module)
    torch.save({"features.0.weight": torch.zeros(2)}, tmp_path / "other.pth")
    with pytest.raises(BadInput, match="names of weights alone do not tell"):
        read_trained(tmp_path / "other.pth")
    torch.save(nn.Linear(2, 2), tmp_path / "pickled.pth")
    with pytest.raises(DamagedFile, match="weights alone"):
        read_trained(tmp_path / "pickled.pth")
    torch.save(lite0().state_dict(), tmp_path / "again.pth")
    assert read_trained(tmp_path / "again.pth", like=lite0()).plan == changed.plan


def test_starts_say_what_to_install(monkeypatch):
    with pytest.raises(UnknownName, match="efficientnet-lite0"):
        load_start("resnet")
    import sys

    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(BadInput, match="pip install timm"):
        load_start("timm:mobilenetv3_large_100")


@pytest.mark.parametrize("name", ["mobilenetv3_large_100", "efficientnet_b0", "hardcorenas_a", "fbnetc_100"])
def test_timm(name):
    check_published(load_package("timm").create_model(name))


@pytest.mark.parametrize("name", ["mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0"])
def test_torchvision(name):
    check_published(getattr(load_package("torchvision").models, name)())


@torch.no_grad()
def check_published(module: nn.Module) -> None:
    module = randomised(module)
    supernet = sn.elastic(module, resolutions=(96, 224)).eval()
    images = torch.randn(1, 3, 224, 224)
    expected = module(images)
    scale = max(1.0, float(expected.abs().max()))  # random weights give some networks logits in the hundreds
    assert difference(supernet(images, largest(supernet.space)), expected) < 1e-4 * min(scale, 100)
    assert supernet(images, smallest(supernet.space)).shape == (1, 1000)


def test_costs_of_the_space_are_told_before_anything_is_trained(lite):
    found = cost_range(lite.space, exact_table(lite.space, "params"))
    whole = analytic.params(plan(largest(lite.space), lite.space))
    assert found.largest == whole and found.smallest < found.median < found.largest
    assert str(found).startswith("params from ") and "median" in str(found)
