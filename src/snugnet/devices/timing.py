"""Timing many things on a machine that is never quiet.

All subjects are timed in every pass, in an order shuffled anew, so that a slow minute falls on all of them alike. A visit
to a subject is a few calls (which bring code and weights back into the caches, as in steady use) and then as many as a
readable time needs; the lower of the last two counts. One call is not enough: after others have run, a network of 18 MB
took 0.91, 0.67, 0.46 and from the fourth call on 0.41 ms on a processor with 1 MB of cache per core. After some passes the
estimates are looked at: when nearly all their intervals are tight enough the work is done, else it goes on until the time
is up, and the outcome says which.

Whatever disturbs a shared machine (other programs, a throttled clock, the hypervisor) makes work slower, never faster. So
the truth lies at the low end, and because all subjects are timed in the same passes they see the same quiet moments. The
mean of the lowest tenth keeps more of the data than a single quantile: on one cloud machine, whose undisturbed share was a
fifth, the error of predicted whole networks had a spread of 0.83 % with it, 1.3 % with the 10 % quantile, 2.7 % with the
median. Passes next to each other are alike (a slow phase lasts), so the bootstrap draws runs of passes, not single ones.

That is the statistic `quiet`, the default on shared machines. `median` and `p90` say what is usual and what is rare instead;
they come from the second look alone, because the lower of two is neither. The wall clock runs beside the device's own.

With a journal, a killed run goes on from the passes it had finished. The clock is an argument: `stopwatch(subject, n)`
returns milliseconds per call, so all of this is tested with subjects of known cost on a machine of known noise.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from snugnet.devices.agent import PassTimes, one_pass
from snugnet.devices.device import Device, Runnable
from snugnet.errors import BadInput
from snugnet.progress import NullProgress, Progress
from snugnet.store import Journal, fingerprint
from snugnet.units import Statistic

Subject = TypeVar("Subject")
FloatArray = NDArray[np.float64]
Ends = tuple[FloatArray, FloatArray]
"""[subjects] the lower and the upper end of an interval."""
Score = Literal["tight", "time", "noisy"]
OnePass = Callable[[Sequence[Subject], Sequence[int], Sequence[int]], PassTimes]
"""(subjects, order, repetitions) -> the times of a pass over all of them."""
_NEARLY_ALL: Final = 0.9  # share of subjects whose intervals must be tight
_NOISY: Final = 4.0  # intervals wider than this many tolerances are too wide to use
_LOOK_EVERY: Final = 10  # passes
_LOW_SHARE: Final = 0.1
_DRAWS: Final = 200
_CONFIDENCE: Final = 0.95
_AT_ONCE: Final = 4_000_000  # numbers a bootstrap step may hold


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
    statistic: Statistic = "quiet"  # what is estimated, and whose intervals must be tight

    def __post_init__(self) -> None:
        for name in ("seconds", "tolerance", "least_passes"):
            value = getattr(self, name)
            if not value > 0 or not math.isfinite(value):
                raise BadInput(f"{name} must be a positive number", value=value, remedy="Try the default.")
        if self.most_passes < self.least_passes:
            raise BadInput("most_passes must not be below least_passes", value=self.most_passes, remedy="Raise it.")


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Milliseconds: the statistic with its 95 % interval, and what was usual while measuring, by both clocks."""

    ms: float
    low: float
    high: float
    median: float
    p90: float
    wall_median: float
    wall_p90: float
    samples: int

    @property
    def spread(self) -> float:
        """Half the interval, relative to the value."""
        return (self.high - self.low) / 2 / self.ms


@dataclass(frozen=True, kw_only=True)
class Timings:
    """An estimate per subject, how the measuring ended, and every sample ([passes, subjects], milliseconds).

    `samples` are the lower of a visit's two times, `calls` the second of them, `walls` the second by the wall clock.
    """

    names: tuple[str, ...]
    estimates: dict[str, Estimate]
    samples: FloatArray
    calls: FloatArray
    walls: FloatArray
    score: Score
    message: str
    seconds: float

    @property
    def passes(self) -> int:
        return len(self.samples)

    def values(self, statistic: Statistic) -> list[float]:
        """Another statistic of the same passes, per subject."""
        return [float(v) for v in statistic_of(_samples_for(statistic, self.samples, self.calls), statistic)]

    @property
    def spread(self) -> float:
        """The relative half-width that nine of ten subjects stay within."""
        return float(np.quantile([estimate.spread for estimate in self.estimates.values()], _NEARLY_ALL))


