"""How many trials it takes to draw a network of a given cost: by the proposal of bins, and uniformly.

    python benchmarks/attentive_sampling.py [--json] [--rows 1000000] [--width 25MMACs] [--draws 200] [--seed 0]

The table counts `rows` random architectures of AttentiveNAS's space into bins of `width`; its seconds are process time of
one thread. `mean_trials` and `uniform_trials` are means over the bins that hold an architecture, each weighing the same, as
in the paper's figure 8 (about 12 against 50,878): trials by the proposal are counted, `draws` times a bin, without a bound;
uniform ones are expected, the number of rows over the bin's. The same weighted by the prior, which is how targets are
drawn in training, and the share of draws that the bound of 101 would end, stand beside them.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import torch

from snugnet.costs.bins import BinSampler, CostBins, bin_architectures
from snugnet.costs.table import exact_table
from snugnet.costs.vectorised import CostLookup
from snugnet.seeds import Seed
from snugnet.space import preset
from snugnet.units import parse

BOUND = 100_000  # of the draws that are counted: far beyond any that is needed


def measure(rows: int, width: str, draws: int, seed: int) -> dict[str, Any]:
    space = preset("attentive")
    began = time.process_time()
    table = exact_table(space, "macs")
    lookup = CostLookup(space, table.of_part, table.combine)
    empty = CostBins.empty(space, lookup, "macs", parse(width, "macs"))
    bins = bin_architectures(space, lookup, empty, rows=rows, seed=Seed(seed))
    seconds = time.process_time() - began
    sampler, rng = BinSampler(space, lookup, bins), np.random.default_rng(seed)
    trials = np.array(
        [[sampler.draw(target, rng, BOUND)[1] for _ in range(draws)] for target in range(len(sampler.filled))]
    )
    uniform = 1.0 / sampler.prior
    result = {
        "table_seconds": seconds,
        "mean_trials": trials.mean(),
        "uniform_trials": uniform.mean(),
        "uniform_over_proposal": uniform.mean() / trials.mean(),
        "mean_trials_by_prior": sampler.prior @ trials.mean(1),
        "uniform_trials_by_prior": sampler.prior @ uniform,
        "over_101_by_prior": sampler.prior @ (trials > 101).mean(1),
    }
    counts = {"rows": rows, "bins": len(sampler.filled)}
    return {**counts, **{name: round(float(value), 4) for name, value in result.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", default="25MMACs")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = measure(options.rows, options.width, options.draws, options.seed)
    print(json.dumps(result) if options.json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
