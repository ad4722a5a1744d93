"""A network in eight bits: quantised several ways, the best kept, and only if it is faster and hardly less accurate.

Calibration images come from the training split. All schemes (`snugnet.devices.quantise`) are timed side by side with the
float graph and judged by validation images; the fastest is taken among those that lose at most half of what is allowed,
which leaves the other half to chance, and the most accurate one where none does (of those that keep a limit, where one is
told). Where the network was trained on validation images too, their loss is a little too kind. What is stated comes from
all test images, float and int8 alike. A network that int8 makes slower, or that loses more than allowed, stays in float,
and the reason is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, final

import torch
from torch import Tensor

from snugnet.costs.graph import read_graph
from snugnet.data.dataset import Data
from snugnet.deploy.card import StatedAccuracy
from snugnet.deploy.export import (
    card_in,
    check_path,
    checked_metadata,
    describe,
    open_session,
    random_images,
    run_session,
)
from snugnet.devices.agent import raised_priority
from snugnet.devices.onnx_devices import OnnxRuntime
from snugnet.devices.quantise import SCHEMES, Scheme, is_quantised, quantise
from snugnet.devices.timing import TimingSettings, time_on
from snugnet.errors import BadInput
from snugnet.progress import NullProgress, Progress
from snugnet.store import read_bytes, write_bytes

LOSE: Final = 0.005
CALIBRATION: Final = 256
VALIDATION: Final = 2000
BATCH: Final = 64
SETTINGS: Final = TimingSettings(seconds=30.0)
# of the float file's metadata
_KEPT: Final = ("classes", "channels", "resolution", "weights_sha256", "versions")


@final
@dataclass(frozen=True, kw_only=True)
class Choice:
    """The best scheme for a network: its graph, and what was tried."""

    scheme: Scheme
    graph: bytes
    tried: dict[str, float]  # scheme -> accuracy on validation images
    ms: dict[str, float]  # scheme, or "float32" -> milliseconds

    @property
    def float_ms(self) -> float:
        return self.ms["float32"]

    @property
    def int8_ms(self) -> float:
        return self.ms[self.scheme.name]


@final
@dataclass(frozen=True, kw_only=True)
class Int8:
    """What quantisation came to. `path` is None where float was kept."""

    path: Path | None
    kept: Literal["int8", "float32"]
    scheme: str
    tried: dict[str, float]  # scheme -> accuracy on validation images
    tried_ms: dict[str, float]  # scheme, or "float32" -> milliseconds
    accuracy: StatedAccuracy  # on test images
    float_ms: float
    int8_ms: float
    message: str

    @property
    def ratio(self) -> float:
        """Latency of int8 as a share of float's."""
        return self.int8_ms / self.float_ms

    def to_json(self) -> dict[str, Any]:
        return {
            "path": None if self.path is None else str(self.path),
            "kept": self.kept,
            "scheme": self.scheme,
            "tried": self.tried,
            "tried_ms": self.tried_ms,
            "accuracy": self.accuracy.model_dump(mode="json"),
            "float_ms": self.float_ms,
            "int8_ms": self.int8_ms,
            "ratio": self.ratio,
            "message": self.message,
        }


def export_int8(
    graph: str | Path,
    path: str | Path,
    data: Data,
    *,
    lose: float = LOSE,
    always: bool = False,
    within: float | None = None,
    limit: int | None = None,
    device: OnnxRuntime | None = None,
    settings: TimingSettings | None = None,
    progress: Progress | None = None,
) -> Int8:
    """Quantise the ONNX file `graph` to `path`; `lose` is the share of test images that int8 may get wrong beyond float's.

    `always` writes the file whatever comes out; `within` are the milliseconds it may take, where schemes are to be chosen by
    that; `limit` is the most test images to look at (all unless told).
    """
    check_path(path, ".onnx")
    model = read_graph(graph)
    card, about = card_in(model, Path(graph)), checked_metadata(model, Path(graph))
    if is_quantised(model):
        raise BadInput("a graph to quantise must be in float32", value=str(graph), remedy="Give the float file.")
    plain = read_bytes(graph)
    best = choose_scheme(plain, data, lose=lose, within=within, device=device, settings=settings, progress=progress)
    exact, images = _accuracy(plain, data, "test", limit, progress)
    rough, _ = _accuracy(best.graph, data, "test", limit, progress)
    stated = StatedAccuracy(precision="int8", test=rough, float32=exact, images=images)
    reason = _reason(stated, best.int8_ms / best.float_ms, lose)
    kept: Literal["int8", "float32"] = "float32" if reason else "int8"
    if kept == "int8" or always:
        own = {name: text for name, text in about.items() if name in _KEPT}
        own |= {"precision": "int8", "scheme": best.scheme.name}
        write_bytes(path, describe(read_graph(best.graph), card, own))
    return Int8(
        path=Path(path) if kept == "int8" or always else None,
        kept=kept,
        scheme=best.scheme.name,
        tried=best.tried,
        tried_ms=best.ms,
        accuracy=stated,
        float_ms=best.float_ms,
        int8_ms=best.int8_ms,
        message=_message(
            stated, best.float_ms, best.int8_ms, reason, "written all the same" if always else "float32 is kept"
        ),
    )


