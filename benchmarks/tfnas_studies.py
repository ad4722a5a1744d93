"""TF-NAS's studies in kind, on handwritten digits with a measured table; each leaves a table (JSON) and a figure (SVG).

    python benchmarks/tfnas_studies.py lambda       [--out FOLDER] [--json] [--seeds 3] [--epochs 10]
    python benchmarks/tfnas_studies.py bisampling   ...  [--epochs 20]
    python benchmarks/tfnas_studies.py observations ...  [--epochs 16]

lambda (supplementary, section 10): latency of the strongest network over the epochs for lambda 0.5 ... 0.01, with and
without elasticity-scaling: mean, least and greatest of the repeats; and the accuracy of the derived networks with scaling.
bisampling (section 5 and the main text): operation collapse with bi-sampling, Gumbel sampling alone and random sampling
alone: the share of layers whose strongest operation is the most frequent one, the mean strength of the strongest, the
accuracy of the derived network trained from scratch; and the early-stopping baseline, which stops the Gumbel search once the
order of operations has been the same for 5 epochs in 3/4 of the layers, beside bi-sampling derived at that epoch.
observations (sections 3 and 8): which channels of one operation are kept over the epochs, how many that were dropped came
back; and the same search in the MobileNetV2 space (no SE, ReLU6), whose target it meets as well.
The space is `tfnas-thin-lowres` at 8 px, the digits' own size, widths in multiples of 4; the table is ONNX Runtime's, one
thread, for batches of 16, where the width of a block decides what it costs. Networks are trained from scratch for 8 epochs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from snugnet.budgets import Budget, limits_of
from snugnet.budgets.widths import Widths, finish
from snugnet.costs.measure import measure
from snugnet.costs.table import CostTable, load_table
from snugnet.data import load
from snugnet.data.dataset import Data
from snugnet.devices import by_name
from snugnet.devices.timing import TimingSettings
from snugnet.evaluate.scoring import accuracy
from snugnet.nets import MixedSupernet, build
from snugnet.space import preset
from snugnet.space.architecture import Architecture
from snugnet.space.space import Head, SearchSpace, Stage
from snugnet.training import methods, train
from snugnet.training.methods._tfnas import STABLE_SHARE

LAMBDAS = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
BATCH = 16  # images of a timed call: one of these small pictures would cost calls, not channels
PATIENCE = 5  # epochs without a change of order


class Study:
    """One data set, one space, one table; searches by seed and options."""

    def __init__(self, space: SearchSpace, table: CostTable, target: str, data: Data, epochs: int, batch: int) -> None:
        self.space, self.table, self.data, self.epochs, self.batch = space, table, data, epochs, batch
        self.budget = {"latency": target}
        self.limits = limits_of(space, table, Budget(self.budget))
        self.target = self.limits["latency"].effective

    def search(self, seed: int, watch: Any = None, **options: Any) -> tuple[MixedSupernet, list[dict[str, Any]]]:
        """The super-network and what its epochs report; `watch(net)` is called after each of them."""
        torch.manual_seed(seed)
        net = MixedSupernet(self.space)
        weights_only = max(2, self.epochs // 8)
        method = methods.tfnas(
            **{
                "epochs": self.epochs,
                "weights_only_epochs": weights_only,
                "lr": 0.1,
                "architecture_lr": 0.02,
                "annealing": 0.9,
                "held_out_batch": 32,
                "crop_padding": 1,
                **options,
            }
        )
        with tempfile.TemporaryDirectory() as folder:
            train(
                net,
                self.data,
                method,
                out=folder,
                seed=seed,
                batch=self.batch,
                tables={"latency": self.table},
                budget=self.budget,
                channels_last=True,
                evaluator=watch,
                eval_times=self.epochs,
                trackers=(),
                threads=1,
                device="cpu",
                checkpoint_seconds=1e9,
            )
            rows = [json.loads(line) for line in (Path(folder) / "train.jsonl").read_text().splitlines()]
        return net, [row["epoch_report"] for row in rows if "epoch_report" in row]

    def derived(self, report: dict[str, Any]) -> Architecture:
        """The network an epoch stands for, inside the limit."""
        alpha, beta = ([np.array(row) for row in report[name]] for name in ("alpha", "beta"))
        return finish(Widths(self.limits), alpha, beta, report["widths"]).architecture

    def from_scratch(self, architecture: Architecture, seed: int) -> float:
        """Test accuracy of the network trained by itself."""
        torch.manual_seed(seed)
        network = build(architecture, self.space)
        method = methods.scratch(epochs=8, lr=0.1, warmup_epochs=1, mixup=0.0, auto_augment=None, crop_padding=1)
        options: dict[str, Any] = {"channels_last": True, "evaluator": None, "threads": 1, "device": "cpu"}
        train(network, self.data, method, seed=seed, batch=64, **options)
        return accuracy(network.eval(), self.data, "test")


def study_lambda(study: Study, seeds: int, out: Path) -> dict[str, Any]:
    rows, latencies = [], {}
    for weight in LAMBDAS:
        for scaling in (True, False):
            runs, accuracies = [], []
            for seed in range(seeds):
                _, reports = study.search(seed, cost_weight=weight, scaling=scaling)
                runs.append([report["costs"]["latency"] for report in reports])
                if scaling:
                    accuracies.append(study.from_scratch(study.derived(reports[-1]), seed))
            latencies[weight, scaling] = np.array(runs) / study.target
            late = latencies[weight, scaling][:, -max(2, study.epochs // 4) :]
            row = {
                "lambda": weight,
                "scaling": scaling,
                "last_mean": float(late[:, -1].mean()),
                "last_least": float(late[:, -1].min()),
                "last_greatest": float(late[:, -1].max()),
                "jitter": float(late.std()),
                "over_target": int((late[:, -1] > 1 + 1e-9).sum()),
                **({"accuracy": accuracies, "mean_accuracy": float(np.mean(accuracies))} if scaling else {}),
            }
            rows.append(row)
            print(json.dumps(row), flush=True)
    draw_lambda(latencies, out / "tfnas-lambda.svg")
    return {"study": "lambda", "target_ms": study.target, "epochs": study.epochs, "seeds": seeds, "rows": rows}


def draw_lambda(latencies: dict[tuple[float, bool], Any], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5.4), layout="constrained")
    grid = figure.subplots(2, 3, sharex=True, sharey=True)
    for axes, weight in zip(grid.flat, LAMBDAS):
        for scaling, colour in ((False, "tab:orange"), (True, "tab:blue")):
            runs = latencies[weight, scaling]
            epochs = np.arange(runs.shape[1])
            axes.plot(epochs, runs.mean(0), color=colour, label="with scaling" if scaling else "without")
            axes.fill_between(epochs, runs.min(0), runs.max(0), color=colour, alpha=0.2)
        axes.axhline(1, color="0.4", linewidth=0.8, linestyle="--")
        axes.set_title(f"λ = {weight:g}", fontsize=10)
    for axes in grid[1]:
        axes.set_xlabel("epoch")
    for axes in grid[:, 0]:
        axes.set_ylabel("latency / target")
    grid[0, 0].legend(fontsize=8)
    figure.savefig(path)


def collapse(space: SearchSpace, report: dict[str, Any]) -> dict[str, float]:
    """How alike the layers' strongest operations are, and how strong."""
    rows = [row for row in report["alpha"] if len(row) > 1]
    strongest = Counter(int(np.argmax(row)) for row in rows)
    return {
        "same_operation": strongest.most_common(1)[0][1] / len(rows),
        "operations": len(strongest),
        "strength": float(np.mean([max(row) for row in rows])),
    }


