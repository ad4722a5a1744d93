"""The near end of a conversation with an agent (`snugnet.devices.agent`): a command, its pipes, requests and answers.

The command is started without a shell, and anew when the one before has ended: whatever went wrong is an error of one line,
and the next call goes on. Reading and writing never wait longer than the time-out without a byte having moved, so a board
that hangs, a connection that is lost and a program that is no agent at all come to an end alike. What the agent answers is
believed as little as what a user types: every field is checked before it is used.

A connection that rests may be lost without a word (a router forgets it), hence one that holds no subjects and has rested
for a while is replaced before it is used again.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import shlex
import signal
import subprocess
import time
import weakref
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, final

from snugnet.devices.agent import PROTOCOL, BadFrame, Frame, FrameReader, Head, encode
from snugnet.errors import BadInput, DeviceLost, DeviceMissing, SnugnetError

_REST: Final = 30.0  # seconds after which a connection without subjects is not trusted any more
_GOODBYE: Final = 1.0  # seconds a command has to end by itself
_MOST_SAID: Final = 2000  # bytes of standard error that are remembered
_WRITE_ANEW: Final = "Write the agent anew (`snugnet agent --write FILE`) and copy it there."


class _Broken(Exception):
    """The conversation is over; the reason in words."""


class About(NamedTuple):
    """What an agent says of its machine."""

    cores: int  # that it may use
    fields: dict[str, str]  # of the fingerprint


class SubjectKey(NamedTuple):
    """A subject the agent holds; it is gone when its connection is."""

    connection: int
    number: int


@final
class AgentLink:
    """`AgentLink("ssh pi4 snugnet-agent", threads=1, timeout=60.0)`: connects when it is first asked something."""

    def __init__(self, command: str, threads: int, timeout: float) -> None:
        self.command, self._threads, self._timeout = command, threads, timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._frames = FrameReader()
        self._said = b""
        self._about: About | None = None
        self._boot = ""
        self._connection = self._number = 0
        self._last_heard = 0.0
        self._held: set[SubjectKey] = set()
        self._dropped: list[SubjectKey] = []

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process goes how to connect, not the connection."""
        return AgentLink, (self.command, self._threads, self._timeout)

    def about(self) -> About:
        """What the machine there is."""
        if self._about is None:
            self._connect()
        assert self._about is not None
        return self._about

    def boot(self) -> str:
        """Which running system is there; empty if it does not tell. Another one after a reboot of the same board."""
        self.about()
        return self._boot

    def open(self, graph: bytes, given: bytes, shape: Sequence[int]) -> SubjectKey:
        """Send a graph and its input (float32, little-endian)."""
        unused, self._dropped = [key for key in self._dropped if key in self._held], []
        self._held.difference_update(unused)
        ended = self._process is None or self._process.poll() is not None
        if ended or (not self._held and time.monotonic() - self._last_heard > _REST):
            self._connect()
        elif unused:
            self._ask({"do": "drop", "keys": [key.number for key in unused]})
        self._number += 1
        key = SubjectKey(self._connection, self._number)
        head = {"do": "open", "key": key.number, "graph_bytes": len(graph), "shape": list(shape)}
        self._ask(head, graph + given)
        self._held.add(key)
        return key

    def release(self, key: SubjectKey) -> None:
        """Nobody needs this subject any more; the agent is told when it is next asked for something."""
        self._dropped.append(key)

    def time(self, key: SubjectKey, calls: int) -> float:
        """Milliseconds per call, over so many in a row."""
        answer = self._ask({"do": "time", "key": self._numbered(key), "calls": calls})
        return _times([answer.head.get("ms")], 1, self)[0]

    def one_pass(
        self, keys: Sequence[SubjectKey], order: Sequence[int], calls: Sequence[int]
    ) -> dict[str, list[float]]:
        """The visits of a pass, all of them there."""
        numbers = [self._numbered(key) for key in keys]
        head = {"do": "pass", "keys": numbers, "order": list(order), "calls": list(calls)}
        answer = self._ask(head, signs=len(keys))
        return {name: _times(answer.head.get(name), len(keys), self) for name in ("ms", "calls", "walls")}

    def output(self, key: SubjectKey) -> tuple[bytes, list[int]]:
        """What the graph computes (float32, little-endian), and its shape."""
        head, body = self._ask({"do": "output", "key": self._numbered(key)})
        shape = head.get("shape")
        right = isinstance(shape, list) and all(isinstance(length, int) and length >= 0 for length in shape)
        if not isinstance(shape, list) or not right or math.prod(shape) * 4 != len(body):
            raise self._lost(f"an output of shape {shape} in {len(body)} bytes")
        return body, shape

    def close(self) -> None:
        """End the command, if it runs."""
        process, self._process = self._process, None
        self._held.clear()
        self._dropped.clear()
        if process is not None:
            _end(process, os.getpid())

    def _connect(self) -> None:
        self.close()
        self._connection += 1
        self._said, self._frames = b"", FrameReader(noise=True)
        words = _words(self.command)
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
        except OSError as error:
            rule, remedy = f"the command of a device must start ({self.command})", "Check its first word."
            raise DeviceMissing(rule, value=f"{words[0]}: {error.strerror}", remedy=remedy) from error
        weakref.finalize(self, _end, self._process, os.getpid())
        assert self._process.stdin is not None and self._process.stderr is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        os.set_blocking(self._process.stderr.fileno(), False)
        try:
            head, _ = self._exchange({"do": "hello", "protocol": PROTOCOL, "threads": self._threads}, b"", 0)
            about = self._understood(head)
        except _Broken as reason:
            raise self._lost(str(reason)) from None
        except BaseException:
            self.close()
            raise
        if self._about not in (None, about):
            self.close()
            rule = f"the agent behind `{self.command}` must stay on the machine it was on"
            raise DeviceLost(rule, value=about.fields, remedy="Measure this one by itself: run the command again.")
        self._about = about
        self._boot = _text(head.get("boot") or "")
        self._frames.noise = b""

    def _understood(self, head: Head) -> About:
        """What a hello says; a refusal of it is explained."""
        if head.get("is") not in ("hello", "error") or "protocol" not in head:
            raise _Broken(f"an answer that is no agent's ({str(head)[:80]})")
        rule = f"the agent behind `{self.command}` must"
        if head["protocol"] != PROTOCOL:
            value = str(head["protocol"])[:40]
            raise DeviceMissing(
                f"{rule} speak protocol {PROTOCOL}, as this snugnet does", value=value, remedy=_WRITE_ANEW
            )
        if head["is"] == "error":
            remedy = "On the board: pip install numpy onnxruntime, for the Python that starts the agent."
            raise DeviceMissing(f"{rule} be able to work", value=_text(head.get("message")), remedy=remedy)
        cores, fields = head.get("usable_cores"), head.get("about")
        names = ("processor", "cores", "system", "runtime", "version", "clock")
        if not isinstance(cores, int) or not isinstance(fields, dict):
            raise _Broken("a hello that does not say what the machine is")
        if not all(isinstance(fields.get(name), str) and 0 < len(fields[name]) < 400 for name in names):
            raise _Broken(f"a hello without {', '.join(names)}")
        return About(cores, {name: fields[name] for name in names})

    def _ask(self, head: Head, body: bytes = b"", *, signs: int = 0) -> Frame:
        """The answer to a request; refusals and all that breaks the conversation become errors of one line."""
        try:
            answer = self._exchange(head, body, signs)
            if answer.head.get("is") not in ("opened", "time", "pass", "output", "dropped", "error"):
                raise _Broken(f"an answer that is no agent's ({str(answer.head)[:80]})")
        except (_Broken, BadFrame) as reason:
            raise self._lost(str(reason)) from None
        except BaseException:  # Ctrl-C among them: half a conversation is worth nothing
            self.close()
            raise
        if answer.head["is"] == "error":
            rule = f"the agent behind `{self.command}` must be able to do what it is asked"
            remedy = "Measure it with onnxruntime here to see whether it is the graph or the board."
            raise BadInput(rule, value=_text(answer.head.get("message")), remedy=remedy)
        return answer

    def _exchange(self, head: Head, body: bytes, signs: int) -> Frame:
        """Send a request and wait for its answer; `signs` of life may come before it."""
        process = self._process
        if process is None:
            raise _Broken("it has ended")
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        unsent = [memoryview(part) for part in (encode(head, body), body) if part]
        with selectors.DefaultSelector() as pipes:
            pipes.register(process.stdin, selectors.EVENT_WRITE)
            pipes.register(process.stdout, selectors.EVENT_READ)
            pipes.register(process.stderr, selectors.EVENT_READ)
            while True:
                frame = self._next_frame()
                if frame is not None:
                    if unsent:  # the rest of the request would be taken for another
                        raise _Broken(_text(frame.head.get("message", "an answer before the question")))
                    if frame.head.get("is") != "busy":
                        self._last_heard = time.monotonic()
                        return frame
                    signs -= 1
                    if signs < 0:
                        raise _Broken("more signs of life than there are things to do")
                    continue
                ready = {key.fileobj for key, _ in pipes.select(self._timeout)}
                if not ready:
                    raise _Broken(f"no answer for {self._timeout:g} s{self._heard()}")
                if process.stdin in ready and not _write(process.stdin.fileno(), unsent):
                    pipes.unregister(process.stdin)
                if process.stderr in ready and not self._listen(process.stderr.fileno()):
                    pipes.unregister(process.stderr)
                if process.stdout in ready:
                    data = os.read(process.stdout.fileno(), 2**20)
                    if not data:
                        raise _Broken(self._ending(process))
                    self._frames.feed(data)

    def _next_frame(self) -> Frame | None:
        try:
            return self._frames.next()
        except BadFrame as error:
            raise _Broken(str(error)) from None

    def _listen(self, stream: int) -> bool:
        """Remember the last of what the command says on standard error; False when it will say no more."""
        try:
            data = os.read(stream, 2**16)
        except BlockingIOError:
            return True
        self._said = (self._said + data)[-_MOST_SAID:]
        return bool(data)

    def _ending(self, process: subprocess.Popen[bytes]) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GOODBYE)
        assert process.stderr is not None
        deadline = time.monotonic() + _GOODBYE
        while self._listen(process.stderr.fileno()) and time.monotonic() < deadline:
            time.sleep(0.01)
        code = process.returncode
        if code is None:
            return f"it closed its output{self._heard()}"
        ending = f"signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"exit code {code}"
        return f"it ended with {ending}{self._heard()}"

    def _heard(self) -> str:
        """What the command said in words, shortened; ssh and shells explain themselves there."""
        said = (self._frames.noise + b" " + self._said).decode(errors="replace")
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        return f" and said {_text(lines[-1])!r}" if lines else ""

    def _lost(self, value: str) -> SnugnetError:
        known = self._about is not None
        self.close()
        if known:
            remedy = "Run the same command again: it goes on from the passes that were finished."
            return DeviceLost(f"the agent behind `{self.command}` must go on answering", value=value, remedy=remedy)
        remedy = (
            "Try it in a terminal: it must start what `snugnet agent --write FILE` writes, without a terminal (ssh -T)."
        )
        return DeviceMissing(f"an agent must answer behind `{self.command}`", value=value, remedy=remedy)

    def _numbered(self, key: SubjectKey) -> int:
        if key.connection != self._connection or self._process is None:
            raise self._lost("another connection than the one this was prepared on")
        return key.number


