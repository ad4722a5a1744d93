#!/usr/bin/env python3
"""What measures, in one file that needs Python (3.9 or newer), numpy and onnxruntime, and neither torch nor snugnet.

It is used twice. In the package it is the measuring that every device on this machine shares: clocks, priority, the visits
of a pass, what the machine is. Copied to a board (`snugnet agent --write FILE`) and started there by a command
(`--device "command:ssh pi4 snugnet-agent"`), it is a program that does the same on that board: ONNX graphs come in by
standard input, times go out by standard output. The machine with the networks draws the order of every pass and works out
the statistics; the visits themselves happen here, so that the way to the board is in no time.

Frames: magic, bytes of the head, bytes of the body, checksums of both, the head as JSON, the body. A request is answered by
one frame, a long one by signs of life before it. Sizes are bounded, and a frame that is not whole ends the conversation.
Requests are `hello`, `open` (a graph and its input), `time`, `pass`, `output` and `drop`: nothing that comes in is executed
except the graph, by the runtime. When the other side goes away the program ends, in the middle of a pass too: an agent that
goes on measuring for nobody would disturb the next.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import queue
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

PROTOCOL = 1  # rises with every change of what is asked, answered or measured
OWN_TIME = "the thread's own clock"
WALL_CLOCK = "the wall clock"

MAGIC = b"\x89SNUG\r\n\n"  # a terminal in between changes one of the last three, and is noticed
HEADER = struct.Struct(">8sIQII")  # magic, bytes of head and body, their checksum, checksum of all before
MOST_HEAD, MOST_BODY, MOST_NOISE = 2**20, 2**29, 2**16  # bytes
MOST_SUBJECTS, MOST_HELD = 4096, 2**32  # subjects at a time, and bytes of their graphs and inputs
MOST_CALLS = 4096  # in a row
_SIGN_EVERY = 1.0  # seconds
_NICE = -15
_WARM_CALLS = 4  # of a visit, before its time is taken
_WARM_MS = 2.5  # after which no further ones are needed

Head = dict[str, Any]
PassTimes = dict[str, list[float]]
"""Per subject: `ms` (the lower of a visit's two times), `calls` (the second of them), `walls` (that by the wall clock)."""
Subject = TypeVar("Subject")


# ------------------------------------------------------------------------------------------------ clocks and priority


def wall_clock(run: Callable[[], object], repetitions: int) -> float:
    """Milliseconds a call by the machine's own clock; for runtimes whose `run` returns when the work is done."""
    began = time.perf_counter_ns()
    for _ in range(repetitions):
        run()
    return (time.perf_counter_ns() - began) / 1e6 / repetitions


def thread_cpu_time(run: Callable[[], object], repetitions: int) -> float:
    """Milliseconds a call by the clock of the calling thread, which stands still while other programs have the core.

    For work that a single thread does from start to end. On an idle machine this is the wall clock; on a shared one the
    wall clock measures the neighbours: a 20 ms network is hardly ever left alone for 20 ms.
    """
    began = time.thread_time_ns()
    for _ in range(repetitions):
        run()
    return (time.thread_time_ns() - began) / 1e6 / repetitions


class Clock(NamedTuple):
    """A clock in words, and how it is read: milliseconds a call of (run, repetitions)."""

    name: str
    time: Callable[[Callable[[], object], int], float]


def cpu_clock(threads: int) -> Clock:
    """The clock for work that is done in so many threads, the calling one first."""
    return Clock(OWN_TIME, thread_cpu_time) if threads == 1 else Clock(WALL_CLOCK, wall_clock)


@contextlib.contextmanager
def raised_priority(threads: int = 1) -> Iterator[str]:
    """Ask the system to go first while measuring; inside the block, what it granted: "first", "raised" or "ordinary".

    Where the system permits it (usually to its administrator) and a core is left for everybody else, the measuring thread
    goes before all ordinary programs for as long as it takes; else its ordinary priority is raised; else nothing happens. It
    is given back afterwards, and by the system itself if the process dies. On two cores with five other busy programs the
    times of a 12 ms network then lay between 12.1 and 13.8 ms (5 and 90 % quantiles), where they had been between 12.9 and
    82 ms. Work of several threads is only raised: its helpers would lag behind.
    """
    with contextlib.ExitStack() as undo:
        granted = "ordinary"
        if threads == 1 and usable_cores() > 1 and _go_first(undo):
            granted = "first"
        elif _raise(undo):
            granted = "raised"
        yield granted


def _go_first(undo: contextlib.ExitStack) -> bool:
    if not hasattr(os, "sched_setscheduler"):
        return False
    before, detail = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        # Children are not to inherit it: a data loader at this priority would be a nuisance.
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        return False
    undo.callback(_give_back, before, detail)
    return True


def _give_back(before: int, detail: os.sched_param) -> None:
    try:
        os.sched_setscheduler(0, before, detail)
    except OSError:  # dropping the mark on children takes more rights than getting it; the priority itself goes back
        os.sched_setscheduler(0, before | os.SCHED_RESET_ON_FORK, detail)


def _raise(undo: contextlib.ExitStack) -> bool:
    if not hasattr(os, "setpriority"):
        return False
    before = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, min(before, _NICE))
    except OSError:
        return False
    undo.callback(os.setpriority, os.PRIO_PROCESS, 0, before)
    return True