def time_subjects(
    subjects: Mapping[str, Subject],
    stopwatch: Callable[[Subject, int], float],
    settings: TimingSettings | None = None,
    *,
    visit: OnePass | None = None,
    now: Callable[[], float] = time.monotonic,
    journal: Path | None = None,
    about: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> Timings:
    """Time all `subjects` in shuffled passes. `about` tells this work from other work that used the same journal.

    `visit` does a pass; without it the passes happen here, by the stopwatch."""
    rules, shown = settings or TimingSettings(), progress or NullProgress()
    if not subjects:
        raise BadInput("there must be something to time", value=0, remedy="Pass at least one subject.")
    names = tuple(subjects)
    work = {"subjects": list(names), "seed": rules.seed, "least_ms": rules.least_ms, "clocks": 2, "about": about or {}}
    identity = fingerprint(work)
    book = Journal(journal, identity, ("ms", "calls", "walls", "spent")) if journal is not None else None
    visits = _Visits(list(book.rows) if book is not None else [])
    spent = float(book.rows[-1]["spent"]) if book is not None and book.rows else 0.0
    shown.start(f"timing {len(names)} subject{'s' * (len(names) > 1)}", rules.seconds)
    repetitions = _warm_up(subjects, stopwatch, rules)
    calls = [repetitions[name] for name in names]
    score, seen = _look(visits, rules, spent), ""
    try:
        while not score:
            began = now()
            order = np.random.default_rng([rules.seed, len(visits)]).permutation(len(names)).tolist()
            if visit is None:
                row = one_pass(tuple(subjects.values()), stopwatch, order, calls, now=now)
            else:
                row = visit(tuple(subjects.values()), order, calls)
            spent += now() - began
            visits.rows.append(row)
            if book is not None:
                book.append({**row, "spent": spent})
            if len(visits) % _LOOK_EVERY == 0 or spent >= rules.seconds or len(visits) >= rules.most_passes:
                score = _look(visits, rules, spent)
                seen = f", intervals within {_spread(visits, rules.statistic):.1%}"
            shown.update(min(spent, rules.seconds), f"{len(visits)} passes{seen}")
    finally:
        shown.stop()
    return _outcome(names, visits, score, rules, spent)


def time_on(device: Device, subjects: Mapping[str, Runnable], settings: TimingSettings, **more: Any) -> Timings:
    """Time what `device` has prepared, on it; `more` as in `time_subjects`."""
    return time_subjects(subjects, device.time, settings, visit=device.one_pass, **more)


def low_mean(samples: FloatArray, share: float = _LOW_SHARE) -> FloatArray:
    """[..., passes, subjects] -> [..., subjects]: mean of the lowest `share` of the passes, of three at least."""
    count = min(samples.shape[-2], max(3, round(share * samples.shape[-2])))
    lowest = np.partition(samples, count - 1, axis=-2)[..., :count, :]
    result: FloatArray = lowest.mean(axis=-2)
    return result


def statistic_of(samples: FloatArray, statistic: Statistic) -> FloatArray:
    """[..., passes, subjects] -> [..., subjects]."""
    if statistic == "quiet":
        return low_mean(samples)
    result: FloatArray = np.quantile(samples, {"median": 0.5, "p90": 0.9}[statistic], axis=-2)
    return result


def pooled(sessions: Sequence[Timings], statistic: Statistic) -> list[Estimate]:
    """An estimate per subject from the samples of all sessions; its interval covers the spread between sessions.

    Sessions are drawn with replacement, then runs of passes within each: three that disagree make a wide interval.
    """
    parts = [_samples_for(statistic, s.samples, s.calls) for s in sessions]
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(_DRAWS):
        chosen = [parts[i] for i in rng.integers(len(parts), size=len(parts))]
        drawn = [part[_runs(len(part), 1, rng)[0]] for part in chosen]
        draws.append(statistic_of(np.concatenate(drawn), statistic))
    ends = _ends(np.array(draws), statistic_of(np.concatenate(parts), statistic))
    calls, walls = (np.concatenate([getattr(s, name) for s in sessions]) for name in ("calls", "walls"))
    return _estimates(np.concatenate(parts), calls, walls, statistic, ends)


def intervals(samples: FloatArray, rng: np.random.Generator, statistic: Statistic = "quiet") -> Ends:
    """[passes, subjects] -> lower and upper end of the 95 % interval of the statistic, [subjects] each."""
    passes, subjects = samples.shape
    rows = _runs(passes, _DRAWS, rng)
    step = max(1, _AT_ONCE // (passes * subjects))
    drawn = [statistic_of(samples[rows[i : i + step]], statistic) for i in range(0, _DRAWS, step)]
    return _ends(np.concatenate(drawn), statistic_of(samples, statistic))


def _samples_for(statistic: Statistic, samples: FloatArray, calls: FloatArray) -> FloatArray:
    return samples if statistic == "quiet" else calls


def _runs(passes: int, draws: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """[draws, passes]: passes drawn in runs, because neighbours are alike."""
    run = max(1, round(passes ** (1 / 3)))
    starts = rng.integers(passes, size=(draws, -(-passes // run)))
    rows: NDArray[np.int64] = ((starts[:, :, None] + np.arange(run)) % passes).reshape(draws, -1)[:, :passes]
    return rows


def _ends(draws: FloatArray, value: FloatArray) -> Ends:
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(draws, [tail, 1 - tail], axis=0)
    return np.minimum(low, value), np.maximum(high, value)


def _estimates(
    samples: FloatArray, calls: FloatArray, walls: FloatArray, statistic: Statistic, ends: Ends
) -> list[Estimate]:
    """[passes, subjects] -> an estimate for every subject."""
    usual = [np.quantile(times, [0.5, 0.9], axis=0) for times in (calls, walls)]
    columns = [statistic_of(samples, statistic), *ends, *usual[0], *usual[1]]
    names = [f.name for f in fields(Estimate)]  # in the order of the columns; the count comes last
    return [Estimate(**dict(zip(names, row)), samples=len(samples)) for row in np.array(columns).T.tolist()]


def _warm_up(
    subjects: Mapping[str, Subject], stopwatch: Callable[[Subject, int], float], rules: TimingSettings
) -> dict[str, int]:
    """Call everything a few times; how many calls make a readable sample of each subject."""
    repetitions = {}
    for name, subject in subjects.items():
        taken = min(stopwatch(subject, 1) for _ in range(max(1, rules.warmup)))
        repetitions[name] = min(64, max(1, math.ceil(rules.least_ms / max(taken, 1e-6))))
    return repetitions


@dataclass(frozen=True)
class _Visits:
    """The passes so far, as the journal keeps them."""

    rows: list[dict[str, Any]]

    def __len__(self) -> int:
        return len(self.rows)

    def array(self, name: str) -> FloatArray:
        return np.array([row[name] for row in self.rows], dtype=float)


def _spread(visits: _Visits, statistic: Statistic) -> float:
    samples = visits.array("ms" if statistic == "quiet" else "calls")
    low, high = intervals(samples, np.random.default_rng(0), statistic)
    return float(np.quantile((high - low) / 2 / statistic_of(samples, statistic), _NEARLY_ALL))


def _look(visits: _Visits, rules: TimingSettings, spent: float) -> Score | None:
    """Go on (None), or stop and why. Three passes are the least anything can be said from."""
    if len(visits) < 3:
        return None
    if len(visits) >= rules.least_passes and _spread(visits, rules.statistic) <= rules.tolerance:
        return "tight"
    if spent < rules.seconds and len(visits) < rules.most_passes:
        return None
    return "noisy" if _spread(visits, rules.statistic) > _NOISY * rules.tolerance else "time"


def _outcome(names: tuple[str, ...], visits: _Visits, score: Score, rules: TimingSettings, spent: float) -> Timings:
    lower, calls, walls = (visits.array(name) for name in ("ms", "calls", "walls"))
    samples = _samples_for(rules.statistic, lower, calls)
    ends = intervals(samples, np.random.default_rng(0), rules.statistic)  # as in `_spread`: both tell the same
    per_subject = _estimates(samples, calls, walls, rules.statistic, ends)
    spread = float(np.quantile([estimate.spread for estimate in per_subject], _NEARLY_ALL))
    passes = f"{len(samples)} passes in {spent:.0f} s"
    more = f"allow more time (--seconds {2 * rules.seconds:.0f})"
    remedy = f"Close other programs, use fewer threads than cores, or {more}."
    messages = {
        "tight": f"{passes}: nine of ten intervals are within {spread:.1%}, as wanted.",
        "time": f"{passes}: the time is up; nine of ten intervals are within {spread:.1%} ({rules.tolerance:.1%} wanted).",
        "noisy": f"{passes}: the machine is too noisy, intervals are {spread:.1%} ({rules.tolerance:.1%} wanted). {remedy}",
    }
    return Timings(
        names=names,
        estimates=dict(zip(names, per_subject)),
        samples=lower,
        calls=calls,
        walls=walls,
        score=score,
        message=messages[score],
        seconds=spent,
    )
