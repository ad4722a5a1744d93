"""The loop as a user meets it: it learns, it averages, it tells, it refuses."""

import itertools
import json
import math
from dataclasses import replace

import pytest
import torch

from snugnet.errors import BadInput, DeviceMissing, TrainingDiverged, UnknownName
from snugnet.nets import build as build_network
from snugnet.space import preset
from snugnet.space.sampling import largest, smallest
from snugnet.training import accuracy, finetune, methods, train
from snugnet.training.loop import Loop
from snugnet.training.optimiser import Average, build, learning_rate
from standin import SPACE, Plain, Standin, same, toy_data, weights

PLAIN = {"auto_augment": None, "ema": 0.9}
QUICK = {"batch": 32, "evaluator": None, "device": "cpu", "trackers": ()}


def evaluator(supernet):
    data = toy_data()
    return {name: accuracy(lambda x, a=a: supernet(x, a), data) for name, a in _ends().items()}


def _ends():
    return {"largest": largest(SPACE), "smallest": smallest(SPACE)}


def test_two_phases_learn_and_tell(tmp_path):
    data, net = toy_data(), Standin()
    phases = [methods.largest(epochs=4, **PLAIN), methods.multipath(epochs=6, curriculum_epochs=2, **PLAIN)]
    result = train(net, data, phases, out=tmp_path, **{**QUICK, "evaluator": evaluator, "trackers": None}, eval_times=2)
    steps = data.size("train") // 32
    assert result.steps == 10 * steps and result.images == result.steps * 32
    assert result.accuracies["largest"] >= 0.9 and result.accuracies["smallest"] >= 0.9
    assert result.accuracies == evaluator(net.eval())
    lines = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    told = [line for line in lines if "loss" in line]
    assert [line["method"] for line in told] == ["largest"] * 4 + ["multipath"] * 6
    assert told[-1]["total"] == result.steps and told[-1]["loss"] == pytest.approx(result.loss, abs=1e-6)
    assert told[-1]["loss"] < told[0]["loss"] and all(line["images_per_second"] > 0 for line in told)
    assert sum("accuracy" in line for line in lines) == 4
    assert list((tmp_path / "tensorboard").iterdir()) and result.weights == tmp_path / "supernet.safetensors"


def test_a_part_of_an_epoch_can_be_trained(tmp_path):
    data, net = toy_data(), Standin()
    phases = [methods.largest(epochs=0.5, **PLAIN), methods.multipath(epochs=1.5, **PLAIN)]
    result = train(net, data, phases, out=tmp_path, **{**QUICK, "evaluator": evaluator}, eval_times=2)
    per_epoch = data.size("train") // 32
    assert result.steps == round(0.5 * per_epoch) + round(1.5 * per_epoch)
    lines = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    seen = [line["method"] for line in lines if "accuracy" in line]
    assert seen.count("largest") >= 2  # a curve, however short the phase


def test_a_run_needs_no_folder_and_depends_on_its_seed_alone():
    results = []
    for seed, noise in ((0, 1), (0, 2), (1, 1)):
        torch.manual_seed(noise)
        net = Standin()
        before = torch.random.get_rng_state()
        train(net, toy_data(), methods.multipath(epochs=1), seed=seed, **QUICK)
        assert torch.equal(before, torch.random.get_rng_state())
        results.append(weights(net))
    assert same(results[0], results[1]) and not same(results[0], results[2])


def test_judging_and_saving_leave_no_trace(tmp_path):
    nets = [Standin(), Standin()]
    method = methods.multipath(epochs=2, **PLAIN)
    train(nets[0], toy_data(), method, **QUICK)
    options = {**QUICK, "evaluator": evaluator}
    train(nets[1], toy_data(), method, out=tmp_path, checkpoint_seconds=0, eval_times=20, **options)
    assert same(weights(nets[0]), weights(nets[1]))


def test_channels_last_and_bf16_train():
    for options in ({"channels_last": True}, {"precision": "bf16"}):
        net = Plain()
        result = train(net, toy_data(), methods.scratch(epochs=5, warmup_epochs=1.0, **PLAIN), **QUICK, **options)
        assert math.isfinite(result.loss) and accuracy(net, toy_data()) > 0.6


