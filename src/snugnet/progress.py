"""Progress for anything that takes longer than two seconds.

On a terminal: a rich bar with the time left. Elsewhere: a plain line now and then, on standard error so that `--json`
output stays clean. Work that ends within two seconds shows nothing. Libraries stay quiet unless a caller passes a
`Progress`; the command line does.
"""

from __future__ import annotations

import sys
import time
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichBar
    from rich.progress import TaskID

_PATIENCE = 2.0  # seconds of silence before a bar is worth showing
_LINE_EVERY = 10.0  # seconds between plain lines off a terminal


class Progress(Protocol):
    """What long work reports to."""

    def start(self, title: str, total: float) -> None: ...
    def update(self, done: float, note: str = "") -> None: ...
    def stop(self) -> None: ...


@final
class NullProgress:
    """Says nothing: the default inside the library."""

    def start(self, title: str, total: float) -> None:
        pass

    def update(self, done: float, note: str = "") -> None:
        pass

    def stop(self) -> None:
        pass


@final
class RichProgress:
    """A bar on a terminal, plain lines elsewhere; nothing for quick work."""

    def __init__(self) -> None:
        self._bar: RichBar | None = None
        self._task: TaskID | None = None
        self._title, self._total = "", 1.0
        self._began = self._spoke = 0.0

    def __reduce__(self) -> tuple[type[NullProgress], tuple[()]]:
        """What another process does is not shown here."""
        return NullProgress, ()

    @cached_property
    def _console(self) -> Console:
        from rich.console import Console  # here, as in `_draw`: most verbs end before a bar is worth drawing

        return Console(stderr=True)

    def start(self, title: str, total: float) -> None:
        self.stop()
        self._title, self._total = title, max(total, 1e-12)
        self._began = time.monotonic()
        self._spoke = self._began + _PATIENCE - _LINE_EVERY  # the first line comes when patience ends

    def update(self, done: float, note: str = "") -> None:
        now = time.monotonic()
        if now - self._began < _PATIENCE:
            return
        if self._console.is_terminal:
            self._draw(done, note)
        elif now - self._spoke >= _LINE_EVERY:
            self._spoke = now
            share = min(done / self._total, 1.0)
            left = (now - self._began) * (1 - share) / share if share > 0 else float("nan")
            line = f"{self._title}: {share:4.0%}, about {left:.0f} s left{'; ' + note if note else ''}"
            print(line, file=sys.stderr, flush=True)

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar, self._task = None, None

    def _draw(self, done: float, note: str) -> None:
        if self._bar is None:
            from rich import progress as bars

            self._bar = bars.Progress(
                bars.TextColumn("{task.description}"),
                bars.BarColumn(),
                bars.TextColumn("{task.percentage:>3.0f}%"),
                bars.TimeElapsedColumn(),
                bars.TimeRemainingColumn(),
                bars.TextColumn("{task.fields[note]}"),
                console=self._console,
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=self._total, note=note)
        assert self._task is not None
        self._bar.update(self._task, completed=done, note=note)
