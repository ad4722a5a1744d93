"""How good is this network? Extract it, give it BN statistics of its own, look at held-out images.

Networks are told apart by their *value*: accuracy minus the cross entropy at the temperature that suits the network best.
Accuracy alone is coarse on few images; plain cross entropy is mostly about how sure a network is, which differs from
one to the next and changes no answer. The sum of both predicts accuracy on other images better than plain cross entropy
from 300 images to 12,000, and nearly as well as the better of the two at every size (docs/LOG.md).

Many networks are looked at with a few images; the best few are looked at again, with more, before one is chosen. A
evaluator remembers what it has seen, in memory and, with a file, on disk: no network is evaluated twice on the same images,
and because the methods are deterministic, a killed search that is started again runs through its old steps for free.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import Tensor

from snugnet.data.dataset import Data
from snugnet.errors import BadInput, DamagedFile
from snugnet.evaluate.accuracy import calibration_batches
from snugnet.nets import Supernet, extract, recalibrate
from snugnet.progress import NullProgress, Progress
from snugnet.space.architecture import Architecture
from snugnet.store import read_text, sha256, write_text

RERANK_TOP_K = 6  # networks that are looked at again with more images


@final
@dataclass(frozen=True)
class Score:
    """Share of right answers, mean cross entropy, and the latter at the network's best temperature."""

    accuracy: float
    loss: float
    calibrated_loss: float

    @property
    def score(self) -> float:
        """What networks are chosen by; greater is better."""
        return self.accuracy - self.calibrated_loss

    def to_json(self) -> dict[str, float]:
        return {**asdict(self), "value": self.score}


@final
class Evaluator:
    """Evaluates sub-networks with inherited weights on a split of `data`, each once.

    `limit`: images for every network; `closer`: for the last few, where the split has more."""

    def __init__(
        self,
        supernet: Supernet,
        data: Data,
        *,
        split: str = "val",
        limit: int | None = 2000,
        closer: int | None = 10_000,
        memory: str | Path | None = None,
        seed: int = 0,
    ) -> None:
        size = data.size(split)
        if size == 0:
            raise BadInput(
                f"split {split!r} of {data.about.name} must hold images to evaluator networks by",
                value=0,
                remedy="Choose a data set with more images, or another split.",
            )
        self.supernet, self.data, self.split, self.limit = supernet, data, split, limit
        self.device = next(supernet.parameters()).device
        self._calibration = [placed(batch, self.device) for batch in calibration_batches(data, seed=seed)]
        self._seen: dict[tuple[str, int], Score] = {}
        self._first = min(size, limit or size)
        self._last = max(self._first, min(size, closer or size))
        self._memory = None if memory is None else Path(memory)
        self._origin = f"{weights_id(supernet)} {split} {limit} {closer} {seed} {data.identity()}"
        self.images = self.evaluated = 0
        self._remember()

    def __call__(self, architecture: Architecture) -> Score:
        return self._verdict(architecture, self._first)

    def evaluate_full(self, architecture: Architecture) -> Score:
        """With all images there are for the last few."""
        return self._verdict(architecture, self._last)

    def best(self, networks: Iterable[Architecture], progress: Progress | None = None) -> Architecture:
        """The one of greatest value; the best few are looked at again with more images first. The earlier wins a tie."""
        tried, shown = list(dict.fromkeys(networks)), progress or NullProgress()
        shown.start("evaluating candidates", len(tried) + min(RERANK_TOP_K, len(tried)))
        for number, network in enumerate(tried, 1):
            shown.update(number, f"{self(network).accuracy:.1%}")
        ranked = sorted(tried, key=lambda a: -self(a).score)[:RERANK_TOP_K]
        for number, network in enumerate(ranked, len(tried) + 1):
            shown.update(number, f"{self.evaluate_full(network).accuracy:.1%} on {self._last} images")
        shown.stop()
        return max(ranked, key=lambda a: self.evaluate_full(a).score)

    def _verdict(self, architecture: Architecture, images: int) -> Score:
        key = str(architecture), images
        if key not in self._seen:
            self._seen[key] = self._evaluate(architecture, images)
            self.evaluated += 1
            self._write(key, self._seen[key])
        return self._seen[key]

    def _evaluate(self, architecture: Architecture, images: int) -> Score:
        network = extract(self.supernet, architecture)
        move: Any = network.to  # the overload with a memory format is missing from torch's type stubs
        move(memory_format=torch.channels_last)
        recalibrate(network, [_resized(batch, architecture.resolution) for batch in self._calibration]).eval()
        answers, truth = [], []
        with torch.no_grad():
            for batch, labels in self.data.batches(self.split, 256, limit=images):
                answers.append(network(_resized(placed(batch, self.device), architecture.resolution)).float())
                truth.append(labels.to(self.device))
        self.images += images
        return evaluated(torch.cat(answers), torch.cat(truth))

    def _remember(self) -> None:
        """Take over what an earlier search of the same weights and images has seen; a torn last line is dropped."""
        if self._memory is None or not self._memory.exists():
            return
        lines = read_text(self._memory).splitlines()
        if not lines or lines[0] != self._header():
            self._memory.unlink()  # of other weights or other images: worthless here
            return
        for number, line in enumerate(lines[1:], 2):
            try:
                entry = json.loads(line)
                score = Score(*(float(entry[name]) for name in ("accuracy", "loss", "calibrated_loss")))
                self._seen[entry["network"], int(entry["images"])] = score
            except (ValueError, KeyError, TypeError) as error:
                if number < len(lines):
                    raise DamagedFile(
                        f"{self._memory} must hold one evaluation a line",
                        value=f"line {number}",
                        remedy="Delete the file; networks are then evaluated anew.",
                    ) from error

    def _write(self, key: tuple[str, int], score: Score) -> None:
        if self._memory is None:
            return
        if not self._memory.exists():
            write_text(self._memory, self._header() + "\n")
        entry = {"network": key[0], "images": key[1], **asdict(score)}
        with self._memory.open("a") as stream:
            stream.write(json.dumps(entry) + "\n")

    def _header(self) -> str:
        return json.dumps({"format": "snugnet-evaluations/2", "of": sha256(self._origin.encode())})


def evaluated(logits: Tensor, labels: Tensor) -> Score:
    """The score on these answers. Cross entropy is convex in the inverse temperature: one bounded search finds it."""

    def loss_at(log_scale: float) -> float:
        return float(F.cross_entropy(logits * math.exp(log_scale), labels))

    found: Any = minimize_scalar(loss_at, bounds=(-3.0, 3.0), method="bounded", options={"xatol": 1e-3})
    accuracy = float((logits.argmax(1) == labels).double().mean())
    plain = float(F.cross_entropy(logits, labels))
    return Score(accuracy=accuracy, loss=plain, calibrated_loss=min(plain, float(found.fun)))


def weights_id(supernet: Supernet) -> str:
    """A fingerprint of all weights and statistics."""
    parts = []
    for name, tensor in sorted(supernet.state_dict().items()):
        parts.append(name.encode())
        parts.append(tensor.detach().cpu().contiguous().numpy().tobytes())
    return sha256(b"".join(parts))


def placed(images: Tensor, device: torch.device) -> Tensor:
    """On the device, channels last: a quarter faster on a CPU (docs/LOG.md)."""
    return images.to(device=device, memory_format=torch.channels_last)


def _resized(images: Tensor, size: int) -> Tensor:
    if images.shape[-1] == size:
        return images
    return F.interpolate(images, size=(size, size), mode="bicubic", align_corners=False)
