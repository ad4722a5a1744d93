#!/usr/bin/env python3
"""From a published network to a budget: ours against what a user would do instead, with equal image-steps of training.

CIFAR-10 with few images (5,000 for training; we hold a fifth out to search by), EfficientNet-Lite0's ImageNet weights,
latency budgets as shares of the original's measured latency at `--resolution`. Contestants, each trained on the same number
of images in all (teachers and super-networks included in ours; a frozen teacher only answers, and rivals may have it too):

- `snugnet`: the space around the network, trained, searched within the budget, the found network trained with its teacher;
- `resolution`: the original at the largest resolution that fits as measured (every fourth pixel is tried);
- `pruned`: the original, pruned by Torch-Pruning until it fits as measured;
- `nothing`: a super-network of the low-resolution HardCoRe space (the widest of two that fits, the images' own side) from
  random weights, with phases of its own.

Phases and shares of ours are those of `snugnet fit` for as many image-steps (`fitting.starting.schedule`). Settings of the
rivals are chosen on held-out training images (`trained_rivals.py`). Test images are looked at once, at the end of each
contestant. Finished parts are kept in `--work` and not done again; `--choose` only chooses the rivals' settings.
With `--design` 3,000 training images that nobody trains on stand in for the test images: for choosing settings.
    pip install torch-pruning   # for `pruned`
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

import snugnet as sn
from snugnet.costs.vectorised import cost_range
from snugnet.data.dataset import InMemory
from snugnet.devices.timing import TimingSettings, time_subjects
from snugnet.evaluate.scoring import ImageCache, accuracy, subnetwork
from snugnet.fitting.finetuning import AtResolution
from snugnet.fitting.measured import MeasuredLoop, Round
from snugnet.fitting.runs import fresh_supernet
from snugnet.fitting.starting import schedule
from snugnet.nets import Network, build
from snugnet.nets.extraction import folded
from snugnet.nets.trained import load_start
from snugnet.space.sampling import largest
from trained_rivals import MIDDLE, Settings, choose, pruned, resolution_only

FROM_NOTHING = {"largest": 0.40, "multipath": 0.25, "finetune": 0.35}
CALM = {"mixup": 0, "auto_augment": None}
BATCH = 50
NATIVE = 32  # the images' own side: larger ones only cost more where no trained network expects them


class Bench:
    """One seed: the images, the measured reference, and how a network is trained and measured."""

    def __init__(self, asked: argparse.Namespace, seed: int) -> None:
        self.asked, self.seed = asked, seed
        self.start = load_start("efficientnet-lite0")
        self.device = sn.devices.OnnxRuntime(threads=1)
        self.work = asked.work / f"seed-{seed}"
        self._images: dict[int, InMemory] = {}

    def data(self, resolution: int) -> InMemory:
        """`--images` training images, drawn by the seed, and all test images."""
        if resolution not in self._images:
            whole = sn.load_data("cifar10", resolution=resolution)
            assert isinstance(whole, InMemory)
            positions = torch.cat([whole.index["train"], whole.index["val"]]).sort().values
            order = torch.randperm(len(positions), generator=torch.Generator().manual_seed(self.seed))
            chosen, held = positions[order[: self.asked.images]], self.asked.images // 5
            index = {
                "val": chosen[:held].sort().values,
                "train": chosen[held:].sort().values,
                "test": positions[order[-3000:]].sort().values if self.asked.design else whole.index["test"],
            }
            about = replace(whole.about, mean=self.start.mean, std=self.start.std)
            self._images[resolution] = replace(whole, about=about, index=index)
        return self._images[resolution]

    def ms(self, network: torch.nn.Module, resolution: int) -> float:
        """Upper end of the 95 % interval: what must fit. Timed in turns with the original, whose latency was measured once:
        the share of it is what counts, and stays true on a machine that is slower for a while."""
        networks = {"network": (network, resolution), "original": (self.original(self.asked.resolution), None)}
        runnable = {
            name: self.device.prepare(
                copy.deepcopy(each).eval(), torch.zeros(1, 3, *[side or self.asked.resolution] * 2)
            )
            for name, (each, side) in networks.items()
        }
        rules = TimingSettings(seconds=8.0, tolerance=0.01, least_passes=40)
        found = [time_subjects(runnable, self.device.time, rules).estimates for _ in range(3)]
        return self.whole * min(each["network"].high / each["original"].ms for each in found)

    @cached_property
    def whole(self) -> float:
        """Milliseconds of the original at the benchmark's resolution, measured once for all contestants."""
        path = self.asked.work / "reference.json"
        if not path.exists():
            side = self.asked.resolution
            runnable = {"original": self.device.prepare(self.original(side).eval(), torch.zeros(1, 3, side, side))}
            rules = TimingSettings(seconds=8.0, tolerance=0.01, least_passes=40)
            found = [time_subjects(runnable, self.device.time, rules).estimates["original"].ms for _ in range(3)]
            path.write_text(json.dumps({"ms": min(found)}))
        return float(json.loads(path.read_text())["ms"])

    def original(self, resolution: int) -> Network:
        """The start with ten classes, for images of this size."""
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            choices: dict[str, Any] = {"expands": (1,), "kernels": False, "depth": False}
            supernet = sn.elastic(self.start, resolutions=(resolution,), classes=10, **choices)
        return sn.extract(supernet, largest(supernet.space))

    def teacher(self) -> AtResolution:
        """The published network at the largest resolution of ours: only its features mean anything here."""
        return AtResolution(folded(self.original(max(_resolutions(self.asked)))))

    def train(self, network: torch.nn.Module, side: int, images: float, *, lr: float, features: float = 0.0) -> None:
        """On all `--images` for `images` image-steps: the same loop for all."""
        data = self.data(side)
        method = sn.methods.finetune(
            epochs=images / data.size("train+val"), lr=lr, distill=0.0, distill_features=features,
            crop_padding=side // 8, split="train+val", **CALM,
        )  # fmt: skip
        sn.train(
            network, data, method, batch=BATCH, seed=self.seed, channels_last=True, evaluator=None,
            threads=self.asked.threads, teacher=self.teacher() if features else None,
        )  # fmt: skip

    def accuracy(self, network: torch.nn.Module, side: int) -> float:
        return accuracy(network, self.data(side), "test")


