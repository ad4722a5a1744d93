"""The agent by itself: frames, requests, and ten thousand pieces of garbage (with those in test_command.py)."""

import ast
import random
import shlex
import struct
import subprocess
import sys
import tempfile
import zlib

import numpy as np
import pytest
import torch

from agents import SOURCE, agent_command
from snugnet.devices.agent import (
    HEADER,
    MAGIC,
    MOST_BODY,
    MOST_HEAD,
    PROTOCOL,
    BadFrame,
    Frame,
    FrameReader,
    Session,
    encode,
    processor_name,
)
from snugnet.devices.onnx_graph import onnx_bytes

HELLO = {"do": "hello", "protocol": PROTOCOL, "threads": 1}


@pytest.fixture(scope="module")
def graph():
    return onnx_bytes(torch.nn.Conv2d(3, 4, 3).eval(), torch.zeros(1, 3, 8, 8))


def opening(graph: bytes, key: int = 1) -> Frame:
    given = np.ones((1, 3, 8, 8), "<f4").tobytes()
    return Frame({"do": "open", "key": key, "graph_bytes": len(graph), "shape": [1, 3, 8, 8]}, graph + given)


@pytest.fixture
def session():
    made = Session(lambda head, body: None)
    yield made
    made._undo.close()  # the priority it took


def read(data: bytes, *, noise: bool = False) -> list[Frame]:
    reader, frames = FrameReader(noise), []
    reader.feed(data)
    while (frame := reader.next()) is not None:
        frames.append(frame)
    return frames


def whole(head: dict, body: bytes = b"") -> bytes:
    return encode(head, body) + body


def raw(text: bytes, body: bytes = b"") -> bytes:
    """A frame with whole checksums around any head."""
    sizes = struct.pack(">8sIQI", MAGIC, len(text), len(body), zlib.crc32(body, zlib.crc32(text)))
    return sizes + struct.pack(">I", zlib.crc32(sizes)) + text + body


def test_frames_come_out_as_they_went_in_however_they_are_cut():
    frames = [Frame({"do": "a"}, b""), Frame({"b": [1, 2.5, None]}, b"\x00\x89SNUG" * 50), Frame({}, b"x")]
    data = b"".join(whole(*frame) for frame in frames)
    for step in (1, 7, 1000):
        reader, found = FrameReader(), []
        for start in range(0, len(data), step):
            reader.feed(data[start : start + step])
            while (frame := reader.next()) is not None:
                found.append(frame)
        assert found == frames


def test_what_a_login_shell_says_first_is_passed_over():
    banner = b"Welcome to pi4!\nLast login: Monday\n"
    assert read(banner + whole({"is": "hello"}), noise=True) == [Frame({"is": "hello"}, b"")]
    assert read(banner, noise=True) == []
    with pytest.raises(BadFrame, match="without a frame"):
        read(b"y\n" * 40_000, noise=True)
    with pytest.raises(BadFrame, match="no frame"):
        read(banner + whole({"is": "hello"}))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"bash: snugnet-agent: command not found\n", "no frame"),
        (MAGIC.replace(b"\n", b"\r\n") + bytes(20), "no frame"),
        (struct.pack(">8sIQI", MAGIC, 2, 0, 0) + bytes(4), "header is damaged"),
        (whole({"do": "time"})[:-1] + b"!", "changed on its way"),
        (raw(b"{not json"), "no JSON"),
        (raw(b"[" * 200_000), "no JSON"),
        (raw(b'{"ms": NaN}'), "no JSON"),
        (raw(b"\xff\xfe"), "no JSON"),
        (raw(b"[1, 2]"), "no JSON object"),
    ],
)
def test_what_is_no_frame_is_said(data, message):
    with pytest.raises(BadFrame, match=message):
        read(data)


@pytest.mark.parametrize(("head", "body"), [(MOST_HEAD + 1, 0), (2, MOST_BODY + 1), (2**32 - 1, 2**64 - 1)])
def test_a_frame_that_is_too_large_is_refused_by_its_header(head, body):
    sizes = struct.pack(">8sIQI", MAGIC, head, body, 0)
    with pytest.raises(BadFrame, match="too large"):
        read(sizes + struct.pack(">I", zlib.crc32(sizes)))
    assert len(sizes) + 4 == HEADER.size


