"""Timing many things on a machine that is never quiet.

All subjects are timed in every pass, in an order shuffled anew, so that a slow minute falls on all of them alike. A visit
to a subject is one call (which also brings code and weights back into the caches, as in steady use) and then as many as a
readable time needs; the lower of the two counts. After some passes the estimates (`snugnet.devices.estimate`) are looked
at: when nearly all their intervals are tight enough the work is done, else it goes on until the time is up, and the outcome
says which.

With a journal, a killed run goes on from the passes it had finished. The clock is an argument: `stopwatch(subject, n)`
returns milliseconds a call, so all of this is tested with subjects of known cost on a machine of known noise.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import numpy as np

from snugnet.devices.estimate import Estimate, FloatArray, estimates, intervals, low_mean
from snugnet.devices.journal import Journal
from snugnet.errors import BadInput
from snugnet.progress import NullProgress, Progress

Subject = TypeVar("Subject")
Score = Literal["tight", "time", "noisy"]
_NEARLY_ALL: Final = 0.9  # share of subjects whose intervals must be tight
_NOISY: Final = 4.0  # intervals wider than this many tolerances are too wide to use
_LOOK_EVERY: Final = 10  # passes


@dataclass(frozen=True, kw_only=True)
class TimingSettings:
    """How long and how exactly to measure."""

    seconds: float = 150.0  # at most, for the passes
    tolerance: float = 0.01  # wanted half-width of an interval, relative
    least_passes: int = 30
    most_passes: int = 2000
    warmup: int = 2  # calls of every subject before the first pass
    least_ms: float = 0.25  # a sample shorter than this is made of several calls
    seed: int = 0

    def __post_init__(self) -> None:
        _positive("seconds", self.seconds)
        _positive("tolerance", self.tolerance)
        _positive("least_passes", self.least_passes)
        if self.most_passes < self.least_passes:
            raise BadInput("most_passes must not be below least_passes", value=self.most_passes, remedy="Raise it.")


@dataclass(frozen=True, kw_only=True)
class Timings:
    """What was found: an estimate a subject, how it ended, and every sample ([passes, subjects], milliseconds)."""

    names: tuple[str, ...]
    estimates: dict[str, Estimate]
    samples: FloatArray
    score: Score
    message: str
    seconds: float

    @property
    def passes(self) -> int:
        return len(self.samples)

    @property
    def spread(self) -> float:
        """The relative half-width that nine of ten subjects stay within."""
        return float(np.quantile([estimate.spread for estimate in self.estimates.values()], _NEARLY_ALL))


def time_subjects(
    subjects: Mapping[str, Subject],
    stopwatch: Callable[[Subject, int], float],
    settings: TimingSettings | None = None,
    *,
    now: Callable[[], float] = time.monotonic,
    journal: Path | None = None,
    about: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> Timings:
    """Time all `subjects` in shuffled passes. `about` tells this work from other work that used the same journal."""
    rules, shown = settings or TimingSettings(), progress or NullProgress()
    if not subjects:
        raise BadInput("there must be something to time", value=0, remedy="Pass at least one subject.")
    names = tuple(subjects)
    book = Journal(journal, _identity(names, rules, about)) if journal is not None else None
    rows, spent = _done_before(book, len(names))
    shown.start(f"timing {len(names)} subject{'s' * (len(names) > 1)}", rules.seconds)
    repetitions = _warm_up(subjects, stopwatch, rules)
    score, seen = _look(rows, rules, spent), ""
    try:
        while not score:
            began = now()
            row = _one_pass(subjects, stopwatch, repetitions, np.random.default_rng([rules.seed, len(rows)]))
            spent += now() - began
            rows.append(row)
            if book is not None:
                book.append({"ms": row, "spent": spent})
            if len(rows) % _LOOK_EVERY == 0 or spent >= rules.seconds or len(rows) >= rules.most_passes:
                score = _look(rows, rules, spent)
                seen = f", intervals within {_spread(np.array(rows)):.1%}"
            shown.update(min(spent, rules.seconds), f"{len(rows)} passes{seen}")
    finally:
        shown.stop()
    return _outcome(names, np.array(rows), score, rules, spent)


def _identity(names: tuple[str, ...], rules: TimingSettings, about: dict[str, Any] | None) -> dict[str, Any]:
    return {"subjects": list(names), "seed": rules.seed, "least_ms": rules.least_ms, "about": about or {}}


def _done_before(book: Journal | None, subjects: int) -> tuple[list[list[float]], float]:
    steps = book.steps if book is not None else []
    rows = [step["ms"] for step in steps if len(step["ms"]) == subjects]
    return rows, float(steps[-1]["spent"]) if rows else 0.0


def _warm_up(
    subjects: Mapping[str, Subject], stopwatch: Callable[[Subject, int], float], rules: TimingSettings
) -> dict[str, int]:
    """Call everything a few times; how many calls make a readable sample of each subject."""
    repetitions = {}
    for name, subject in subjects.items():
        taken = min(stopwatch(subject, 1) for _ in range(max(1, rules.warmup)))
        repetitions[name] = min(64, max(1, math.ceil(rules.least_ms / max(taken, 1e-6))))
    return repetitions


def _one_pass(
    subjects: Mapping[str, Subject],
    stopwatch: Callable[[Subject, int], float],
    repetitions: dict[str, int],
    rng: np.random.Generator,
) -> list[float]:
    names = list(subjects)
    row = [0.0] * len(names)
    for index in rng.permutation(len(names)):
        name = names[index]
        cold = stopwatch(subjects[name], 1)
        row[index] = min(cold, stopwatch(subjects[name], repetitions[name]))
    return row


def _spread(samples: FloatArray) -> float:
    low, high = intervals(samples, np.random.default_rng(0))
    return float(np.quantile((high - low) / 2 / low_mean(samples), _NEARLY_ALL))


def _look(rows: list[list[float]], rules: TimingSettings, spent: float) -> Score | None:
    """Go on (None), or stop and why. Three passes are the least anything can be said from."""
    if len(rows) < 3:
        return None
    if len(rows) >= rules.least_passes and _spread(np.array(rows)) <= rules.tolerance:
        return "tight"
    if spent < rules.seconds and len(rows) < rules.most_passes:
        return None
    return "noisy" if _spread(np.array(rows)) > _NOISY * rules.tolerance else "time"


def _outcome(names: tuple[str, ...], samples: FloatArray, score: Score, rules: TimingSettings, spent: float) -> Timings:
    found = estimates(samples, np.random.default_rng(0))  # as in `_spread`, so that both tell the same
    spread = float(np.quantile([estimate.spread for estimate in found], _NEARLY_ALL))
    passes = f"{len(samples)} passes in {spent:.0f} s"
    remedy = (
        f"Close other programs, use fewer threads than cores, or allow more time (--seconds {2 * rules.seconds:.0f})."
    )
    messages = {
        "tight": f"{passes}: nine of ten intervals are within {spread:.1%}, as wanted.",
        "time": f"{passes}: the time is up; nine of ten intervals are within {spread:.1%} ({rules.tolerance:.1%} wanted).",
        "noisy": f"{passes}: the machine is too noisy, intervals are {spread:.1%} ({rules.tolerance:.1%} wanted). {remedy}",
    }
    return Timings(
        names=names,
        estimates=dict(zip(names, found)),
        samples=samples,
        score=score,
        message=messages[score],
        seconds=spent,
    )


def _positive(name: str, value: float) -> None:
    if not value > 0 or not math.isfinite(value):
        raise BadInput(f"{name} must be a positive number", value=value, remedy="Try the default.")
