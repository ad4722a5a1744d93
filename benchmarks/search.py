"""Every search method on one finished run, at budgets across the feasible range, against random networks.

    python benchmarks/search.py RUN [--parts further,variants,regret,compare] [--threads 1] [--out FILE.json]
    python benchmarks/search.py --table FILE.json [FILE.json ...] > benchmarks/results/search.md

RUN is a folder of `snugnet run` (super-network and table.json). For each latency budget, and for pairs of latency and
parameters, every method searches; its network is evaluated on *test* images (inherited weights, recalibrated), which no
search has seen. Beside it: the mean of random networks within the same budget, and the best of 100 of them (chosen, as
every method chooses, on validation images). Variants of Frank-Wolfe are compared at fewer budgets and two seeds: starts,
projections, gradients, schedules. Regret is measured in a small part of the run's space, where all networks are evaluated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from snugnet.budgets import cheapest, dearest, feasible, limits_of
from snugnet.costs.table import exact_table, load_table
from snugnet.evaluate.evaluator import Evaluator
from snugnet.fitting.runs import open_run
from snugnet.nets import Supernet
from snugnet.searching import Bcsfw, Evolution, Instant, Random, SearchMethod, SearchResult
from snugnet.searching.search import search
from snugnet.solve import Point, argmax_baseline, project
from snugnet.space import parse
from snugnet.store import read_json, write_json

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from brute_force import enumerate_choices

BCSFW = Bcsfw(steps=120)
METHODS: dict[str, SearchMethod] = {
    "bcsfw": BCSFW,
    "instant": Instant(),
    "evolution": Evolution(population=32, rounds=4, mutations=8, crossovers=8),
}
BARE = replace(BCSFW, candidates=1)  # what the relaxed point alone leads to: the method as published
VARIANTS: dict[str, SearchMethod] = {
    "expected gradient": replace(BCSFW, gradient="expected"),
    "expected gradient, schedule 30 steps ahead": replace(BCSFW, gradient="expected", head_start=30),
    "nearest network only (as published)": BARE,
    "the same, smallest start": replace(BARE, start="smallest"),
    "the same, alternating projection": replace(BARE, projection="alternating"),
    "the same, gradients averaged (momentum 0.9)": replace(BARE, momentum=0.9),
    "the same, fixed step 0.05 and momentum 0.9": replace(BARE, schedule="fixed", fixed_step=0.05, momentum=0.9),
    "the same, schedule 30 steps ahead": replace(BARE, head_start=30),
}


class Bench:
    """One run, its evaluates, and the score of each method at each budget."""

    def __init__(self, folder: Path) -> None:
        run = open_run(folder)
        self.name, self.supernet, self.data = str(run.recipe.name), run.supernet, run.data
        self.table = load_table(folder / "table.json")
        self.val = Evaluator(self.supernet, self.data, split="val")
        self.test = Evaluator(self.supernet, self.data, split="test", limit=None)
        self.kept = tempfile.TemporaryDirectory()

    def budgets(self, count: int, pairs: int) -> list[dict[str, str]]:
        space = self.supernet.space
        low, high = (self.table.upper(end(space, self.table).cost) for end in (cheapest, dearest))
        single = [{"latency": f"{x:.8g}ms"} for x in np.linspace(low * 1.02, high, count)]
        small = exact_table(space, "params")
        least, most = cheapest(space, small).cost, dearest(space, small).cost
        both = []
        for share in np.linspace(0.25, 0.95, pairs):
            latency = low + share * (high - low)
            both.append({"latency": f"{latency:.8g}ms", "params": f"{least + share * (most - least):.0f}params"})
        return single + both

    def search(self, method: SearchMethod, budget: dict[str, str], seed: int = 0) -> SearchResult:
        # Only what `instant` has learnt is worth keeping from budget to budget.
        out = self.kept.name if isinstance(method, Instant) else None
        return search(
            self.supernet, self.data, self.table, budget, method, seed, evaluator=self.val, out=out, compete=False
        )

    def score(self, method: SearchMethod, budget: dict[str, str], seed: int = 0) -> dict[str, Any]:
        found = self.search(method, budget, seed)
        score = self.test(found.architecture)
        limits = limits_of(self.supernet.space, self.table, budget)
        return {
            "network": str(found.architecture),
            "fits": bool(limits.fits(found.architecture)),
            "accuracy": score.accuracy,
            "validation_value": found.score,
            "seconds": round(found.seconds, 2),
            "evaluated": found.evaluated,
        }

    def random(self, budget: dict[str, str], networks: int, tested: int) -> dict[str, float]:
        found = self.search(Random(networks=networks), budget)
        values = [row["value"] for row in found.trace]
        space = self.supernet.space
        some = [self.test(parse(row["network"], space)).accuracy for row in found.trace[:tested]]
        best = self.test(found.architecture)
        return {
            "mean": statistics.fmean(some),
            "deviation": statistics.stdev(some),
            "best": best.accuracy,
            "validation_mean": statistics.fmean(values),
            "validation_best": found.score,
        }


def compare(
    bench: Bench, budgets: list[dict[str, str]], networks: int, known: list[dict[str, Any]], redo: list[str]
) -> list[dict[str, Any]]:
    """A row a budget; what `known` has of it is kept, apart from the methods to `redo`."""
    before = {json.dumps(row["budget"]): {k: v for k, v in row.items() if k not in redo} for row in known}
    if not known or "instant" in redo:
        bench.search(METHODS["instant"], budgets[-1])  # learns; its time is given apart
    rows = []
    for budget in budgets:
        row: dict[str, Any] = before.get(json.dumps(budget), {"budget": budget})
        if "random" not in row:
            row["random"] = bench.random(budget, networks, min(20, networks))
        for name, method in METHODS.items():
            if name not in row:
                row[name] = bench.score(method, budget)
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def variants(
    bench: Bench, budgets: list[dict[str, str]], seeds: int, known: dict[str, Any], redo: list[str]
) -> dict[str, Any]:
    """Validation value and test accuracy against random networks' mean at each budget, in the latter's deviations."""
    said: dict[str, Any] = {}
    around = [bench.random(budget, 40, 20) for budget in budgets]
    for name, method in {"default": BCSFW, **VARIANTS}.items():
        if name in known and name not in redo:
            said[name] = known[name]
            continue
        rows = [[bench.score(method, budget, seed) for seed in range(seeds)] for budget in budgets]
        gains = [statistics.fmean(r["accuracy"] for r in row) - by["mean"] for row, by in zip(rows, around)]
        values = [
            statistics.fmean(r["validation_value"] for r in row) - by["validation_mean"]
            for row, by in zip(rows, around)
        ]
        seconds = statistics.median(r["seconds"] for row in rows for r in row)
        said[name] = {"accuracy": summary(gains), "validation_value": summary(values), "seconds": seconds}
        print(name, json.dumps(said[name]), flush=True)
    said["argmax"] = known.get("argmax") or broken_by_argmax(bench, budgets)
    return said


def broken_by_argmax(bench: Bench, budgets: list[dict[str, str]]) -> dict[str, float]:
    """How far the most probable choices of Frank-Wolfe's last point exceed the budget, and the exact projection's answer."""
    over, ours = [], []
    for budget in budgets:
        inside = feasible(bench.supernet.space, bench.table, budget)
        details = bench.search(BARE, budget).details
        alpha = tuple(np.array(row) for stage in details["alpha"] for row in stage)
        point = Point(alpha, tuple(np.array(row) for row in details["beta"]))
        limit = inside.limits["latency"].effective
        cost = inside.problem.cost
        over.append(float(cost(argmax_baseline(inside.problem, point))["latency"] / limit - 1))
        ours.append(float(cost(project(inside.problem, point).value)["latency"] / limit - 1))
    broken = [float(np.mean(np.array(x) > 1e-9)) for x in (over, ours)]
    return {"argmax_broken": broken[0], "argmax_worst": max(over), "exact_broken": broken[1], "exact_worst": max(ours)}


def part_of(supernet: Supernet, most: int) -> Supernet:
    """The same weights with only a few choices left, so few that every network can be evaluated.

    From the last stage backwards, stages keep their smallest choice, a middle one and their largest, at all depths, while
    no more than `most` networks result; the others keep their largest network alone."""
    space = supernet.space
    stages, count = [], 1
    for stage in reversed(space.stages):
        kept = (stage.choices[0], stage.choices[len(stage.choices) // 2], stage.choices[-1])
        networks = sum(len(kept) ** depth for depth in stage.depths)
        if len(stage.choices) > 1 and count * networks <= most:
            stages.append(replace(stage, choices=kept))
            count *= networks
        else:
            stages.append(replace(stage, choices=stage.choices[-1:], depths=stage.depths[-1:]))
    part = Supernet(replace(space, stages=tuple(reversed(stages))))
    weights = supernet.state_dict()
    part.load_state_dict({name: weights[name] for name in part.state_dict()})
    return part.eval()


def regret(bench: Bench, most: int) -> dict[str, Any]:
    """What each method loses against the true optimum of a small space, in validation value."""
    supernet = part_of(bench.supernet, most)
    space, val = supernet.space, Evaluator(supernet, bench.data, split="val", limit=1000, closer=1000)
    everything = feasible(space, bench.table, {})
    networks = [everything.architecture(choice) for choice in enumerate_choices(everything.problem)]
    values = {network: val(network).score for network in networks}
    said: dict[str, Any] = {"networks": len(networks), "deviation": round(statistics.stdev(values.values()), 5)}
    low, high = cheapest(space, bench.table).cost, dearest(space, bench.table).cost
    budgets = [{"latency": f"{bench.table.upper(low + x * (high - low)):.8g}ms"} for x in (0.15, 0.3, 0.45, 0.6, 0.75)]
    for name, method in {**METHODS, "bcsfw, nearest only": BARE, "best of 20 random": Random(networks=20)}.items():
        lost, better = [], []
        for budget in budgets:
            limits = limits_of(space, bench.table, budget)
            inside = [value for network, value in values.items() if limits.fits(network)]
            found = search(supernet, bench.data, bench.table, budget, method, 0, evaluator=val, compete=False)
            lost.append(max(inside) - found.score)
            better.append(sum(value > found.score for value in inside) / len(inside))
        said[name] = {"regret": [round(x, 5) for x in lost], "share_of_networks_better": [round(x, 4) for x in better]}
        print("regret", name, json.dumps(said[name]), flush=True)
    return said


def further_budget(bench: Bench) -> dict[str, Any]:
    """A budget not asked before, with `snugnet search`'s own evaluator and folder, on a run whose worths are known."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        first = search(
            bench.supernet, bench.data, bench.table, {"latency": "60%"}, Instant(), out=folder, compete=False
        )
        learning = time.perf_counter() - began
        rows = []
        for share in ("40%", "50%", "70%", "80%", "90%"):
            began = time.perf_counter()
            found = search(
                bench.supernet, bench.data, bench.table, {"latency": share}, Instant(), out=folder, compete=False
            )
            rows.append((time.perf_counter() - began, found.details["solve_seconds"], found.evaluated))
    return {
        "first_seconds": round(learning, 1),
        "prediction": first.details["prediction"],
        "path_worths_alone": first.details["prior"],
        "further_seconds": [round(r[0], 2) for r in rows],
        "solve_seconds": [round(r[1], 4) for r in rows],
        "evaluated": [r[2] for r in rows],
    }


