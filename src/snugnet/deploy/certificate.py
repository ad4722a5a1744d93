"""Whether a network really fits: measured, with an interval, and written down.

A certificate names every limit with its unit, what a table predicted, what was measured or counted, the slack, the device
and the software, and a hash of the weights, so that a machine can check it. A latency names its statistic (`quiet`, `median`
or `p90`, as the budget asked) and its clock; the wall clock's median and p90 stand beside it. It is measured in a few
sessions, a pause apart: a small network is timed within milliseconds, a neighbour's load lasts for seconds. Samples are
pooled and the 95 % interval covers the spread between sessions; latency fits only if its upper end does. MACs, parameters,
model size and memory are counted from the network itself. The file is written in both cases; a network that does not fit
raises `BudgetExceeded` (exit code 1).

What is certified may be a torch module, an ONNX file, a `.safetensors` file (or a run folder with one), an architecture's
JSON file or a published network by name. Each becomes a `Subject`: something a device can run, its exact costs counted from
itself, and a hash of its weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol, runtime_checkable

import torch
from pydantic import BaseModel, ConfigDict, Field

from snugnet.budgets.budget import Budget
from snugnet.costs.graph import GraphCosts, graph_costs, read_graph
from snugnet.costs.measure import check_batch, versions
from snugnet.costs.table import CostTable
from snugnet.deploy.network_file import plan_in, read_network
from snugnet.deploy.onnx_file import card_in, graph_hash
from snugnet.devices.device import OWN_TIME, WALL_CLOCK, Device, Runnable, frozen_copy
from snugnet.devices.onnx_graph import onnx_bytes
from snugnet.devices.timing import Timings, TimingSettings, pooled, raised_priority, time_subjects
from snugnet.errors import BadInput, BudgetExceeded, FileTrouble, UnknownName
from snugnet.nets.network import Network, build_plan
from snugnet.progress import NullProgress, Progress
from snugnet.space import zoo
from snugnet.space.spec import NetworkSpec
from snugnet.store import as_model, check_writable, read_json, read_sealed, sealed, tensors_fingerprint, write_json
from snugnet.units import Statistic, resource, show

SESSIONS: Final = 3
PAUSE: Final = 1.0  # seconds between sessions
_PAUSE_SHARE: Final = 0.05  # of the seconds somebody allows, at most
_CLOCKS: Final = {OWN_TIME: "thread", WALL_CLOCK: "wall"}
SETTINGS: Final = TimingSettings(seconds=90.0, tolerance=0.005, least_passes=60)


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
    statistic: Statistic | None = None  # of latency, like all below
    clock: str | None = None  # "thread", "wall", or the device's own word
    wall_median: float | None = None
    wall_p90: float | None = None
    sessions: tuple[float, ...] = ()  # the statistic in each session

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
                    **_measuring(line),
                }
                for line in self.lines
            },
            "date": self.date,
            "versions": self.versions,
            "message": self.message,
        }
        return sealed(body)


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
    `settings` are for all sessions together; they share its seconds.
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
        table = (tables or {}).get(name)
        if table is not None:
            table = table.for_statistic(limits.statistic(name))
        predicted = _predicted(subject.plan or plan, table, places.get(name), batch)
        if name in places:
            rules = replace(settings or SETTINGS, statistic=limits.statistic(name))
            sessions = _time(subject, places[name], batch, rules, progress or NullProgress())
            lines.append(_latency_line(name, limit, predicted, places[name], sessions, rules.statistic))
            messages.append(_message(lines[-1], sessions))
        else:
            lines.append(_exact_line(name, limit, predicted, subject))
    certificate = Certificate(
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
        write_json(out, certificate.to_json())
    if not certificate.fits:
        raise _exceeded(certificate)
    return certificate


class _LineFields(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    unit: str
    limit: float
    predicted: float | None
    measured: float
    interval: Annotated[list[float], Field(min_length=2, max_length=2)]
    slack: float
    fits: bool
    exact: bool
    device: dict[str, str] = {}
    while_measuring: dict[str, float] = {}
    statistic: Statistic | None = None
    clock: str | None = None
    wall_median: float | None = None
    wall_p90: float | None = None
    sessions: list[float] = []


class _NetworkFields(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    name: str
    form: str
    weights_sha256: str
    architecture: str = ""


class _Fields(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    certificate: Literal[1]
    fits: bool
    network: _NetworkFields
    batch: int
    input_shape: list[int]
    budgets: dict[str, _LineFields]
    date: str
    versions: dict[str, str]
    message: str


def read_certificate(path: str | Path) -> dict[str, Any]:
    """The certificate in `path` as JSON, its seal included, if nobody changed it."""
    body = read_sealed(path, "a certificate")
    as_model(body, _Fields, str(path))
    return sealed(body)


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
    place = (device or {}).get(label)
    if place is None:
        raise BadInput(f"{name} must have a device to be measured on", value=label or "none", remedy="Name one.")
    return place


def _predicted(plan: NetworkSpec | None, table: CostTable | None, device: Device | None, batch: int) -> float | None:
    if table is None or plan is None:
        return None
    table.require(
        device=device.fingerprint() if device is not None else None,
        batch=batch if device is not None else None,
        resolution=plan.resolution,
    )
    return table.of_network(plan)


def _time(subject: Subject, device: Device, batch: int, rules: TimingSettings, progress: Progress) -> list[Timings]:
    """A few sessions, a pause apart."""
    pause = min(PAUSE, _PAUSE_SHARE * rules.seconds)
    each = replace(rules, seconds=rules.seconds / SESSIONS)
    sessions = []
    with raised_priority(device.threads):
        runnable = {subject.name: subject.prepare(device, batch)}
        for number in range(SESSIONS):
            if number:
                time.sleep(pause)
            sessions.append(
                time_subjects(runnable, device.time, replace(each, seed=rules.seed + number), progress=progress)
            )
    return sessions


def _message(line: Line, sessions: Sequence[Timings]) -> str:
    values = ", ".join(f"{ms:.4g}" for ms in line.sessions)
    note = f"{line.name}: {line.statistic} of {len(sessions)} sessions, which measured {values} ms; "
    return note + "the interval covers the spread between them. " + " ".join(session.message for session in sessions)


def _measuring(line: Line) -> dict[str, Any]:
    """What only a measured line says."""
    if line.exact:
        return {}
    clocks = {"clock": line.clock, "wall_median": line.wall_median, "wall_p90": line.wall_p90}
    return {
        "device": line.device,
        "while_measuring": line.usual,
        "statistic": line.statistic or "quiet",
        **{name: value for name, value in clocks.items() if value is not None},
        "sessions": list(line.sessions),
    }


def _latency_line(
    name: str,
    limit: float,
    predicted: float | None,
    device: Device,
    sessions: Sequence[Timings],
    statistic: Statistic,
) -> Line:
    estimate = pooled(sessions, statistic)[0]
    return Line(
        name=name,
        unit=resource(name).unit,
        limit=limit,
        predicted=predicted,
        measured=estimate.ms,
        low=estimate.low,
        high=estimate.high,
        exact=False,
        device=device.fingerprint(),
        usual={"median": estimate.median, "p90": estimate.p90, "passes": float(estimate.samples)},
        statistic=statistic,
        clock=_CLOCKS.get(device.clock, device.clock),
        wall_median=estimate.wall_median,
        wall_p90=estimate.wall_p90,
        sessions=tuple(session.values(statistic)[0] for session in sessions),
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


def _exceeded(certificate: Certificate) -> BudgetExceeded:
    over = [line for line in certificate.lines if not line.fits]
    values = []
    for line in over:
        between = "" if line.exact else f" (95 %: {show(line.low, line.name)} to {show(line.high, line.name)})"
        named = f"{line.name} ({line.statistic})" if line.statistic not in (None, "quiet") else line.name
        values.append(f"{named} {show(line.measured, line.name)}{between}")
    rule = " and ".join(f"{line.name} must be at most {show(line.limit, line.name)}" for line in over)
    return BudgetExceeded(rule, value=", ".join(values), remedy="Raise the limit, or search with a wider margin.")


@runtime_checkable
class OpensOnnx(Protocol):
    """A device that runs ONNX files as they are."""

    def open(self, graph: bytes | str, given: torch.Tensor) -> Runnable: ...


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A network to certify."""

    name: str
    form: str  # module, onnx, safetensors, architecture, published
    weights_sha256: str
    costs: GraphCosts
    prepare: Callable[[Device, int], Runnable]  # on a device, for a batch
    plan: NetworkSpec | None = None
    architecture: str = ""  # as the file's card tells it


