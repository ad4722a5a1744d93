"""Whether a network really fits: measured, with an interval, and written down.

A certificate names every limit with its unit, what a table predicted, what was measured or counted, the slack, the device
and the software, and a hash of the weights, so that a machine can check it. A latency names its statistic (`quiet`, `median`
or `p90`, as the budget asked) and its clock; the wall clock's median and p90 stand beside it. It is measured in a few
sessions, a pause apart: a small network is timed within milliseconds, a neighbour's load lasts for seconds. Samples are
pooled and the 95 % interval covers the spread between sessions; latency fits only if its upper end does. Where that is a
little over the limit, a neighbour may be why: three more sessions, ever longer pauses apart, join the pool, none leaves it,
and it is decided once more; most sessions must then be under the limit (the upper end is at least their middle one). A
network that was trained for minutes is not given up for one busy moment, nor shipped for a lucky one. MACs, parameters,
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
from statistics import median_high
from typing import Any, Final, Protocol, runtime_checkable

import torch

from snugnet.budgets.budget import Budget
from snugnet.costs.graph import GraphCosts, graph_costs, read_graph
from snugnet.costs.measure import check_batch, versions
from snugnet.costs.table import CostTable
from snugnet.deploy.card import Certificate, CertifiedNetwork, Line, StatedAccuracy
from snugnet.deploy.export import card_in, graph_hash, random_images
from snugnet.deploy.network_file import plan_in, read_network
from snugnet.devices.agent import OWN_TIME, WALL_CLOCK, raised_priority
from snugnet.devices.device import Device, Runnable, frozen_copy
from snugnet.devices.onnx_graph import onnx_bytes
from snugnet.devices.timing import Timings, TimingSettings, pooled, time_on
from snugnet.errors import BadInput, BudgetExceeded, DeviceLost, FileTrouble, UnknownName, reason_of
from snugnet.nets.network import Network, build_plan
from snugnet.progress import NullProgress, Progress
from snugnet.space import zoo
from snugnet.space.spec import NetworkSpec
from snugnet.store import check_writable, read_json, tensors_fingerprint, write_json
from snugnet.units import Statistic, resource, show

SESSIONS: Final = 3
MOST_SESSIONS: Final = 6  # where the interval reaches over the limit
NEAR: Final = 1.1  # of the limit: what is measured above it is not worth another session
PAUSE: Final = 1.0  # seconds between sessions; twice as long before each one beyond the usual number
_PAUSE_SHARE: Final = 0.05  # of the seconds somebody allows, at most
_CLOCKS: Final = {OWN_TIME: "thread", WALL_CLOCK: "wall"}
SETTINGS: Final = TimingSettings(seconds=90.0, tolerance=0.005, least_passes=60)


def certify(
    network: torch.nn.Module | str | Path,
    budget: Budget | Mapping[str, str],
    device: Device | Mapping[str, Device] | None = None,
    *,
    batch: int = 1,
    resolution: int | None = None,
    tables: Mapping[str, CostTable] | None = None,
    plan: NetworkSpec | None = None,
    accuracy: StatedAccuracy | None = None,
    out: str | Path | None = None,
    settings: TimingSettings | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """Measure `network` against `budget`; `BudgetExceeded` if it does not fit, else the certificate.

    `device` is needed for latency; where the budget limits it on several (`latency@phone`), give one for each label.
    `settings` are for the usual sessions together; they share its seconds, and further ones take as long again at most.
    `tables` (by the budget's names) add what was predicted; a file that does not say what its network is made of (ONNX)
    needs its `plan` for that. `accuracy` is written down as it is given: that of a quantised network.
    """
    limits = budget if isinstance(budget, Budget) else Budget(budget)
    check_batch(batch)
    effective_limits = _limits_of(limits)
    places = {name: _place(name, device) for name in effective_limits if resource(name).name == "latency"}
    if out is not None:
        check_writable(out)
    subject = open_subject(network, resolution=resolution)
    lines, messages = {}, []
    for name, limit in effective_limits.items():
        table = (tables or {}).get(name)
        if table is not None:
            table = table.for_statistic(limits.statistic(name))
        predicted = _predicted(subject.plan or plan, table, places.get(name), batch)
        if name in places:
            rules = replace(settings or SETTINGS, statistic=limits.statistic(name))
            sessions = _time(subject, places[name], batch, limit, rules, progress or NullProgress())
            lines[name] = _latency_line(name, limit, predicted, places[name], sessions, rules.statistic)
            messages.append(_message(lines[name], sessions))
        else:
            value = subject.costs.of(resource(name).name)
            lines[name] = _line(name, limit, predicted, value, (value, value), exact=True)
    certificate = Certificate(
        certificate=1,
        fits=all(line.fits for line in lines.values()),
        network=subject.about,
        batch=batch,
        input_shape=(batch, *subject.costs.input_shape[1:]),
        budgets=lines,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions(),
        message=" ".join(messages),
        accuracy=accuracy,
    )
    if out is not None:
        write_json(out, certificate.to_json())
    if not certificate.fits:
        raise _exceeded(certificate)
    return certificate


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


def _time(
    subject: Subject, device: Device, batch: int, limit: float, rules: TimingSettings, progress: Progress
) -> list[Timings]:
    """Three sessions, a pause apart; three more where they come out a little over the limit."""
    pause = min(PAUSE, _PAUSE_SHARE * rules.seconds)
    each = replace(rules, seconds=rules.seconds / SESSIONS)
    sessions: list[Timings] = []
    with raised_priority(device.threads):
        runnable = {subject.about.name: subject.prepare(device, batch)}
        while (
            len(sessions) < SESSIONS
            or SESSIONS < len(sessions) < MOST_SESSIONS
            or (len(sessions) == SESSIONS and _nearly(sessions, limit, rules.statistic))
        ):
            if sessions:
                time.sleep(pause * 2 ** max(0, len(sessions) - SESSIONS + 1))
            again = replace(each, seed=rules.seed + len(sessions))
            sessions.append(time_on(device, runnable, again, progress=progress))
    return sessions


def _nearly(sessions: Sequence[Timings], limit: float, statistic: Statistic) -> bool:
    """Whether what was measured so far is over the limit by no more than a busy moment explains."""
    estimate = pooled(sessions, statistic)[0]
    return estimate.high > limit and estimate.ms <= NEAR * limit


def _message(line: Line, sessions: Sequence[Timings]) -> str:
    values = ", ".join(f"{ms:.4g}" for ms in line.sessions)
    note = f"{line.name}: {line.statistic} of {len(sessions)} sessions, which measured {values} ms; "
    return note + "the interval covers the spread between them. " + " ".join(session.message for session in sessions)


def _latency_line(
    name: str,
    limit: float,
    predicted: float | None,
    device: Device,
    sessions: Sequence[Timings],
    statistic: Statistic,
) -> Line:
    estimate = pooled(sessions, statistic)[0]
    values = tuple(session.values(statistic)[0] for session in sessions)
    high = estimate.high if len(sessions) <= SESSIONS else max(estimate.high, median_high(values))
    return _line(
        name,
        limit,
        predicted,
        estimate.ms,
        (estimate.low, high),
        exact=False,
        device=device.fingerprint(),
        while_measuring={"median": estimate.median, "p90": estimate.p90, "passes": float(estimate.samples)},
        statistic=statistic,
        clock=_CLOCKS.get(device.clock, device.clock),
        wall_median=estimate.wall_median,
        wall_p90=estimate.wall_p90,
        sessions=values,
    )


def _line(
    name: str, limit: float, predicted: float | None, measured: float, interval: tuple[float, float], **more: Any
) -> Line:
    """A limit is met if the upper end of the interval meets it."""
    return Line(
        name=name,
        unit=resource(name).unit,
        limit=limit,
        predicted=predicted,
        measured=measured,
        interval=interval,
        slack=limit - interval[1],
        fits=interval[1] <= limit,
        **more,
    )


def _exceeded(certificate: Certificate) -> BudgetExceeded:
    over = [line for line in certificate.lines if not line.fits]
    values = []
    for line in over:
        low, high = (show(end, line.name) for end in line.interval)
        between = "" if line.exact else f" (95 %: {low} to {high})"
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

    about: CertifiedNetwork
    costs: GraphCosts
    prepare: Callable[[Device, int], Runnable]  # on a device, for a batch
    plan: NetworkSpec | None = None


def open_subject(network: torch.nn.Module | str | Path, *, resolution: int | None = None) -> Subject:
    """Read `network`; a module that does not say so itself needs its input `resolution`."""
    if isinstance(network, torch.nn.Module):
        return _of_module(network, type(network).__name__, "module", resolution=resolution)
    word = str(network)
    ending = Path(word).suffix.lower()
    if ending == ".onnx":
        return _of_onnx(Path(word))
    if ending == ".safetensors" or Path(word).is_dir():
        read = read_network(word)
        return _of_module(read.network, word, "safetensors", architecture=read.card.architecture)
    if ending == ".json":
        return _of_module(build_plan(plan_in(read_json(word), word)), word, "architecture")
    if word.lower() in {name.lower() for name in zoo.networks()}:
        entry = zoo.find(word)
        return _of_module(build_plan(entry.network), entry.name, "published")
    if "/" in word or ending:
        raise BadInput("a network must be a .onnx, .safetensors or .json file", value=word, remedy="Export it first.")
    raise UnknownName("a network", word, zoo.networks())


def _of_module(
    module: torch.nn.Module, name: str, form: str, *, resolution: int | None = None, architecture: str = ""
) -> Subject:
    described = module.plan if isinstance(module, Network) else None
    channels = 3 if described is None else described.stem.in_channels
    side = resolution if described is None else resolution or described.resolution
    if side is None:
        raise BadInput("a module's input resolution must be known", value=None, remedy="Pass resolution=224.")
    shape = (channels, side, side)
    still = frozen_copy(module).cpu()  # exported and hashed there; a device places its own copy
    counted = replace(
        graph_costs(onnx_bytes(still, torch.zeros(1, *shape))),
        # The module's own parameters, BN's scales and shifts among them; the graph has those folded away.
        params=sum(p.numel() for p in module.parameters()),
        model_size=sum(p.numel() * p.element_size() for p in module.parameters()),
    )

    def prepare(device: Device, batch: int) -> Runnable:
        return device.prepare(still, random_images(batch, shape))

    marks = {"weights_sha256": tensors_fingerprint(still.state_dict()), "architecture": architecture}
    return Subject(
        about=CertifiedNetwork(name=name, form=form, **marks), costs=counted, prepare=prepare, plan=described
    )


def _of_onnx(path: Path) -> Subject:
    if not path.is_file():
        raise FileTrouble(f"{path} could not be read (no such file)", remedy="Check the path.")
    costs, graph = graph_costs(path), read_graph(path)

    def prepare(device: Device, batch: int) -> Runnable:
        if not isinstance(device, OpensOnnx):
            rule = "an ONNX file must be run by a runtime for ONNX"
            raise BadInput(rule, value=device.name, remedy="Use --device onnxruntime.")
        try:
            runnable = device.open(str(path), random_images(batch, costs.input_shape[1:]))
            runnable.run()
        except DeviceLost:
            raise
        except Exception as error:
            remedy = "Export it again with a dynamic batch, or ask for the batch it was made for."
            rule = f"{path} must run on {device.name} with batch {batch}"
            raise BadInput(rule, value=reason_of(error), remedy=remedy) from error
        return runnable

    marks = {"weights_sha256": graph_hash(graph), "architecture": card_in(graph, path).architecture}
    # The graph's hash leaves out the file's metadata, which may name this certificate later.
    return Subject(about=CertifiedNetwork(name=str(path), form="onnx", **marks), costs=costs, prepare=prepare)
