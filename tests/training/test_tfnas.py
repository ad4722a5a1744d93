"""TF-NAS as a training method: paths, the architecture step, scaling, and a killed search that ends the same."""

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from snugnet.budgets import Budget, limits_of
from snugnet.errors import BadInput
from snugnet.nets import MixedSupernet, Supernet
from snugnet.seeds import Seed
from snugnet.solve import Point, Problem
from snugnet.solve.problem import Group, ResourceCosts
from snugnet.space import BlockChoice, Head, SearchSpace, Stage, Stem, preset
from snugnet.space.space import BlockRules
from snugnet.training import methods, train
from snugnet.training.methods._tfnas import ArchitectureAdam, ExpectedCosts
from snugnet.training.optimiser import build, learning_rate
from standin import same, toy_data, weights

pytestmark = pytest.mark.usefixtures("one_thread")

RULES = BlockRules(se_of="input", se_divisor=1, se_act="block", se_gate="sigmoid", share=False)
CHOICES = tuple(
    BlockChoice(kernel=k, expand=e, expand_range=r, se=s)
    for s in (0.0, 1.0)
    for k in (3, 5)
    for e, r in ((3.0, (2.0, 4.0)), (6.0, (4.0, 8.0)))
)
TINY = SearchSpace(
    name="tiny-tfnas",
    classes=4,
    resolutions=(8,),
    stem=Stem(widths=(4,), stride=1),
    stages=(
        Stage(widths=(4,), depths=(1, 2), choices=CHOICES, stride=2),
        Stage(widths=(6,), depths=(1, 2), choices=CHOICES, stride=2, act="swish"),
    ),
    head=Head(kind="conv-pool", widths=(16,), act="swish"),
    rules=RULES,
)
METHOD = methods.tfnas(epochs=4, weights_only_epochs=1, held_out_batch=16, lr=0.05)
OPTIONS = {"batch": 32, "checkpoint_seconds": 0, "evaluator": None, "device": "cpu", "trackers": ()}
BUDGET = {"macs": "50%"}


def supernet(seed=0):
    torch.manual_seed(seed)
    return MixedSupernet(TINY)


def run(out=None, method=METHOD, budget=BUDGET, **changes):
    net = supernet()
    return net, train(net, toy_data(), method, out=out, budget=budget, **{**OPTIONS, **changes})


def reports(out):
    rows = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    return [row["epoch_report"] for row in rows if "epoch_report" in row]


# --- paths ------------------------------------------------------------------------------------------------------------


def rows(*values):
    return [torch.tensor(value).log() for value in values]


def test_two_paths_that_share_no_operation_and_follow_their_distributions():
    alpha = rows([0.7, 0.1, 0.1, 0.1], [1.0], [0.25] * 4)
    drawn = [METHOD.paths(alpha, Seed(0).fold_in(n), epoch=5) for n in range(2000)]
    assert all(len(pair) == 2 and pair[0][0] != pair[1][0] and pair[0][2] != pair[1][2] for pair in drawn)
    assert all(pair[0][1] == pair[1][1] == 0 for pair in drawn)  # a layer without a choice runs twice
    first = np.bincount([pair[0][0] for pair in drawn]) / len(drawn)
    assert first == pytest.approx([0.7, 0.1, 0.1, 0.1], abs=0.04)
    rest = np.bincount([pair[1][0] for pair in drawn if pair[0][0] == 0], minlength=4)
    assert rest[0] == 0 and rest[1:] / rest.sum() == pytest.approx([1 / 3] * 3, abs=0.05)


def test_other_samplings():
    alpha = rows([0.6, 0.3, 0.06, 0.04])
    seeds = [Seed(1).fold_in(n) for n in range(300)]
    assert all(len(METHOD.paths(alpha, seed, epoch=0)) == 1 for seed in seeds[:5])  # weights only: one path
    alone = methods.tfnas(sampling="random")
    assert np.bincount([alone.paths(alpha, s, 50)[0][0] for s in seeds]).min() > 40
    single = methods.tfnas(sampling="gumbel")
    assert all(len(single.paths(alpha, seed, 50)) == 1 for seed in seeds[:5])
    for second, expected in (("largest", 1), ("smallest", 3)):
        how = methods.tfnas(second_path=second)
        pairs = [how.paths(alpha, seed, 50) for seed in seeds]
        assert {pair[1][0] for pair in pairs if pair[0][0] == 0} == {expected}
    how = methods.tfnas(second_path="gumbel")
    seconds = [pair[1][0] for s in seeds if (pair := how.paths(alpha, s, 50))[0][0] == 0]
    assert seconds.count(1) / len(seconds) == pytest.approx(0.75, abs=0.1)