def test_finetune_follows_the_teacher():
    data, teacher, student = toy_data(), Plain(1), Plain(2)
    train(teacher, data, methods.scratch(epochs=6, warmup_epochs=0.0, **PLAIN), **QUICK)
    fixed = weights(teacher)
    train(student, data, methods.finetune(epochs=6, lr=0.1, **PLAIN), teacher=teacher, **QUICK)
    assert accuracy(student, data) > 0.8 and same(fixed, weights(teacher))
    before = accuracy(student, data)
    finetune(student, data, teacher=teacher, epochs=1, **QUICK)
    assert accuracy(student, data) >= before - 0.1


def test_features_follow_a_teacher_of_other_classes():
    """Their directions come closer than without it, though the teacher has 7 classes and the data 4."""
    space = replace(preset("hardcore-lowres", classes=4, resolution=8, width=0.25), name="small")
    data, gaps = toy_data(), []
    torch.manual_seed(0)
    other = replace(space, classes=7)
    teacher = build_network(largest(other), other).eval()
    images = next(data.batches("val", 8))[0]
    for weight in (0.0, 20.0):
        torch.manual_seed(1)
        student = build_network(smallest(space), space)
        method = methods.finetune(epochs=3, lr=0.05, distill=0.0, distill_features=weight, **PLAIN)
        train(student, data, method, teacher=teacher, **QUICK)
        with torch.no_grad():
            pair = [net.eval().with_features(images)[1] for net in (student, teacher)]
        gaps.append(float(1 - torch.cosine_similarity(*pair).mean()))
    assert gaps[1] < gaps[0] - 0.05, gaps


def test_accuracy_is_the_default_curve_of_plain_networks():
    data, net = toy_data(), Plain()
    result = train(
        net, data, methods.scratch(epochs=1, warmup_epochs=0.0, **PLAIN), **{**QUICK, "evaluator": "default"}
    )
    assert result.accuracies == {"accuracy": accuracy(net, data)}


def test_schedule_warms_up_and_ends_at_zero():
    method = methods.multipath(epochs=10, warmup_epochs=2, lr=0.4, lr_per=256)
    rates = [learning_rate(method, step, 100, 10, 64) for step in range(101)]
    assert rates[0] == pytest.approx(0.1 / 20) and max(rates) == pytest.approx(0.1) == pytest.approx(rates[20])
    assert rates[60] == pytest.approx(0.05) and rates[100] == pytest.approx(0, abs=1e-12)
    assert all(a > b for a, b in itertools.pairwise(rates[20:]))


def test_weight_decay_spares_norms_and_biases():
    net = Plain()
    groups = build(net, methods.multipath(), fused=False).param_groups
    assert {p.ndim for p in groups[0]["params"]} == {2, 4} and {p.ndim for p in groups[1]["params"]} == {1}
    assert [g["weight_decay"] for g in groups] == [1e-4, 0.0]
    assert len(build(net, methods.multipath(decay_norm_and_bias=True), fused=False).param_groups) == 1


def test_average_follows_its_formula():
    net = Plain()
    average = Average(net, 0.9)
    expected = net.last.weight.detach().clone()
    for step in range(200):
        with torch.no_grad():
            net.last.weight.add_(0.01)
        average.update(step)
        decay = min(0.9, (1 + step) / (10 + step))
        expected += (1 - decay) * (net.last.weight.detach() - expected)
    assert torch.allclose(average.values["last.weight"], expected, atol=1e-6)
    now = weights(net)
    average.swap()
    assert torch.allclose(net.last.weight, expected, atol=1e-6)
    average.swap()
    assert same(now, weights(net))


def test_sgd_step_is_torchs_own():
    """One process, no augmentation, no average: the loop is plain SGD on the drawn batches."""
    data, net, ours = toy_data(), Plain(), Plain()
    method = methods.scratch(epochs=1, mixup=0.0, auto_augment=None, ema=None, label_smoothing=0.0, warmup_epochs=0.0)
    batches = []
    spy = Loop._shard

    def watch(self, phase, images, labels, *rest):
        batches.append((images, labels))
        return spy(self, phase, images, labels, *rest)

    Loop._shard = watch
    try:
        train(ours, data, method, **QUICK)
    finally:
        Loop._shard = spy
    groups = [[p for p in net.parameters() if p.ndim > 1], [p for p in net.parameters() if p.ndim == 1]]
    sgd = torch.optim.SGD(
        [{"params": groups[0], "weight_decay": 1e-4}, {"params": groups[1]}], lr=0.1, momentum=0.9, nesterov=True
    )
    for step, (images, labels) in enumerate(batches):
        for group in sgd.param_groups:
            group["lr"] = learning_rate(method, step, len(batches), len(batches), 32)
        sgd.zero_grad()
        torch.nn.functional.cross_entropy(net(data.normalise(images / 255)), labels).backward()
        sgd.step()
    assert len(batches) == data.size("train") // 32
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(net.parameters(), ours.parameters()))