def _write(stream: int, unsent: list[memoryview]) -> bool:
    """Write what the pipe takes; False when nothing is left, or nobody reads (the reason comes by the other pipes)."""
    try:
        while unsent:
            unsent[0] = unsent[0][os.write(stream, unsent[0]) :]
            if not unsent[0]:
                unsent.pop(0)
    except BlockingIOError:
        return True
    except BrokenPipeError:
        unsent.clear()
    return False


def _times(values: Any, count: int, link: AgentLink) -> list[float]:
    if not isinstance(values, list) or len(values) != count:
        raise link._lost("an answer without the times that were asked for")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise link._lost(f"a time of {str(value)[:40]} ms")
    return [float(value) for value in values]


def _words(command: str) -> list[str]:
    """The command as the system starts it: no shell, quotes as in one."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        remedy = "Close the quotes."
        raise BadInput("a device's command must be readable as in a shell", value=str(error), remedy=remedy) from None
    if not words:
        remedy = 'Write it like "command:ssh pi4 snugnet-agent".'
        raise BadInput("a device of a command must name one", value=command, remedy=remedy)
    return words


def _text(value: Any) -> str:
    """What somebody else says, short and printable."""
    return "".join(letter if letter.isprintable() else " " for letter in str(value))[:200]


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    """Close the pipes, at which an agent ends; who does not is made to. A forked child leaves it to its parent."""
    if os.getpid() != owner:
        return
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    for stop in (lambda: None, process.terminate, process.kill):
        stop()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GOODBYE)
            return
