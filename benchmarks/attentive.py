"""Who is trained and by which loss, in a space of AttentiveNAS's kind: sandwich methods and a path per image.

    python benchmarks/attentive.py [--work FOLDER] [--out benchmarks/results/attentive-DATE.json] [--json]

Fashion-MNIST at 14 px, thin low-resolution space, 300 steps of 96 images each, three seeds (of weights, order and the cut of
the training set):
- uniform-kl: sandwich rule, uniform sampling, KL from the largest network (BigNAS);
- best-up-3, worst-up-3: AttentiveNAS with three candidates by mini-batch loss;
- alpha: AlphaNet, uniform sampling;
- multipath: HardCoRe-NAS, 100 steps of the largest network, then 200 with a path per image;
- multipath-alpha: the same with alpha-divergence from the largest network as the paths' loss.
Steps are equal, not time: a sandwich step runs four networks (attentive: six more without gradients), a path per image about
one. Judged on 2,000 test images: the smallest, the largest and 50 random sub-networks, recalibrated; by quarters of MACs;
Kendall's tau of the 50 between seeds. Errors: clustered by image (all networks and seeds see the same ones) and by seed.
Killed, it goes on: every run is a folder of its own under --work.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import kendalltau

import snugnet as sn
from snugnet.costs.analytic import macs
from snugnet.data.dataset import Data
from snugnet.evaluate.scoring import ImageCache, subnetwork_answers
from snugnet.fitting.runs import fresh_supernet
from snugnet.space import largest, plan, preset, sample, smallest
from snugnet.store import read_json, write_json
from snugnet.training.method import Method

SEEDS, BATCH, TRAINING, TESTED, NETWORKS = (0, 1, 2), 96, 9600, 2000, 50
CALM: dict[str, Any] = {"auto_augment": None, "mixup": 0.0, "crop_padding": 1, "hflip": False, "lr": 0.1}
SPACE = preset("attentive-thin-lowres", classes=10, resolution=14)


def phases(name: str) -> list[Method]:
    """Three epochs of 100 steps, each method with its own paper's remaining settings."""
    short: dict[str, Any] = {**CALM, "epochs": 3, "warmup_epochs": 0.3}
    if name == "uniform-kl":
        return [sn.methods.sandwich(loss="kl", **short)]
    if name in ("best-up-3", "worst-up-3"):
        return [sn.methods.attentive(rule=name.split("-")[0], candidates=3, rows=200_000, **short)]
    if name == "alpha":
        return [sn.methods.alpha(**short)]
    distil: dict[str, Any] = {"distill": 1.0, "loss": "alpha"} if name == "multipath-alpha" else {}
    first = sn.methods.largest(epochs=1, warmup_epochs=0.3, se_bias_init=True, **CALM)
    return [first, sn.methods.multipath(epochs=2, **distil, **CALM)]


NAMES = ("uniform-kl", "best-up-3", "worst-up-3", "alpha", "multipath", "multipath-alpha")


def data_of(seed: int) -> Data:
    """Another cut of the training images for every seed; the test images are the same."""
    data = sn.load_data("fashion-mnist", resolution=14, seed=seed)
    return replace(
        data, index={**data.index, "train": data.index["train"][:TRAINING], "test": data.index["test"][:TESTED]}
    )


def networks() -> dict[str, Any]:
    rng = np.random.default_rng(12)
    drawn: dict[Any, None] = {}
    while len(drawn) < NETWORKS:
        drawn[sample(SPACE, rng)] = None
    return {"largest": largest(SPACE), "smallest": smallest(SPACE), **{str(i): a for i, a in enumerate(drawn)}}


def part(name: str, seed: int, work: Path) -> dict[str, Any]:
    """One training and its 52 evaluations; what is done is read."""
    path = work / f"{name}-{seed}.json"
    if path.exists():
        return dict(read_json(path))
    began, data = time.process_time(), data_of(seed)
    supernet = fresh_supernet(SPACE, seed)
    sn.train(
        supernet,
        data,
        phases(name),
        out=work / f"{name}-{seed}",
        seed=seed,
        batch=BATCH,
        channels_last=True,
        evaluator=None,
        device="cpu",
        trackers=(),
    )
    trained = time.process_time() - began
    cache, right = ImageCache(data), {}
    for label, network in networks().items():
        answers = subnetwork_answers(supernet.eval(), network, cache, "test", seed=seed)
        right[label] = np.packbits(answers.right.numpy()).tobytes().hex()
    row = {"method": name, "seed": seed, "cpu_seconds": round(trained, 1), "right": right}
    write_json(path, row)
    print(f"{name} seed {seed}: {trained:.0f} s, {mean_accuracy(row):.4f}", file=sys.stderr, flush=True)
    return row


