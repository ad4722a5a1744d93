"""What a user would do instead of us, given every reasonable chance: the rivals of `trained.py`.

Each rival has settings: learning rate, whether the published network's features teach it too, for pruning also the
criterion, how ratios are spread and when it is done. `choose` tries them one after the other and keeps
what is better, each with all image-steps of a contestant, trained on the training images of seed 0 and judged by 3,000 other
training images that nobody trains on: more than a user has, and no test image. Ours is not chosen so: it is what `fit` does.
"""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

RATES = (0.005, 0.01, 0.02, 0.05)
FINEST = 4  # pixels between the resolutions that are tried


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a rival is made and trained."""

    lr: float = 0.02
    features: float = 0.0  # weight of the published network's features at its best resolution, as in ours
    importance: str = "l1"  # of channels: l1, or taylor, by the gradients on 500 training images
    everywhere: bool = False  # channels compete across layers instead of a uniform ratio
    first: float = 0.0  # share of the image-steps before pruning

    def text(self) -> str:
        return "-".join(f"{name}={value}" for name, value in asdict(self).items() if value != getattr(Settings, name))


def rates(now: Settings) -> list[Settings]:
    return [replace(now, lr=rate) for rate in RATES]


def taught(now: Settings) -> list[Settings]:
    return [now, replace(now, features=2.0)]


def ways_to_prune(now: Settings) -> list[Settings]:
    return [now, replace(now, everywhere=True), replace(now, first=0.3), replace(now, first=0.3, importance="taylor")]


STAGES: dict[str, Any] = {
    "resolution": (taught, rates),
    "pruned": (taught, ways_to_prune, rates),
    "nothing": (lambda now: [replace(now, lr=rate) for rate in (0.1, 0.05, 0.2)],),
}
MIDDLE = 0.5  # the share at which settings are chosen; the others take them over


def choose(bench: Any, name: str, limit: float, work: Any) -> Settings:
    """The settings of a rival, at this limit; what was tried is kept in `--work`."""
    home = bench.asked.work / "choice"
    home.mkdir(parents=True, exist_ok=True)
    path = home / f"{name}.json"
    if path.exists():
        return Settings(**json.loads(path.read_text())["settings"])
    best, stages = Settings(lr=0.1 if name == "nothing" else 0.02), STAGES[name]
    tried: dict[Settings, float | None] = {}
    for stage in stages:
        for settings in stage(best):
            if settings not in tried:
                tried[settings] = _tried(home / f"{name}-{settings.text()}.json", bench, settings, limit, work)
            if (tried[settings] or 0.0) > (tried.get(best) or 0.0):
                best = settings
    rows = [{"settings": asdict(settings), "held_out": reached} for settings, reached in tried.items()]
    path.write_text(json.dumps({"settings": asdict(best), "tried": rows}))
    return best


def _tried(path: Any, bench: Any, settings: Settings, limit: float, work: Any) -> float | None:
    if not path.exists():
        path.write_text(json.dumps(work(bench, limit, settings)))
        print(path.name, path.read_text(), file=sys.stderr, flush=True)
    accuracy: float | None = json.loads(path.read_text())["accuracy"]
    return accuracy


def resolution_only(bench: Any, limit: float, settings: Settings) -> dict[str, Any]:
    """The original at the largest resolution that fits as measured."""
    for side in range(bench.asked.resolution, 15, -FINEST):
        network = bench.original(side)
        if (ms := bench.ms(network, side)) <= limit:
            bench.train(network, side, bench.asked.steps, lr=settings.lr, features=settings.features)
            return {
                "accuracy": bench.accuracy(network, side),
                "ms": ms,
                "resolution": side,
                "image_steps": bench.asked.steps,
            }
    return {"accuracy": None, "reason": "no resolution fits"}


def pruned(bench: Any, limit: float, settings: Settings) -> dict[str, Any]:
    """The original, pruned by Torch-Pruning at the least (bisected) ratio that fits as measured, then trained on."""
    side, steps = bench.asked.resolution, bench.asked.steps
    before = bench.original(side)
    training: dict[str, Any] = {"lr": settings.lr, "features": settings.features}
    if settings.first:
        bench.train(before, side, settings.first * steps, **training)
    gradients = _some_batches(bench, side) if settings.importance == "taylor" else []
    low, high, best = 0.0, 0.95, None
    for _ in range(7):
        ratio = (low + high) / 2
        network = _cut(before, side, ratio, settings, gradients)
        ms = bench.ms(network, side)
        low, high = (low, ratio) if ms <= limit else (ratio, high)
        best = (network, ratio, ms) if ms <= limit else best
    if best is None:
        return {"accuracy": None, "reason": "no ratio fits"}
    network, ratio, ms = best
    bench.train(network, side, (1 - settings.first) * steps, **training)
    return {
        "accuracy": bench.accuracy(network, side),
        "ms": ms,
        "ratio": ratio,
        "resolution": side,
        "image_steps": steps,
    }


def _cut(network: Any, side: int, ratio: float, settings: Settings, gradients: list[Any]) -> torch.nn.Module:
    """A pruned copy. Where features teach, the layer that makes them keeps its width, so that they can be compared."""
    import torch_pruning as tp

    network = copy.deepcopy(network).eval()
    taylor = settings.importance == "taylor"
    kept = [network.head.classifier, *([network.head.conv.conv] if settings.features else [])]
    pruner = tp.pruner.BasePruner(
        network,
        torch.zeros(1, 3, side, side),
        importance=tp.importance.GroupTaylorImportance() if taylor else tp.importance.GroupMagnitudeImportance(p=1),
        pruning_ratio=ratio,
        global_pruning=settings.everywhere,
        max_pruning_ratio=0.95,
        ignored_layers=kept,
        round_to=8,
    )
    for images, labels in gradients:
        F.cross_entropy(network(images), labels, reduction="sum").backward()
    pruner.step()
    network.zero_grad(set_to_none=True)
    return network


def _some_batches(bench: Any, side: int) -> list[Any]:
    return list(bench.data(side).batches("train", 50, limit=500))
