"""Work that splits, on any `concurrent.futures.Executor`; and the ones that come with the package.

    with open_executor("local:2") as executor:        # or "ray" (`ray_executor`), or "here": None, in process
        sn.search(supernet, data, tables, budget, executor=executor)

A task gives the same whoever computes it: it gets all it depends on as arguments, randomness included, and every worker
computes with the same number of threads, since sums have other last bits with other threads. What many tasks need (a
super-network and its images) is `share`d: it travels to each worker once. A worker that is lost (killed, out of memory) is
replaced, and its task done again, a few times.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import multiprocessing
import os
import pickle
import platform
import queue
import signal
import sys
import tempfile
import threading
import traceback
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, final

from snugnet.errors import BadInput, UnknownName, WorkerLost, reason_of

T = TypeVar("T")
RETRIES = 3  # times a task is done again because its worker was lost
_KEPT = 2  # shared values a worker holds at a time; the oldest goes first
_received = threading.local()  # `values`: what this thread of this process was sent, by token


@dataclass(frozen=True, kw_only=True)
class Shared(ABC, Generic[T]):
    """A value that tasks need: itself for the thread that shared it, elsewhere a copy, fetched once per worker. Workers may
    prepare a network for their work; no two meet in one."""

    value: T | None = None
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    owner: int = field(default_factory=threading.get_ident)

    def get(self) -> T:
        if self.value is not None and self.owner == threading.get_ident():
            return self.value
        values: dict[str, T] = _received.__dict__.setdefault("values", {})
        if self.token not in values:
            while len(values) >= _KEPT:
                values.pop(next(iter(values)))
            values[self.token] = self._fetch()
        return values[self.token]

    @abstractmethod
    def _fetch(self) -> T:
        """The copy, in a worker."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "value": None}


@final
@dataclass(frozen=True, kw_only=True)
class _ByValue(Shared[T]):
    """Sent along with every task: right for any executor, wherever its workers are."""

    packed: bytes = b""

    def _fetch(self) -> T:
        value: T = pickle.loads(self.packed)
        return value


@final
@dataclass(frozen=True, kw_only=True)
class _InFile(Shared[T]):
    """In a file of this process's own, for workers on the same machine."""

    path: Path

    def _fetch(self) -> T:
        value: T = pickle.loads(self.path.read_bytes())
        return value


def share(executor: Executor | None, value: T) -> Shared[T]:
    """`value` for the tasks of `executor`."""
    own: Callable[[T], Shared[T]] | None = getattr(executor, "share", None)
    if own is not None:
        return own(value)
    return _ByValue(value=value, packed=b"" if executor is None else pickle.dumps(value))


def ordered(executor: Executor | None, tasks: Iterable[Callable[[], T]]) -> Iterator[T]:
    """What the tasks give, in their order: by `executor`, all at once, or here, one when it is asked for."""
    if executor is None:
        yield from (task() for task in tasks)
    else:
        yield from (future.result() for future in [executor.submit(task) for task in tasks])


def outcome(function: Callable[..., Any], arguments: tuple[Any, ...], threads: int) -> tuple[bool, Any]:
    """What a worker does with a task: (True, its value) or (False, its exception)."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    try:
        return True, function(*arguments)
    except Exception as error:
        error.add_note("".join(traceback.format_exception(error)))
        return False, error


def settle(future: Future[Any], done: tuple[bool, Any]) -> None:
    """A future's end, as a worker told it."""
    fine, value = done
    if fine:
        future.set_result(value)
    else:
        future.set_exception(value)


@dataclass(frozen=True, kw_only=True)
class _Task:
    future: Future[Any]
    packed: bytes  # (function, arguments)


