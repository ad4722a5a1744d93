"""The device behind a command: what it measures, and everything that can go wrong with the other end."""

import contextlib
import gc
import os
import pickle
import random
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
import torch

from agents import agent_command, changed, with_pid
from snugnet.devices import Command, OnnxRuntime, by_name
from snugnet.devices.agent import PROTOCOL, FrameReader, encode
from snugnet.devices.device import HERE
from snugnet.devices.onnx_graph import onnx_bytes
from snugnet.devices.timing import TimingSettings, time_on
from snugnet.errors import BadInput, DeviceLost, DeviceMissing, SnugnetError

GIVEN = torch.ones(1, 3, 8, 8)


@pytest.fixture
def module():
    torch.manual_seed(0)
    return torch.nn.Conv2d(3, 4, 3).eval()


@pytest.fixture(scope="module")
def local():
    return Command(command=agent_command())


def test_by_name_and_between_processes(local):
    device = by_name(f"command:{agent_command()}")
    assert device == local
    assert pickle.loads(pickle.dumps(device)).fingerprint() == device.fingerprint()


def test_a_table_will_remember_the_board_and_not_the_way_there(local):
    here, there = OnnxRuntime().fingerprint(), local.fingerprint()
    assert there == {**here, "device": "command"}
    assert "python" not in str(there)


def test_the_place_is_the_running_system_however_it_is_reached(local, tmp_path):
    assert local.place == OnnxRuntime().place == HERE  # this agent shares our processor
    for told, place in (("'of a board'", "of a board"), ("None", None), ("''", None), ("7", "7")):
        command = agent_command(source=changed(tmp_path, '"boot": boot()', f'"boot": {told}'))
        assert Command(command=command).place == (place or command)
    assert "boot" not in local.fingerprint()


def test_threads_are_those_of_the_board(tmp_path):
    few = changed(tmp_path, '"usable_cores": usable_cores()', '"usable_cores": 1')
    with pytest.raises(BadInput, match="threads must not exceed the 1 cores"):
        Command(command=agent_command(source=few), threads=2)
    many = changed(tmp_path, '"usable_cores": usable_cores()', '"usable_cores": 64')
    assert Command(command=agent_command(source=many), threads=64).fingerprint()["threads"] == "64"


def test_what_nobody_holds_any_more_is_dropped(local, module):
    kept = local.prepare(module, GIVEN)
    for _ in range(3):
        local.prepare(module, GIVEN)
    gc.collect()
    local.prepare(module, GIVEN)
    assert len(local._link._held) <= 3
    assert local.time(kept, 1) > 0


def test_a_graph_that_cannot_run_there_leaves_the_connection_as_it_was(local, module):
    kept = local.prepare(module, GIVEN)
    with pytest.raises(BadInput, match="must be able to do what it is asked"):
        local.open(b"no graph at all", GIVEN)
    assert local.time(kept, 1) > 0


def test_a_subject_of_another_device_is_refused(local, module):
    with pytest.raises(BadInput, match="device that prepared it"):
        local.time(OnnxRuntime().prepare(module, GIVEN), 1)


def test_signs_of_life_come_before_the_answer(tmp_path, module):
    device = Command(command=agent_command(source=changed(tmp_path, "_SIGN_EVERY = 1.0", "_SIGN_EVERY = 0.0")))
    subjects = [device.prepare(module, GIVEN) for _ in range(5)]
    times = device.one_pass(subjects, [4, 2, 0, 1, 3], [1, 2, 3, 4, 5])
    assert all(len(times[name]) == 5 for name in ("ms", "calls", "walls"))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("no-such-program pi4", "no-such-program: No such file"),
        ("", "must name one"),
        ("ssh 'pi4", "readable as in a shell"),
        (
            "sh -c 'echo bash: snugnet-agent: not found >&2; exit 127'",
            "exit code 127 and said 'bash: snugnet-agent: not",
        ),
        ("sh -c 'echo Welcome; exit 3'", "exit code 3 and said 'Welcome'"),
        ("true", "it ended with exit code 0"),
        ("cat", "an answer that is no agent's"),  # which says what it is told
        ("cat /dev/zero", "bytes without a frame"),
        ("sleep 30", "no answer for 0.5 s"),
        ("sh -c 'kill -9 $$'", "signal 9"),
        (agent_command("onnxruntime"), "has no onnxruntime"),
        (agent_command("numpy"), "No module named 'numpy'|import of numpy halted"),
    ],
)
def test_what_is_no_agent_is_one_clear_line(command, message):
    began = time.monotonic()
    with pytest.raises(SnugnetError, match=message) as caught:
        Command(command=command, timeout=0.5 if "sleep" in command else 30)
    assert isinstance(caught.value, (DeviceMissing, BadInput))
    assert "\n" not in str(caught.value)
    assert time.monotonic() - began < 25


