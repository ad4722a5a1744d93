"""Sandwich, attentive, alpha: who is trained in a step, by which loss, alike on all shards; killed, and collapsed."""

import math
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_training_methods import Watched, one_step, started

from snugnet.costs.table import CostTable, exact_table
from snugnet.errors import BadInput, TrainingDiverged
from snugnet.evaluate.forest import grow_forest
from snugnet.nets.supernet import Regularisation, Supernet
from snugnet.seeds import Seed
from snugnet.space import Head, SearchSpace, Stage, Stem, largest, sample, smallest
from snugnet.space.space import BlockRules
from snugnet.space.spec import plan
from snugnet.training import checkpoint, losses, methods, train
from snugnet.training.losses import PATIENCE, CollapseWatch
from snugnet.training.method import Step
from snugnet.training.optimiser import learning_rate
from standin import SPACE, Standin, same, toy_data, weights

pytestmark = pytest.mark.usefixtures("one_thread")

CALM = {"auto_augment": None, "warmup_epochs": 0}
MADE = {
    "sandwich": methods.sandwich(**CALM),
    "attentive": methods.attentive(rows=2000, **CALM),
    "alpha": methods.alpha(**CALM),
}
WIDE = SearchSpace(
    name="wide",
    classes=4,
    resolutions=(8, 12),
    stem=Stem(widths=(8, 16), stride=1, act="swish"),
    stages=(
        Stage.of((8, 16), depth=(1, 2), kernels=(3, 5), expands=(1, 2), stride=2, per="stage"),
        Stage.of((16, 24), depth=(1, 3), kernels=(3, 5), expands=(2, 3), se=(True,), per="stage"),
    ),
    head=Head(kind="pool-conv", widths=(16, 24), hidden_expand=2, dropout=0.2),
    rules=BlockRules(mid_divisor=8, shortcut="always", kernel_weights="crop"),
)


def supernet(seed=0):
    torch.manual_seed(seed)
    return Supernet(WIDE)


def test_the_papers_settings_are_the_defaults():
    for method in (methods.sandwich(), methods.attentive(), methods.alpha()):
        method.check()
        assert (method.epochs, method.warmup_epochs, method.lr, method.lr_per) == (360, 5, 0.1, 256)
        assert (method.weight_decay, method.momentum, method.nesterov) == (1e-5, 0.9, True)
        assert (method.label_smoothing, method.mixup, method.ema, method.clip_value) == (0.1, 0, None, 1.0)
        assert (method.sampled, method.dropout, method.drop_connect, method.distill) == (2, 0.2, 0.2, 1.0)
    assert (methods.attentive().rule, methods.attentive().candidates, methods.attentive().score) == ("best", 3, "loss")
    assert (methods.attentive().redraws, methods.attentive().rows) == (101, 1_000_000)
    alpha = methods.alpha()
    assert (alpha.loss, alpha.alpha_min, alpha.alpha_max, alpha.alpha_clip) == ("alpha", -1, 1, 5)


def test_the_learning_rate_is_the_papers():
    method = methods.sandwich()
    rates = [learning_rate(method, t, 360 * 100, 100, 32 * 64) for t in (0, 250, 500, 18_000, 35_999)]
    assert rates[0] == pytest.approx(0.8 * 0.001) and rates[1] == pytest.approx(0.8 * 0.5005, rel=1e-3)
    assert rates[2] == pytest.approx(0.8 * (1 + math.cos(math.pi * 500 / 36_000)) / 2)
    assert rates[3] == pytest.approx(0.4) and 0 < rates[4] < 1e-8
    assert learning_rate(method, 500, 36_000, 100, 64) == pytest.approx(rates[2] / 8)  # never below the rate of 256


@pytest.mark.parametrize("name", MADE)
def test_largest_two_between_and_smallest(name):
    net, seen, metrics = one_step(MADE[name], supernet())
    calls = net.calls[-4:] if name == "attentive" else net.calls
    assert len(seen) == 4 and len(calls) == 4
    assert calls[0] == largest(WIDE) and calls[3] == smallest(WIDE)
    assert metrics["loss"].item() == pytest.approx(seen[0])
    assert len(net.calls) == (10 if name == "attentive" else 4)  # six candidates are looked at


@pytest.mark.parametrize("name", MADE)
def test_shards_agree_and_steps_differ(name):
    chosen = [one_step(MADE[name], supernet(), shard=shard)[0].calls[:6] for shard in (0, 1)]
    assert chosen[0] == chosen[1]
    later = {one_step(MADE[name], supernet(), number=n)[0].calls[1] for n in range(6)}
    assert len(later) > 3


