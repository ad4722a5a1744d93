"""Training where the machine has a second device: whatever meets in an operation lies on one of them."""

import pytest
import torch

from fake_device import fake_cuda, fake_device, on_device
from snugnet.nets.supernet import Supernet
from snugnet.training import finetune, methods, train
from standin import SPACE, Plain, Standin, toy_data

QUICK = {"batch": 32, "trackers": (), "checkpoint_seconds": 0}


@pytest.fixture
def cuda(monkeypatch):
    fake_cuda(monkeypatch)
    with fake_device() as device:
        yield device


def test_phases_train_and_resume_on_the_device(cuda, tmp_path):
    phases = [
        methods.largest(epochs=1, clip_norm=1.0),
        methods.multipath(epochs=1, auto_augment="cifar10", crop_padding=1, distill=0.5),
        methods.singlepath(epochs=1, ema=None),
    ]
    net, again = Standin(), Standin()
    result = train(net, toy_data(), phases, out=tmp_path, evaluator=None, **QUICK)
    assert all(on_device(t) for t in net.state_dict().values())
    assert train(again, toy_data(), phases, out=tmp_path, evaluator=None, **QUICK).resumed_at == result.steps
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), again.state_dict().values()))


def test_sub_networks_are_evaluated_on_the_device_during_training(cuda):
    net = Supernet(SPACE)
    result = train(net, toy_data(), methods.multipath(epochs=2, auto_augment=None), **QUICK)
    assert set(result.accuracies) == {"largest", "smallest", "random"} and on_device(next(net.parameters()))


def test_a_student_is_taught_on_the_device(cuda):
    student, teacher = Plain(1), Plain(2)
    result = finetune(student, toy_data(), teacher=teacher, epochs=1, **QUICK)
    assert on_device(student.last.weight) and "accuracy" in result.accuracies


def test_a_search_in_training_runs_on_the_device(cuda, tmp_path):
    from test_tfnas import BUDGET, METHOD, supernet

    net = supernet()
    result = train(net, toy_data(), METHOD, budget=BUDGET, out=tmp_path, **QUICK)
    assert all(on_device(t) for t in net.state_dict().values()) and set(result.accuracies) == {"strongest"}
    again = supernet()
    assert train(again, toy_data(), METHOD, budget=BUDGET, out=tmp_path, **QUICK).resumed_at == result.steps
