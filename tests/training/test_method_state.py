"""A method with tensors, an optimiser and a stream of batches of its own: it trains, is killed, and ends the same."""

import os
import signal

import pytest
import torch
from toy_method import Bilevel

from snugnet.errors import BadInput
from snugnet.training import checkpoint, methods, train
from snugnet.training.gradient_sync import GradientSync, start
from standin import Plain, Standin, same, toy_data, weights

pytestmark = pytest.mark.usefixtures("one_thread")

PHASES = [Bilevel(epochs=2, auto_augment=None), Bilevel(epochs=3, auto_augment="cifar10", second_batch=16)]
OPTIONS = {"batch": 32, "checkpoint_seconds": 0, "evaluator": None, "device": "cpu", "trackers": ()}
STEPS = 6  # in an epoch


def run(out=None, phases=PHASES, **changes):
    net = Standin()
    return net, train(net, toy_data(), phases, out=out, **{**OPTIONS, **changes})


def killed(out, call):
    """A child that is killed in the `call`-th forward pass."""
    child = os.fork()
    if child == 0:
        forward, calls = Standin.forward, iter(range(10**9))

        def fatal(self, images, path):
            if next(calls) == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return forward(self, images, path)

        Standin.forward = fatal
        try:
            run(out)
        finally:
            os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def own_state(out):
    """The newest checkpoint's own tensors and optimisers."""
    saved = checkpoint.read_latest(out / "state").checkpoint
    return {**saved.part("method"), **saved.part("optimiser")}, saved.optimisers, saved.position


def test_killed_anywhere_it_ends_with_the_same_bits(tmp_path):
    expected, result = run(tmp_path / "whole")
    assert result.steps == 5 * STEPS
    out = tmp_path / "killed"
    # Three passes a step: in the first step, between steps, in the second phase's first step, and late.
    for call in (1, 13, 12, 4, 22):
        assert killed(out, call)
    net, result = run(out)
    assert 0 < result.resumed_at < 5 * STEPS and same(weights(net), weights(expected))
    texts = [(tmp_path / name / "train.jsonl").read_text().splitlines() for name in ("whole", "killed")]
    assert [line.split('"share"')[1].split(",")[0] for line in texts[0]] == [
        line.split('"share"')[1].split(",")[0] for line in texts[1]
    ]


def test_the_checkpoint_holds_all_of_the_state_and_gives_it_back(tmp_path):
    states = []
    for kill in (False, True):
        out = tmp_path / str(kill)
        if kill:
            assert killed(out, 3 * 4 + 1)
            assert own_state(out)[2].step == 4
        assert killed(out, 3 * (9 - 4 * kill) + 2)
        states.append(own_state(out))
    (tensors, optimisers, position), (again, optimisers_again, _) = states
    assert position.step == 9 and same(tensors, again) and optimisers == optimisers_again
    assert set(tensors) == {"logits", "baseline"} | {f"adam.state.0.{key}" for key in ("step", "exp_avg", "exp_avg_sq")}
    assert float(tensors["adam.state.0.step"]) == 9 and float(tensors["baseline"]) > 0
    assert bool((tensors["logits"] != 0).all()) and optimisers["adam"]["param_groups"][0]["betas"] == [0.5, 0.999]


def test_the_second_stream_has_its_own_order_and_never_repeats_within_an_epoch():
    seen, spied = [], Bilevel.step

    def watch(self, step, state):
        images, _ = step.second()
        seen.append(images)
        assert torch.equal(images, step.second()[0])
        return spied(self, step, state)

    Bilevel.step = watch
    try:
        run(phases=Bilevel(epochs=2, auto_augment=None, second_batch=17))
    finally:
        Bilevel.step = spied
    assert len(seen) == 2 * STEPS and all(len(images) == 17 for images in seen)
    epoch = torch.cat(seen[:3]).flatten(1)  # 51 images of val, 17 a step
    assert len(epoch.unique(dim=0)) == 51 and not torch.equal(seen[0], seen[3])


def test_gradients_for_given_tensors_alone_are_averaged_over_shards():
    net, logits = Plain(), torch.ones(4, requires_grad=True)
    sync = GradientSync(start("cpu", "fp32"), net, 2)
    sync.attach([logits])
    images = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    for _, part in zip(sync.numbers(), images.split(4)):
        sync.backward((net(part) * logits).sum(), inputs=[logits])
    assert all(p.grad is None for p in net.parameters())
    expected = torch.stack([net(part).sum(0) for part in images.split(4)]).mean(0)
    assert torch.allclose(logits.grad, expected, atol=1e-5)


def test_mistakes_are_named():
    with pytest.raises(BadInput, match="batch must not exceed the 51 images of split 'val', got 99"):
        run(phases=Bilevel(second_batch=99))

    def asks(self, step, state):
        return step.second()

    plain = type(methods.scratch())
    spied, plain.step = plain.step, asks
    try:
        with pytest.raises(BadInput, match="has no second stream"):
            train(Plain(), toy_data(), methods.scratch(), **OPTIONS)
    finally:
        plain.step = spied
