"""What a run tells: train.jsonl (a line now and then), the trackers beside it, and the progress bar.

The log belongs to the state: a checkpoint stores its length and the sums since its last line, and a resumed run cuts
the file back to that length, so that no step is told twice.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from snugnet.errors import FileTrouble
from snugnet.progress import Progress
from snugnet.training.trackers import Trackers


@final
class TrainLog:
    """Means of the metrics since the last line, and the places they are told at."""

    def __init__(self, out: Path | None, progress: Progress) -> None:
        self._path = None if out is None else out / "train.jsonl"
        self._progress = progress
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}  # some metrics are not told in every step
        self._images = 0
        self._clock = time.perf_counter()
        self._trackers: Trackers | None = None
        self.accuracies: dict[str, float] = {}
        self.loss = float("nan")
        self._last = ""

    def start(self, title: str, steps: int, trackers: Trackers | None) -> None:
        if trackers is not None:
            trackers.open()
            self._trackers = trackers
        self._progress.start(title, steps)
        self._restart_clock()

    def add(self, metrics: Mapping[str, float], images: int) -> None:
        for name, value in metrics.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._counts[name] = self._counts.get(name, 0) + 1
        self._images += images

    def line(self, place: Mapping[str, Any]) -> None:
        """Write a line with the means since the last one."""
        means = {name: value / self._counts[name] for name, value in self._sums.items()}
        speed = self._images / max(1e-9, time.perf_counter() - self._clock)
        self._write({**place, **{k: round(v, 6) for k, v in means.items()}, "images_per_second": round(speed, 1)})
        self._scalars(place, {**means, "images_per_second": speed})
        self.loss = means["loss"]
        self._last = f"loss {self.loss:.3f}, {speed:.0f} images/s"
        self._sums, self._counts = {}, {}
        self._restart_clock()

    def _restart_clock(self) -> None:
        """Leave out of the speed what was no training."""
        self._images, self._clock = 0, time.perf_counter()

    def epoch(self, place: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """What a method has to tell of an epoch, in a line of its own."""
        self._write({**place, "epoch_report": dict(facts)})

    def evaluated(self, place: Mapping[str, Any], accuracies: Mapping[str, float]) -> None:
        self.accuracies = dict(accuracies)
        self._write({**place, "accuracy": {name: round(value, 6) for name, value in accuracies.items()}})
        self._restart_clock()
        self._scalars(place, {f"accuracy/{name}": value for name, value in accuracies.items()})

    def show(self, done: float, epoch: str) -> None:
        accuracies = ", ".join(f"{name} {value:.1%}" for name, value in self.accuracies.items())
        self._progress.update(done, "; ".join(part for part in (epoch, self._last, accuracies) if part))

    def state(self) -> dict[str, Any]:
        size = self._path.stat().st_size if self._path is not None and self._path.exists() else 0
        loss = self.loss if math.isfinite(self.loss) else None
        return {"bytes": size, "sums": self._sums, "counts": self._counts, "accuracies": self.accuracies, "loss": loss}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to what a checkpoint knew; lines written after it will be written again."""
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])
        self.accuracies = dict(state["accuracies"])
        self.loss = float("nan") if state["loss"] is None else float(state["loss"])
        if self._path is not None and self._path.exists():
            with self._path.open("rb+") as stream:
                stream.truncate(min(int(state["bytes"]), self._path.stat().st_size))

    def close(self, *, failed: bool) -> None:
        self._progress.stop()
        if self._trackers is not None:
            self._trackers.close(failed=failed)

    def _write(self, values: Mapping[str, Any]) -> None:
        if self._path is None:
            return
        try:
            with self._path.open("a") as stream:
                stream.write(json.dumps(values) + "\n")
        except OSError as error:
            raise FileTrouble(
                f"{self._path} could not be written ({error.strerror})", remedy="Check the space."
            ) from error

    def _scalars(self, place: Mapping[str, Any], values: Mapping[str, float]) -> None:
        if self._trackers is not None:
            self._trackers.log(int(place["total"]), values)
