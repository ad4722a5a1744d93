"""A network in eight bits: quantised several ways, the best kept, and only if it is faster and hardly less accurate.

Calibration images come from the training split, the choice among schemes (`snugnet.devices.quantise`) from the validation
split, and what is stated from all test images, float and int8 alike. Both graphs are timed side by side. A network that
int8 makes slower, or that loses more than allowed, stays in float, and the reason is said.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from snugnet.devices.onnx_devices import OnnxRuntime
from snugnet.devices.quantise import SCHEMES, is_quantised, quantise
from snugnet.devices.timing import TimingSettings, raised_priority, time_subjects
from snugnet.errors import BadInput
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
class Int8:
    """What quantisation came to. `path` is None where float was kept."""

    path: Path | None
    kept: Literal["int8", "float32"]
    scheme: str
    tried: dict[str, float]  # scheme -> accuracy on validation images
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
    limit: int | None = None,
    device: OnnxRuntime | None = None,
    settings: TimingSettings | None = None,
) -> Int8:
    """Quantise the ONNX file `graph` to `path`; `lose` is the share of test images that int8 may get wrong beyond float's.

    `always` writes the file whatever comes out; `limit` is the most test images to look at (all unless told).
    """
    check_path(path, ".onnx")
    model = read_graph(graph)
    card, about = card_in(model, Path(graph)), checked_metadata(model, Path(graph))
    if is_quantised(model):
        raise BadInput("a graph to quantise must be in float32", value=str(graph), remedy="Give the float file.")
    plain = read_bytes(graph)
    _check_images(plain, data)
    calibration = _calibration(data)
    tried: dict[str, float] = {}
    best, best_graph = SCHEMES[0], b""
    for scheme in SCHEMES:
        candidate = quantise(plain, calibration, scheme)
        tried[scheme.name] = _accuracy(candidate, data, "val", VALIDATION)[0]
        if not best_graph or tried[scheme.name] > tried[best.name]:
            best, best_graph = scheme, candidate
    exact, images = _accuracy(plain, data, "test", limit)
    rough, _ = _accuracy(best_graph, data, "test", limit)
    stated = StatedAccuracy(precision="int8", test=rough, float32=exact, images=images)
    float_ms, int8_ms = _times(plain, best_graph, device or OnnxRuntime(), settings or SETTINGS)
    reason = _reason(stated, int8_ms / float_ms, lose)
    kept: Literal["int8", "float32"] = "float32" if reason else "int8"
    if kept == "int8" or always:
        own = {name: text for name, text in about.items() if name in _KEPT}
        own |= {"precision": "int8", "scheme": best.name}
        write_bytes(path, describe(read_graph(best_graph), card, own))
    return Int8(
        path=Path(path) if kept == "int8" or always else None,
        kept=kept,
        scheme=best.name,
        tried=tried,
        accuracy=stated,
        float_ms=float_ms,
        int8_ms=int8_ms,
        message=_message(stated, float_ms, int8_ms, reason),
    )


def _reason(stated: StatedAccuracy, ratio: float, lose: float) -> str:
    """Why float is kept; empty if int8 is."""
    if stated.lost > lose:
        return f"it loses {stated.lost:.2%} of the test images, more than {lose:.2%}"
    return "" if ratio < 1 else "it is not faster here"


def _message(stated: StatedAccuracy, float_ms: float, int8_ms: float, reason: str) -> str:
    numbers = (
        f"int8 takes {int8_ms:.4g} ms where float32 takes {float_ms:.4g} ms ({int8_ms / float_ms:.2f} of it); "
        f"accuracy {stated.test:.2%} instead of {stated.float32:.2%} on {stated.images} test images"
    )
    return f"{numbers}; float32 is kept: {reason}" if reason else numbers


def _check_images(graph: bytes, data: Data) -> None:
    shape = open_session(graph, "the graph").get_inputs()[0].shape
    images, _ = next(iter(data.batches("train", 1, limit=1)))
    if list(images.shape[1:]) != list(shape[1:]):
        rule = f"images must be of the network's size, {shape[1:]}"
        raise BadInput(rule, value=list(images.shape[1:]), remedy="Load the data at the network's resolution.")


def _calibration(data: Data) -> Tensor:
    """Training images, evenly spread over the split."""
    positions = data.positions("train")
    count = min(CALIBRATION, len(positions))
    chosen = positions[torch.linspace(0, len(positions) - 1, count).long()]
    parts = [data.normalise(images.float() / 255) for images, _ in data.fetch(list(chosen.split(BATCH)))]
    return torch.cat(parts)


def _accuracy(graph: bytes, data: Data, split: str, limit: int | None) -> tuple[float, int]:
    """The share that is right, and of how many images."""
    session = open_session(graph, "the graph")
    right = count = 0
    batches: Iterator[tuple[Tensor, Tensor]] = data.batches(split, BATCH, limit=limit)
    for images, labels in batches:
        right += int((run_session(session, images.contiguous()).argmax(1) == labels).sum())
        count += len(labels)
    return right / count, count


def _times(plain: bytes, small: bytes, device: OnnxRuntime, settings: TimingSettings) -> tuple[float, float]:
    """Milliseconds of both, in turns."""
    shape = open_session(plain, "the graph").get_inputs()[0].shape
    given = random_images(1, tuple(shape[1:]))
    with raised_priority(device.threads):
        subjects = {"float32": device.open(plain, given), "int8": device.open(small, given)}
        timings = time_subjects(subjects, device.time, settings)
    return timings.estimates["float32"].ms, timings.estimates["int8"].ms
