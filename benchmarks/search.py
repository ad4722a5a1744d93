"""Every search method on one finished run, at budgets across the feasible range, against random networks.

    python benchmarks/search.py RUN [--budgets 20] [--pairs 10] [--threads 1] [--out FILE.md] [--json]

RUN is a folder of `snugnet run` (super-network and table.json). For each latency budget, and for pairs of latency and
parameters, every method searches; its network is judged on the *test* images (inherited weights, recalibrated), which no
search has seen. Beside it: the mean and the best (chosen on validation images) of 100 random networks within the same
budget. Also measured: balanced against lightest start, exact against alternating projection and arg-max, sampled against
expected gradient, the paper's schedule against a fixed step with momentum, and the time of a further budget.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from snugnet.budget import cheapest, dearest
from snugnet.costs.table import exact_table
from snugnet.costs.table_file import load_table
from snugnet.recipes.runs import open_run
from snugnet.search import Bcsfw, Evolution, Instant, Judge, Random, SearchMethod, search
from snugnet.solve import argmax_baseline

METHODS: dict[str, SearchMethod] = {
    "bcsfw": Bcsfw(steps=120),
    "instant": Instant(),
    "evolution": Evolution(population=32, rounds=4, mutations=8, crossovers=8),
}
VARIANTS: dict[str, SearchMethod] = {
    "lightest start": Bcsfw(steps=120, start="lightest"),
    "alternating projection": Bcsfw(steps=120, projection="alternating"),
    "expected gradient": Bcsfw(steps=120, gradient="expected"),
    "fixed step 0.05, momentum 0.9": Bcsfw(steps=120, schedule="fixed", fixed_step=0.05, momentum=0.9),
}


class Bench:
    """One run, its judges, and the score of each method at each budget."""

    def __init__(self, folder: Path) -> None:
        run = open_run(folder)
        self.run, self.supernet, self.data = run, run.supernet, run.data
        self.table = load_table(folder / "table.json")
        self.val = Judge(self.supernet, self.data, split="val")
        self.test = Judge(self.supernet, self.data, split="test")

    def budgets(self, count: int, pairs: int) -> list[dict[str, str]]:
        space, room = self.supernet.space, 1 + self.table.margin
        low, high = cheapest(space, self.table).cost * room, dearest(space, self.table).cost * room
        single = [{"latency": f"{x:.8g}ms"} for x in np.linspace(low * 1.02, high, count)]
        small = exact_table(space, "params")
        least, most = cheapest(space, small).cost, dearest(space, small).cost
        both = []
        for share in np.linspace(0.25, 0.95, pairs):
            latency = low + share * (high - low)
            both.append({"latency": f"{latency:.8g}ms", "params": f"{least + share * (most - least):.0f}params"})
        return single + both

    def score(self, method: SearchMethod, budget: dict[str, str], seed: int = 0) -> dict[str, Any]:
        began = time.perf_counter()
        found = search(self.supernet, self.data, self.table, budget, method, seed, judge=self.val)
        seconds = time.perf_counter() - began
        verdict = self.test(found.architecture)
        return {
            "fits": found.fits,
            "accuracy": verdict.accuracy,
            "loss": verdict.loss,
            "seconds": seconds,
            "found": found,
        }

    def random(self, budget: dict[str, str], networks: int) -> dict[str, float]:
        found = search(self.supernet, self.data, self.table, budget, Random(networks=networks), judge=self.val)
        names = [row["network"] for row in found.trace]
        losses = [row["loss"] for row in found.trace]
        from snugnet.space import parse

        tested = [self.test(parse(name, self.supernet.space)).accuracy for name in names[: min(20, networks)]]
        return {
            "mean": statistics.fmean(tested),
            "best": self.test(parse(names[int(np.argmin(losses))], self.supernet.space)).accuracy,
        }


def compare(bench: Bench, budgets: list[dict[str, str]], networks: int) -> list[dict[str, Any]]:
    rows = []
    for budget in budgets:
        row: dict[str, Any] = {"budget": budget, "random": bench.random(budget, networks)}
        for name, method in METHODS.items():
            row[name] = {k: v for k, v in bench.score(method, budget).items() if k != "found"}
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def variants(bench: Bench, budgets: list[dict[str, str]]) -> dict[str, dict[str, float]]:
    """Differences of test accuracy to the default method, and how often arg-max would have broken a budget."""
    base = [bench.score(METHODS["bcsfw"], budget) for budget in budgets]
    told = {}
    for name, method in VARIANTS.items():
        other = [bench.score(method, budget)["accuracy"] for budget in budgets]
        told[name] = summary([o - b["accuracy"] for o, b in zip(other, base)])
    return told


def broken_by_argmax(bench: Bench, budgets: list[dict[str, str]]) -> dict[str, float]:
    from snugnet.budget import feasible
    from snugnet.solve import Point

    over = []
    for budget in budgets:
        inside = feasible(bench.supernet.space, bench.table, budget)
        details = bench.score(METHODS["bcsfw"], budget)["found"].details
        alpha = tuple(np.array(row) for stage in details["alpha"] for row in stage)
        point = Point(alpha, tuple(np.array(row) for row in details["beta"]))
        choice = argmax_baseline(inside.problem, point)
        excess = inside.problem.cost(choice)["latency"] / inside.limits.amounts["latency"] - 1
        over.append(float(excess))
    return {"broken": float(np.mean(np.array(over) > 1e-9)), "worst": max(over)}


def summary(differences: list[float]) -> dict[str, float]:
    error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
    return {"mean": statistics.fmean(differences), "error": error, "worst": min(differences)}


def further_budget(bench: Bench) -> dict[str, float]:
    """A budget not asked before, on a run whose worths are known."""
    method = Instant()
    found = search(bench.supernet, bench.data, bench.table, {"latency": "70%"}, method, judge=bench.val)
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        search(bench.supernet, bench.data, bench.table, {"latency": "60%"}, method, out=folder)
        began = time.perf_counter()
        found = search(bench.supernet, bench.data, bench.table, {"latency": "55.5%"}, method, out=folder)
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "solve_seconds": found.details["solve_seconds"], "evaluated": found.evaluated}


def report(name: str, rows: list[dict[str, Any]], extra: dict[str, Any]) -> str:
    lines = [f"# Search methods on {name}, {date.today().isoformat()}", ""]
    lines += [f"{len(rows)} budgets; accuracies on test images, inherited weights, recalibrated.", ""]
    lines += [
        "| method | within budget | minus mean of random | minus best of random | worst minus random mean | s a search |"
    ]
    lines += ["|---|---|---|---|---|---|"]
    for method in METHODS:
        fits = sum(row[method]["fits"] for row in rows)
        mean = summary([row[method]["accuracy"] - row["random"]["mean"] for row in rows])
        best = summary([row[method]["accuracy"] - row["random"]["best"] for row in rows])
        seconds = statistics.median(row[method]["seconds"] for row in rows)
        lines.append(
            f"| {method} | {fits}/{len(rows)} | {_pp(mean)} | {_pp(best)} | {100 * mean['worst']:+.2f} | {seconds:.1f} |"
        )
    lines += ["", "Differences in percentage points, mean +- standard error over the budgets.", ""]
    lines += [f"- {key}: {value}" for key, value in extra.items()]
    return "\n".join(lines) + "\n"


def _pp(value: dict[str, float]) -> str:
    return f"{100 * value['mean']:+.2f} +- {100 * value['error']:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--budgets", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--networks", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    bench = Bench(options.run)
    rows = compare(bench, bench.budgets(options.budgets, options.pairs), options.networks)
    some = bench.budgets(6, 0)
    extra = {f"{k} against the default": _pp(v) for k, v in variants(bench, some).items()}
    extra["arg-max instead of the exact projection"] = broken_by_argmax(bench, some)
    extra["a further budget with instant"] = further_budget(bench)
    text = report(str(bench.run.recipe.name), rows, extra)
    print(text)
    if options.out is not None:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
