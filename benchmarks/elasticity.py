"""Does elasticity-scaling meet its target? Random architectures x targets by a measured table, inside their range and out.

    python benchmarks/elasticity.py [--json] [--table FILE] [--space tfnas] [--architectures 30] [--targets 10]

Inside: targets between what a network costs with all widths at their lower and at their upper bound; the scaled latency must
lie in (target - one width step, target], the step being the cheapest single channel that could still be added. Outside: half
as many targets below the range, as many above it; each must end in a network that fits, repaired or not, or in a refusal,
and where the widths' upper bounds leave room the result must say so. A result over its target, or one with room to spare
that says nothing, is a silent miss. Without --table a table is measured here (`--seconds`) on one thread of PyTorch.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from snugnet.budgets import Budget, cheapest
from snugnet.budgets.limits import Limit, Limits
from snugnet.budgets.widths import Widths, finish
from snugnet.costs.measure import measure
from snugnet.costs.table import CostTable, load_table
from snugnet.devices import by_name
from snugnet.devices.timing import TimingSettings
from snugnet.errors import Infeasible
from snugnet.solve.elasticity import scale_widths
from snugnet.space import preset, sample
from snugnet.space.space import SearchSpace
from snugnet.units import write


def limits_at(space: SearchSpace, table: CostTable, target: float) -> Limits:
    """A limit on latency of exactly `target` ms by the table; no margin, and not refused."""
    limit = Limit(name="latency", asked=target, effective=target, table=table, device=None)
    return Limits(space, Budget({"latency": write(target, "latency", 12)}), [limit])


def run(space: SearchSpace, table: CostTable, architectures: int, targets: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    counts = {"inside": 0, "outside": 0, "repaired": 0, "refused": 0, "explained": 0, "silent_misses": 0}
    slacks = []
    least = cheapest(space, table).cost
    for _ in range(architectures):
        architecture = sample(space, rng)
        known = Widths(limits_at(space, table, 1e9))
        numbers = _numbers(known, architecture)
        alpha = [np.eye(len(known.layout.choices(*slot)))[n] for slot, n in zip(known.layout.slots, numbers[0])]
        beta = [np.eye(len(s.depths))[s.depths.index(d)] for s, d in zip(space.stages, numbers[1])]
        problem, _ = known.problem(numbers)
        low, high = (problem.cost(bound)["latency"] for bound in (problem.low, problem.high))
        for target in rng.uniform(low, high, targets):
            widths = Widths(limits_at(space, table, float(target)))
            here, _ = widths.problem(numbers)
            result = scale_widths(here, rng.integers(here.low, np.array(here.high) + 1).tolist())
            steps = [
                row[w - a + 1] - row[w - a]
                for row, a, b, w in zip(here.resources[0].layers, here.low, here.high, result.widths)
                if w < b
            ]
            slack = target * (1 - result.usage)
            slacks.append(slack / target)
            met = bool(result.fits and slack < min(steps, default=0.0) + 1e-9)
            counts["inside"] += int(met)
            counts["silent_misses"] += int(not met)
        below, above = rng.uniform(0.5 * least, low, -(-targets // 2)), rng.uniform(high, 1.5 * high, -(-targets // 2))
        for target in (*below, *above):
            outcome = _outside(Widths(limits_at(space, table, float(target))), alpha, beta)
            counts["outside"] += 1
            counts[outcome] += 1
    return {
        "space": space.name,
        "architectures": architectures,
        "targets": targets,
        **counts,
        "median_slack": float(np.median(slacks)),
        "worst_slack": float(np.max(slacks)),
    }


def _outside(widths: Widths, alpha: list[Any], beta: list[Any]) -> str:
    try:
        done = finish(widths, alpha, beta, widths.starts())
    except Infeasible:
        return "refused"
    if not widths.limits.fits(done.architecture):
        return "silent_misses"
    if done.repaired:
        return "repaired"
    return "explained" if "upper bound" in done.message else "silent_misses"


def _numbers(widths: Widths, architecture: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    options: list[int] = []
    for stage, numbers in enumerate(widths.layout.numbers(architecture)):
        options += [*numbers, *[0] * (widths.space.stages[stage].max_depth - len(numbers))]
    return tuple(options), architecture.depths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--space", default="tfnas")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--architectures", type=int, default=30)
    parser.add_argument("--targets", type=int, default=10)
    options = parser.parse_args()
    space = preset(options.space)
    if options.table is not None:
        table = load_table(options.table)
    else:
        table = measure(space, by_name("torch-cpu", threads=1), settings=TimingSettings(seconds=options.seconds))
    result = run(space, table, options.architectures, options.targets)
    print(json.dumps(result) if options.json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