def answers_of(row: dict[str, Any]) -> dict[str, np.ndarray]:
    bits = {k: np.unpackbits(np.frombuffer(bytes.fromhex(v), dtype=np.uint8)) for k, v in row["right"].items()}
    return {label: values[:TESTED].astype(float) for label, values in bits.items()}


def fifty(row: dict[str, Any]) -> np.ndarray:
    """[50, images] right answers of the random networks."""
    answers = answers_of(row)
    return np.stack([answers[str(i)] for i in range(NETWORKS)])


def mean_accuracy(row: dict[str, Any]) -> float:
    return float(fifty(row).mean())


def errors(by_seed: np.ndarray) -> dict[str, float]:
    """[seeds, images] means over networks -> mean and its errors, clustered by image and by seed."""
    images = by_seed.mean(0)
    return {
        "mean": round(float(images.mean()), 5),
        "error_images": round(float(images.std(ddof=1) / np.sqrt(len(images))), 5),
        "error_seeds": round(float(by_seed.mean(1).std(ddof=1) / np.sqrt(len(by_seed))), 5),
    }


def summary(rows: dict[tuple[str, int], dict[str, Any]]) -> dict[str, Any]:
    cost = np.array([macs(plan(networks()[str(i)], SPACE)) for i in range(NETWORKS)]) / 1e6
    edges = np.quantile(cost, [0, 0.25, 0.5, 0.75, 1])
    quarter = np.clip(np.searchsorted(edges, cost, side="right") - 1, 0, 3)
    base = np.stack([fifty(rows["uniform-kl", s]).mean(0) for s in SEEDS])
    result: dict[str, Any] = {"mmacs_edges": [round(float(e), 3) for e in edges], "methods": {}}
    for name in NAMES:
        mine = [rows[name, s] for s in SEEDS]
        own = np.stack([fifty(row).mean(0) for row in mine])
        accuracies = np.stack([fifty(row).mean(1) for row in mine])  # [seeds, networks]
        pairs = [kendalltau(accuracies[a], accuracies[b]).statistic for a, b in itertools.combinations(range(3), 2)]
        result["methods"][name] = {
            "random_50": errors(own),
            "against_uniform_kl": errors(own - base),
            **{end: errors(np.stack([answers_of(row)[end] for row in mine])) for end in ("smallest", "largest")},
            "boxes": [five(accuracies[:, quarter == q]) for q in range(4)],
            "tau_between_seeds": [round(float(tau), 3) for tau in pairs],
            "cpu_seconds": [row["cpu_seconds"] for row in mine],
        }
    return result


def five(values: np.ndarray) -> list[float]:
    """Minimum, quartiles, maximum: a box of the seeds' figures."""
    return [round(float(q), 4) for q in np.quantile(values, [0, 0.25, 0.5, 0.75, 1])]


def picture(rows: dict[tuple[str, int], dict[str, Any]], result: dict[str, Any], path: Path) -> None:
    """Box plots in quarters of MACs, as in figures 9 and 10 of the papers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4))
    width = 0.8 / len(NAMES)
    for i, name in enumerate(NAMES):
        boxes = [
            {"whislo": b[0], "q1": b[1], "med": b[2], "q3": b[3], "whishi": b[4], "fliers": []}
            for b in result["methods"][name]["boxes"]
        ]
        drawn = axes.bxp(
            boxes, positions=[q + (i - 2.5) * width for q in range(4)], widths=0.8 * width, patch_artist=True
        )
        for box in drawn["boxes"]:
            box.set_facecolor(f"C{i}")
        axes.plot([], [], color=f"C{i}", linewidth=6, label=name)
    edges = result["mmacs_edges"]
    axes.set_xticks(range(4), [f"{edges[q]:.2f}-{edges[q + 1]:.2f} M" for q in range(4)])
    axes.set_xlabel("MACs")
    axes.set_ylabel("accuracy of sub-networks, three seeds")
    axes.legend(fontsize=8, ncols=3)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("/tmp/attentive-benchmark"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = {(name, seed): part(name, seed, options.work) for seed in SEEDS for name in NAMES}
    result = summary(rows)
    if options.out is not None:
        write_json(options.out, result)
        picture(rows, result, options.out.with_suffix(".svg"))
    print(json.dumps(result) if options.json else json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
