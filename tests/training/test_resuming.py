"""A run that is killed, damaged or confused: it ends with the same weights or says why not."""

import json
import os
import signal
import time

import numpy as np
import pytest
from safetensors.torch import load_file

from snugnet.errors import BadInput, DamagedFile
from snugnet.training import checkpoint, methods, train
from standin import Plain, Standin, same, toy_data, weights

pytestmark = pytest.mark.usefixtures("one_thread")

PHASES = [
    methods.largest(epochs=3, auto_augment=None, crop_padding=1, ema=0.99),
    methods.multipath(epochs=3, auto_augment="cifar10", distill=0.5, crop_padding=1),
]


def run(out, net=None, **changes):
    net = net or Standin()
    options = {"batch": 32, "checkpoint_seconds": 0, "evaluator": None, "device": "cpu", "trackers": ()}
    result = train(net, toy_data(), PHASES, out=out, **{**options, **changes})
    return net, result


def killed_at(out, step, seconds):
    """A child process that trains and dies `seconds` after its `step`-th step began; True if it was still at work.

    The kernel ends it (an alarm nobody handles), at a moment counted from its own progress: a busy machine moves
    the moment, it cannot move it out of the run.
    """
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        net = Standin()
        alarmed(net, step, seconds)
        try:
            run(out, net)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def alarmed(net, step, seconds):
    """`net` sets off the alarm when its forward pass is called for the `step`-th time."""
    calls = iter(range(10**9))
    forward = Standin.forward

    def ticking(self, images, path):
        if next(calls) == step:
            signal.setitimer(signal.ITIMER_REAL, seconds)
        return forward(self, images, path)

    net.forward = ticking.__get__(net)


def told(out):
    lines = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "images_per_second")} for line in lines]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    began = time.perf_counter()
    net, _ = run(out)
    return weights(net), told(out), time.perf_counter() - began


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_moments_ends_with_the_same_weights(tmp_path, undisturbed, seed):
    rng, one_step = np.random.default_rng(seed), undisturbed[2] / 36
    for _ in range(4):
        assert killed_at(tmp_path, step=rng.integers(0, 4), seconds=rng.uniform(1e-6, 1) * one_step)
    net, result = run(tmp_path)
    assert result.resumed_at is not None
    assert same(weights(net), undisturbed[0])
    assert told(tmp_path) == undisturbed[1]
    assert same(load_file(tmp_path / "supernet.safetensors"), undisturbed[0])
    assert not list((tmp_path / "state").glob(".*"))


def stopped_at(out, step):
    """A run that was interrupted after `step` steps."""

    class Stop(BaseException):
        pass

    net = Standin()
    calls = iter(range(10**9))
    forward = Standin.forward

    def interrupted(self, images, path):
        if next(calls) == step:
            raise Stop
        return forward(self, images, path)

    net.forward = interrupted.__get__(net)
    with pytest.raises(Stop):
        run(out, net)


def test_the_last_two_are_kept_and_a_finished_run_is_left_alone(tmp_path, undisturbed):
    stopped_at(tmp_path, 9)
    assert sorted(p.name for p in (tmp_path / "state").iterdir()) == [
        f"{n:08d}-0.{end}" for n in (8, 9) for end in ("json", "safetensors")
    ]
    net, result = run(tmp_path)
    assert result.resumed_at == 9 and result.notes == () and same(weights(net), undisturbed[0])
    again, result = run(tmp_path)
    assert result.resumed_at == result.steps == 36 and same(weights(again), undisturbed[0])