def test_gradients_are_summed_and_the_teacher_is_fixed():
    """Against the four losses written out; dropout off, so that the passes can be repeated."""
    method = replace(MADE["sandwich"], dropout=0.0, drop_connect=0.0)
    net = supernet()
    watched, _, _ = one_step(method, net)
    ours = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad(set_to_none=True)
    images = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    targets = torch.eye(4)[[0, 1, 2, 3, 0, 1]]
    logits = [net(images, network, regularise=Regularisation()) for network in watched.calls]
    total = losses.cross_entropy(logits[0], targets, 0.1)
    for student in logits[1:]:
        total = total - (logits[0].detach().softmax(-1) * student.log_softmax(-1)).sum(-1).mean()
    total.backward()
    theirs = [p.grad for p in net.parameters() if p.grad is not None]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(ours, theirs, strict=True))


class Losses:
    """A stand-in whose loss on a network is known: logits favour the first class by the network's number of blocks."""

    def __init__(self, space):
        self.space = space

    def __call__(self, images, network, *, regularise=None):
        depth = sum(len(stage.blocks) for stage in network.stages)
        return torch.tensor([[0.5 * depth, 0.0, 0.0, 0.0]]).repeat(len(images), 1).requires_grad_()


def scored(method, number, agreed=None):
    seed = Seed(0).fold_in("step", number)
    step = Step(
        net=Losses(WIDE),
        images=torch.zeros(4, 3, 8, 8),
        targets=torch.eye(4)[[0, 0, 0, 0]],
        shared=seed,
        own=seed,
        backward=lambda loss, inputs=None: None,
        teacher=None,
        epoch=0.0,
        second=lambda: None,
    )
    state = started(method, Losses(WIDE))
    step = replace(step, agreed=state.survey(step) if agreed is None else agreed)
    drawn = state.constants.candidates(step, method.sampled, method.candidates, method.redraws)
    return drawn, method.networks(step, state), step


def test_best_up_takes_the_lowest_loss_and_worst_up_the_highest():
    for number in range(4):
        for rule, pick in (("best", max), ("worst", min)):
            drawn, chosen, _ = scored(replace(MADE["attentive"], rule=rule), number)
            for row, network in zip(drawn, chosen, strict=True):
                depths = [sum(len(s.blocks) for s in candidate.stages) for candidate in row]
                assert sum(len(s.blocks) for s in network.stages) == pick(depths)


def test_what_all_shards_agreed_on_decides():
    drawn, chosen, _ = scored(MADE["attentive"], 0, torch.tensor([[3.0, 1.0, 2.0], [0.5, 1.0, 2.0]]))
    assert chosen == [drawn[0][1], drawn[1][0]]


def test_candidates_lie_in_the_bin_of_their_target():
    method = replace(MADE["attentive"], bin_width="20kMACs")
    drawn, _, _ = scored(method, 1)
    table = exact_table(WIDE, "macs")
    for row in drawn:
        bins = {math.floor(table.of_network(plan(network, WIDE)) / 20e3 + 0.5) for network in row}
        assert len(bins) == 1


def test_a_predictor_ranks_without_a_forward_pass(tmp_path):
    rng = np.random.default_rng(0)
    networks = [sample(WIDE, rng) for _ in range(200)]
    blocks = [sum(len(stage.blocks) for stage in network.stages) for network in networks]
    path = grow_forest(WIDE, networks, [b / 10 for b in blocks]).save(tmp_path / "f.safetensors", WIDE)
    method = replace(MADE["attentive"], score="predictor", predictor=str(path))
    method.check()
    state = started(method, Watched(supernet()))
    assert state.survey is None and "forest.threshold" in state.tensors
    net, _, _ = one_step(method, supernet(), state=state)
    assert len(net.calls) == 4
    with pytest.raises(BadInput, match="predictor"):
        replace(method, predictor=None).check()


def test_bins_over_latency_need_their_table():
    method = replace(MADE["attentive"], resource="latency")
    with pytest.raises(BadInput, match="latency need its table"):
        started(method, supernet())
    costs = {part: cost * 1e-6 for part, cost in exact_table(WIDE, "macs").costs.items()}
    table = CostTable(resource="latency", costs=costs)
    net = supernet()
    result = train(net, toy_data(), replace(method, epochs=1), tables={"latency": table}, batch=64, evaluator=None)
    assert result.steps == 3


USERS = {
    "alpha": methods.alpha(**CALM),
    "sandwich": methods.sandwich(loss="alpha", **CALM),
    "attentive": methods.attentive(loss="alpha", rows=500, **CALM),
    "multipath": methods.multipath(loss="alpha", distill=1.0, **CALM),
    "singlepath": methods.singlepath(loss="alpha", distill=1.0, **CALM),
}


@pytest.mark.parametrize("name", USERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.0, 1e4, 3e37])
def test_alpha_stays_finite_through_every_method_that_uses_it(name, scale, dtype):
    """Equal distributions, one-hot teachers and wild logits; gradients of the logits must be finite too."""

    class Loud(Standin):
        def forward(self, images, path, *, regularise=None):
            return (super().forward(images, path) * scale).to(dtype)

    net, seen, metrics = one_step(USERS[name], Loud(dropout=0))
    students = [value for name, value in metrics.items() if name not in ("loss", "teacher_loss")]
    assert len(seen) > 1 and all(value.isfinite() for value in students) and all(math.isfinite(x) for x in seen[1:])
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters() if scale <= 1e4)