def snugnet(bench: Bench, limit: float, _: Settings) -> dict[str, Any]:
    """Ours: found by a super-network trained for a part of the image-steps, then as `snugnet fit` goes on."""
    outcome = found_and_trained(bench, limit)
    if not isinstance(outcome, tuple):
        return outcome
    network, found, inherited = outcome
    reached = bench.accuracy(network, found.result.architecture.resolution)
    return _row(found, limit, reached, bench.asked.steps) | {"inherited_val": inherited}


def found_and_trained(bench: Bench, limit: float) -> tuple[Network, Round, float] | dict[str, Any]:
    """The network, how it was found, and its accuracy on held-out images with inherited weights; or why there is none."""
    data = bench.data(max(_resolutions(bench.asked)))
    phases = schedule(data.size("train"), data.size("val"), bench.asked.steps, data.about.resolution)[0]
    methods = [sn.methods.METHODS[row.pop("method")](**row) for row in phases]
    home = bench.work / "snugnet"
    supernet = _trained(bench, elastic(bench), data, methods, home)
    found = _found(bench, supernet, data, limit, home, table_of(bench, supernet, "snugnet"))
    if not isinstance(found, Round):
        return found
    architecture = found.result.architecture
    network = taught(bench, architecture)
    inherited = accuracy(
        subnetwork(supernet, architecture, ImageCache(data)), bench.data(architecture.resolution), "val"
    )
    return network, found, inherited


def taught(bench: Bench, architecture: Any) -> Network:
    """A sub-network with the published weights, trained for what the super-network's phases leave of the image-steps."""
    data = bench.data(max(_resolutions(bench.asked)))
    phases, finetune, _ = schedule(data.size("train"), data.size("val"), bench.asked.steps, data.about.resolution)
    spent, options = sum(row["epochs"] for row in phases) * data.size("train"), finetune["options"]
    network = sn.extract(elastic(bench), architecture)
    rates = {"lr": options["lr"], "features": options["distill_features"]}
    bench.train(network, architecture.resolution, bench.asked.steps - spent, **rates)
    return network