@pytest.mark.parametrize("how", ["flip", "cut", "missing", "json cut", "json edited"])
def test_damaged_newest_checkpoint_is_named_and_the_one_before_used(tmp_path, undisturbed, how):
    stopped_at(tmp_path, 9)
    tensors, text = (tmp_path / "state" / f"00000009-0.{end}" for end in ("safetensors", "json"))
    damaged = text if how.startswith("json") else tensors
    whole = damaged.read_bytes()
    if how == "flip":
        damaged.write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
    elif how == "missing":
        damaged.unlink()
    elif how == "json edited":
        damaged.write_bytes(whole.replace(b'"step": 9', b'"step": 8'))
    else:
        damaged.write_bytes(whole[: len(whole) // 2])
    net, result = run(tmp_path)
    assert result.resumed_at == 8 and len(result.notes) == 1 and damaged.name in result.notes[0]
    assert same(weights(net), undisturbed[0])


def test_nothing_whole_left_is_an_error_not_a_fresh_start(tmp_path):
    stopped_at(tmp_path, 9)
    for path in (tmp_path / "state").glob("*.safetensors"):
        path.write_bytes(b"")
    with pytest.raises(DamagedFile, match=r"00000009-0.*00000008-0"):
        run(tmp_path)


def test_another_recipe_says_what_differs_and_loses_nothing(tmp_path, undisturbed):
    stopped_at(tmp_path, 9)
    before = {p.name: p.read_bytes() for p in (tmp_path / "state").iterdir()}
    with pytest.raises(BadInput, match=r"batch: 32 -> 16; seed: 0 -> 3"):
        run(tmp_path, batch=16, seed=3)
    with pytest.raises(BadInput, match=r"methods\[0\].epochs: 3 -> 5; methods\[1\].epochs: 3 -> 5"):
        run(tmp_path, epochs=5)
    with pytest.raises(BadInput, match="must hold no run yet"):
        run(tmp_path, resume=False)
    assert before == {p.name: p.read_bytes() for p in (tmp_path / "state").iterdir()}
    assert same(weights(run(tmp_path)[0]), undisturbed[0])


def test_another_start_or_teacher_is_another_run(tmp_path):
    """The same recipe in the same folder, but another network or teacher: the old weights would belong to neither."""
    stopped_at(tmp_path / "supernet", 9)
    with pytest.raises(BadInput, match="other starting weights"):
        run(tmp_path / "supernet", Standin(seed=9))
    finished, _ = run(tmp_path / "supernet")
    with pytest.raises(BadInput, match="other starting weights"):
        run(tmp_path / "supernet", Standin(seed=9))
    held = weights(finished)
    assert run(tmp_path / "supernet", finished)[1].resumed_at == 36 and same(weights(finished), held)
    method = methods.finetune(epochs=1, auto_augment=None)
    options = {"batch": 32, "evaluator": None, "device": "cpu", "trackers": (), "out": tmp_path / "plain"}
    train(Plain(1), toy_data(), method, teacher=Plain(2), **options)
    assert train(Plain(1), toy_data(), method, teacher=Plain(2), **options).resumed_at == 6
    with pytest.raises(BadInput, match="another teacher"):
        train(Plain(1), toy_data(), method, teacher=Plain(3), **options)
    options["out"] = tmp_path / "named"
    train(Plain(1), toy_data(), method, teacher=Plain(2), start="from here", **options)
    assert train(Plain(4), toy_data(), method, teacher=Plain(5), start="from here", **options).resumed_at == 6


def test_checkpoint_reads_back_what_was_written(tmp_path):
    net = Standin()
    state = checkpoint.Checkpoint(
        position=checkpoint.Position(phase=1, step=2, total=30),
        recipe={"a": [1, {"b": None}]},
        tensors={f"model.{k}": v for k, v in weights(net).items()},
        log={"bytes": 3, "sums": {"loss": 0.1 + 0.2}},
        scaler={},
        seconds=1.5,
    )
    checkpoint.write(tmp_path, state)
    found = checkpoint.read_latest(tmp_path).checkpoint
    assert (found.position, found.recipe, found.log) == (state.position, state.recipe, state.log)
    assert same(found.part("model"), weights(net)) and found.part("average") == {}
    assert checkpoint.read_latest(tmp_path / "nowhere").checkpoint is None
