"""Executors: the same answers in process, in processes and on Ray; lost workers are replaced, mistakes come back whole."""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
import torch

import executor_tasks as tasks
from snugnet.errors import BadInput, Infeasible, SnugnetError, UnknownName, WorkerLost
from snugnet.evaluate.evaluator import Evaluator
from snugnet.evaluate.ranking import inherited
from snugnet.executors import LocalExecutor, open_executor, ordered, share
from snugnet.nets import Supernet
from snugnet.space.sampling import sample
from standin import SPACE, toy_data


@pytest.fixture(scope="module")
def local():
    with LocalExecutor(2) as executor:
        yield executor


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray", reason="Ray is in the extra [dev]")
    with pytest.MonkeyPatch.context() as patch:  # its workers are nobody's children: they find modules by this alone
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        patch.setenv("RAY_worker_niceness", "0")  # at Ray's 15 a busy machine hardly lets them start
        with open_executor("ray") as executor:
            yield executor


@pytest.fixture(params=["local", "cluster"])
def executor(request):
    return request.getfixturevalue(request.param)


def test_answers_come_in_order_and_shared_values_travel_once(executor):
    values = [share(executor, {"factor": factor}) for factor in (1, 2, 3)]
    futures = [executor.submit(tasks.scaled, value, n, plus=1) for value in values for n in range(4)]
    assert [f.result() for f in futures] == [factor * n + 1 for factor in (1, 2, 3) for n in range(4)]
    assert executor.submit(tasks.kept).result() <= 2  # a worker does not hoard them


def test_mistakes_come_back_whole(executor):
    with pytest.raises(Infeasible, match="nothing is that small, got 3") as caught:
        executor.submit(tasks.refused, 3).result()
    assert caught.value.remedy == "Raise it." and caught.value.exit_code == 2
    with pytest.raises(ZeroDivisionError) as other:
        executor.submit(tasks.broken).result()
    assert "executor_tasks.py" in "".join(other.value.__notes__)


def test_every_worker_has_the_threads_it_was_given(executor, capfd):
    assert executor.submit(tasks.threads).result() == ("1", 1)
    assert "not an answer" not in capfd.readouterr().out


def test_a_lost_worker_is_replaced(executor, tmp_path):
    others = [executor.submit(tasks.napping, 0.2) for _ in range(3)]
    assert executor.submit(tasks.dies_until, tmp_path, 2).result(timeout=60) == 2
    assert [future.result() for future in others] == [0.2] * 3


def test_a_task_that_kills_every_worker_fails_alone(local, tmp_path):
    others = [local.submit(tasks.napping, 0.1) for _ in range(3)]
    with pytest.raises(WorkerLost, match="4 workers lost"):
        local.submit(tasks.dies_until, tmp_path, 100).result(timeout=120)
    assert [future.result() for future in others] == [0.1] * 3


def test_leaving_with_an_error_does_not_wait(tmp_path):
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), LocalExecutor(1) as executor:
        future = executor.submit(tasks.napping, 600.0)
        waiting = executor.submit(tasks.napping, 600.0)
        while not executor.pids:
            time.sleep(0.05)
        raise KeyboardInterrupt
    assert time.monotonic() - began < 60
    assert waiting.cancelled() and isinstance(future.exception(timeout=60), WorkerLost)


def test_scores_and_what_is_remembered_are_those_of_one_process(executor, tmp_path):
    torch.manual_seed(0)
    supernet, data = Supernet(SPACE).eval(), toy_data()
    networks = [sample(SPACE, np.random.default_rng(seed)) for seed in range(6)]
    journals = []
    for who in (None, executor):
        memory = tmp_path / f"{who is None}.jsonl"
        evaluator = Evaluator(supernet, data, limit=20, memory=memory, executor=who)
        evaluator(networks[2])  # known before
        best = evaluator.best(networks)
        journals.append((best, memory.read_bytes()))
        assert evaluator.evaluated >= 6
    assert journals[0] == journals[1]
    right = [inherited(supernet, data, networks, limit=30, executor=who) for who in (None, executor)]
    assert torch.equal(*right)


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_any_executor_of_the_standard_library_will_do(kind):
    pool = ThreadPoolExecutor(2) if kind == "threads" else ProcessPoolExecutor(1, get_context("spawn"))
    with pool as executor:
        shared = share(executor, {"factor": 5})
        assert [executor.submit(tasks.scaled, shared, n).result() for n in range(3)] == [0, 5, 10]


def test_in_process_a_task_is_done_when_it_is_asked_for():
    done = []
    results = ordered(None, [lambda n=n: done.append(n) for n in range(3)])
    next(results)
    assert done == [0]


@pytest.mark.parametrize(("place", "error"), [("local:two", BadInput), ("loca:2", UnknownName), ("local:0", BadInput)])
def test_places_nobody_knows_are_refused(place, error):
    with pytest.raises(error) as caught, open_executor(place):
        pass
    assert "local:2" in str(caught.value)


def test_a_client_address_is_refused(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(SnugnetError, match="ray job submit"), open_executor("ray"):
        pass
