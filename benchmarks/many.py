"""Evaluations in two processes against one, one thread each: how much sooner, and the same scores.

    python benchmarks/many.py [--json] [--save] [--networks 24] [--rounds 5]

A super-network of the low-resolution space on digits; random sub-networks, recalibrated and scored on the validation images.
Both ways take turns; `local2_speedup` is the ratio of the median times. Workers are started, and have the super-network,
before anything is timed. Two processes need two cores for themselves: `load` is that of the machine when it began.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch

from snugnet.data import load
from snugnet.evaluate.evaluator import Evaluator
from snugnet.evaluate.ranking import random_architectures
from snugnet.executors import LocalExecutor
from snugnet.fitting.runs import fresh_supernet
from snugnet.space.presets import preset
from snugnet.store import write_json


def measure(networks: int, rounds: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    data = load("digits", resolution=32)
    supernet = fresh_supernet(preset("hardcore-lowres", classes=10, resolution=32, width=0.5), 0).eval()
    chosen = random_architectures(supernet.space, networks, 0)
    load_before = os.getloadavg()[0]
    seconds: dict[str, list[float]] = {"one": [], "two": []}
    with LocalExecutor(2) as executor:
        two = Evaluator(supernet, data, executor=executor)
        two.prefetch(random_architectures(supernet.space, 6, 1))  # workers start here
        scores: dict[str, list[float]] = {}
        for number in range(rounds):
            for name in ("one", "two") if number % 2 else ("two", "one"):
                evaluator = two if name == "two" else Evaluator(supernet, data, cache=two.cache)
                evaluator._scores.clear()
                began = time.perf_counter()
                evaluator.prefetch(chosen)
                scores[name] = [evaluator(network).score for network in chosen]
                seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "networks": networks,
        "rounds": rounds,
        "seconds": {name: [round(value, 3) for value in values] for name, values in seconds.items()},
        "local2_speedup": round(medians["one"] / medians["two"], 3),
        "same_scores": scores["one"] == scores["two"],
        "load": round(load_before, 2),
        "date": datetime.date.today().isoformat(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--save", action="store_true", help="keep the result in benchmarks/results/")
    parser.add_argument("--networks", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    words = parser.parse_args()
    facts = measure(words.networks, words.rounds)
    if words.save:
        write_json(Path(__file__).with_name("results") / f"many-{facts['date']}.json", facts)
    if words.json:
        print(json.dumps(facts, indent=1))
    else:
        print(f"{facts['local2_speedup']:.2f} times sooner in two processes (load {facts['load']})")


if __name__ == "__main__":
    main()
