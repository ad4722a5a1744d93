"""Who computes the tasks of a pipeline, and when a device may be timed: here, by all processes of torchrun, by an executor.

Timing has the machine to itself. Where tasks run side by side, they and whoever times take turns (`Turns`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar, final

from snugnet.training.team import Team

T = TypeVar("T")


class Work:
    """Who computes, and who has the device."""

    def compute(self, function: Callable[..., T], *arguments: Any) -> T:
        return function(*arguments)

    def together(self, function: Callable[..., T], *arguments: Any) -> T:
        """What takes all processes that torchrun started: training."""
        return self.compute(function, *arguments)

    def alone(self) -> AbstractContextManager[None]:
        """Inside, nothing else is computed: what is timed has the machine to itself."""
        return nullcontext()


@final
class TeamWork(Work):
    """One process computes, all of them train."""

    def __init__(self, team: Team) -> None:
        self._team = team

    def together(self, function: Callable[..., T], *arguments: Any) -> T:
        return self._team.together(function, *arguments)


@final
class Turns:
    """Computing and timing take turns: a device is timed when everybody has stopped, by one at a time; those who wait for
    it go before anybody computes again."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._working = self._waiting = 0
        self._timing = False

    @contextmanager
    def working(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._timing)
            self._working += 1
        try:
            yield
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """For somebody who is `working`."""
        with self._changed:
            self._working, self._waiting = self._working - 1, self._waiting + 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._working and not self._timing)
            self._waiting, self._timing = self._waiting - 1, True
        try:
            yield
        finally:
            with self._changed:
                self._timing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._timing and not self._waiting)
                self._working += 1


@final
class SplitWork(Work):
    """Tasks by an executor, devices by turns."""

    def __init__(self, executor: Executor, turns: Turns) -> None:
        self._executor, self._turns = executor, turns

    def compute(self, function: Callable[..., T], *arguments: Any) -> T:
        return self._executor.submit(function, *arguments).result()

    def alone(self) -> AbstractContextManager[None]:
        return self._turns.alone()
