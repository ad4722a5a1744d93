"""A space on a device -> what every part of it costs there.

Each distinct part is prepared once and timed alone; a few whole networks are timed in the same shuffled passes; calibration
(`snugnet.costs.calibrate`) turns the one into the other. The stem, the fixed blocks and the head are parts like all others:
nothing is left out. The table keeps what it was made from and under which conditions.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

import snugnet
from snugnet.costs.calibrate import calibrate
from snugnet.costs.networks import spread_networks
from snugnet.costs.table import CostTable, space_id
from snugnet.costs.table_file import save_table
from snugnet.devices.device import Device, Runnable
from snugnet.devices.estimate import Estimate
from snugnet.devices.priority import raised_priority
from snugnet.devices.timing import Timings, TimingSettings, time_subjects
from snugnet.errors import BadInput, SnugnetError
from snugnet.nets.build import build_part, build_plan
from snugnet.progress import NullProgress, Progress
from snugnet.space.architecture import Architecture
from snugnet.space.plan import LayerSpec, NetworkSpec, plan
from snugnet.space.slots import distinct_parts
from snugnet.space.space import SearchSpace
from snugnet.space.stored import space_to_json
from snugnet.store import check_writable

CALIBRATION_NETWORKS = 16


def measure(
    space: SearchSpace,
    device: Device,
    *,
    batch: int = 1,
    settings: TimingSettings | None = None,
    networks: int = CALIBRATION_NETWORKS,
    out: str | Path | None = None,
    source: str | None = None,
    progress: Progress | None = None,
) -> CostTable:
    """Measure `space` on `device`. With `out` the table is written there, and a killed run goes on where it was.

    `source` is how the user named the space (a preset or a file); it is kept so that the table can find it again.
    """
    rules, shown = settings or TimingSettings(), progress or NullProgress()
    check_batch(batch)
    if out is not None:
        check_writable(out)
    parts = distinct_parts(space)
    chosen = spread_networks(space, networks, np.random.default_rng([rules.seed, 16]))
    plans = [plan(architecture, space) for architecture in chosen]
    about = {"space": space_id(space), "device": device.fingerprint(), "batch": batch, "versions": versions()}
    journal = None if out is None else Path(f"{out}.partial")
    with raised_priority(device.threads):
        subjects = prepare_parts(device, parts, batch, shown) | prepare_networks(device, plans, batch, shown)
        timings = time_subjects(subjects, device.time, rules, journal=journal, about=about, progress=shown)
    table = _assemble(space, device, batch, parts, chosen, plans, timings, source or space.name)
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
    found = list(timings.estimates.values())
    isolated_ms = dict(zip(parts, found[: len(parts)]))
    whole = found[len(parts) :]
    raw = CostTable(resource="latency", costs={part: e.ms for part, e in isolated_ms.items()}, origin={"kind": "raw"})
    fit = calibrate(raw.of_part, plans, [e.ms for e in whole], batch=batch)
    costs = {part: fit.cost(part, e.ms, batch) for part, e in isolated_ms.items()}
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
        "calibration": fit.to_json(),
        "networks": [network_words(a, calibrated.of_network(p), e) for a, p, e in zip(chosen, plans, whole)],
    }
    times = {part: (e.ms, e.low, e.high) for part, e in isolated_ms.items()}
    return CostTable(resource="latency", costs=costs, origin=origin, isolated_ms=times)


def network_words(architecture: Architecture, predicted: float, measured: Estimate) -> dict[str, Any]:
    """One whole network, for a file."""
    return {
        "architecture": str(architecture),
        "predicted_ms": predicted,
        "measured_ms": measured.ms,
        "low_ms": measured.low,
        "high_ms": measured.high,
    }


def prepare_parts(device: Device, parts: Sequence[LayerSpec], batch: int, progress: Progress) -> dict[str, Runnable]:
    """Every part as a module of its own, ready to run, under its label."""
    prepared: dict[str, Runnable] = {}
    progress.start(f"preparing {len(parts)} blocks for {device.name}", len(parts))
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            for done, part in enumerate(parts):
                example = torch.randn(batch, part.in_channels, part.resolution, part.resolution)
                try:
                    prepared[part.label] = device.prepare(build_part(part), example)
                except SnugnetError as error:
                    raise type(error)(f"{part.label}: {error.rule}", value=error.value, remedy=error.remedy) from error
                progress.update(done + 1)
    finally:
        progress.stop()
    return prepared


def prepare_networks(
    device: Device, plans: Sequence[NetworkSpec], batch: int, progress: Progress, prefix: str = "network"
) -> dict[str, Runnable]:
    """Whole networks with random weights (what they cost does not depend on them), ready to run."""
    prepared = {}
    progress.start(f"preparing {len(plans)} networks for {device.name}", len(plans))
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            for number, network in enumerate(plans):
                size = network.resolution
                example = torch.randn(batch, network.stem.in_channels, size, size)
                prepared[f"{prefix} {number}"] = device.prepare(build_plan(network), example)
                progress.update(number + 1)
    finally:
        progress.stop()
    return prepared


def check_batch(batch: int) -> None:
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise BadInput("batch must be a whole number of at least 1", value=batch, remedy="Latency is asked for at 1.")


def versions() -> dict[str, str]:
    """What software made a number."""
    return {"snugnet": snugnet.__version__, "python": platform.python_version(), "torch": torch.__version__}