def test_another_version_is_told_what_to_do(tmp_path):
    old = changed(tmp_path, f"PROTOCOL = {PROTOCOL}", "PROTOCOL = 99")
    with pytest.raises(DeviceMissing, match=f"speak protocol {PROTOCOL}.*got 99.*snugnet agent --write"):
        Command(command=agent_command(source=old))


@pytest.mark.parametrize(("number", "message"), [(signal.SIGKILL, "signal 9"), (signal.SIGSTOP, "no answer for 1 s")])
def test_an_agent_that_dies_or_hangs_is_named_and_the_next_call_goes_on(tmp_path, module, number, message):
    pid = tmp_path / "pid"
    device = Command(command=with_pid(pid, agent_command()))
    prepared, first = device.prepare(module, GIVEN), int(pid.read_text())
    os.kill(first, number)
    device._link._timeout = 60.0 if number == signal.SIGKILL else 1.0
    with pytest.raises(DeviceLost, match=message) as caught:
        device.time(prepared, 1)
    assert "Run the same command again" in str(caught.value)
    with pytest.raises(DeviceLost, match="another connection"):
        device.time(prepared, 1)
    device._link._timeout = 60.0
    assert device.time(device.prepare(module, GIVEN), 1) > 0
    assert int(pid.read_text()) != first
    with pytest.raises(DeviceLost, match="another connection"):
        device.one_pass([prepared], [0], [1])


def test_a_connection_that_rested_is_replaced(tmp_path, module, monkeypatch):
    pid, graph = tmp_path / "pid", onnx_bytes(module, GIVEN)
    device = Command(command=with_pid(pid, agent_command()))
    first = pid.read_text()
    kept = device.open(graph, GIVEN)
    monkeypatch.setattr("snugnet.devices.agent_link._REST", 0.0)
    device.open(graph, GIVEN)
    assert pid.read_text() == first  # it holds what somebody will time
    del kept
    gc.collect()
    device.open(graph, GIVEN)
    assert pid.read_text() != first


def test_a_board_that_became_another_is_noticed(tmp_path, module):
    file = changed(tmp_path, '"runtime": "onnxruntime"', '"runtime": "onnxruntime"')
    device = Command(command=agent_command(source=file))
    device.close()
    changed(tmp_path, '"runtime": "onnxruntime"', '"runtime": "another"')
    with pytest.raises(DeviceLost, match="must stay on the machine it was on"):
        device.prepare(module, GIVEN)


def test_passes_measured_before_an_agent_died_are_kept(tmp_path, module):
    """`measure` goes on from its journal: the same passes, then new ones."""
    pid, journal = tmp_path / "pid", tmp_path / "journal"
    device = Command(command=with_pid(pid, agent_command()))
    rules = TimingSettings(least_passes=3000, most_passes=3000, seconds=1000.0)
    seen = 0

    class Killer:
        def start(self, title, total): ...
        def stop(self): ...
        def update(self, done, note=""):
            nonlocal seen
            seen += 1
            if seen == 20:
                os.kill(int(pid.read_text()), signal.SIGKILL)

    with pytest.raises(DeviceLost, match="signal 9"):
        time_on(device, {"a": device.prepare(module, GIVEN)}, rules, journal=journal, progress=Killer())
    header = journal.read_text().splitlines()
    assert len(header) == 21
    few = TimingSettings(least_passes=25, most_passes=25)
    found = time_on(device, {"a": device.prepare(module, GIVEN)}, few, journal=journal)
    assert found.passes == 25
    assert journal.read_text().splitlines()[:21] == header


def test_no_agent_outlives_its_device(tmp_path):
    pid = tmp_path / "pid"
    device = Command(command=with_pid(pid, agent_command()))
    number = int(pid.read_text())
    del device
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


HELLO = {
    "is": "hello",
    "protocol": PROTOCOL,
    "usable_cores": 4,
    "about": dict.fromkeys(("processor", "cores", "system", "runtime", "version", "clock"), "x"),
}
VALUES = [None, True, -1, 0, 2**70, 1.5, "", "x" * 500, [], [1], [[None]], {}, {"a": {}}, "Infinity"]


