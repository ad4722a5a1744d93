"""A space on a device -> what every part of it costs there.

Each distinct part is prepared once and timed by itself; a few whole networks are timed in the same shuffled passes;
calibration (`snugnet.costs.calibrate`) turns the one into the other. The stem, the fixed blocks and the head are parts like
all others: nothing is left out. The table keeps what it was made from and under which conditions.

Whole networks are spread over the space's range of cost (`spread_networks`): random architectures crowd around the middle,
but budgets are asked for everywhere. `time_networks` times given networks side by side, those of the papers for example.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import isotonic_regression

import snugnet
from snugnet.costs import analytic
from snugnet.costs.calibrate import Calibration, calibrate
from snugnet.costs.table import CostTable, save_table, space_id, width_curves
from snugnet.costs.vectorised import costs_of_many
from snugnet.devices.agent import raised_priority
from snugnet.devices.device import HERE, Device, Runnable
from snugnet.devices.timing import Estimate, Timings, TimingSettings, time_on
from snugnet.errors import BadInput, SnugnetError
from snugnet.nets.network import build_part, build_plan
from snugnet.progress import NullProgress, Progress
from snugnet.space.architecture import Architecture
from snugnet.space.layout import Layout, concatenate
from snugnet.space.reading import space_to_json
from snugnet.space.sampling import largest, mutate_many, sample_many, smallest
from snugnet.space.space import SearchSpace
from snugnet.space.spec import LayerSpec, NetworkSpec, plan
from snugnet.store import check_writable
from snugnet.units import STATISTICS, Statistic

CALIBRATION_NETWORKS = 16
_PER_KIND = 400  # candidates per degree of randomness
_PREPARING = threading.Lock()  # random numbers are the process's, as is the output that exporters are kept from


def measure(
    space: SearchSpace,
    device: Device,
    *,
    batch: int = 1,
    settings: TimingSettings | None = None,
    networks: int = CALIBRATION_NETWORKS,
    parts: Sequence[LayerSpec] | None = None,
    out: str | Path | None = None,
    source: str | None = None,
    progress: Progress | None = None,
) -> CostTable:
    """Measure `space` on `device`. With `out` the table is written there, and a killed run goes on where it was.

    `source` is how the user named the space (a preset or a file); it is kept so that the table can find it again. `parts`
    restricts it to some parts, among them all that the calibration networks consist of (`costs.lazy`).
    """
    rules, shown = replace(settings or TimingSettings(), statistic="quiet"), progress or NullProgress()
    check_batch(batch)
    if out is not None:
        check_writable(out)
    on_demand = parts is not None
    parts = Layout(space).distinct_specs() if parts is None else parts
    chosen = spread_networks(space, networks, np.random.default_rng([rules.seed, 16]))
    plans = [plan(architecture, space) for architecture in chosen]
    about = {"space": space_id(space), "device": device.fingerprint(), "batch": batch, "versions": versions()}
    journal = None if out is None else Path(f"{out}.partial")
    with raised_priority(device.threads) if device.place == HERE else nullcontext():  # elsewhere, the agent there does
        subjects = prepare(device, parts, batch, shown) | prepare(device, plans, batch, shown)
        timings = time_on(device, subjects, rules, journal=journal, about=about, progress=shown)
    table = _assemble(space, device, batch, parts, chosen, plans, timings, source or space.name)
    if on_demand:
        table = replace(table, origin={**table.origin, "on_demand": True})
    if out is not None:
        save_table(table, out)
        assert journal is not None
        journal.unlink(missing_ok=True)
    return table


def _assemble(
    space: SearchSpace,
    device: Device,
    batch: int,
    parts: Sequence[LayerSpec],
    chosen: Sequence[Architecture],
    plans: Sequence[NetworkSpec],
    timings: Timings,
    source: str,
) -> CostTable:
    estimates = list(timings.estimates.values())
    fit, costs = _fitted(parts, plans, timings.values("quiet"), batch)
    others = {name: _fitted(parts, plans, timings.values(name), batch) for name in STATISTICS if name != "quiet"}
    times_of = {name: timings.values(name)[len(parts) :] for name in STATISTICS}
    calibrated = CostTable(resource="latency", costs=costs, origin={"kind": "raw"})
    origin = {
        "kind": "measured",
        "space": space.name,
        "space_id": space_id(space),
        "source": source,
        "definition": space_to_json(space),
        "classes": space.classes,
        "resolutions": list(space.resolutions),
        "batch": batch,
        "device": device.fingerprint(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "passes": timings.passes,
        "seconds": round(timings.seconds, 1),
        "spread": timings.spread,
        "score": timings.score,
        "message": timings.message,
        "statistic": "quiet",
        "calibration": fit.to_json(),
        "calibrations": {name: other.to_json() for name, (other, _) in others.items()},
        "networks": [
            network_row(a, calibrated.of_network(p), e)
            | {"statistics": {name: float(v[i]) for name, v in times_of.items()}}
            for i, (a, p, e) in enumerate(zip(chosen, plans, estimates[len(parts) :]))
        ],
    }
    times = {part: (e.ms, e.low, e.high) for part, e in zip(parts, estimates)}
    by_statistic: dict[Statistic, dict[LayerSpec, float]] = {name: other for name, (_, other) in others.items()}
    return CostTable(resource="latency", costs=costs, origin=origin, isolated_ms=times, by_statistic=by_statistic)


def _fitted(
    parts: Sequence[LayerSpec], plans: Sequence[NetworkSpec], times: Sequence[float], batch: int
) -> tuple[Calibration, dict[LayerSpec, float]]:
    """The calibration and the cost of every part, from `times` of the parts and then of the networks."""
    isolated = smoothed(dict(zip(parts, times)))  # no width costs more than a wider one
    raw = CostTable(resource="latency", costs=isolated, origin={"kind": "raw"})
    fit = calibrate(raw.of_part, plans, times[len(parts) :], batch=batch)
    return fit, {part: fit.cost(part, ms, batch) for part, ms in isolated.items()}


def smoothed(costs: Mapping[LayerSpec, float]) -> dict[LayerSpec, float]:
    """The costs with every curve over middle widths rising: one that timing noise lets fall is replaced by the rising one
    nearest to it in squares (pool adjacent violators); those that rise already keep every bit."""
    rising = dict(costs)
    for parts in width_curves(costs).values():
        values = [costs[part] for part in parts]
        if (np.diff(values) < 0).any():
            rising |= dict(zip(parts, isotonic_regression(values).x.tolist()))
    return rising


def network_row(architecture: Architecture, predicted: float, measured: Estimate) -> dict[str, Any]:
    """One whole network, for a file."""
    return {
        "architecture": str(architecture),
        "predicted_ms": predicted,
        "measured_ms": measured.ms,
        "low_ms": measured.low,
        "high_ms": measured.high,
    }


def prepare(
    device: Device, specs: Sequence[LayerSpec] | Sequence[NetworkSpec], batch: int, progress: Progress
) -> dict[str, Runnable]:
    """Parts (under their labels) or whole networks (numbered), each as a module of its own, ready to run.

    Weights are random: what a network costs does not depend on them.
    """
    prepared: dict[str, Runnable] = {}
    kind = "networks" if specs and isinstance(specs[0], NetworkSpec) else "blocks"
    progress.start(f"preparing {len(specs)} {kind} for {device.name}", len(specs))
    try:
        with _PREPARING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            for number, spec in enumerate(specs):
                label = f"network {number}" if isinstance(spec, NetworkSpec) else spec.label
                first = spec.stem if isinstance(spec, NetworkSpec) else spec
                example = torch.randn(batch, first.in_channels, first.resolution, first.resolution)
                module = build_plan(spec) if isinstance(spec, NetworkSpec) else build_part(spec)
                try:
                    prepared[label] = device.prepare(module, example)
                except SnugnetError as error:
                    raise type(error)(f"{label}: {error.rule}", value=error.value, remedy=error.remedy) from error
                progress.update(number + 1)
    finally:
        progress.stop()
    return prepared


def spread_networks(
    space: SearchSpace, count: int, rng: np.random.Generator, *, without: frozenset[Architecture] = frozenset()
) -> tuple[Architecture, ...]:
    """`count` different architectures evenly spread over the range of MACs, none of them in `without`.

    Candidates are drawn between the smallest, random and largest networks; those are kept whose MACs stand evenly between
    the ends.
    """
    if count < 1:
        raise BadInput("the number of networks must be at least 1", value=count, remedy="Ask for 16 or 24.")
    layout = Layout(space)
    ends = [layout.encode([end(space)] * _PER_KIND) for end in (smallest, largest)]
    drawn = [mutate_many(space, end, rng, share) for end in ends for share in (0.15, 0.35, 0.6)]
    genes = concatenate([*drawn, sample_many(space, _PER_KIND, rng)])
    size = costs_of_many(space, genes, analytic.macs)
    targets = np.linspace(size.min(), size.max(), 2 * count + 1)[1::2]
    candidates = layout.decode(genes)
    chosen: dict[Architecture, None] = {}
    for target in rng.permutation(targets):
        for index in np.argsort(np.abs(size - target)):
            candidate = candidates[index]
            if candidate not in chosen and candidate not in without:
                chosen[candidate] = None
                break
    if len(chosen) < count:
        rule, remedy = f"space {space.name!r} must hold enough different networks", f"Ask for {len(chosen)} at most."
        raise BadInput(rule, value=f"{len(chosen)} of {count}", remedy=remedy)
    return tuple(chosen)


def time_networks(
    networks: Mapping[str, NetworkSpec],
    device: Device,
    *,
    batch: int = 1,
    settings: TimingSettings | None = None,
    progress: Progress | None = None,
) -> tuple[dict[str, Estimate], str]:
    """Every network's time on `device` in the same shuffled passes, and a sentence on how the measuring went."""
    check_batch(batch)
    shown = progress or NullProgress()
    with raised_priority(device.threads):
        subjects = prepare(device, list(networks.values()), batch, shown)
        named = dict(zip(networks, subjects.values()))
        timings = time_on(device, named, settings or TimingSettings(seconds=90.0), progress=shown)
    return timings.estimates, timings.message


def check_batch(batch: int) -> None:
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise BadInput("batch must be a whole number of at least 1", value=batch, remedy="Latency is asked for at 1.")


def versions() -> dict[str, str]:
    """What software made a number."""
    return {"snugnet": snugnet.__version__, "python": platform.python_version(), "torch": torch.__version__}