@pytest.mark.parametrize("clip", [{"clip_norm": 1e-3}, {"clip_value": 1e-5}])
def test_clipping_bounds_the_step(clip):
    net, before = Plain(), weights(Plain())
    options = {"mixup": 0.0, "auto_augment": None, "ema": None, "momentum": 0.0, "weight_decay": 0.0}
    train(net, toy_data(), methods.scratch(epochs=1, warmup_epochs=0.0, **options, **clip), **QUICK)
    steps = toy_data().size("train") // 32
    moved = (
        sum(float((a - b).pow(2).sum()) for a, b in zip(weights(net).values(), before.values()) if a.ndim > 1) ** 0.5
    )
    assert 0 < moved <= 0.1 * steps * (1e-3 if "clip_norm" in clip else 1e-5 * 33)


class Breaks(Plain):
    """Gives NaN from a certain call on."""

    def __init__(self, after):
        super().__init__()
        self.left = after

    def forward(self, images):
        self.left -= self.training
        return super().forward(images) * (float("nan") if self.left < 0 else 1.0)


@pytest.mark.parametrize("folder", [True, False])
def test_nan_stops_with_the_last_good_state(tmp_path, folder):
    method = methods.scratch(epochs=2, warmup_epochs=0.0, **PLAIN)
    net = Breaks(5)
    with pytest.raises(TrainingDiverged, match="nan in step 6") as caught:
        train(net, toy_data(), method, out=tmp_path if folder else None, checkpoint_seconds=0, **QUICK)
    assert "after step 5 is kept" in str(caught.value) and caught.value.exit_code == 1
    assert all(bool(t.isfinite().all()) for t in net.state_dict().values())
    if folder:
        repaired = Breaks(10**6)
        result = train(repaired, toy_data(), method, out=tmp_path, **QUICK)
        undisturbed = Breaks(10**6)
        train(undisturbed, toy_data(), method, **QUICK)
        assert result.resumed_at == 5 and same(weights(repaired), weights(undisturbed))


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    class Poison(Plain):
        def forward(self, images):
            if self.training and not hasattr(self, "done"):
                self.done = True
                self.last.bias.register_hook(lambda g: g * float("inf"))
            return super().forward(images)

    net = Poison()
    with pytest.raises(TrainingDiverged, match="weights must stay finite"):
        train(
            net,
            toy_data(),
            methods.scratch(epochs=1, warmup_epochs=0.0, **PLAIN),
            out=tmp_path,
            checkpoint_seconds=0,
            **QUICK,
        )
    assert all(bool(t.isfinite().all()) for t in net.state_dict().values())


def test_mistakes_are_named_before_anything_is_written(tmp_path):
    out, data = tmp_path / "run", toy_data()
    cases = [
        (Standin(), methods.multipath(), {"batch": 1000}, BadInput, "205 images of split 'train', got 1000"),
        (
            Standin(),
            methods.multipath(),
            {"batch": 33, "accumulate": 2},
            BadInput,
            "multiple of processes x accumulate",
        ),
        (Plain(), methods.multipath(), {}, BadInput, "trains a super-network, got Plain"),
        (Standin(), methods.scratch(), {}, BadInput, "trains a plain network, got Standin"),
        (Standin(), [], {}, BadInput, "at least one phase"),
        (Standin(), methods.multipath(), {"threads": 0}, BadInput, "threads"),
        (Standin(), methods.multipath(), {"accumulate": 0}, BadInput, "accumulate"),
        (Standin(), methods.multipath(), {"precision": "fp8"}, UnknownName, "precision"),
        (Standin(), methods.multipath(), {"precision": "fp16"}, DeviceMissing, "GPU"),
        (Standin(), methods.multipath(), {"device": "tpu"}, UnknownName, "device"),
    ]
    for model, method, options, error, text in cases:
        with pytest.raises(error, match=text):
            train(model, data, method, out=out, **{**QUICK, **options})
        assert not out.exists()


def test_wrong_class_count_is_named():
    with pytest.raises(BadInput, match="7 outputs for 4 classes"):
        train(Plain(classes=7), toy_data(), methods.scratch(warmup_epochs=0.0, **PLAIN), **QUICK)
