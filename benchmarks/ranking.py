"""A path per image or a path per batch: which super-network is better, and which ranks networks as they really are?

    python benchmarks/ranking.py OUT [--recipe fashion-mnist] [--seeds 3] [--random 50] [--ranked 12] [--part all]

For every seed the largest network is trained once; from those weights `multipath` and `singlepath` go on for the same
number of steps on the same batches. Both super-networks are evaluated on the same random sub-networks (inherited weights,
recalibrated) and the same validation images. Some more networks, spread evenly over the MACs of the space, are evaluated and
also trained on their own from scratch: Kendall's tau and Spearman's rho tell how well each super-network ranks them. A
correlation means something only if the networks' true accuracies differ by more than they are known to, so their spread
and the standard error of a difference stand beside it. OUT keeps everything: started again, the study goes on where it was.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from snugnet.costs.analytic import macs
from snugnet.data.dataset import Data
from snugnet.evaluate.ranking import agreement, inherited, random_architectures, spread
from snugnet.evaluate.scoring import ImageCache, answers
from snugnet.fitting import find
from snugnet.fitting.runs import fresh_supernet
from snugnet.nets import Supernet
from snugnet.space import Architecture, SearchSpace, largest, mutate, plan, smallest
from snugnet.store import read_json, write_json
from snugnet.training import methods, train
from snugnet.training.checkpoint import load_weights
from snugnet.training.method import Method
from snugnet.training.run import train_standalone

KINDS = ("multipath", "singlepath")
RANDOM_IMAGES = 4000


def spread_out(space: SearchSpace, count: int) -> list[Architecture]:
    """Networks at even distances between the smallest and the largest one's MACs, otherwise random."""
    rng, ends = np.random.default_rng(0), (smallest(space), largest(space))
    found: list[Architecture] = []
    for share in np.linspace(0.0, 1.0, count):
        chance = min(0.95, 2 * min(share, 1 - share) + 0.15)  # how much of the nearer end is drawn anew
        drawn = [mutate(space, ends[int(share > 0.5)], rng, chance) for _ in range(200)]
        low, high = (macs(plan(end, space)) for end in ends)
        wanted = low + share * (high - low)
        found.append(min(drawn, key=lambda a: abs(macs(plan(a, space)) - wanted)))
    return found


class Study:
    """One recipe, one folder, all seeds."""

    def __init__(self, out: Path, recipe: str, threads: int) -> None:
        self.out, self.threads = out, threads
        self.recipe = find(recipe)
        self.data: Data = self.recipe.data.load()
        self.space = self.recipe.space.build(self.data)
        self.first, self.second = self.recipe.train.methods()[:2]
        self.options: dict[str, Any] = {
            "batch": self.recipe.train.batch,
            "channels_last": self.recipe.train.channels_last,
            "threads": threads,
            "trackers": (),
        }

    def supernet(self, kind: str, seed: int) -> Supernet:
        """Trained with `kind` after the largest network of the same seed; read from the folder if it is there."""
        net = fresh_supernet(self.space, seed)
        self._trained(net, self.first, self.out / f"largest-{seed}", seed)
        fields = {k: v for k, v in self.second.describe().items() if k != "method"}
        fields["distill"] = 0.0  # neither has a teacher: only the paths differ
        self._trained(net, getattr(methods, kind)(**fields), self.out / f"{kind}-{seed}", seed)
        return net

    def _trained(self, net: Supernet, method: Method, folder: Path, seed: int) -> None:
        weights = folder / "supernet.safetensors"
        if not weights.exists():
            train(net, self.data, method, out=folder, seed=seed, evaluator=None, **self.options)
        net.load_state_dict(load_weights(weights))

    def right(self, kind: str, seed: int, networks: list[Architecture], name: str, limit: int | None) -> Tensor:
        """Right answers of each sub-network, [networks, images], kept in the folder."""
        path = self.out / f"right-{name}-{kind}-{seed}.json"
        if not path.exists():
            torch.set_num_threads(self.threads)
            net = self.supernet(kind, seed).eval()
            found = inherited(net, self.data, networks, limit=limit, seed=seed)
            write_json(path, ["".join("01"[bit] for bit in row) for row in found.int().tolist()])
        return _bits(read_json(path))

    def random(self, kind: str, seed: int, count: int) -> Tensor:
        return self.right(kind, seed, random_architectures(self.space, count, 0), "random", RANDOM_IMAGES)

    def ranked(self, kind: str, seed: int, count: int) -> Tensor:
        return self.right(kind, seed, spread_out(self.space, count), "ranked", None)

    def alone(self, network: Architecture, number: int, epochs: int) -> Tensor:
        """Right answers of one network trained from scratch with the settings of the second phase."""
        path = self.out / f"alone-{number}.json"
        if not path.exists():
            phases = (self.first, self.second)
            folder = self.out / f"alone-{number}"
            net = train_standalone(network, self.space, self.data, phases, epochs=epochs, out=folder, **self.options)
            torch.set_num_threads(self.threads)
            write_json(
                path, ["".join("01"[bit] for bit in answers(net, ImageCache(self.data), "val").right.int().tolist())]
            )
        return _bits(read_json(path))[0]