def stable_epoch(reports: list[dict[str, Any]], weights_only: int) -> int | None:
    """The first epoch at which the order of operations has been the same for long enough in most layers."""
    ages, before = None, None
    for epoch, report in enumerate(reports):
        order = [tuple(np.argsort(row)[::-1]) for row in report["alpha"] if len(row) > 1]
        if before is None or epoch <= weights_only:
            ages = [0] * len(order)
        else:
            ages = [age + 1 if a == b else 0 for age, a, b in zip(ages or [], order, before)]
        if sum(age >= PATIENCE for age in ages) >= STABLE_SHARE * len(ages):
            return epoch
        before = order
    return None


def study_bisampling(study: Study, seeds: int, out: Path) -> dict[str, Any]:
    rows, curves = [], {}
    for seed in range(seeds):
        reports = {}
        for sampling in ("bi", "gumbel", "random"):
            _, reports[sampling] = study.search(seed, sampling=sampling)
            network = study.derived(reports[sampling][-1])
            curves.setdefault(sampling, []).append(
                [collapse(study.space, report)["same_operation"] for report in reports[sampling]]
            )
            row = {"seed": seed, "sampling": sampling, **collapse(study.space, reports[sampling][-1])}
            row |= {"accuracy": study.from_scratch(network, seed), "network": str(network)}
            rows.append(row)
            print(json.dumps(row), flush=True)
        stop = stable_epoch(reports["gumbel"], max(2, study.epochs // 8))
        row = {"seed": seed, "sampling": "early stopping", "stopped_at": stop}
        if stop is not None:
            row["accuracy"] = study.from_scratch(study.derived(reports["gumbel"][stop]), seed)
            row["bi_at_that_epoch"] = study.from_scratch(study.derived(reports["bi"][stop]), seed)
        rows.append(row)
        print(json.dumps(row), flush=True)
    draw_bisampling(curves, out / "tfnas-bisampling.svg")
    means = {
        kind: {
            name: float(np.mean([row[name] for row in rows if row["sampling"] == kind]))
            for name in ("same_operation", "operations", "strength", "accuracy")
        }
        for kind in ("bi", "gumbel", "random")
    }
    return {"study": "bisampling", "epochs": study.epochs, "seeds": seeds, "means": means, "rows": rows}


def draw_bisampling(curves: dict[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for kind, runs in curves.items():
        values = np.array(runs)
        axes.plot(values.mean(0), label=kind)
        axes.fill_between(np.arange(values.shape[1]), values.min(0), values.max(0), alpha=0.15)
    axes.set_xlabel("epoch")
    axes.set_ylabel("share of layers with the most frequent operation")
    axes.legend()
    figure.savefig(path)


def study_observations(study: Study, other: Study, seeds: int, out: Path) -> dict[str, Any]:
    """Channels that come and go, and the MobileNetV2 space."""
    sets: list[dict[tuple[int, int], frozenset[int]]] = []  # per epoch, the channels that each operation keeps

    def watch(net: Any) -> dict[str, float]:
        layers = [net.operations(number) for number in range(len(net.layers))]
        sets.append({(n, c): frozenset(op.kept.tolist()) for n, row in enumerate(layers) for c, op in enumerate(row)})
        return {}

    net, reports = study.search(0, watch)
    dropped = sum(len(before[key] - after[key]) for before, after in pairwise(sets) for key in before)
    came_back = 0  # kept once, dropped, kept again
    for epoch in range(2, len(sets)):
        for key, after in sets[epoch].items():
            earlier = frozenset().union(*(old[key] for old in sets[: epoch - 1]))
            came_back += len((after - sets[epoch - 1][key]) & earlier)
    moved = max(sets[0], key=lambda key: sum(a[key] != b[key] for a, b in pairwise(sets)))
    full = net.operations(moved[0])[moved[1]].part.mid_channels
    kept = [[int(channel in epoch[moved]) for epoch in sets] for channel in range(full)]
    _draw_kept(kept, out / "tfnas-channels.svg")
    result: dict[str, Any] = {
        "study": "observations",
        "dropped": dropped,
        "came_back": came_back,
        "shown": {"layer": moved[0], "operation": moved[1], "channels": full},
        "final_usage": reports[-1]["costs"]["latency"] / study.target,
    }
    rows = []
    for seed in range(seeds):
        _, reports = other.search(seed)
        network = other.derived(reports[-1])
        cost = other.limits.cost(network)["latency"]
        row = {"seed": seed, "usage": cost / other.target, "accuracy": other.from_scratch(network, seed)}
        row["uniform_accuracy"] = other.from_scratch(_uniform(other), seed)
        rows.append(row | {"network": str(network)})
        print(json.dumps(rows[-1]), flush=True)
    return {**result, "mobilenetv2": rows}


def _uniform(study: Study) -> Architecture:
    """The hand-made network to compare with: 3x3, large range, full depth as far as widths can be scaled to the limit."""
    alpha = [
        np.eye(len(study.space.stages[s].choices))[1 if len(study.space.stages[s].choices) > 1 else 0]
        for s, stage in enumerate(study.space.stages)
        for _ in range(stage.max_depth)
    ]
    beta = [np.eye(len(stage.depths))[-1] for stage in study.space.stages]
    widths = Widths(study.limits)
    return finish(widths, alpha, beta, widths.starts()).architecture


def _draw_kept(kept: list[list[int]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 5), layout="constrained")
    axes = figure.subplots()
    axes.imshow(kept, aspect="auto", cmap="Blues", vmin=0, vmax=1.4, interpolation="nearest")
    axes.set_xlabel("epoch")
    axes.set_ylabel("channel (dark: kept)")
    figure.savefig(path)


def without_se(space: SearchSpace) -> SearchSpace:
    """The thin space with MobileNetV2's parts: no SE, ReLU6 everywhere, four operations."""

    def plain(stage: Stage) -> Stage:
        kept = [replace(choice, se=0.0) for choice in stage.choices if len(stage.choices) == 1 or not choice.se]
        return replace(stage, choices=tuple(kept), act="relu6")

    head: Head = replace(space.head, act="relu6")
    stages = tuple(plain(stage) for stage in space.stages)
    return replace(space, name="tfnas-thin-mbv2", stages=stages, head=head, stem=replace(space.stem, act="relu6"))


def table_for(space: SearchSpace, path: Path | None, seconds: float) -> CostTable:
    if path is not None and path.exists():
        return load_table(path)
    device = by_name("onnxruntime", threads=1)
    return measure(space, device, batch=BATCH, settings=TimingSettings(seconds=seconds), out=path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=("lambda", "bisampling", "observations"))
    parser.add_argument("--json", action="store_true", help="print the whole table")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--table", type=Path, help="read from here, or measured and kept here")
    parser.add_argument("--other-table", type=Path, help="the same for the MobileNetV2 space")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--target", help="latency, of the largest network's: 30%% for lambda, 40%% for the others")
    parser.add_argument("--seconds", type=float, default=30.0, help="of measuring")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = load("digits")
    space = preset("tfnas-thin-lowres", classes=10, resolution=8)
    space = replace(space, rules=replace(space.rules, mid_divisor=4))
    table = table_for(space, options.table, options.seconds)
    epochs = options.epochs or {"lambda": 10, "bisampling": 20, "observations": 16}[options.study]
    target = options.target or ("30%" if options.study == "lambda" else "40%")
    study = Study(space, table, target, data, epochs, 64 if options.study == "lambda" else 32)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.study == "lambda":
        result = study_lambda(study, options.seeds, options.out)
    elif options.study == "bisampling":
        result = study_bisampling(study, options.seeds, options.out)
    else:
        plain = without_se(space)
        other = Study(plain, table_for(plain, options.other_table, options.seconds), target, data, epochs, 32)
        result = study_observations(study, other, options.seeds, options.out)
    result["target"] = target
    (options.out / f"tfnas-{options.study}.json").write_text(json.dumps(result, indent=1) + "\n")
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