def choose_scheme(
    plain: bytes,
    data: Data,
    *,
    lose: float = LOSE,
    within: float | None = None,
    device: OnnxRuntime | None = None,
    settings: TimingSettings | None = None,
    progress: Progress | None = None,
) -> Choice:
    """Try every scheme on the float graph `plain`; `lose` and `within` as in `export_int8`."""
    _check_images(plain, data)
    calibration, shown = calibration_images(data), progress or NullProgress()
    graphs: dict[str, bytes] = {}
    shown.start("quantising", len(SCHEMES))
    for number, scheme in enumerate(SCHEMES):
        graphs[scheme.name] = quantise(plain, calibration, scheme)
        shown.update(number + 1, scheme.name)
    shown.stop()
    exact = _accuracy(plain, data, "val", VALIDATION, progress)[0]
    tried = {name: _accuracy(graph, data, "val", VALIDATION, progress)[0] for name, graph in graphs.items()}
    ms = _times({"float32": plain, **graphs}, device or OnnxRuntime(), settings or SETTINGS, shown)
    best = _best_scheme(exact, tried, ms, lose, within)
    return Choice(scheme=best, graph=graphs[best.name], tried=tried, ms=ms)


def _best_scheme(
    exact: float, tried: Mapping[str, float], ms: Mapping[str, float], lose: float, within: float | None
) -> Scheme:
    """The fastest that loses little, whatever the limit: a larger network ruined by quantising is no bargain. Else the most
    accurate: of those within the limit, or of all where none is."""
    fine = [scheme for scheme in SCHEMES if exact - tried[scheme.name] <= lose / 2]
    if fine:
        return min(fine, key=lambda s: ms[s.name])
    some = [scheme for scheme in SCHEMES if within is not None and ms[scheme.name] <= within]
    return max(some or SCHEMES, key=lambda s: tried[s.name])


def _reason(stated: StatedAccuracy, ratio: float, lose: float) -> str:
    """Why float is kept; empty if int8 is."""
    if stated.lost > lose:
        return f"it loses {stated.lost:.2%} of the test images, more than {lose:.2%}"
    return "" if ratio < 1 else "it is not faster here"


def _message(stated: StatedAccuracy, float_ms: float, int8_ms: float, reason: str, outcome: str) -> str:
    numbers = (
        f"int8 takes {int8_ms:.4g} ms where float32 takes {float_ms:.4g} ms ({int8_ms / float_ms:.2f} of it); "
        f"accuracy {stated.test:.2%} instead of {stated.float32:.2%} on {stated.images} test images"
    )
    return f"{numbers}; {outcome}: {reason}" if reason else numbers


def _check_images(graph: bytes, data: Data) -> None:
    shape = open_session(graph, "the graph").get_inputs()[0].shape
    images, _ = next(iter(data.batches("train", 1, limit=1)))
    if list(images.shape[1:]) != list(shape[1:]):
        rule = f"images must be of the network's size, {shape[1:]}"
        raise BadInput(rule, value=list(images.shape[1:]), remedy="Load the data at the network's resolution.")


def calibration_images(data: Data) -> Tensor:
    """Training images, evenly spread over the split."""
    positions = data.positions("train")
    count = min(CALIBRATION, len(positions))
    chosen = positions[torch.linspace(0, len(positions) - 1, count).long()]
    parts = [data.normalise(images.float() / 255) for images, _ in data.fetch(list(chosen.split(BATCH)))]
    return torch.cat(parts)


def _accuracy(
    graph: bytes, data: Data, split: str, limit: int | None, progress: Progress | None = None
) -> tuple[float, int]:
    """The share that is right, and of how many images."""
    session = open_session(graph, "the graph")
    fixed = session.get_inputs()[0].shape[0]
    batch = fixed if isinstance(fixed, int) else BATCH
    return share_right(lambda images: run_session(session, images), data, split, batch, limit=limit, progress=progress)


def share_right(
    answer: Callable[[Tensor], Tensor],
    data: Data,
    split: str,
    batch: int,
    *,
    limit: int | None = None,
    progress: Progress | None = None,
) -> tuple[float, int]:
    """The share of images whose class `answer` names, and of how many; it is always asked about exactly `batch`."""
    shown, total = progress or NullProgress(), min(data.size(split), limit or data.size(split))
    right = count = 0
    shown.start(f"{split} images", total)
    for images, labels in data.batches(split, batch, limit=limit):
        filled = torch.cat([images, images[:1].expand(batch - len(images), -1, -1, -1)]).contiguous()
        right += int((answer(filled)[: len(labels)].argmax(1) == labels).sum())
        count += len(labels)
        shown.update(count)
    shown.stop()
    return right / count, count


def _times(
    graphs: Mapping[str, bytes], device: OnnxRuntime, settings: TimingSettings, progress: Progress
) -> dict[str, float]:
    """Milliseconds of all, in turns, for one image or the batch that the graphs are for."""
    shape = open_session(next(iter(graphs.values())), "the graph").get_inputs()[0].shape
    given = random_images(shape[0] if isinstance(shape[0], int) else 1, tuple(shape[1:]))
    with raised_priority(device.threads):
        subjects = {name: device.open(graph, given) for name, graph in graphs.items()}
        timings = time_on(device, subjects, settings, progress=progress)
    return {name: estimate.ms for name, estimate in timings.estimates.items()}
