"""Whether a table tells the truth: whole networks that were not used for calibration, predicted and measured.

Some of the calibration networks are timed again in the same passes. Their times against those in the table say how fast
the machine is today compared with the day of the table (`speed`); predictions are for that day, so they are held against
measurements taken to it. The report says by how much, and `ratio_today` is the ratio without it. The margin is the
one-sided 95 % bound of what measured networks cost more than predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from snugnet.costs.calibrate import upper_bound
from snugnet.costs.measure import prepare, spread_networks
from snugnet.costs.table import CostTable
from snugnet.devices.agent import raised_priority
from snugnet.devices.device import Device
from snugnet.devices.timing import Estimate, Timings, TimingSettings, time_on
from snugnet.errors import BadInput, TableMismatch
from snugnet.progress import NullProgress, Progress
from snugnet.space.architecture import Architecture, parse
from snugnet.space.space import SearchSpace
from snugnet.space.spec import plan

ANCHORS = 10


@dataclass(frozen=True, kw_only=True)
class CheckedNetwork:
    """One network that the table had not seen. Times in milliseconds, `measured` at the speed of the table's day."""

    architecture: str
    predicted: float
    measured: float
    low: float
    high: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


@dataclass(frozen=True, kw_only=True)
class Check:
    """How a table's predictions stand against measurements."""

    r2: float
    ratio: float  # median of predicted / measured
    worst_error: float  # largest |predicted / measured - 1|
    margin: float  # predicted at T / (1 + margin) is measured under T with 95 % confidence
    speed: float  # the machine now against the table's day; 0.9: it takes 1 / 0.9 as long
    networks: tuple[CheckedNetwork, ...]
    passes: int
    message: str

    def margin_ms(self, target: float) -> float:
        """Milliseconds to stay below `target` by."""
        return target * self.margin / (1 + self.margin)

    def to_json(self) -> dict[str, Any]:
        rows = [{**asdict(row), "error": row.error} for row in self.networks]
        return {**asdict(self), "networks": len(rows), "ratio_today": self.ratio * self.speed, "rows": rows}


def check_table(
    table: CostTable,
    space: SearchSpace,
    device: Device,
    *,
    networks: int = 24,
    settings: TimingSettings | None = None,
    progress: Progress | None = None,
) -> Check:
    """Measure `networks` fresh networks of `space` on `device` and compare them with what `table` predicts."""
    if networks < 3:
        raise BadInput("a check needs at least 3 networks", value=networks, remedy="24 tell a good deal.")
    if table.origin.get("kind") != "measured":
        raise TableMismatch("a table to check must be measured", value=table.resource, remedy="Exact ones need none.")
    table.require(space=space, device=device.fingerprint())
    rules, shown = settings or TimingSettings(seed=1), progress or NullProgress()
    rules = replace(rules, statistic=table.statistic)
    known = {parse(row["architecture"], space): row["measured_ms"] for row in table.origin["networks"]}
    fresh = spread_networks(space, networks, np.random.default_rng([rules.seed, 24]), without=frozenset(known))
    anchors = list(known)[:: max(1, len(known) // ANCHORS)][:ANCHORS]
    plans = [plan(architecture, space) for architecture in (*fresh, *anchors)]
    with raised_priority(device.threads):
        subjects = prepare(device, plans, table.origin["batch"], shown)
        timings = time_on(device, subjects, rules, progress=shown)
    estimates = list(timings.estimates.values())
    then = [known[anchor] for anchor in anchors]
    speed = float(np.exp(np.mean([np.log(old / new.ms) for old, new in zip(then, estimates[networks:])])))
    predicted = [table.of_network(network) for network in plans[:networks]]
    return _compare(fresh, predicted, estimates[:networks], speed, timings)


def _compare(
    architectures: Sequence[Architecture],
    predicted: Sequence[float],
    measured: Sequence[Estimate],
    speed: float,
    timings: Timings,
) -> Check:
    """The figures of a check from predictions and measurements."""
    rows = tuple(
        CheckedNetwork(architecture=str(a), predicted=p, measured=m.ms * speed, low=m.low * speed, high=m.high * speed)
        for a, p, m in zip(architectures, predicted, measured)
    )
    guess, truth = np.array([r.predicted for r in rows]), np.array([r.measured for r in rows])
    errors = guess / truth - 1
    scatter = float(((truth - truth.mean()) ** 2).sum())
    remark = "" if abs(speed - 1) < 0.02 else f" The machine runs at {speed:.1%} of its speed on the table's day."
    return Check(
        r2=1 - float(((guess - truth) ** 2).sum()) / scatter if scatter > 0 else float(not errors.any()),
        ratio=float(np.median(guess / truth)),
        worst_error=float(np.abs(errors).max()),
        margin=upper_bound([float(e) for e in truth / guess - 1]),
        speed=speed,
        networks=rows,
        passes=timings.passes,
        message=timings.message + remark,
    )