def summary(differences: list[float]) -> dict[str, float]:
    error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
    told = {"mean": statistics.fmean(differences), "error": error, "worst": min(differences), "most": max(differences)}
    return {name: round(value, 6) for name, value in told.items()}


def table(facts: dict[str, Any]) -> str:
    """The results of one run as Markdown."""
    lines = [f"## {facts['name']} ({facts['date']})", "", facts["about"], ""]
    if rows := facts.get("compare"):
        lines += [
            "| method | within budget | minus mean of random | worst of these | minus best of 100 random | s a search |",
            "|---|---|---|---|---|---|",
        ]
        for method in METHODS:
            fits = sum(row[method]["fits"] for row in rows)
            mean = summary([row[method]["accuracy"] - row["random"]["mean"] for row in rows])
            best = summary([row[method]["accuracy"] - row["random"]["best"] for row in rows])
            seconds = statistics.median(row[method]["seconds"] for row in rows)
            below = sum(row[method]["accuracy"] < row["random"]["mean"] for row in rows)
            lines.append(
                f"| {method} | {fits}/{len(rows)} | {_points(mean)} ({below} below) | {100 * mean['worst']:+.2f} "
                f"| {_points(best)} | {seconds:.1f} |"
            )
        best = summary([row["random"]["best"] - row["random"]["mean"] for row in rows])
        lines += [f"| best of 100 random | - | {_points(best)} | {100 * best['worst']:+.2f} | 0 | - |", ""]
    if said := facts.get("variants"):
        lines += ["| Frank-Wolfe | accuracy minus mean of random | validation value minus mean of random | s |"]
        lines += ["|---|---|---|---|"]
        for name, row in said.items():
            if name != "argmax":
                value = row["validation_value"]
                lines.append(
                    f"| {name} | {_points(row['accuracy'])} | {value['mean']:+.4f} +- {value['error']:.4f} "
                    f"| {row['seconds']:.1f} |"
                )
        worst = said["argmax"]
        lines += [
            "",
            f"Arg-max of the last point: over budget in {worst['argmax_broken']:.0%} of the budgets, by up to "
            f"{worst['argmax_worst']:.1%}; exact projection: {worst['exact_broken']:.0%}.",
            "",
        ]
    if said := facts.get("regret"):
        lines += [
            f"All {said['networks']} networks of a small part evaluated (deviation of values {said['deviation']}):",
            "",
        ]
        lines += ["| method | regret in validation value, mean | share of networks better, mean |", "|---|---|---|"]
        for name, row in said.items():
            if isinstance(row, dict):
                lost, better = statistics.fmean(row["regret"]), statistics.fmean(row["share_of_networks_better"])
                lines.append(f"| {name} | {lost:.4f} | {better:.1%} |")
        lines += [""]
    if said := facts.get("further"):
        lines += [f"- {key.replace('_', ' ')}: {value}" for key, value in said.items()]
    return "\n".join(lines) + "\n"