# ------------------------------------------------------------------------------------------------ passes


def one_pass(
    subjects: Sequence[Subject],
    stopwatch: Callable[[Subject, int], float],
    order: Sequence[int],
    repetitions: Sequence[int],
    *,
    now: Callable[[], float] = time.monotonic,
    after_visit: Callable[[], None] = lambda: None,
) -> PassTimes:
    """Visit every subject once, in this order. `stopwatch(subject, n)` is milliseconds per call over n calls in a row."""
    lower, calls, walls = ([0.0] * len(subjects) for _ in range(3))
    for index in order:
        subject = subjects[index]
        last = _warm(subject, stopwatch)
        began = now()
        calls[index] = stopwatch(subject, repetitions[index])
        walls[index] = (now() - began) * 1e3 / repetitions[index]
        lower[index] = min(last, calls[index])
        after_visit()
    return {"ms": lower, "calls": calls, "walls": walls}


def _warm(subject: Subject, stopwatch: Callable[[Subject, int], float]) -> float:
    """Milliseconds of the last of the calls that bring a subject back into the caches; a long one does so by itself."""
    spent = last = 0.0
    for _ in range(_WARM_CALLS):
        last = stopwatch(subject, 1)
        spent += last
        if spent >= _WARM_MS:
            break
    return last


# ------------------------------------------------------------------------------------------------ the machine


def usable_cores() -> int:
    """The cores this process may run on; a container often has fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> dict[str, str]:
    """What every timing on this machine depends on."""
    return {
        "processor": processor(),
        "cores": str(os.cpu_count() or 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def boot() -> str:
    """Which running system this is, the same in all its containers; empty where none tells. No timing depends on it."""
    return _content("/proc/sys/kernel/random/boot_id").strip()


def processor() -> str:
    """The processor's own name, as far as the system tells."""
    usual = platform.processor() or platform.machine()
    return processor_name(_content("/proc/cpuinfo"), _content("/proc/device-tree/model"), usual)


def processor_name(cpuinfo: str, board: str, usual: str) -> str:
    """From Linux's files: processors of PCs have a name there, those of boards a number, and the board a name."""
    fields = [(line.split("\t")[0], line.partition(":")[2].strip()) for line in cpuinfo.splitlines()]
    named = [value for name, value in fields if name.startswith("model name")]
    if named:
        # Cloud machines often hide the product name; family, model and stepping still tell generations apart.
        detail = [value for name, value in fields if name in ("cpu family", "model", "stepping")][:3]
    else:
        named = [board.strip("\0\n ") or usual]
        detail = sorted({value for name, value in fields if name in ("CPU implementer", "CPU part")})
    return f"{named[0]} ({'/'.join(detail)})" if detail else named[0]


