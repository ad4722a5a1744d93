"""Networks of the papers, timed side by side on one's own device: what a user would take instead."""

from __future__ import annotations

from collections.abc import Mapping

from snugnet.costs.measure import check_batch, prepare_networks
from snugnet.devices.device import Device
from snugnet.devices.estimate import Estimate
from snugnet.devices.priority import raised_priority
from snugnet.devices.timing import TimingSettings, time_subjects
from snugnet.progress import NullProgress, Progress
from snugnet.space.plan import NetworkSpec


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
        subjects = prepare_networks(device, list(networks.values()), batch, shown)
        named = dict(zip(networks, subjects.values()))
        timings = time_subjects(named, device.time, settings or TimingSettings(seconds=90.0), progress=shown)
    return timings.estimates, timings.message