def test_a_conversation(session, graph):
    head, _ = session.answer(Frame(HELLO, b""))
    assert head["protocol"] == PROTOCOL
    assert head["usable_cores"] >= 1
    assert session.answer(opening(graph)) == ({"is": "opened"}, b"")
    assert session.answer(Frame({"do": "time", "key": 1, "calls": 3}, b""))[0]["ms"] > 0
    head, _ = session.answer(Frame({"do": "pass", "keys": [1], "order": [0], "calls": [2]}, b""))
    assert all(len(head[name]) == 1 and head[name][0] > 0 for name in ("ms", "calls", "walls"))
    head, body = session.answer(Frame({"do": "output", "key": 1}, b""))
    assert (head["shape"], len(body)) == ([1, 4, 6, 6], 4 * 4 * 36)
    assert session.answer(Frame({"do": "drop", "keys": [1]}, b"")) == ({"is": "dropped"}, b"")
    assert "no subject" in session.answer(Frame({"do": "time", "key": 1, "calls": 3}, b""))[0]["message"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"do": "exec"}, "a request must be one of hello, open"),
        ({"do": ["open"]}, "a request must be one of"),
        ({"key": 1.0}, "key must be a whole number"),
        ({"key": True}, "key must be a whole number"),
        ({"graph_bytes": 10**9}, "graph_bytes must be"),
        ({"shape": [1, 3, 8, 9]}, "4 bytes a number"),
        ({"shape": [1] * 9}, "list of 8 at most"),
        ({"shape": "1388"}, "list of 8 at most"),
        ({"graph_bytes": 5, "shape": [1]}, "4 bytes a number"),
    ],
)
def test_requests_that_are_wrong_are_answered_in_words(session, graph, change, message):
    session.answer(Frame(HELLO, b""))
    head, body = opening(graph)
    answer, _ = session.answer(Frame({**head, **change}, body))
    assert answer["is"] == "error"
    assert message in answer["message"]


def test_nothing_happens_before_hello_or_with_another_protocol(session, graph):
    assert "first request must be hello" in session.answer(opening(graph))[0]["message"]
    answer, _ = session.answer(Frame({**HELLO, "protocol": PROTOCOL + 1}, b""))
    assert (answer["is"], answer["protocol"]) == ("error", PROTOCOL)


def test_a_graph_the_runtime_refuses_is_an_answer(session, graph):
    session.answer(Frame(HELLO, b""))
    broken = b"\x08\x01" + graph[7:]
    answer, _ = session.answer(opening(broken))
    assert answer["is"] == "error"
    assert len(answer["message"]) <= 400


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Flipped, cut, doubled, mixed, or nothing but noise."""
    kind, out = rng.randrange(6), bytearray(data)
    if kind == 0:
        return rng.randbytes(rng.randrange(1, 200))
    if kind == 1:
        return MAGIC + rng.randbytes(rng.randrange(1, 200))
    for _ in range(rng.randrange(1, 8)):
        place = rng.randrange(len(out) or 1)
        if kind == 2 and out:
            out[place] ^= 1 << rng.randrange(8)
        elif kind == 3:
            del out[place : place + rng.randrange(1, 40)]
        elif kind == 4:
            out[place:place] = rng.randbytes(rng.randrange(1, 40))
        elif kind == 5:
            out += out[place : place + 100]
    return bytes(out)


def test_7500_pieces_of_garbage_are_no_frame_or_one_that_was_sent(graph):
    rng = random.Random(0)
    sent = [
        Frame(HELLO, b""),
        Frame({"do": "pass", "keys": list(range(20)), "order": list(range(20)), "calls": [1] * 20}, b""),
        Frame(opening(graph).head, opening(graph).body[:300]),
    ]
    refused = 0
    for _ in range(7500):
        data = mutated(whole(*rng.choice(sent)), rng)
        try:
            assert all(frame in sent for frame in read(data, noise=rng.random() < 0.2))
        except BadFrame as error:
            refused += 1
            assert len(str(error)) < 200
    assert refused > 3000


VALUES = [
    None,
    True,
    -1,
    0,
    1,
    2,
    2**70,
    1.5,
    -0.0,
    "",
    "x" * 500,
    "1",
    [],
    [1],
    [[1]],
    [None],
    {},
    {"a": 1},
    "\u0000\n",
]


def any_request(rng: random.Random, opened: Frame) -> Frame:
    """A real request with some of its fields exchanged, or of fields nobody knows."""
    heads = [
        HELLO,
        opened.head,
        {"do": "time", "key": 1, "calls": 1},
        {"do": "pass", "keys": [1, 1], "order": [1, 0], "calls": [1, 1]},
        {"do": "output", "key": 1},
        {"do": "drop", "keys": [7]},
    ]
    head = dict(rng.choice(heads))
    for _ in range(rng.randrange(1, 4)):
        name = rng.choice([*head, "do", "shape", "keys", rng.choice("abc")])
        head[name] = rng.choice(VALUES)
    body = opened.body if head.get("do") == "open" else rng.randbytes(rng.randrange(20))
    return Frame(head, mutated(body, rng) if rng.random() < 0.7 else body)


def test_2000_garbled_requests_are_answered(session, graph):
    rng, opened = random.Random(1), opening(graph)
    session.answer(Frame(HELLO, b""))
    session.answer(opened)
    kinds = set()
    for _ in range(2000):
        head, body = session.answer(any_request(rng, opened))
        encode(head, body)
        kinds.add(head["is"])
        assert "\n" not in head.get("message", "")
    assert kinds >= {"error", "time"}


def run_agent(data: bytes, *, command: str = "", close: bool = False) -> tuple[int, list[Frame], str]:
    """What an agent's process makes of these bytes, which must bring it to an end."""
    words = shlex.split(command) or [sys.executable, "-P", str(SOURCE)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as said:
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=out, stderr=said)
        try:
            process.stdin.write(data)
            process.stdin.close() if close else process.stdin.flush()
            code = process.wait(60)
        finally:
            process.kill()
            process.wait()
            process.stdin.close()
        out.seek(0)
        said.seek(0)
        return code, read(out.read()), said.read().decode()


