"""Exact MACs of a million random AttentiveNAS architectures, on one core, sampling included.

    python benchmarks/analytic.py [--json]

Also against doing the same one architecture at a time (a thousand of them, scaled up): the ratio is the claim.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from snugnet.costs.analytic import macs
from snugnet.costs.vectorised import costs_of_many
from snugnet.space import plan, preset
from snugnet.space.layout import Layout
from snugnet.space.sampling import sample_many


def main() -> None:
    space, rng = preset("attentive"), np.random.default_rng(0)
    began = time.perf_counter()
    genes = sample_many(space, 1_000_000, rng)
    costs = costs_of_many(space, genes, macs)
    million = time.perf_counter() - began
    few = genes.take(slice(0, 1000))
    began = time.perf_counter()
    single = [macs(plan(architecture, space)) for architecture in Layout(space).decode(few)]
    one_by_one = time.perf_counter() - began
    assert single == costs[:1000].tolist()
    result = {
        "million_s": round(million, 3),
        "one_by_one_s": round(one_by_one * 1000, 1),
        "speedup": round(one_by_one * 1000 / million, 1),
        "mean_mmacs": round(float(costs.mean()) / 1e6, 2),
    }
    print(json.dumps(result) if "--json" in sys.argv else "\n".join(f"{k}: {v}" for k, v in result.items()))


if __name__ == "__main__":
    main()