def open_subject(network: torch.nn.Module | str | Path, *, resolution: int | None = None, channels: int = 3) -> Subject:
    """Read `network`; a module that does not say so itself needs its input `resolution`."""
    if isinstance(network, torch.nn.Module):
        return _of_module(network, type(network).__name__, "module", resolution, channels)
    word = str(network)
    if word.lower().endswith(".onnx"):
        return _of_onnx(Path(word))
    if word.lower().endswith(".safetensors") or Path(word).is_dir():
        read = read_network(word)
        subject = _of_module(read.network, word, "safetensors", None, channels)
        return replace(subject, architecture=read.card.architecture)
    if word.lower().endswith(".json"):
        network = build_plan(plan_in(read_json(word), word))
        return _of_module(network, word, "architecture", None, channels)
    if word.lower() in {name.lower() for name in zoo.networks()}:
        entry = zoo.find(word)
        return _of_module(build_plan(entry.network), entry.name, "published", None, channels)
    if "/" in word or "." in Path(word).suffix:
        raise BadInput("a network must be a .onnx, .safetensors or .json file", value=word, remedy="Export it first.")
    raise UnknownName("a network", word, zoo.networks())


def _of_module(module: torch.nn.Module, name: str, form: str, resolution: int | None, channels: int) -> Subject:
    described = module.plan if isinstance(module, Network) else None
    if described is not None:
        channels, resolution = described.stem.in_channels, resolution or described.resolution
    if resolution is None:
        raise BadInput("a module's input resolution must be known", value=None, remedy="Pass resolution=224.")
    shape = (channels, resolution, resolution)
    still = frozen_copy(module).cpu()  # exported and hashed there; a device places its own copy
    graph = graph_costs(onnx_bytes(still, torch.zeros(1, *shape)))
    numbers = sum(p.numel() for p in module.parameters())
    stored = sum(p.numel() * p.element_size() for p in module.parameters())
    # The module's own parameters, BN's scales and shifts among them; the graph has those folded away.
    counted = GraphCosts(
        macs=graph.macs, params=numbers, model_size=stored, memory=graph.memory, input_shape=graph.input_shape
    )

    def prepare(device: Device, batch: int) -> Runnable:
        return device.prepare(still, _images(batch, shape))

    return Subject(
        name=name,
        form=form,
        weights_sha256=tensors_fingerprint(still.state_dict()),
        costs=counted,
        prepare=prepare,
        plan=described,
    )


def _of_onnx(path: Path) -> Subject:
    if not path.is_file():
        raise FileTrouble(f"{path} could not be read (no such file)", remedy="Check the path.")
    costs, graph = graph_costs(path), read_graph(path)

    def prepare(device: Device, batch: int) -> Runnable:
        if not isinstance(device, OpensOnnx):
            raise BadInput(
                "an ONNX file must be run by a runtime for ONNX", value=device.name, remedy="Use --device onnxruntime."
            )
        try:
            runnable = device.open(str(path), _images(batch, costs.input_shape[1:]))
            runnable.run()
        except Exception as error:
            raise BadInput(
                f"{path} must run on {device.name} with batch {batch}",
                value=" ".join(str(error).split())[:120],
                remedy="Export it again with a dynamic batch, or ask for the batch it was made for.",
            ) from error
        return runnable

    return Subject(
        name=str(path),
        form="onnx",
        weights_sha256=graph_hash(graph),  # a file's metadata may name this certificate later
        costs=costs,
        prepare=prepare,
        architecture=card_in(graph, path).architecture,
    )


def _images(batch: int, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(0))
