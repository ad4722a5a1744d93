"""Every error a user can meet.

Each carries three things: the rule that was broken, the value that broke it, and a remedy. On the command line an error is
one line and an exit code: 2 for input that cannot be used, 1 for an honest "it does not fit".
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

_UNSET: Any = object()


class SnugnetError(Exception):
    """Base of all user-facing errors: `rule`, `value`, `remedy`."""

    exit_code: ClassVar[int] = 2

    def __init__(self, rule: str, *, value: Any = _UNSET, remedy: str) -> None:
        self.rule = rule
        self.value = None if value is _UNSET else value
        self.remedy = remedy
        got = "" if value is _UNSET else f", got {_short(value)}"
        super().__init__(one_line(f"{rule}{got}. {remedy}"))

    def __reduce__(self) -> tuple[Any, ...]:
        """From a worker's process to its caller's: as it is, without the constructors, which want other arguments."""
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[SnugnetError], args: tuple[Any, ...], facts: dict[str, Any]) -> SnugnetError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class BadUnit(SnugnetError):
    """A quantity without a unit, or with the wrong one."""


class BadSpace(SnugnetError):
    """A search space that contradicts itself."""


class BadArchitecture(SnugnetError):
    """An architecture that is malformed or not in its space."""


class BadProblem(SnugnetError):
    """Numbers that no solver can use: NaN, negative costs, empty slots."""


class BadInput(SnugnetError):
    """An option or argument outside its range."""


class UnknownName(SnugnetError):
    """A name nobody knows; the remedy offers the nearest one."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = list(known)
        near = difflib.get_close_matches(name.lower(), [n.lower() for n in names], n=1, cutoff=0.4)
        nearest = next((n for n in names if near and n.lower() == near[0]), None)
        listed = ", ".join(names[:24]) + (", ..." if len(names) > 24 else "")
        hint = f"Did you mean {nearest!r}? " if nearest else ""
        super().__init__(f"{kind} must be a known name", value=name, remedy=f"{hint}Known: {listed}.")
        self.nearest = nearest


class Infeasible(SnugnetError):
    """No network meets the budgets: names the budget, the value, the cheapest possible value."""


class BudgetExceeded(SnugnetError):
    """A network was measured, and it does not fit."""

    exit_code = 1


class TableMismatch(SnugnetError):
    """A cost table is used for something it was not measured for; says what differs."""


class DamagedFile(SnugnetError):
    """A file is truncated, edited by hand or otherwise not what was written."""


class FileTrouble(SnugnetError):
    """A file or folder is missing, not writable, or the disk is full."""


class DeviceMissing(SnugnetError):
    """A device or runtime that is not on this machine."""


class DeviceLost(SnugnetError):
    """A device that was there and stopped answering; what was measured is kept."""


class DevicesFailed(SnugnetError):
    """Some of several devices could not be measured: why (`failures`), and what the others gave (`tables`), by label."""

    def __init__(self, failures: Mapping[str, Exception], tables: Mapping[str, Any]) -> None:
        super().__init__(
            f"every device must be measured ({len(failures)} of {len(failures) + len(tables)} failed)",
            value=", ".join(tables) or "none",
            remedy=" ".join(f"{label}: {explained(error)}" for label, error in failures.items()),
        )
        self.failures, self.tables = dict(failures), dict(tables)


class DataMissing(SnugnetError):
    """A data set that is not on the disk; the remedy is the command that gets it."""


class WorkerLost(SnugnetError):
    """The process that computed something ended before it was done, again and again."""

    exit_code = 1


class TrainingDiverged(SnugnetError):
    """The loss became NaN or infinite; the last good state is kept."""

    exit_code = 1


def one_line(text: str) -> str:
    """Messages are one line, whatever the values in them hold."""
    return " ".join(line.strip() for line in text.splitlines())


def reason_of(error: BaseException, most: int = 120) -> str:
    """What somebody else's exception says, in one short line."""
    return " ".join(str(error).split())[:most]


def explained(error: Exception) -> str:
    """Any error in a line: ours as it is, somebody else's with its kind."""
    return str(error) if isinstance(error, SnugnetError) else f"{type(error).__name__}: {reason_of(error, 400)}"


def _short(value: Any) -> str:
    plain = isinstance(value, str) and bool(value) and value.isprintable() and " " not in value
    text = value if plain else one_line(repr(value))
    return text if len(text) <= 320 else text[:317] + "..."
