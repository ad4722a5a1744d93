"""Several devices, a table each: boards side by side, the devices of this machine one at a time.

    sn.measure_many(space, {"pi4": pi4, "phone": phone, "here": here}, executor=executor, out="tables")

A device is a resource of one. A board behind a command is timed where it is (`Device.place`): this machine makes its graphs,
then waits. So boards of different places go side by side, by any executor, and two devices of one place (a board with one
thread and with four) take turns. Making graphs takes this machine's processor; hence its own devices come when all boards
have ended, one after the other, in the process that was started, whoever the executor is: nothing runs beside them. Whatever
fails stops no other device.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, TypeVar

from snugnet.costs.measure import CALIBRATION_NETWORKS, check_batch, measure
from snugnet.costs.table import CostTable, load_table
from snugnet.devices.device import HERE, Device
from snugnet.devices.timing import TimingSettings
from snugnet.errors import BadInput, DevicesFailed
from snugnet.progress import NullProgress, Progress
from snugnet.space.space import SearchSpace

T = TypeVar("T")


def measure_many(
    space: SearchSpace,
    devices: Mapping[str, Device],
    *,
    executor: Executor | None = None,
    batch: int = 1,
    settings: TimingSettings | None = None,
    networks: int = CALIBRATION_NETWORKS,
    out: str | Path | None = None,
    source: str | None = None,
    progress: Progress | None = None,
) -> dict[str, CostTable]:
    """Measure `space` on every one of `devices`, by label; other arguments as of `measure`.

    `executor`: who measures boards side by side; its workers must reach them, and see `out`. With `out`, a folder, every
    table is written there as LABEL.json: the same call goes on after a kill or a failure, and keeps the tables that are
    there for this space, device and batch. `DevicesFailed` says which devices failed, and holds the tables of the others.
    """
    _check(devices)
    check_batch(batch)
    shown = progress or NullProgress()
    options = {"batch": batch, "settings": settings, "networks": networks, "source": source}

    def work(label: str, by: Executor | None) -> CostTable:
        file = None if out is None else Path(out) / f"{label}.json"
        return measure_by(by, _measure_once, space, devices[label], progress=shown, out=file, **options)

    tables, failures = place_by_place(devices, work, executor, shown)
    if failures:
        raise DevicesFailed(failures, tables) from next(iter(failures.values()))
    return tables


def place_by_place(
    devices: Mapping[str, Device],
    work: Callable[[str, Executor | None], T],
    executor: Executor | None,
    progress: Progress,
) -> tuple[dict[str, T], dict[str, Exception]]:
    """What `work(label, by)` gives for every device, and what failed. `by` is the executor for boards that are measured side
    by side, and None where `work` has to measure right here."""
    done: dict[str, T] = {}
    failures: dict[str, Exception] = {}
    showing = threading.Lock()

    def visit(labels: Iterable[str], by: Executor | None) -> None:
        for label in labels:
            try:
                done[label] = work(label, by)
            except Exception as error:
                failures[label] = error
            if by is not None:
                with showing:  # bars know nothing of threads
                    progress.update(len(done) + len(failures), f"{label}: {'failed' if label in failures else 'done'}")

    places: dict[str, list[str]] = {}
    for label, device in devices.items():
        places.setdefault(device.place, []).append(label)
    here = places.pop(HERE, [])
    if executor is None or len(places) < 2:  # nothing to split
        visit(devices, None)
    else:
        progress.start(f"measuring {len(devices) - len(here)} boards", len(devices) - len(here))
        # Not a pool: its end would wait for tasks that an interrupted call has no use for.
        threads = [threading.Thread(target=visit, args=(labels, executor), daemon=True) for labels in places.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        progress.stop()
        visit(here, None)
    return _in_order(devices, done), _in_order(devices, failures)


def measure_by(
    executor: Executor | None, how: Callable[..., CostTable], *arguments: Any, progress: Progress, **options: Any
) -> CostTable:
    """`how(...)` here, with its progress; or by the executor without: bars side by side run into each other."""
    if executor is None:
        return how(*arguments, progress=progress, **options)
    return executor.submit(how, *arguments, progress=NullProgress(), **options).result()


def _measure_once(
    space: SearchSpace, device: Device, *, batch: int, out: Path | None, progress: Progress, **options: Any
) -> CostTable:
    """The table in its file, if it is all of this one; else measured."""
    if out is not None and out.exists():
        table = load_table(out)
        differs = table.differences(space=space, device=device.fingerprint(), batch=batch)
        if not differs and not table.origin.get("on_demand"):
            return table
    return measure(space, device, batch=batch, out=out, progress=progress, **options)


def _check(devices: Mapping[str, Device]) -> None:
    if not devices:
        raise BadInput("there must be a device to measure", value="none", remedy="Write {'phone': device}.")
    for label in devices:
        if not re.fullmatch(r"[\w.-]+", label):
            rule = "the label of a device must be letters, digits, '.', '_' or '-'"
            raise BadInput(rule, value=label, remedy="It names a file and a limit (latency@phone): call it phone.")


def _in_order(devices: Mapping[str, Device], values: Mapping[str, T]) -> dict[str, T]:
    return {label: values[label] for label in devices if label in values}