def test_a_process_that_is_sent_garbage_says_so_and_ends():
    rng = random.Random(2)
    for _ in range(4):
        garbage = b"\x00" + rng.randbytes(300)
        code, frames, said = run_agent(garbage)
        assert (code, said) == (2, "")
        assert [frame.head["is"] for frame in frames] == ["error"]
        assert "no frame" in frames[0].head["message"]


def test_300_garbled_requests_through_a_process(graph):
    """It answers all of them, and the good one at the end; a broken frame ends it."""
    rng, opened = random.Random(3), opening(graph)
    requests = [Frame(HELLO, b""), opened, *(any_request(rng, opened) for _ in range(300)), Frame(HELLO, b"")]
    data = b"".join(whole(*request) for request in requests) + b"garbage"
    code, frames, said = run_agent(data)
    assert code == 2
    assert len(frames) == len(requests) + 1
    assert [frames[i].head["is"] for i in (0, 1, -2, -1)] == ["hello", "opened", "hello", "error"]
    assert "Traceback" not in said


def test_an_agent_ends_in_the_middle_of_a_pass_when_nobody_is_there(graph):
    long = Frame({"do": "pass", "keys": [1] * 4096, "order": list(range(4096)), "calls": [4096] * 4096}, b"")
    code, _, said = run_agent(b"".join(whole(*f) for f in (Frame(HELLO, b""), opening(graph), long)), close=True)
    assert (code, said) == (0, "")


def test_the_file_is_alone_and_speaks_the_python_of_boards():
    """Python 3.9 reads it, and it imports nothing but the standard library, numpy and onnxruntime."""
    tree = ast.parse(SOURCE.read_text(), feature_version=(3, 9))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    others = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names)
    assert others == {"numpy", "onnxruntime"}


def test_an_agent_without_its_runtime_says_what_is_missing():
    _, frames, _ = run_agent(whole(HELLO) + b"end of it", command=agent_command("onnxruntime"))
    assert "has no onnxruntime" in frames[0].head["message"]


@pytest.mark.parametrize(
    ("cpuinfo", "board", "name"),
    [
        ("model name\t: Xeon\ncpu family\t: 6\nmodel\t\t: 85\nstepping\t: 7\n", "", "Xeon (6/85/7)"),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd08\n", "Raspberry Pi 4\0", "Raspberry Pi 4 (0x41/0xd08)"),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd05\nCPU part\t: 0xd0d\n", "", "aarch64 (0x41/0xd05/0xd0d)"),
        ("", "", "aarch64"),
    ],
)
def test_boards_have_names(cpuinfo, board, name):
    assert processor_name(cpuinfo, board, "aarch64") == name