def _bits(rows: list[str]) -> Tensor:
    return torch.tensor([[c == "1" for c in row] for row in rows])


def report(study: Study, seeds: int, random: int, ranked: int, epochs: int) -> dict[str, Any]:
    networks = spread_out(study.space, ranked)
    truth = torch.stack([study.alone(network, i, epochs) for i, network in enumerate(networks)])
    said: dict[str, Any] = {
        "ranked": [str(network) for network in networks],
        "stand-alone": {
            "epochs": epochs,
            **spread(truth).to_json(),
            "accuracies": [round(float(row), 4) for row in truth.double().mean(1)],
        },
    }
    for kind in KINDS:
        rows = []
        for seed in range(seeds):
            right = study.ranked(kind, seed, ranked)
            both = agreement(right.double().mean(1).tolist(), truth.double().mean(1).tolist())
            rows.append(
                {
                    "seed": seed,
                    "random": spread(study.random(kind, seed, random)).to_json(),
                    "ranked": spread(right).to_json(),
                    "against_stand_alone": both.to_json(),
                }
            )
        said[kind] = rows
    pairs = zip(said["multipath"], said["singlepath"])
    gains = [a["random"]["mean"] - b["random"]["mean"] for a, b in pairs]
    said["multipath_minus_singlepath_mean_accuracy"] = [round(gain, 5) for gain in gains]
    said["mean_tau"] = {k: round(float(np.mean([r["against_stand_alone"]["tau"] for r in said[k]])), 3) for k in KINDS}
    said["mean_rho"] = {k: round(float(np.mean([r["against_stand_alone"]["rho"] for r in said[k]])), 3) for k in KINDS}
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--recipe", default="fashion-mnist")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--random", type=int, default=50)
    parser.add_argument("--ranked", type=int, default=12)
    parser.add_argument("--alone-epochs", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--part", choices=("super", "alone", "all"), default="all")
    chosen = parser.parse_args()
    study = Study(chosen.out, chosen.recipe, chosen.threads)
    if chosen.part in ("super", "all"):
        for seed in range(chosen.seeds):
            for kind in KINDS:
                some = study.random(kind, seed, chosen.random).double().mean(1)
                even = study.ranked(kind, seed, chosen.ranked).double().mean(1)
                print(
                    f"{kind} {seed}: random {some.mean():.4f} +- {some.std():.4f}, ranked {even.tolist()}", flush=True
                )
    if chosen.part in ("alone", "all"):
        for number, network in enumerate(spread_out(study.space, chosen.ranked)):
            accuracy = study.alone(network, number, chosen.alone_epochs).double().mean()
            print(f"stand-alone {number}: {accuracy:.4f}", flush=True)
    if chosen.part == "all":
        told = report(study, chosen.seeds, chosen.random, chosen.ranked, chosen.alone_epochs)
        told = {"recipe": study.recipe.trained(), "phases": [study.first.epochs, study.second.epochs], **told}
        print(json.dumps(told, indent=1))
        write_json(chosen.out / "ranking.json", told)


if __name__ == "__main__":
    main()