def test_schedules_of_the_paper():
    paper = methods.tfnas()
    assert [paper.tau(e) for e in (0, 10, 11, 89)] == pytest.approx([5.0, 5.0, 4.8, 0.199], abs=5e-4)
    for epoch in (0, 1, 45, 89):
        rates = {learning_rate(paper, epoch * 7 + step, 90 * 7, 7, 32) for step in range(7)}
        assert list(rates) == pytest.approx([0.0125 * (1 + math.cos(math.pi * epoch / 90))])
    final = methods.scratch(lr=0.2, lr_every="epoch", warmup_epochs=5)
    for epoch in (0, 3, 4, 100):
        factor = min(1, (epoch + 1) / 5)
        assert learning_rate(final, epoch * 3, 250 * 3, 3, 512) == pytest.approx(
            0.1 * factor * (1 + math.cos(math.pi * epoch / 250))
        )


# --- costs ------------------------------------------------------------------------------------------------------------


def test_the_expectation_is_the_one_of_the_exact_problem():
    """Formula (3): torch at soft weights against the solver's numbers, and its gradient against differences."""
    limits, net = limits_of(TINY, {}, Budget(macs="60%", params="50%")), supernet()
    costs = ExpectedCosts(net, limits)
    rng = np.random.default_rng(0)
    alpha = [rng.dirichlet(np.ones(n)) for n in net.choice_counts]
    beta = [rng.dirichlet(np.ones(n)) for n in net.depth_counts]
    groups = tuple(Group(name=str(s), options=(8, 8), depths=stage.depths) for s, stage in enumerate(TINY.stages))
    resources = tuple(
        ResourceCosts(
            name=name,
            unit="units",
            base=costs.widths.base(name),
            costs=tuple(costs.widths.costs(name, net.widths())),
        )
        for name in limits
    )
    expected = Problem(groups=groups, resources=resources).expected_cost(Point(tuple(alpha), tuple(beta)))
    share = max(expected[name] / limits[name].effective for name in limits)
    soft = [torch.tensor(row, dtype=torch.float32, requires_grad=True) for row in alpha]
    usage = costs.usage(soft, [torch.tensor(row, dtype=torch.float32) for row in beta])
    assert usage.item() == pytest.approx(share, rel=1e-5)
    usage.backward()
    assert all(bool((row.grad >= 0).all()) for row in soft)


def test_adam_clips_normalises_and_leaves_alone_what_has_no_gradient():
    tensor = torch.tensor([0.1, 0.2, 0.3, -0.4, 0.0]).requires_grad_()
    plain = tensor.detach().clone().requires_grad_()
    adam = ArchitectureAdam({tensor: [3, 2]}, lr=0.01, betas=(0.5, 0.999), weight_decay=5e-4)
    before = tensor.detach().clone()
    adam.step()
    assert torch.equal(tensor, before)
    other = torch.optim.Adam([plain], lr=0.01, betas=(0.5, 0.999), weight_decay=5e-4)
    gradient = torch.tensor([30.0, 0.0, 0.0, 40.0, 0.0])
    tensor.grad, plain.grad = gradient.clone(), gradient / 10
    adam.step()
    other.step()
    rows = plain.detach().split([3, 2])
    torch.testing.assert_close(tensor.detach(), torch.cat([row.log_softmax(0) for row in rows]))
    assert [float(row.exp().sum()) for row in tensor.detach().split([3, 2])] == pytest.approx([1, 1])


# --- whole searches ---------------------------------------------------------------------------------------------------


def test_a_search_moves_architecture_and_widths_and_ends_on_the_target(tmp_path):
    net, result = run(tmp_path)
    rows = reports(tmp_path)
    assert result.steps == 4 * 6 and len(rows) == 4
    limit = limits_of(TINY, {}, Budget(BUDGET))["macs"].effective
    assert all(row == pytest.approx([1 / 8] * 8, abs=1e-4) for row in rows[0]["alpha"])  # weights only
    assert rows[0]["widths"] == supernet().widths()
    assert rows[-1]["alpha"] != rows[1]["alpha"] and rows[-1]["beta"] != rows[0]["beta"]
    assert rows[1]["widths"] != rows[0]["widths"]
    for row in rows[1:]:
        assert "remark" in row or 0.9 * limit < row["costs"]["macs"] <= limit
    alpha, beta = net.probabilities()
    assert [np.round(row, 5).tolist() for row in alpha] == rows[-1]["alpha"]
    assert net.widths() == rows[-1]["widths"]
    assert all(row.sum() == pytest.approx(1) for row in (*alpha, *beta))


def test_without_scaling_widths_stay(tmp_path):
    net, _ = run(tmp_path, methods.tfnas(epochs=2, weights_only_epochs=0, held_out_batch=16, scaling=False))
    assert net.widths() == supernet().widths()


def killed(out, call):
    """A child that is killed in the `call`-th forward pass."""
    child = os.fork()
    if child == 0:
        forward, calls = MixedSupernet.forward, iter(range(10**9))

        def fatal(self, *what):
            if next(calls) == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return forward(self, *what)

        MixedSupernet.forward = fatal
        try:
            run(out)
        finally:
            os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def test_killed_anywhere_it_ends_with_the_same_bits(tmp_path):
    expected, _ = run(tmp_path / "whole")
    out = tmp_path / "killed"
    for call in (3, 14, 9, 12):  # in the first epoch, after a scaling, in the middle of an architecture step
        assert killed(out, call)
    net, result = run(out)
    assert 0 < result.resumed_at < 24 and same(weights(net), weights(expected))
    assert reports(out) == reports(tmp_path / "whole")