@final
class LocalExecutor(Executor):
    """`workers` processes on this machine, `threads` each. They are started when there is something to do."""

    def __init__(self, workers: int, *, threads: int = 1) -> None:
        if min(workers, threads) < 1:
            raise BadInput("workers and threads must be at least 1", value=(workers, threads), remedy="Write local:2.")
        self.threads = threads
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._folder = tempfile.TemporaryDirectory(prefix="snugnet-")
        self._workers: set[_Worker] = set()
        self._ended = False
        self._slots = [threading.Thread(target=self._serve, daemon=True) for _ in range(workers)]
        for slot in self._slots:
            slot.start()

    @property
    def pids(self) -> list[int]:
        """Of the processes at work."""
        return [worker.pid for worker in list(self._workers)]

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._ended:
            raise RuntimeError("cannot schedule new futures after shutdown")
        task = _Task(future=Future(), packed=pickle.dumps((bound(fn, kwargs), args)))
        self._tasks.put(task)
        return task.future

    def share(self, value: T) -> Shared[T]:
        path = Path(self._folder.name) / uuid.uuid4().hex
        path.write_bytes(pickle.dumps(value))
        return _InFile(value=value, path=path)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._ended = True
        with contextlib.suppress(queue.Empty):
            while cancel_futures:
                task = self._tasks.get_nowait()
                if task is not None:
                    task.future.cancel()
        for _ in self._slots:
            self._tasks.put(None)
        if wait:
            for slot in self._slots:
                slot.join()
            self._folder.cleanup()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None:  # nobody waits for what is still computed
            self.shutdown(wait=False, cancel_futures=True)
            for worker in list(self._workers):
                worker.end(patience=0.0)
        self.shutdown(wait=True)

    def _serve(self) -> None:
        worker: _Worker | None = None
        while (task := self._tasks.get()) is not None:
            if task.future.set_running_or_notify_cancel():
                worker = self._do(task, worker)
        if worker is not None:
            self._workers.discard(worker)
            worker.end()

    def _do(self, task: _Task, worker: _Worker | None) -> _Worker | None:
        """The task done, and the worker that is left; a lost one is replaced."""
        for _ in range(RETRIES + 1):
            if worker is None:
                worker = _Worker(self.threads)
                self._workers.add(worker)
            try:
                settle(task.future, worker.do(task.packed))
                return worker
            except (EOFError, OSError):
                self._workers.discard(worker)
                worker.end()
                worker = None
                if self._ended:
                    break
        task.future.set_exception(lost(RETRIES + 1))
        return worker


def lost(times: int) -> WorkerLost:
    return WorkerLost(
        "a worker must live until its task is done",
        value=f"{times} workers lost one after the other",
        remedy="They were killed, ran out of memory, or (in a script) must be started under `if __name__ == '__main__':`. "
        "Take fewer at a time; the same call goes on.",
    )


def bound(function: Callable[..., T], keywords: dict[str, Any]) -> Callable[..., T]:
    """`function` with its keyword arguments, so that a task is a function and its positional ones."""
    return partial(function, **keywords) if keywords else function


class _Worker:
    """A process of its own, spoken to through a pipe; it ends when the pipe does."""

    def __init__(self, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, threads), daemon=True)
        self._process.start()
        theirs.close()
        self.pid = self._process.pid or 0

    def do(self, packed: bytes) -> tuple[bool, Any]:
        self._pipe.send_bytes(
            packed
        )  # not `send`: torch would pass its tensors by file handles, which die with a process
        done: tuple[bool, Any] = pickle.loads(self._pipe.recv_bytes())
        return done

    def end(self, patience: float = 5.0) -> None:
        """An idle worker ends by itself, and gives back what it holds; one at work is stopped when patience ends."""
        self._pipe.close()
        self._process.join(patience)
        self._process.terminate()
        self._process.join()


def _work(pipe: Any, threads: int) -> None:
    """A worker's life."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    keep_freed_memory()
    os.dup2(2, 1)  # standard output belongs to the parent's answer
    while True:
        try:
            packed = pipe.recv_bytes()
        except EOFError:
            return
        try:
            function, arguments = pickle.loads(packed)
            answer = pickle.dumps(outcome(function, arguments, threads))
        except Exception as error:
            answer = pickle.dumps((False, RuntimeError(f"a task could not travel: {reason_of(error)}")))
        pipe.send_bytes(answer)


@functools.cache
def keep_freed_memory() -> bool:
    """Ask glibc to keep freed memory in the process, which asks for as much again at once: given back, it would come anew,
    page by page, and two processes wait for each other there. False where there is no glibc."""
    if platform.libc_ver()[0] != "glibc":
        return False
    library: Any = ctypes.CDLL(None)
    trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of <malloc.h>
    return bool(library.mallopt(mmap_max, 0)) and bool(library.mallopt(trim_threshold, 2**31 - 1))


@contextlib.contextmanager
def open_executor(place: str | None, *, threads: int = 1) -> Iterator[Executor | None]:
    """The executor that `place` names: here (or None), local:N, ray. Closed at the end of the block."""
    name, colon, count = (place or "here").partition(":")
    if name == "local":
        if colon and not count.isdigit():
            raise BadInput("workers must be a whole number", value=place, remedy="Write local:2.")
        with LocalExecutor(int(count) if colon else os.cpu_count() or 1, threads=threads) as executor:
            yield executor
    elif name == "ray" and not colon:
        from snugnet.ray_executor import RayExecutor

        with RayExecutor(threads=threads) as cluster:
            yield cluster
    elif name == "here" and not colon:
        yield None
    else:
        raise UnknownName("a place to compute", str(place), ("here", "local:2", "ray"))
