"""Exact costs against torch's own counters on built networks."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from snugnet.costs.analytic import macs, params, peak_memory, weight_bytes
from snugnet.costs.table import exact_table
from snugnet.costs.vectorised import costs_of_many
from snugnet.errors import TableMismatch, UnknownName
from snugnet.nets import build_part, build_plan
from snugnet.space import largest, plan, preset, sample, smallest, zoo
from snugnet.space.layout import Layout
from snugnet.space.presets import names
from snugnet.space.sampling import sample_many
from snugnet.space.spec import BlockSpec

PRESETS = ("hardcore", "hardcore-paper", "tfnas", "tfnas-wose", "tfnas-mbv2", "attentive")


def counted_by_torch(network, resolution: int) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network.eval()(torch.zeros(1, 3, resolution, resolution))
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("name", names())
def test_macs_and_parameters_agree_with_torch(name):
    space = preset(name) if name.endswith("lowres") else preset(name, resolution=64 if name != "attentive" else 96)
    rng = np.random.default_rng(0)
    for architecture in (smallest(space), largest(space), sample(space, rng), sample(space, rng)):
        made = plan(architecture, space)
        network = build_plan(made)
        assert params(made) == sum(p.numel() for p in network.parameters())
        assert macs(made) == counted_by_torch(network, architecture.resolution)


def test_published_networks_agree_with_torch():
    for name in ("EfficientNet-B0", "MobileNetV3-Large", "MobileNetV2-1.4"):
        made = zoo.find(name).network
        assert macs(made) == counted_by_torch(build_plan(made), 224)


def test_conventions():
    made = zoo.find("TF-NAS-A").network
    biases = sum(part.se + part.mid_channels for part in made.blocks if part.se) + 1000
    assert macs(made, "tfnas") - macs(made) == biases + 49 * 1280
    with pytest.raises(UnknownName):
        macs(made, "guess")


def test_space_extremes_of_attentive():
    space = preset("attentive")
    assert macs(plan(smallest(space), space)) / 1e6 == pytest.approx(203.39, abs=0.005)
    assert macs(plan(largest(space), space)) / 1e6 == pytest.approx(1939.34, abs=0.005)


def test_peak_memory_of_a_block_by_hand():
    words = {"in_channels": 4, "out_channels": 4, "kernel": 3, "stride": 1, "resolution": 10, "act": "relu"}
    wide = BlockSpec(mid_channels=12, shortcut="identity", **words)
    assert peak_memory(wide) == 4 * 100 * (12 + 12 + 4)  # depthwise in and out, the shortcut waiting
    plain = BlockSpec(mid_channels=4, **words)
    assert peak_memory(plain) == 4 * 100 * (4 + 4)
    assert weight_bytes(plain) == 4 * params(plain) == 4 * sum(p.numel() for p in build_part(plain).parameters())


def largest_live_set(network, images) -> int:
    """Replay the layers and track what must be alive: each layer's input and output, and a waiting shortcut."""
    peak = 0
    waiting: list[int] = []

    def before(module, args):
        if getattr(module, "shortcut", None) is not None:
            waiting.append(args[0].numel())

    def leaf(module, args, output):
        nonlocal peak
        peak = max(peak, args[0].numel() + output.numel() + sum(waiting))

    def after(module, args, output):
        if getattr(module, "shortcut", None) is not None:
            waiting.pop()

    for module in network.modules():
        if isinstance(module, torch.nn.Conv2d) and module.groups > 1:
            module.register_forward_hook(leaf)
        if hasattr(module, "depthwise"):
            module.register_forward_pre_hook(before)
            module.register_forward_hook(after)
    with torch.no_grad():
        network.eval()(images)
    return 4 * peak


def test_peak_memory_is_reached_by_a_running_network():
    space = preset("hardcore")
    for architecture in (smallest(space), largest(space)):
        made = plan(architecture, space)
        assert largest_live_set(build_plan(made), torch.zeros(1, 3, 224, 224)) <= peak_memory(made)
    made = plan(largest(space), space)
    assert largest_live_set(build_plan(made), torch.zeros(1, 3, 224, 224)) >= 0.8 * peak_memory(made)


@pytest.mark.parametrize("name", PRESETS)
def test_vectorised_costs_equal_one_by_one(name):
    space = preset(name)
    genes = sample_many(space, 60, np.random.default_rng(1))
    for function, combine in ((macs, "sum"), (params, "sum"), (peak_memory, "max")):
        many = costs_of_many(space, genes, function, combine)
        assert many.tolist() == [function(plan(a, space)) for a in Layout(space).decode(genes)]


@pytest.mark.parametrize("resource", ["macs", "params", "model_size", "memory"])
@pytest.mark.parametrize("name", ["hardcore", "attentive"])
def test_tables_add_up_to_the_network(name, resource):
    space = preset(name)
    table = exact_table(space, resource)
    direct = {"macs": macs, "params": params, "model_size": weight_bytes, "memory": peak_memory}[resource]
    rng = np.random.default_rng(2)
    for _ in range(5):
        made = plan(sample(space, rng), space)
        assert table.of_network(made) == direct(made)


def test_a_table_refuses_what_it_does_not_hold():
    table = exact_table(preset("hardcore"), "macs")
    with pytest.raises(TableMismatch, match="another space or resolution"):
        table.of_network(zoo.find("EfficientNet-B0").network)
    with pytest.raises(UnknownName):
        exact_table(preset("hardcore"), "latency")