def _points(value: dict[str, float]) -> str:
    return f"{100 * value['mean']:+.2f} +- {100 * value['error']:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--table", action="store_true", help="RUN are results; print them as Markdown.")
    parser.add_argument("--parts", default="further,variants,regret,compare")
    parser.add_argument("--budgets", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--networks", type=int, default=100)
    parser.add_argument("--variants-at", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--enumerate", type=int, default=1600)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=False)
    parser.add_argument("--redo", default="", help="Names of methods and variants: the rest of --out is kept.")
    chosen = parser.parse_args()
    if chosen.table:
        print("# Search methods at equal budgets\n\n" + "\n".join(table(read_json(path)) for path in chosen.runs))
        return
    torch.set_num_threads(chosen.threads)
    bench = Bench(chosen.runs[0])
    space = bench.supernet.space
    facts: dict[str, Any] = {
        "name": bench.name,
        "date": datetime.now(UTC).date().isoformat(),
        "about": f"Space {space.name}, {bench.table.resource} on {bench.table.origin['device']['device']}. Accuracies on "
        f"{bench.data.size('test')} test images; searches see {min(2000, bench.data.size('val'))} others, of their last few "
        f"networks {min(10_000, bench.data.size('val'))}. "
        "Evaluations are shared by all methods and budgets, and seconds count new ones only.",
    }
    old: dict[str, Any] = read_json(chosen.out) if chosen.redo else {}
    redo = chosen.redo.split(",")
    facts = {**old, **facts}
    work = {
        "further": lambda: further_budget(bench),
        "variants": lambda: variants(
            bench, bench.budgets(chosen.variants_at, 0), chosen.seeds, old.get("variants", {}), redo
        ),
        "regret": lambda: regret(bench, chosen.enumerate),
        "compare": lambda: compare(
            bench, bench.budgets(chosen.budgets, chosen.pairs), chosen.networks, old.get("compare", []), redo
        ),
    }
    for part in chosen.parts.split(","):
        began = time.perf_counter()
        facts[part] = work[part]()
        facts[f"{part}_seconds"] = round(time.perf_counter() - began, 1)
        if chosen.out is not None:
            write_json(chosen.out, facts)
    print(table(facts))


if __name__ == "__main__":
    main()
