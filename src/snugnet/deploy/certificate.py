"""Does it really fit? Measured, with an interval, and written down.

A certificate names every limit with its unit, what a table predicted, what was measured or counted, the slack, the device
and the software, and a hash of the weights, so that a machine can check it. Latency fits only if the upper end of its 95 %
interval does; MACs, parameters, model size and memory are counted from the network itself. The file is written
in both cases; a network that does not fit raises `BudgetExceeded` (exit code 1).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch

from snugnet.budgets.budget import Budget
from snugnet.costs.measure import check_batch, versions
from snugnet.costs.table import CostTable
from snugnet.deploy.subject import Subject, open_subject
from snugnet.devices.device import Device
from snugnet.devices.timing import Timings, TimingSettings, raised_priority, time_subjects
from snugnet.errors import BadInput, BudgetExceeded, DamagedFile
from snugnet.progress import NullProgress, Progress
from snugnet.space.plan import NetworkSpec
from snugnet.store import check_writable, read_json, sha256, write_json
from snugnet.units import resource, show

SESSIONS: Final = 3
PAUSE: Final = 1.0  # seconds between sessions
SETTINGS: Final = TimingSettings(seconds=30.0, tolerance=0.005, least_passes=60)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One limit of a budget, held against the network. Numbers are in `unit`."""

    name: str
    unit: str
    limit: float
    predicted: float | None
    measured: float
    low: float
    high: float
    exact: bool
    device: dict[str, str]  # empty where exact
    usual: dict[str, float]  # of latency: median and 90 % quantile while measuring

    @property
    def slack(self) -> float:
        return self.limit - self.high

    @property
    def fits(self) -> bool:
        return self.high <= self.limit


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Every limit, held against one network."""

    network: str
    form: str
    weights_sha256: str
    architecture: str  # as the network's file tells it, to tie the certificate to the search; empty if it does not
    batch: int
    input_shape: tuple[int, ...]
    lines: tuple[Line, ...]
    date: str
    versions: dict[str, str]
    message: str

    @property
    def fits(self) -> bool:
        return all(line.fits for line in self.lines)

    def to_json(self) -> dict[str, Any]:
        body = {
            "certificate": 1,
            "fits": self.fits,
            "network": {
                "name": self.network,
                "form": self.form,
                "weights_sha256": self.weights_sha256,
                "architecture": self.architecture,
            },
            "batch": self.batch,
            "input_shape": list(self.input_shape),
            "budgets": {
                line.name: {
                    "unit": line.unit,
                    "limit": line.limit,
                    "predicted": line.predicted,
                    "measured": line.measured,
                    "interval": [line.low, line.high],
                    "slack": line.slack,
                    "fits": line.fits,
                    "exact": line.exact,
                    **({"device": line.device, "while_measuring": line.usual} if not line.exact else {}),
                }
                for line in self.lines
            },
            "date": self.date,
            "versions": self.versions,
            "message": self.message,
        }
        return {**body, "sha256": _seal(body)}


def certify(
    network: torch.nn.Module | str | Path,
    budget: Budget | Mapping[str, str],
    device: Device | Mapping[str, Device] | None = None,
    *,
    batch: int = 1,
    resolution: int | None = None,
    tables: Mapping[str, CostTable] | None = None,
    plan: NetworkSpec | None = None,
    out: str | Path | None = None,
    settings: TimingSettings | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """Measure `network` against `budget`; `BudgetExceeded` if it does not fit, else the certificate.

    `device` is needed for latency; where the budget limits it on several (`latency@phone`), give one for each label.
    Without `settings` the quietest of three sessions counts.
    `tables` (by the budget's names) add what was predicted; a file that does not say what its network is made of (ONNX)
    needs its `plan` for that.
    """
    limits = budget if isinstance(budget, Budget) else Budget(budget)
    check_batch(batch)
    effective_limits = _limits_of(limits)
    places = {name: _place(name, device) for name in effective_limits if resource(name).name == "latency"}
    if out is not None:
        check_writable(out)
    subject = open_subject(network, resolution=resolution)
    lines, messages = [], []
    for name, limit in effective_limits.items():
        predicted = _predicted(name, subject.plan or plan, tables or {}, places.get(name), batch)
        if name in places:
            timings = _time(subject, places[name], batch, settings, progress or NullProgress())
            messages.append(timings.message)
            lines.append(_latency_line(name, limit, predicted, places[name], timings))
        else:
            lines.append(_exact_line(name, limit, predicted, subject))
    made = Certificate(
        network=subject.name,
        form=subject.form,
        weights_sha256=subject.weights_sha256,
        architecture=subject.architecture,
        batch=batch,
        input_shape=(batch, *subject.costs.input_shape[1:]),
        lines=tuple(lines),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions(),
        message=" ".join(messages),
    )
    if out is not None:
        write_json(out, made.to_json())
    if not made.fits:
        raise _exceeded(made)
    return made


def read_certificate(path: str | Path) -> dict[str, Any]:
    """The certificate in `path`, if nobody changed it."""
    value = read_json(path)
    if not isinstance(value, dict) or "budgets" not in value or "sha256" not in value:
        raise DamagedFile(f"{path} must be a certificate", remedy="Give the file that `snugnet certify` wrote.")
    body = {name: item for name, item in value.items() if name != "sha256"}
    if _seal(body) != value["sha256"]:
        raise DamagedFile(f"{path}: field sha256 must match what the certificate says", remedy="Certify again.")
    return value


def _limits_of(budget: Budget) -> dict[str, float]:
    if not budget:
        raise BadInput("a certificate needs at least one limit", value="none", remedy="Say --budget latency=40ms.")
    for name in budget:
        if budget.is_relative(name):
            raise BadInput(
                f"the limit on {name} must have a unit in a certificate",
                value=budget[name],
                remedy="A share of the largest network is not a promise; state milliseconds, MACs, ...",
            )
    return {name: budget.amount(name, 0.0) for name in budget}


def _place(name: str, device: Device | Mapping[str, Device] | None) -> Device:
    if isinstance(device, Device):
        return device
    label = name.partition("@")[2]
    found = (device or {}).get(label)
    if found is None:
        raise BadInput(f"{name} must have a device to be measured on", value=label or "none", remedy="Name one.")
    return found


def _predicted(
    name: str, plan: NetworkSpec | None, tables: Mapping[str, CostTable], device: Device | None, batch: int
) -> float | None:
    table = tables.get(name)
    if table is None or plan is None:
        return None
    table.require(
        device=device.fingerprint() if device is not None else None,
        batch=batch if device is not None else None,
        resolution=plan.resolution,
    )
    return table.of_network(plan)


def _time(subject: Subject, device: Device, batch: int, settings: TimingSettings | None, progress: Progress) -> Timings:
    """The quietest of a few sessions: a small network is timed within milliseconds, a neighbour's load lasts for seconds."""
    with raised_priority(device.threads):
        runnable = {subject.name: subject.prepare(device, batch)}
        if settings is not None:
            return time_subjects(runnable, device.time, settings, progress=progress)
        sessions = []
        for number in range(SESSIONS):
            if number:
                time.sleep(PAUSE)
            sessions.append(time_subjects(runnable, device.time, SETTINGS, progress=progress))
    found = [next(iter(session.estimates.values())).ms for session in sessions]
    told = f"The quietest of {SESSIONS} sessions, which measured {', '.join(f'{ms:.4g}' for ms in found)} ms; "
    told += "the interval is that session's own. "
    quietest = sessions[found.index(min(found))]
    return replace(quietest, message=told + quietest.message)


def _latency_line(name: str, limit: float, predicted: float | None, device: Device, timings: Timings) -> Line:
    found = next(iter(timings.estimates.values()))
    return Line(
        name=name,
        unit=resource(name).unit,
        limit=limit,
        predicted=predicted,
        measured=found.ms,
        low=found.low,
        high=found.high,
        exact=False,
        device=device.fingerprint(),
        usual={"median": found.median, "p90": found.p90, "passes": float(found.samples)},
    )


def _exact_line(name: str, limit: float, predicted: float | None, subject: Subject) -> Line:
    value = subject.costs.of(resource(name).name)
    return Line(
        name=name,
        unit=resource(name).unit,
        limit=limit,
        predicted=predicted,
        measured=value,
        low=value,
        high=value,
        exact=True,
        device={},
        usual={},
    )


def _exceeded(made: Certificate) -> BudgetExceeded:
    over = [line for line in made.lines if not line.fits]
    found = []
    for line in over:
        between = "" if line.exact else f" (95 %: {show(line.low, line.name)} to {show(line.high, line.name)})"
        found.append(f"{line.name} {show(line.measured, line.name)}{between}")
    rule = " and ".join(f"{line.name} must be at most {show(line.limit, line.name)}" for line in over)
    return BudgetExceeded(rule, value=", ".join(found), remedy="Raise the limit, or search with a wider margin.")


def _seal(body: dict[str, Any]) -> str:
    return sha256(json.dumps(body, sort_keys=True).encode())
