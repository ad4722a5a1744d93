"""Which runtime? The same network on every one that is here, timed in turns and judged on the same images.

All are timed in the same shuffled passes and by one clock: where one of them needs the wall clock (OpenVINO works in threads
of its own), all of a processor's are read off it. What is timed is also what is judged: every prepared runtime answers the
test images itself. int8 runtimes share one graph, quantised as `snugnet.deploy.int8` chooses. The fastest is named among
those that lose at most what was allowed against PyTorch in float32. Without images float32 alone is known to be as accurate
(a device compares its answer with PyTorch's before it is timed); the others are timed and not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, final

import torch

from snugnet.data.dataset import Data
from snugnet.deploy.certificate import OpensOnnx
from snugnet.deploy.export import random_images
from snugnet.deploy.int8 import BATCH, LOSE, choose_scheme, share_right
from snugnet.devices import DEVICES, by_name
from snugnet.devices.agent import OWN_TIME, WALL_CLOCK, raised_priority, wall_clock
from snugnet.devices.device import Device, Runnable, frozen_copy
from snugnet.devices.onnx_graph import onnx_bytes
from snugnet.devices.timing import Estimate, TimingSettings, time_subjects
from snugnet.errors import BadInput, SnugnetError, UnknownName
from snugnet.nets.network import Network
from snugnet.progress import NullProgress, Progress

SETTINGS: Final = TimingSettings(seconds=60.0)
_CHOOSING: Final = 0.3  # of the seconds, for schemes of int8


@final
@dataclass(frozen=True, kw_only=True)
class RuntimeResult:
    """A network on one runtime; `lost` is the share of the test images that float32 gets right beyond it."""

    device: str
    precision: str
    latency_ms: float
    low_ms: float
    high_ms: float
    accuracy: float | None = None
    lost: float | None = None
    within: bool | None = None  # the accuracy asked for; None: not known

    @property
    def label(self) -> str:
        return f"{self.device} {self.precision}"


@final
@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Fastest first; `fastest` is the first that is within the accuracy asked for."""

    runtimes: tuple[RuntimeResult, ...]
    failed: dict[str, str]  # runtime -> why it could not run the network
    lose: float
    images: int  # 0: nothing was judged
    clock: str
    fastest: RuntimeResult | None
    message: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"fastest": None if self.fastest is None else self.fastest.label}


def devices_here(names: str = "all", *, threads: int = 1) -> list[Device]:
    """Every device that can be used here in every precision it has; or those of the given names, by commas."""
    asked = list(DEVICES) if names == "all" else [name.strip() for name in names.split(",")]
    for name in asked:
        if name not in DEVICES:
            raise UnknownName("a device", name, ["all", *DEVICES])
    here = [name for name in asked if names != "all" or not DEVICES[name].missing()]
    return [
        by_name(name, threads=threads, precision=precision) for name in here for precision in DEVICES[name].precisions
    ]


def compare_runtimes(
    network: Network,
    devices: Sequence[Device],
    *,
    data: Data | None = None,
    lose: float = LOSE,
    batch: int = 1,
    settings: TimingSettings | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """`network` on all of `devices`; with `data` (at its resolution) every one is judged on all test images."""
    if not devices:
        raise BadInput("a comparison needs at least one device", value=0, remedy="See `snugnet devices`.")
    shown, rules, still = progress or NullProgress(), settings or SETTINGS, frozen_copy(network).cpu()
    given = random_images(batch, (network.plan.stem.in_channels, network.plan.resolution, network.plan.resolution))
    eight = None
    if data is not None and any(device.precision == "int8" for device in devices):
        some = replace(rules, seconds=_CHOOSING * rules.seconds)
        eight = choose_scheme(onnx_bytes(still, given), data, lose=lose, settings=some, progress=shown).graph
        rules = replace(rules, seconds=(1 - _CHOOSING) * rules.seconds)
    prepared: dict[str, tuple[Device, Runnable]] = {}
    failed: dict[str, str] = {}
    clock = _clock(devices)
    with raised_priority(max(device.threads for device in devices)):
        shown.start("preparing", len(devices))
        for number, device in enumerate(devices):
            label = f"{device.name} {device.precision}"
            try:
                prepared[label] = (device, _prepared(device, still, given, eight))
            except SnugnetError as error:
                failed[label] = str(error)
            shown.update(number + 1, label)
        shown.stop()
        if not prepared:
            value = "; ".join(f"{label}: {why}" for label, why in failed.items())
            raise BadInput("a network must run on one of the devices", value=value, remedy="Name others.")
        timings = time_subjects(prepared, _stopwatch(clock), rules, progress=shown)
    exact, images = (0.0, 0) if data is None else share_right(still, data, "test", BATCH, progress=shown)
    rows = []
    for label, (device, runnable) in prepared.items():
        accuracy = None
        if data is not None and runnable.answer is not None:
            accuracy, _ = share_right(runnable.answer, data, "test", batch, progress=shown)
        rows.append(_row(device, timings.estimates[label], accuracy, exact, lose))
    rows.sort(key=lambda row: row.latency_ms)
    fastest = next((row for row in rows if row.within), None)
    return Comparison(
        runtimes=tuple(rows),
        failed=failed,
        lose=lose,
        images=images,
        clock=clock,
        fastest=fastest,
        message=f"{_message(rows, fastest, lose, images)} {timings.message}",
    )


def _clock(devices: Sequence[Device]) -> str:
    """The one clock for all of them."""
    clocks = {device.clock for device in devices}
    return clocks.pop() if len(clocks) == 1 else WALL_CLOCK


def _stopwatch(clock: str) -> Any:
    def stopwatch(subject: tuple[Device, Runnable], repetitions: int) -> float:
        device, runnable = subject
        if clock == WALL_CLOCK and device.clock == OWN_TIME:
            return wall_clock(runnable.run, repetitions)
        return device.time(runnable, repetitions)

    return stopwatch


def _prepared(device: Device, network: torch.nn.Module, given: torch.Tensor, eight: bytes | None) -> Runnable:
    if device.precision == "int8" and eight is not None and isinstance(device, OpensOnnx):
        return device.open(eight, given)
    return device.prepare(network, given)


def _row(device: Device, time: Estimate, accuracy: float | None, exact: float, lose: float) -> RuntimeResult:
    lost = None if accuracy is None else exact - accuracy
    unknown = True if device.precision == "float32" else None
    return RuntimeResult(
        device=device.name,
        precision=device.precision,
        latency_ms=time.ms,
        low_ms=time.low,
        high_ms=time.high,
        accuracy=accuracy,
        lost=lost,
        within=unknown if lost is None else lost <= lose + 1e-12,
    )


def _message(rows: Sequence[RuntimeResult], fastest: RuntimeResult | None, lose: float, images: int) -> str:
    judged = f"at most {lose:.2%} lost on {images} test images" if images else "float32 alone, as there are no images"
    if fastest is None:
        return f"No runtime is within the accuracy asked for ({judged})."
    text = f"Fastest within the accuracy asked for ({judged}): {fastest.label}, {fastest.latency_ms:.4g} ms."
    close = [row.label for row in rows if row.within and row is not fastest and row.low_ms <= fastest.high_ms]
    return text + (f" Not told apart from it: {', '.join(close)}." if close else "")