@pytest.mark.slow
def test_two_processes_find_what_one_finds_that_accumulates(tmp_path):
    here = Path(__file__).parent
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(here / "two_ranks_tfnas.py"), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(here), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    ranks = [load_file(tmp_path / f"rank{i}.safetensors") for i in (0, 1)]
    assert same(ranks[0], ranks[1])
    alone, _ = run(tmp_path / "alone", accumulate=2)
    assert reports(tmp_path / "alone")[-1]["widths"] == reports(tmp_path / "run")[-1]["widths"]
    for name in ("log_alpha", "log_beta"):
        assert torch.allclose(alone.state_dict()[name], ranks[0][name], rtol=0, atol=1e-4), name


def test_the_architecture_step_leaves_weights_alone_and_the_weight_step_the_architecture():
    seen = []
    then, step = type(METHOD).then, type(METHOD).step

    def watch_then(self, given, state):
        metrics = then(self, given, state)
        net = given.net.model
        assert all(p.grad is None for p in net.parameters()) and all(p.requires_grad for p in net.parameters())
        assert state.tensors["log_alpha"].grad is not None and state.tensors["log_beta"].grad is not None
        seen.append(given.number)
        return metrics

    def watch_step(self, given, state):
        metrics = step(self, given, state)
        assert state.tensors["log_alpha"].grad is None
        return metrics

    type(METHOD).then, type(METHOD).step = watch_then, watch_step
    try:
        run()
    finally:
        type(METHOD).then, type(METHOD).step = then, step
    assert seen == [0, 2, 4] * 3


def test_held_out_images_are_read_for_architecture_steps_alone_and_each_once_a_round():
    seen = []
    then = type(METHOD).then

    def watch(self, given, state):
        seen.append(given.second()[0])
        return then(self, given, state)

    type(METHOD).then = watch
    try:
        run()
    finally:
        type(METHOD).then = then
    assert len(seen) == 9  # 51 images of val, 16 a step: three steps a round
    for first in range(0, 9, 3):
        assert len(torch.cat(seen[first : first + 3]).flatten(1).unique(dim=0)) == 48


def test_optimisers_are_made_anew_every_epoch():
    moments = []
    end = type(METHOD).end_epoch

    def watch(self, given, state):
        before = [float(s["momentum_buffer"].abs().max()) for s in given.optimisers[0].state.values()]
        report = end(self, given, state)
        after = [
            float(t.abs().max())
            for o in given.optimisers
            for s in o.state.values()
            for t in s.values()
            if isinstance(t, Tensor)
        ]
        moments.append((max(before), max(after)))
        return report

    type(METHOD).end_epoch = watch
    try:
        run()
    finally:
        type(METHOD).end_epoch = end
    assert all(before > 0 and after == 0 for before, after in moments)


def test_dropped_channels_stay_as_they_are_and_what_runs_decays_once():
    assert {group["weight_decay"] for group in build(supernet(), METHOD, fused=False).param_groups} == {0.0}
    start, (net, _) = supernet(), run(method=replace(METHOD, weight_decay=0.01, epochs=2, scaling=False))
    for number in range(len(net.layers)):
        for before, after in zip(start.operations(number), net.operations(number)):
            dropped = before.channels[int(before.width) :]
            assert len(dropped) and torch.equal(before.depthwise.weight[dropped], after.depthwise.weight[dropped])
            assert torch.equal(before.project.weight[:, dropped], after.project.weight[:, dropped])


def test_the_early_stop_ends_the_phase_when_orders_have_settled(tmp_path):
    still = methods.tfnas(
        epochs=9, weights_only_epochs=1, held_out_batch=16, architecture_lr=1e-9, sampling="gumbel", stop_when_stable=3
    )
    _, result = run(tmp_path, still)
    # The first architecture steps (epoch 1) give an order; three epochs without a change of it, and it stops.
    assert len(reports(tmp_path)) == 5 and result.steps == 5 * 6
    _, result = run(
        tmp_path / "moving",
        methods.tfnas(
            epochs=4,
            weights_only_epochs=1,
            held_out_batch=16,
            architecture_lr=2.0,
            sampling="gumbel",
            stop_when_stable=3,
        ),
    )
    assert result.steps == 4 * 6


def test_mistakes_are_named():
    with pytest.raises(BadInput, match="must know the limits"):
        run(budget=None)
    with pytest.raises(BadInput, match="separate operations"):
        train(
            Supernet(preset("hardcore-lowres", classes=4, resolution=8)), toy_data(), METHOD, budget=BUDGET, **OPTIONS
        )
    with pytest.raises(BadInput, match="shared weights"):
        train(supernet(), toy_data(), methods.multipath(epochs=1), **OPTIONS)
    with pytest.raises(BadInput, match="annealing"):
        methods.tfnas(annealing=0.0).check()