def nothing(bench: Bench, limit: float, settings: Settings) -> dict[str, Any]:
    """A super-network from random weights; of two widths the larger that fits."""
    data, steps = bench.data(NATIVE), bench.asked.steps
    crop = {"crop_padding": NATIVE // 8, "lr": settings.lr, **CALM}
    epochs = {name: share * steps / data.size("train") for name, share in FROM_NOTHING.items()}
    phases = [
        sn.methods.largest(epochs=epochs["largest"], se_bias_init=True, **crop),
        sn.methods.multipath(epochs=epochs["multipath"], inherit_kernels=True, **crop),
    ]
    for width in (0.5, 0.25):
        space = sn.spaces.preset("hardcore-lowres", classes=10, resolution=NATIVE, width=width)
        home = bench.work / f"nothing-{width:g}-{settings.lr:g}"
        table = table_of(bench, fresh_supernet(space, 0), f"nothing-{width:g}")
        if cost_range(space, table).smallest > limit:
            continue
        supernet = _trained(bench, fresh_supernet(space, bench.seed), data, phases, home)
        found = _found(bench, supernet, data, limit, home, table)
        if isinstance(found, Round):
            network = subnetwork(supernet, found.result.architecture, ImageCache(data))
            bench.train(network, NATIVE, FROM_NOTHING["finetune"] * steps, lr=settings.lr / 2)
            return _row(found, limit, bench.accuracy(network, NATIVE), steps)
    return {"accuracy": None, "reason": "nothing fits"}


def _found(bench: Bench, supernet: Any, data: InMemory, limit: float, home: Path, table: Any) -> Round | dict[str, Any]:
    """The measured loop of `fit`: the best network within the limit, or why there is none."""

    def find(factors: Any) -> Any:
        return sn.search(
            supernet, data, table, {"latency": f"{limit:.6g}ms"}, seed=bench.seed, out=home / "search",
            tighten=dict(factors),
        )  # fmt: skip

    def measured(result: Any) -> dict[str, float]:
        network = build(result.architecture, supernet.space)
        return {"latency": bench.ms(network, result.architecture.resolution) / limit}

    tell = lambda line: print(f"{home.name}: {line}", file=sys.stderr)  # noqa: E731
    loop = MeasuredLoop(find, measured, measured=["latency"], say=tell)
    try:
        best = loop.run(5)
    except sn.errors.Infeasible as error:
        return {"accuracy": None, "reason": str(error)}
    return best or {"accuracy": None, "reason": "nothing fits as measured"}


def _row(found: Round, limit: float, reached: float, steps: int) -> dict[str, Any]:
    return {
        "accuracy": reached,
        "ms": found.shares["latency"] * limit,
        "architecture": str(found.result.architecture),
        "evaluated": found.result.evaluated,
        "image_steps": steps,
    }


def _trained(bench: Bench, supernet: Any, data: InMemory, phases: list[Any], home: Path) -> Any:
    sn.train(
        supernet, data, phases, batch=BATCH, seed=bench.seed, out=home, channels_last=True, evaluator=None,
        threads=bench.asked.threads,
    )  # fmt: skip
    return supernet.eval()


def elastic(bench: Bench) -> Any:
    """The space around the start as `snugnet fit` chooses it, with the start's own weights."""
    _, finetune, choices = schedule(bench.asked.images, 0, bench.asked.steps, bench.asked.resolution)
    if not finetune["from_start"]:
        sys.exit(f"{bench.asked.steps} image-steps are enough for paths and a teacher; this compares what few can do")
    with torch.random.fork_rng():
        torch.manual_seed(bench.seed)
        return sn.elastic(bench.start, resolutions=_resolutions(bench.asked), classes=10, **choices)


def table_of(bench: Bench, supernet: Any, kind: str) -> Any:
    path = bench.asked.work / f"table-{kind}.json"
    if path.exists():
        return sn.load_table(path)
    settings = TimingSettings(seconds=bench.asked.measure_seconds)
    return sn.measure(supernet.space, bench.device, settings=settings, out=path)


def _resolutions(asked: argparse.Namespace) -> tuple[int, ...]:
    side = asked.resolution
    return tuple(side + step for step in (-32, -24, -16, -8, 0, 16, 32))


CONTESTANTS: dict[str, Callable[[Bench, float, Settings], dict[str, Any]]] = {
    "resolution": resolution_only,
    "pruned": pruned,
    "snugnet": snugnet,
    "nothing": nothing,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/trained-benchmark"))
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--steps", type=int, default=20_000, help="image-steps of training per contestant and budget")
    parser.add_argument("--resolution", type=int, default=64)
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.7, 0.5, 0.35])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--measure-seconds", type=float, default=120.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--design", action="store_true", help="leave the test images alone")
    parser.add_argument("--choose", action="store_true", help="only choose the settings of the rivals")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    asked.work.mkdir(parents=True, exist_ok=True)
    whole = Bench(asked, 0).whole
    held_out = Bench(argparse.Namespace(**{**vars(asked), "design": True, "work": asked.work}), 0)
    held_out.work = asked.work / "choice"
    chosen = {
        name: choose(held_out, name, MIDDLE * whole, CONTESTANTS[name]) for name in asked.only if name != "snugnet"
    }
    if asked.choose:
        return
    rows = []
    for seed in asked.seeds:
        bench = Bench(asked, seed)
        for share in asked.budgets:
            for name in asked.only:
                path = bench.work / f"{name}-{share:g}.json"
                settings = chosen.get(name, Settings())
                if not path.exists():
                    began = time.monotonic()
                    row = {"contestant": name, "seed": seed, "share": share, "limit_ms": share * whole}
                    row |= CONTESTANTS[name](bench, share * whole, settings)
                    row["settings"] = settings.text()
                    row["seconds"] = round(time.monotonic() - began, 1)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(json.dumps(row))
                    print(json.dumps(row), file=sys.stderr, flush=True)
                rows.append(json.loads(path.read_text()))
    print(json.dumps(_summary(asked, whole, rows), indent=1) if asked.json else _text(rows))


