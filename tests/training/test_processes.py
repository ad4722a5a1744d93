"""Two processes under torchrun against one process that computes both shards in turn."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from two_ranks import PHASES

from snugnet.training import methods, train
from snugnet.training.gradient_sync import GradientSync, start
from standin import Plain, Standin, same, toy_data, weights


@pytest.mark.slow
def test_two_processes_equal_one_that_accumulates(tmp_path):
    here = Path(__file__).parent
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(here / "two_ranks.py"), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(here), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    # torchrun's own words come last, those of the process that failed before them.
    assert done.returncode == 0, done.stderr[-6000:]
    ranks = [load_file(tmp_path / f"rank{i}.safetensors") for i in (0, 1)]
    assert same(ranks[0], ranks[1])
    alone = Standin()
    result = train(alone, toy_data(), PHASES, batch=48, accumulate=2, evaluator=None, device="cpu")
    assert result.steps == 32
    for name, tensor in weights(alone).items():
        assert torch.allclose(tensor.float(), ranks[0][name].float(), rtol=0, atol=1e-5), name
    assert not same(weights(alone), weights(Standin()))
    # The folder the two ranks wrote is resumed by one process with as many shards: nothing is left to do.
    again = Standin()
    result = train(
        again,
        toy_data(),
        PHASES,
        batch=48,
        accumulate=2,
        evaluator=None,
        device="cpu",
        out=tmp_path / "run",
        trackers=(),
    )
    assert result.resumed_at == 32 and same(weights(again), ranks[0])


def test_accumulation_averages_gradients_and_statistics():
    """Without augmentation, two shards of a BN-free pass equal the whole batch; statistics are the shards' mean."""
    fabric = start("cpu", "fp32")
    net = Plain()
    shards = GradientSync(fabric, net, 2)
    images = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    before = net.layers[1].running_mean.clone()
    seen = []
    for number, part in zip(shards.numbers(), images.split(4)):
        assert torch.equal(net.layers[1].running_mean, before)
        shards.backward(net(part).square().mean())
        seen.append((number, net.layers[1].running_mean.clone()))
    assert [number for number, _ in seen] == [0, 1]
    assert torch.allclose(net.layers[1].running_mean, (seen[0][1] + seen[1][1]) / 2)
    assert int(net.layers[1].num_batches_tracked) == 1
    reference = Plain()
    losses = [reference(part).square().mean() for part in images.split(4)]
    (sum(losses) / 2).backward()
    assert all(torch.allclose(a.grad, b.grad, atol=1e-7) for a, b in zip(net.parameters(), reference.parameters()))
    metrics = shards.exchange([{"loss": loss.detach()} for loss in losses])
    assert metrics["loss"] == pytest.approx((sum(losses) / 2).item())


@pytest.mark.parametrize("accumulate", [2, 3])
def test_accumulating_equals_the_larger_batch(accumulate):
    """Where nothing depends on the shard (no batch norm, no augmentation), so many passes take the step of one."""
    method = methods.scratch(epochs=2, mixup=0, auto_augment=None, crop_padding=0, hflip=False, warmup_epochs=0)
    nets, data = [], toy_data()
    for passes in (1, accumulate):
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.LazyLinear(16), torch.nn.ReLU(), torch.nn.Linear(16, data.classes)
        )
        net(next(data.batches("train", 2))[0])
        start_weights = weights(net)
        train(net, data, method, batch=48, accumulate=passes, evaluator=None, device="cpu")
        assert not same(weights(net), start_weights)
        nets.append(weights(net))
    for name, tensor in nets[0].items():
        assert torch.allclose(tensor, nets[1][name], rtol=1e-5, atol=1e-6), name
