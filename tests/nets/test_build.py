import numpy as np
import pytest
import torch

from snugnet.nets import build, build_part, build_plan
from snugnet.space import largest, preset, sample, smallest, zoo
from snugnet.space.presets import names


@pytest.mark.parametrize("name", list(zoo.networks()))
def test_every_published_network_runs_on_a_batch(name):
    made = zoo.find(name).network
    with torch.no_grad():
        logits = build_plan(made).eval()(torch.randn(2, 3, 64, 64))
    assert logits.shape == (2, 1000)
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize("name", names())
def test_random_architectures_build_train_and_run(name):
    space = preset(name, classes=7)
    rng = np.random.default_rng(0)
    for architecture in (smallest(space), sample(space, rng), sample(space, rng)):
        network = build(architecture, space)
        size = 36 if name.endswith("lowres") else 64
        loss = network(torch.randn(2, 3, size, size)).square().mean()
        loss.backward()
        assert all(p.grad is not None for p in network.parameters())


@pytest.mark.parametrize("name", ["hardcore-lowres", "tfnas-lowres", "attentive-lowres"])
def test_networks_export(name):
    space = preset(name, classes=5)
    network = build(largest(space), space).eval()
    images = torch.randn(2, 3, 28, 28)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(network, (images,), dynamic_shapes=({0: batch},))
    more = torch.randn(3, 3, 28, 28)
    with torch.no_grad():
        assert torch.allclose(program.module()(more), network(more), atol=1e-5)


def test_no_trace_of_the_search_machinery():
    space = preset("hardcore-lowres")
    network = build(largest(space), space)
    kinds = {type(m).__module__.split(".")[0] for m in network.modules() if type(m).__module__.startswith("torch")}
    own = {type(m).__name__ for m in network.modules() if type(m).__module__.startswith("snugnet")}
    assert kinds == {"torch"}
    assert own == {"Network", "InvertedResidual", "ConvUnit", "DepthwiseConv2d", "SqueezeExcite", "ClassifierHead"}


def test_blocks_with_a_shortcut_start_as_it_where_the_paper_says_so():
    space = preset("attentive-lowres")
    network = build(smallest(space), space)
    assert all(
        float(block.project.norm.weight.detach().abs().sum()) == 0 for stage in network.stages for block in stage
    )


@pytest.mark.parametrize("name", ["TF-NAS-A", "TF-NAS-CPU-B"])
def test_squeeze_excite_of_tfnas_uses_the_blocks_own_activation(name):
    """Swish inside the squeeze layer where the block has Swish; forward by the published formula, written out."""
    spec = next(block for block in zoo.find(name).network.blocks if block.se and block.act == "swish")
    torch.manual_seed(0)
    block = build_part(spec).eval()
    squeeze = block.se
    x = torch.randn(2, spec.mid_channels, 5, 5)
    pooled = x.mean((2, 3), keepdim=True)
    inner = squeeze.reduce(pooled)
    assert (inner < 0).any()
    gates = torch.sigmoid(squeeze.expand(inner * torch.sigmoid(inner)))
    torch.testing.assert_close(squeeze(x), x * gates, rtol=1e-5, atol=1e-6)
    relu = torch.sigmoid(squeeze.expand(inner.clamp(min=0)))
    assert not torch.allclose(squeeze(x), x * relu, rtol=1e-3, atol=1e-4)
    first = next(block for block in zoo.find(name).network.blocks if block.se)
    assert (first.act, first.se_act) == ("relu", "relu")