def _content(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:  # noqa: PTH123
            return stream.read()
    except OSError:
        return ""


def onnx_runner(graph: bytes | str, given: Any, threads: int) -> Callable[..., list[Any]]:
    """An ONNX graph (its bytes or the path of its file) in ONNX Runtime, ready to run on one input or another."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    entry = session.get_inputs()[0].name
    feed = {entry: given}

    def run(other: Any = None) -> list[Any]:
        outputs: list[Any] = session.run(None, feed if other is None else {entry: other})
        return outputs

    return run


# ------------------------------------------------------------------------------------------------ frames


class BadFrame(Exception):
    """Bytes that are no frame."""


class Frame(NamedTuple):
    """One message."""

    head: Head
    body: bytes


def encode(head: Head, body: bytes = b"") -> bytes:
    """All of a frame that stands before its body."""
    text = json.dumps(head, allow_nan=False).encode()
    if len(text) > MOST_HEAD or len(body) > MOST_BODY:
        raise BadFrame(f"a frame of {len(text)} and {len(body)} bytes is too large")
    sizes = struct.pack(">8sIQI", MAGIC, len(text), len(body), zlib.crc32(body, zlib.crc32(text)))
    return sizes + struct.pack(">I", zlib.crc32(sizes)) + text


class FrameReader:
    """Bytes in, as they come; frames out. `noise`: what a login shell says before the first frame is passed over."""

    def __init__(self, noise: bool = False) -> None:
        self._buffer = bytearray()
        self._noisy = noise
        self.noise = b""

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> Frame | None:
        """The next whole frame, None if there is none yet; `BadFrame` if there will never be."""
        if self._noisy and not self._past_noise():
            return None
        buffer = self._buffer
        if not MAGIC.startswith(bytes(buffer[: len(MAGIC)])):
            raise BadFrame(f"bytes that are no frame ({bytes(buffer[:24])!r})")
        if len(buffer) < HEADER.size:
            return None
        _, head_size, body_size, checksum, header_checksum = HEADER.unpack_from(buffer)
        if zlib.crc32(bytes(buffer[: HEADER.size - 4])) != header_checksum:
            raise BadFrame("a frame whose header is damaged")
        if head_size > MOST_HEAD or body_size > MOST_BODY:
            raise BadFrame(f"a frame of {head_size} and {body_size} bytes, which is too large")
        middle, end = HEADER.size + head_size, HEADER.size + head_size + body_size
        if len(buffer) < end:
            return None
        text, body = bytes(buffer[HEADER.size : middle]), bytes(buffer[middle:end])
        del buffer[:end]
        if zlib.crc32(body, zlib.crc32(text)) != checksum:
            raise BadFrame("a frame that was changed on its way")
        return Frame(_head(text), body)

    def _past_noise(self) -> bool:
        place = self._buffer.find(MAGIC)
        self.noise = bytes(self._buffer[: place if place >= 0 else None])
        if len(self.noise) > MOST_NOISE:
            raise BadFrame(f"{len(self.noise)} bytes without a frame ({self.noise[:24]!r})")
        if place < 0:
            return False
        del self._buffer[:place]
        self._noisy = False
        return True


def _head(text: bytes) -> Head:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        head = json.loads(text.decode(), parse_constant=refuse)
    except (ValueError, RecursionError):
        raise BadFrame("a frame whose head is no JSON") from None
    if not isinstance(head, dict):
        raise BadFrame("a frame whose head is no JSON object")
    return head


# ------------------------------------------------------------------------------------------------ the conversation


class Refused(Exception):
    """A request that asks for what there is not."""


class Session:
    """The subjects of one connection, and what may be asked about them."""

    def __init__(self, send: Callable[[Head, bytes], None]) -> None:
        self._send = send
        self._undo = contextlib.ExitStack()
        self._threads = 0  # none before the first hello
        self._runners: dict[int, Callable[[], list[Any]]] = {}
        self._sizes: dict[int, int] = {}
        self._requests = {
            "hello": self._hello,
            "open": self._open,
            "time": self._time,
            "pass": self._pass,
            "output": self._output,
            "drop": self._drop,
        }

    def answer(self, frame: Frame) -> tuple[Head, bytes]:
        """The answer to a request; what goes wrong is an answer too, of one line."""
        head, body = frame
        name = head.get("do")
        try:
            if not isinstance(name, str) or name not in self._requests:
                raise Refused(f"a request must be one of {', '.join(self._requests)}, got {str(name)[:40]!r}")
            if not self._threads and name != "hello":
                raise Refused("the first request must be hello")
            return self._requests[name](head, body)
        except Exception as error:  # a runtime's own exceptions among them; no request may end the conversation
            text = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
            return {"is": "error", "message": " ".join(text.split())[:400], "protocol": PROTOCOL}, b""

    def _hello(self, head: Head, body: bytes) -> tuple[Head, bytes]:
        if head.get("protocol") != PROTOCOL:
            raise Refused(f"this agent speaks protocol {PROTOCOL}")
        threads = _whole(head.get("threads"), 1, 2**31 - 1, "threads")
        try:
            import onnxruntime
        except ImportError as error:
            raise Refused(f"Python there ({sys.executable}) has no onnxruntime: {error}") from None
        if not self._threads:
            self._undo.enter_context(raised_priority(threads))
        self._threads = threads
        version = str(onnxruntime.__version__).split("-")[0]
        about = {**machine(), "runtime": "onnxruntime", "version": version, "clock": cpu_clock(threads).name}
        here = {"usable_cores": usable_cores(), "boot": boot()}
        return {"is": "hello", "protocol": PROTOCOL, **here, "about": about}, b""

    def _open(self, head: Head, body: bytes) -> tuple[Head, bytes]:
        key = _whole(head.get("key"), 0, 2**53, "key")
        if key in self._runners:
            raise Refused(f"there is a subject {key} already")
        if len(self._runners) >= MOST_SUBJECTS or sum(self._sizes.values()) + len(body) > MOST_HELD:
            raise Refused(f"an agent holds {MOST_SUBJECTS} subjects or {MOST_HELD} bytes at most")
        size = _whole(head.get("graph_bytes"), 1, max(1, len(body)), "graph_bytes")
        shape = [_whole(length, 1, 2**24, "shape") for length in _list(head.get("shape"), 8, "shape")]
        if math.prod(shape) * 4 != len(body) - size:
            raise Refused(f"an input of shape {shape} must have 4 bytes a number, got {len(body) - size} bytes")
        given = np.frombuffer(body, dtype="<f4", offset=size).astype(np.float32).reshape(shape)
        runner = onnx_runner(body[:size], given, self._threads)
        runner()  # what cannot run is refused here, by name, and not in the middle of a pass
        self._runners[key], self._sizes[key] = runner, len(body)
        return {"is": "opened"}, b""

    def _time(self, head: Head, body: bytes) -> tuple[Head, bytes]:
        calls = _whole(head.get("calls"), 1, MOST_CALLS, "calls")
        return {"is": "time", "ms": cpu_clock(self._threads).time(self._subject(head.get("key")), calls)}, b""

    def _pass(self, head: Head, body: bytes) -> tuple[Head, bytes]:
        subjects = [self._subject(key) for key in _list(head.get("keys"), MOST_SUBJECTS, "keys")]
        places = range(len(subjects))
        order = [
            _whole(index, 0, len(subjects) - 1, "order") for index in _list(head.get("order"), MOST_SUBJECTS, "order")
        ]
        calls = [_whole(count, 1, MOST_CALLS, "calls") for count in _list(head.get("calls"), MOST_SUBJECTS, "calls")]
        if sorted(order) != list(places) or len(calls) != len(subjects):
            raise Refused("a pass must visit every subject once")
        clock, said = cpu_clock(self._threads), time.monotonic()

        def sign_of_life() -> None:
            nonlocal said
            if time.monotonic() - said > _SIGN_EVERY:
                self._send({"is": "busy"}, b"")
                said = time.monotonic()

        return {"is": "pass", **one_pass(subjects, clock.time, order, calls, after_visit=sign_of_life)}, b""

    def _output(self, head: Head, body: bytes) -> tuple[Head, bytes]:
        values = np.ascontiguousarray(self._subject(head.get("key"))()[0], dtype="<f4")
        if values.nbytes > MOST_BODY:
            raise Refused(f"an output must have {MOST_BODY} bytes at most, got {values.nbytes}")
        return {"is": "output", "shape": list(values.shape)}, values.tobytes()

    def _drop(self, head: Head, body: bytes) -> tuple[Head, bytes]:
        for key in _list(head.get("keys"), MOST_SUBJECTS, "keys"):
            self._subject(key)
            del self._runners[key], self._sizes[key]
        return {"is": "dropped"}, b""

    def _subject(self, key: Any) -> Callable[[], list[Any]]:
        if not isinstance(key, int) or key not in self._runners:
            raise Refused(f"there is no subject {str(key)[:40]!r}")
        return self._runners[key]


def _whole(value: Any, least: int, most: int, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Refused(f"{what} must be a whole number of {least} to {most}, got {str(value)[:40]!r}")
    return value


def _list(value: Any, most: int, what: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise Refused(f"{what} must be a list of {most} at most")
    return value


def main() -> int:
    """Answer requests until the other side goes away."""
    out = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints is no frame
    requests: queue.Queue[Frame | BadFrame] = queue.Queue(1)

    def listen() -> None:
        frames = FrameReader()
        try:
            while data := os.read(0, 2**20):
                frames.feed(data)
                while (frame := frames.next()) is not None:
                    requests.put(frame)
        except BadFrame as error:
            requests.put(error)
        else:
            os._exit(0)  # nobody is there any more; a pass need not be finished

    def send(head: Head, body: bytes) -> None:
        for part in (encode(head, body), body):
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(out, rest) :]

    threading.Thread(target=listen, daemon=True).start()
    session = Session(send)
    try:
        while True:
            request = requests.get()
            if isinstance(request, BadFrame):
                send({"is": "error", "message": str(request), "protocol": PROTOCOL}, b"")
                return 2
            send(*session.answer(request))
    except (BrokenPipeError, KeyboardInterrupt):
        return 0


if __name__ == "__main__":
    sys.exit(main())