def test_losses_by_name():
    student, teacher = torch.randn(5, 4), torch.randn(5, 4)
    targets = torch.eye(4)[[0, 1, 2, 3, 0]]
    kl = losses.Distillation(loss="kl", weight=0.9, temperature=2.0)(student, teacher, targets)[0]
    assert kl == losses.distillation(student, teacher, targets, weight=0.9, temperature=2.0)
    soft = losses.Distillation(loss="soft-cross-entropy", weight=1.0)(student, teacher, targets)[0]
    assert soft == pytest.approx(losses.soft_cross_entropy(student, teacher).item())
    surrogate, value = losses.Distillation(loss="alpha", weight=1.0)(student, teacher, targets)
    assert (surrogate.item(), value.item()) == pytest.approx(
        tuple(x.item() for x in losses.adaptive_alpha(student, teacher))
    )
    labels = losses.Distillation(loss="alpha", weight=0.0)(student, teacher, targets, 0.1)[0]
    assert labels == losses.cross_entropy(student, targets, 0.1)
    with pytest.raises(BadInput, match="no temperature"):
        methods.alpha(temperature=2.0).check()
    with pytest.raises(BadInput, match="alpha_min must be below"):
        methods.alpha(alpha_min=2.0).check()
    methods.alpha(alpha_min=0.0).check()


OPTIONS = {"batch": 64, "checkpoint_seconds": 0, "evaluator": None, "device": "cpu", "trackers": ()}
PHASES = [
    methods.attentive(epochs=2, rows=3000, crop_padding=1, **CALM),
    methods.alpha(epochs=1, **CALM),
]


def run(out=None, **changes):
    net = supernet()
    return net, train(net, toy_data(), PHASES, out=out, **{**OPTIONS, **changes})


def killed(out, call):
    """A child that is killed in the `call`-th forward pass."""
    child = os.fork()
    if child == 0:
        forward, calls = Supernet.forward, iter(range(10**9))

        def fatal(self, *path, **options):
            if next(calls) == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return forward(self, *path, **options)

        Supernet.forward = fatal
        try:
            run(out)
        finally:
            os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def test_killed_anywhere_they_end_with_the_same_bits(tmp_path):
    expected, result = run(tmp_path / "whole")
    assert result.steps == 9
    before = {name: t for name, t in weights(supernet()).items() if "running" in name}
    assert all(torch.equal(t, weights(expected)[name]) for name, t in before.items())  # statistics are not kept
    out = tmp_path / "killed"
    for call in (3, 12, 21, 8):
        assert killed(out, call)
    assert "bins" in checkpoint.read_latest(out / "state").checkpoint.part("method")
    net, result = run(out)
    assert 0 < result.resumed_at < 9 and same(weights(net), weights(expected))


def test_two_shards_of_a_step_train_the_same_networks():
    """Each would choose by its own images; the survey's mean over both decides."""
    seen = []
    for accumulate in (1, 2):
        net, calls = supernet(), []
        forward = net.forward
        net.forward = lambda *a, forward=forward, calls=calls, **k: (calls.append(a[1]), forward(*a, **k))[1]
        train(net, toy_data(), methods.attentive(epochs=1, rows=500, **CALM), **{**OPTIONS, "accumulate": accumulate})
        seen.append(calls)
    # Six candidates and four networks a shard.
    assert seen[1][:6] == seen[1][6:12] == seen[0][:6]
    assert seen[1][12:16] == seen[1][16:20]


def test_the_watch_knows_a_collapse_from_a_bad_batch():
    watch, chance = CollapseWatch(10), math.log(10)
    assert not any(watch.collapsed(loss) for loss in [chance] * 100)  # has not learnt yet
    assert not any(watch.collapsed(loss) for loss in [1.0] * 50)
    assert not any(watch.collapsed(loss) for loss in [chance] * (PATIENCE - 1)) and watch.doubtful
    assert not watch.collapsed(1.0) and not watch.doubtful
    fall = [watch.collapsed(chance) for _ in range(PATIENCE)]
    assert fall == [False] * (PATIENCE - 1) + [True]


class Fallen(Standin):
    """Answers by chance from a given pass on."""

    passes = 0

    def forward(self, images, path, *, regularise=None):
        self.passes += 1
        return super().forward(images, path) * (0.0 if self.passes > 4 * 30 else 1.0)


def test_a_collapsed_run_stops_with_the_last_good_weights(tmp_path):
    net = Fallen(dropout=0)
    method = methods.sandwich(epochs=40, lr_per=None, lr=0.2, drop_connect=0.0, dropout=0.0, **CALM)
    with pytest.raises(TrainingDiverged, match=r"fall back to chance.*the state after step") as error:
        train(net, toy_data(), method, out=tmp_path, **OPTIONS)
    saved = checkpoint.read_latest(tmp_path / "state").checkpoint
    assert saved.position.total <= 30 and error.value.exit_code == 1
    assert same(weights(net), saved.part("model"))
    assert SPACE.classes == 4