def any_answer(rng: random.Random) -> bytes:
    """Noise, an answer with wrong fields, or a whole one cut or flipped."""
    heads = [{"is": "opened"}, {"is": "busy"}, {"is": "time", "ms": 1.0}, {"is": "error", "message": "m"}, HELLO, {}]
    head = dict(rng.choice(heads))
    if rng.random() < 0.8:
        head[rng.choice(["is", "ms", "message", "shape", "about", "protocol", "usable_cores"])] = rng.choice(VALUES)
    data = bytearray(encode(head))
    kind = rng.randrange(4)
    if kind == 0:
        return rng.randbytes(rng.randrange(200))
    if kind == 1:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == 2:
        del data[rng.randrange(len(data)) :]
    return bytes(data)


class FakeAgent:
    """In the place of a process: answers every whole request with the next of its pieces, then closes its output."""

    returncode = None

    def __init__(self, pieces: list[bytes]) -> None:
        ends = [os.pipe() for _ in range(3)]
        self.stdin, self.stdout, self.stderr = (
            os.fdopen(ends[0][1], "wb", 0),
            os.fdopen(ends[1][0], "rb", 0),
            os.fdopen(ends[2][0], "rb", 0),
        )
        threading.Thread(target=self._work, args=(pieces, ends[0][0], ends[1][1], ends[2][1]), daemon=True).start()

    def _work(self, pieces: list[bytes], requests: int, out: int, said: int) -> None:
        reader = FrameReader()
        with contextlib.suppress(BrokenPipeError):
            for piece in pieces:
                while reader.next() is None and (data := os.read(requests, 2**16)):
                    reader.feed(data)
                os.write(out, piece)
        for end in (requests, out, said):
            os.close(end)

    def poll(self) -> None:
        return None

    def wait(self, seconds: float = 0.0) -> int:
        return 0

    terminate = kill = poll


def converse(command: str = "pretend") -> str:
    """The kind of error a conversation of everything a device does ends with."""
    try:
        device = Command(command=command, timeout=20)
        subject = device.open(b"a graph", GIVEN)
        device.time(subject, 1)
        device.one_pass([subject], [0], [1])
        subject.output()
    except SnugnetError as error:
        assert "\n" not in str(error) and len(str(error)) < 900
        return type(error).__name__
    return "believed"


GOOD = [
    encode(HELLO),
    encode({"is": "opened"}),
    encode({"is": "time", "ms": 1.0}),
    encode({"is": "busy"}) + encode({"is": "pass", "ms": [1.0], "calls": [1.0], "walls": [1.0]}),
    encode({"is": "output", "shape": [1]}, b"1234") + b"1234",
]


def test_300_garbled_answers_are_refused_in_one_line(monkeypatch):
    rng, endings = random.Random(4), Counter()
    for number in range(300):
        pieces = [*GOOD[: number % 5], any_answer(rng)]
        monkeypatch.setattr(subprocess, "Popen", lambda *_, pieces=pieces, **__: FakeAgent(pieces))
        endings[converse()] += 1
    assert set(endings) == {"DeviceMissing", "DeviceLost", "BadInput"}, endings
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: FakeAgent(GOOD))
    assert converse() == "believed"


def test_100_garbled_answers_through_a_process(tmp_path):
    """`cat` says them whatever it is asked: some instead of a hello, the others after one."""
    rng, file = random.Random(5), tmp_path / "answers"
    for number in range(100):
        file.write_bytes((b"" if number % 3 == 0 else encode(HELLO)) + any_answer(rng) + any_answer(rng))
        assert converse(shlex.join(["cat", str(file)])) != "believed"


def test_a_flood_of_signs_of_life_is_no_answer(monkeypatch):
    pieces = [*GOOD[:2], encode({"is": "busy"}) * 1000]
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: FakeAgent(pieces))
    device = Command(command="pretend")
    with pytest.raises(DeviceLost, match="more signs of life"):
        device.time(device.open(b"a graph", GIVEN), 1)


def test_a_large_graph_that_nobody_reads_does_not_hang(tmp_path):
    """The pipe is full, the other side says nothing: the time-out ends it."""
    file = tmp_path / "answers"
    file.write_bytes(encode(HELLO))
    device = Command(command=f"sh -c 'cat {file}; sleep 60'", timeout=0.5)
    with pytest.raises(DeviceLost, match=r"no answer for 0\.5 s"):
        device.open(bytes(2**22), GIVEN)


def test_as_a_program_of_the_package():
    words = [sys.executable, "-c", "from snugnet.cli import main; main(['agent'])"]
    assert Command(command=shlex.join(words)).cores() >= 1
