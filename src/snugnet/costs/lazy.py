"""A table that measures a part when somebody asks for it.

A space with several widths and resolutions has parts by the hundred (AttentiveNAS's: 896), of which a search within tight
limits meets a few. `measure_lazily` times sixteen whole networks and the parts they consist of, calibrates, and hands back a
table whose other parts are measured, together, the first time a set of networks needs them. A few parts that are known
already are timed along with them: their ratio takes out that the machine is faster or slower than it was.

With `out` the first table is a file, and later parts go to a journal beside it, so that nothing is measured twice;
`table.open_table` goes on with it, in the run or on the command line. What `save_table` writes of such a table holds all
parts known so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np

from snugnet.costs.calibrate import Calibration
from snugnet.costs.measure import CALIBRATION_NETWORKS, measure, prepare, spread_networks
from snugnet.costs.table import CostTable, load_table
from snugnet.devices import DEVICES, by_name
from snugnet.devices.agent import raised_priority
from snugnet.devices.device import Device
from snugnet.devices.timing import TimingSettings, time_on
from snugnet.errors import TableMismatch
from snugnet.progress import NullProgress, Progress
from snugnet.space.layout import Layout
from snugnet.space.reading import space_from_json
from snugnet.space.space import SearchSpace
from snugnet.space.spec import LayerSpec, plan
from snugnet.store import Journal, fingerprint

_REFERENCES = 4  # known parts that are timed along with new ones
_SECONDS_A_PART = 0.5  # at most; otherwise as long as a part of the first table took


@final
class OnDemand(dict[LayerSpec, float]):
    """Costs by part; `expect` measures those that are not known yet, all of them together."""

    def __init__(
        self,
        known: dict[LayerSpec, float],
        of_space: Iterable[LayerSpec],
        measure: Callable[..., dict[LayerSpec, float]],
    ) -> None:
        super().__init__(known)
        self._of_space, self._measure = frozenset(of_space), measure

    def expect(self, parts: Iterable[LayerSpec]) -> None:
        """Have the costs of these parts ready."""
        missing = [part for part in dict.fromkeys(parts) if part not in self and part in self._of_space]
        if missing:
            self.update(self._measure(missing))

    def times(self, factor: float) -> OnDemand:
        """The same with every cost times `factor`, those to come included."""

        def measure(parts: list[LayerSpec]) -> dict[LayerSpec, float]:
            self.expect(parts)
            return {part: factor * self[part] for part in parts}

        return OnDemand({part: factor * cost for part, cost in self.items()}, self._of_space, measure)

    def get(self, part: LayerSpec, default: Any = None) -> Any:
        self.expect([part])
        return super().get(part, default)


def measure_lazily(
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
    """A latency table of `space` on `device` that is measured as far as it is used. `settings` are of the first part."""
    rules, shown = settings or TimingSettings(), progress or NullProgress()
    chosen = spread_networks(space, networks, np.random.default_rng([rules.seed, 16]))
    first_parts = list(dict.fromkeys(part for network in chosen for part in plan(network, space).parts))
    if out is not None and Path(out).exists():
        first = load_table(out)
        first.require(space=space, device=device.fingerprint(), batch=batch)
    else:
        options: dict[str, Any] = {"settings": rules, "networks": networks, "source": source, "progress": shown}
        first = measure(space, device, batch=batch, parts=first_parts, out=out, **options)
    return _on_demand(first, space, device, rules, shown, out)


def resumed(first: CostTable, path: str | Path, progress: Progress) -> CostTable:
    """A table that `measure_lazily` began, going on where it ended: on its own device alone."""
    origin = first.origin["device"]
    differs = f"{origin['device']} is not on this machine"
    if origin["device"] in DEVICES and not DEVICES[origin["device"]].missing():
        device = by_name(origin["device"], threads=int(origin["threads"]), precision=origin["precision"])
        differs = first.differences(device=device.fingerprint())
    if differs:
        raise TableMismatch(
            f"{path} is measured on demand, so it must be used where its device is",
            value=differs,
            remedy="Measure all of it there (`snugnet measure` without --lazy), and use that table.",
        )
    space = space_from_json(first.origin["definition"], str(path))
    return _on_demand(first, space, device, TimingSettings(), progress, path)


def known_table(path: str | Path) -> CostTable:
    """The table in a file with all that was measured on demand since; nothing more is measured."""
    first = load_table(path)
    if not first.origin.get("on_demand") or not Path(f"{path}.later").exists():
        return first
    rows, batch = _journal(first, path).rows, int(first.origin["batch"])
    parts = Layout(space_from_json(first.origin["definition"], str(path))).distinct_specs()
    return replace(first, costs={**first.costs, **_known(rows, parts, _calibration(first), batch)})


def _on_demand(
    first: CostTable,
    space: SearchSpace,
    device: Device,
    rules: TimingSettings,
    progress: Progress,
    out: str | Path | None,
) -> CostTable:
    later = _Later(first, device, first.origin["batch"], rules, progress, out)
    parts = Layout(space).distinct_specs()
    known = {**first.costs, **later.known(parts)}
    return replace(first, costs=OnDemand(known, parts, later.measured), by_statistic={})


@final
class _Later:
    """Measures parts after the first table was made, and remembers them."""

    def __init__(
        self,
        first: CostTable,
        device: Device,
        batch: int,
        rules: TimingSettings,
        progress: Progress,
        path: str | Path | None,
    ) -> None:
        self._first, self._device, self._batch, self._rules, self._progress = first, device, batch, rules, progress
        self._fit = _calibration(first)
        self._journal = None if path is None else _journal(first, path)

    def known(self, parts: Sequence[LayerSpec]) -> dict[LayerSpec, float]:
        return {} if self._journal is None else _known(self._journal.rows, parts, self._fit, self._batch)

    def measured(self, parts: list[LayerSpec]) -> dict[LayerSpec, float]:
        """The parts' costs inside a network, in the units of the first table's passes."""
        known = sorted(self._first.isolated_ms, key=lambda part: self._first.isolated_ms[part][0])
        references = [known[round(i * (len(known) - 1) / (_REFERENCES - 1))] for i in range(_REFERENCES)]
        references = [part for part in dict.fromkeys(references) if part not in parts]
        begun = self._first.origin["seconds"] / (len(self._first.isolated_ms) + len(self._first.origin["networks"]))
        seconds = (_REFERENCES + len(parts)) * min(_SECONDS_A_PART, max(begun, 0.01))
        rules = replace(self._rules, statistic="quiet", seconds=min(self._rules.seconds, seconds))
        with raised_priority(self._device.threads):
            subjects = prepare(self._device, [*references, *parts], self._batch, self._progress)
            timings = time_on(self._device, subjects, rules, progress=self._progress)
        times = dict(zip([*references, *parts], timings.values("quiet")))
        ratio = float(np.median([self._first.isolated_ms[part][0] / times[part] for part in references]))
        found = {part: times[part] * ratio for part in parts}
        for part, ms in found.items():
            if self._journal is not None:
                self._journal.append({"label": part.label, "ms": ms})
        return {part: self._fit.cost(part, ms, self._batch) for part, ms in found.items()}


def _journal(first: CostTable, path: str | Path) -> Journal:
    """Times of parts that were measured after the table at `path`."""
    return Journal(Path(f"{path}.later"), fingerprint(first.origin), ("label", "ms"))


def _known(
    rows: Iterable[Mapping[str, Any]], parts: Sequence[LayerSpec], fit: Calibration, batch: int
) -> dict[LayerSpec, float]:
    times = {row["label"]: float(row["ms"]) for row in rows}
    return {part: fit.cost(part, times[part.label], batch) for part in parts if part.label in times}


def _calibration(first: CostTable) -> Calibration:
    fields: dict[str, Any] = first.origin["calibration"]
    numbers = {name: fields[name] for name in ("ratio", "overhead_ms", "edge_ms", "margin")}
    return Calibration(**numbers, residuals=(), margins=())