def _summary(asked: argparse.Namespace, whole: float, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Differences to ours are paired by seed and budget; their error is that of the seeds, and of the test images."""
    ours = {(row["seed"], row["share"]): row["accuracy"] for row in rows if row["contestant"] == "snugnet"}
    ahead = {}
    for name in asked.only:
        for share in asked.budgets:
            pairs = [
                ours[row["seed"], share] - row["accuracy"]
                for row in rows
                if row["contestant"] == name != "snugnet"
                and row["share"] == share
                and row["accuracy"] is not None
                and ours.get((row["seed"], share)) is not None
            ]
            if pairs:
                mean = sum(pairs) / len(pairs)
                between = (sum((p - mean) ** 2 for p in pairs) / max(1, len(pairs) - 1) / len(pairs)) ** 0.5
                images = (2 * 0.25 * 0.75 / 10_000) ** 0.5 / len(pairs) ** 0.5  # two accuracies near 75 %, unpaired
                ahead[f"{name}@{share:g}"] = {"ahead": mean, "error": max(between, images), "seeds": len(pairs)}
    return {
        "reference_ms": whole,
        "images": asked.images,
        "image_steps": asked.steps,
        "resolution": asked.resolution,
        "machine": dict(zip(("torch_threads",), (asked.threads,))),
        "ahead": ahead,
        "unmet": [f"{r['contestant']}@{r['share']:g} seed {r['seed']}" for r in rows if r["accuracy"] is None],
        "rows": rows,
    }


def _text(rows: list[dict[str, Any]]) -> str:
    return "\n".join(
        f"{r['contestant']:11} seed {r['seed']} {r['share']:.0%}: {r['accuracy']} {r.get('ms')}" for r in rows
    )


if __name__ == "__main__":
    main()
