"""Several devices: boards side by side, devices of one place never; one that fails stops no other."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

import snugnet as sn
from agents import meeting
from boards import Board, overlapping, read
from snugnet.costs.measure import measure
from snugnet.costs.table import load_table
from snugnet.devices import Command
from snugnet.devices.timing import TimingSettings
from snugnet.errors import BadInput, DeviceLost, DevicesFailed
from snugnet.executors import LocalExecutor
from standin import SPACE

QUICK = {"settings": TimingSettings(seconds=30, least_passes=6, most_passes=6, warmup=1), "networks": 3}


@pytest.fixture(scope="module")
def processes():
    with LocalExecutor(2) as executor:
        yield executor


@pytest.fixture(params=["threads", "processes"])
def executor(request):
    if request.param == "processes":
        yield request.getfixturevalue("processes")
    else:
        with ThreadPoolExecutor(2) as pool:
            yield pool


def board(diary, label, **more):
    return Board(label=label, diary=diary, **more)


def test_boards_are_measured_side_by_side_and_devices_of_this_machine_alone(executor, tmp_path):
    diary, state = tmp_path / "diary", torch.random.get_rng_state()
    devices = {
        "cpu": board(diary, "cpu"),
        "pi": board(diary, "pi", at="a", meets=("phone",)),  # each comes to an end only if the other is being timed
        "phone": board(diary, "phone", at="b", meets=("pi",)),
        "gpu": board(diary, "gpu"),
    }
    tables = sn.measure_many(SPACE, devices, executor=executor, out=tmp_path / "tables", **QUICK)
    assert list(tables) == list(devices)
    assert overlapping(diary) <= {frozenset({"pi", "phone"})}
    assert [line for line in read(diary) if line[0] == "+"][-12:] == ["+cpu"] * 6 + [
        "+gpu"
    ] * 6  # when boards have ended
    assert torch.equal(state, torch.random.get_rng_state())
    for label, table in tables.items():
        assert table == load_table(tmp_path / "tables" / f"{label}.json")
        assert table.origin["device"]["processor"] == label
        assert table.costs == measure(SPACE, devices[label], **QUICK).costs  # the same, whoever computes


def test_two_devices_of_one_board_take_turns(executor, tmp_path):
    diary = tmp_path / "diary"
    devices = {label: board(diary, label, at=label[0]) for label in ("a1", "b1", "a2", "b2")}
    assert list(sn.measure_many(SPACE, devices, executor=executor, **QUICK)) == list(devices)
    assert not overlapping(diary) & {frozenset({"a1", "a2"}), frozenset({"b1", "b2"})}


def test_without_an_executor_all_take_turns_in_their_order(tmp_path):
    diary = tmp_path / "diary"
    devices = {label: board(diary, label, at=at) for label, at in (("pi", "a"), ("cpu", ""), ("phone", "b"))}
    sn.measure_many(SPACE, devices, **QUICK)
    assert not overlapping(diary)
    assert list(dict.fromkeys(read(diary))) == ["+pi", "-pi", "+cpu", "-cpu", "+phone", "-phone"]


@pytest.mark.parametrize("failing", ["pi", "cpu"])
def test_one_failure_stops_nobody_and_the_same_call_goes_on(executor, tmp_path, failing):
    diary, broken, out = tmp_path / "diary", tmp_path / "broken", tmp_path / "tables"
    broken.touch()
    places = {"pi": "a", "phone": "b", "cpu": ""}
    devices = {label: board(diary, label, at=at) for label, at in places.items()}
    devices[failing] = replace(devices[failing], broken=broken)
    with pytest.raises(DevicesFailed) as caught:
        sn.measure_many(SPACE, devices, executor=executor, out=out, **QUICK)
    others = [label for label in places if label != failing]
    message = str(caught.value)
    assert "\n" not in message and f"1 of 3 failed), got '{', '.join(others)}'" in message
    assert f"{failing}: a board must go on answering, got silence. Plug it in." in message
    assert isinstance(caught.value.failures[failing], DeviceLost) and list(caught.value.tables) == others
    assert sorted(path.name for path in out.glob("*.json")) == sorted(f"{label}.json" for label in others)
    broken.unlink()
    before = len(read(diary))
    tables = sn.measure_many(SPACE, devices, executor=executor, out=out, **QUICK)
    assert read(diary)[before:] == [f"+{failing}", f"-{failing}"] * 4  # two of its six passes were in the journal
    assert tables[failing].origin["passes"] == 6
    assert {label: tables[label] for label in others} == caught.value.tables


def test_a_table_of_something_else_is_measured_again(tmp_path):
    diary = tmp_path / "diary"
    devices = {"pi": board(diary, "pi")}
    first = sn.measure_many(SPACE, devices, out=tmp_path, **QUICK)["pi"]
    again = sn.measure_many(SPACE, devices, out=tmp_path, batch=2, **QUICK)["pi"]
    assert (first.origin["batch"], again.origin["batch"]) == (1, 2)
    assert load_table(tmp_path / "pi.json") == again


def test_somebody_elses_mistake_keeps_its_kind(tmp_path):
    class Wrong(Board):
        def prepare(self, module, example):
            raise ZeroDivisionError("of mine")

    devices = {"a": Wrong(label="a", diary=tmp_path / "d"), "b": board(tmp_path / "d", "b")}
    with pytest.raises(DevicesFailed, match="a: ZeroDivisionError: of mine") as caught:
        sn.measure_many(SPACE, devices, **QUICK)
    assert isinstance(caught.value.__cause__, ZeroDivisionError) and list(caught.value.tables) == ["b"]


@pytest.mark.parametrize(("devices", "message"), [({}, "a device to measure"), ({"../x": None}, "label of a device")])
def test_what_cannot_be_measured_is_refused(devices, message):
    with pytest.raises(BadInput, match=message):
        sn.measure_many(SPACE, devices)


def test_real_agents_side_by_side(executor, tmp_path):
    """Each refuses a pass unless the other one is asked for one too. Standard output survives exporters in two threads."""
    output = os.fstat(1)
    devices = {label: Command(command=command) for label, command in meeting(tmp_path, "pi", "phone").items()}
    assert [device.place for device in devices.values()] == ["of pi", "of phone"]
    tables = sn.measure_many(SPACE, devices, executor=executor, out=tmp_path, **QUICK)
    assert all(table.origin["passes"] == 6 for table in tables.values())
    assert os.path.samestat(output, os.fstat(1))
