"""The constrained core on problems of HardCoRe-NAS's shape (20 slots x 12 options, 5 groups of depth 2-4), on one core.

    python benchmarks/solve.py [--json] [--save]

Medians over random problems and budgets, contestants interleaved: our LP against HiGHS's warm simplex, against scipy's on
the same numbers and against the 41 ms a solve takes in the paper (appendix H); our integer optimum against HiGHS's MILP
alone and OR-Tools' CP-SAT, for one optimum and for what a search asks of it (the five best for a further budget, a front of
twelve budgets, thirty optima of an adaptive loop); the gap after at most ten seconds at 100 slots x 30 options x 4 budgets;
and table 2 in kind: how often argmax breaks the budget, and by how much. `--save` writes a dated file into
benchmarks/results. OR-Tools is no dependency; its fields are left out unless it can be imported:

    pip install --target /tmp/ortools ortools==9.15.6755 && PYTHONPATH=/tmp/ortools python benchmarks/solve.py
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import itertools
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from scipy.optimize import linprog

from snugnet.solve import (
    Block,
    Choice,
    FrankWolfeState,
    Group,
    LinearOracle,
    Objective,
    Point,
    Problem,
    ResourceCosts,
    argmax_baseline,
    balanced_start,
    best_choice,
    best_choices,
    iterate,
    project,
    project_alternating,
)
from snugnet.solve.integer import read_choice, solve_milp
from snugnet.solve.linear import WarmSimplex
from snugnet.store import write_json

PAPER_MS = 1.15e-5 * 3600 * 1000  # CPU hours a solve, appendix H
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)  # of the way from the smallest network to the largest


def make(
    budgets: int, seed: int, share: float, *, slots: int = 20, options: int = 12, groups: int = 5
) -> tuple[Problem, Objective]:
    """Costs that grow with an option's size, each resource in its own way; effects with falling returns, and noise."""
    rng = np.random.default_rng(seed)
    size = np.sort(rng.uniform(1, 3, (slots, options)), axis=1) * rng.uniform(0.5, 2, (slots, 1))
    costs = size * rng.uniform(0.8, 1.2, (budgets, slots, options))
    stage = tuple(
        Group(name=f"stage{g}", options=(options,) * (slots // groups), depths=(2, 3, 4)) for g in range(groups)
    )
    resources = tuple(ResourceCosts(name=f"r{k}", unit="ms", base=4.0, costs=tuple(costs[k])) for k in range(budgets))
    problem = Problem(groups=stage, resources=resources)
    limits = {}
    for name in problem.names:
        low, high = (problem.cost(c)[name] for c in (problem.cheapest(name), problem.dearest(name)))
        limits[name] = low + share * (high - low)
    effect = np.log(size) * rng.uniform(0.5, 1.5, (slots, 1)) + rng.normal(0, 0.05, (slots, options))
    return problem.with_limits(limits), Objective(tuple(effect), tuple(rng.normal(0, 0.1, 3) for _ in range(groups)))


def milliseconds(call: Callable[[], Any]) -> float:
    """CPU time of this process, which has one thread: neighbours on the machine do not count."""
    began = time.process_time()
    call()
    return (time.process_time() - began) * 1e3


def time_linear(rounds: int) -> dict[str, float]:
    """LPs over alpha with values that are independent from call to call: the hardest case for warm starts.

    Depths vary between the balanced start's and the shallowest, so that every LP is feasible and its budget binds.
    """
    times: dict[str, list[float]] = {"lp_ms": [], "lp_warm_simplex_ms": [], "lp_3_budgets_ms": [], "scipy_lp_ms": []}
    for share in SHARES:
        one, three = (LinearOracle(make(k, 0, share)[0]) for k in (1, 3))
        starts = [o.problem.flat_beta(balanced_start(o.problem).value.beta) for o in (one, three)]
        simplex = WarmSimplex(one.problem.slot_sizes, 1)
        rng = np.random.default_rng(1)
        for _ in range(rounds):
            shallow = rng.uniform()
            beta, beta_3 = ((1 - shallow) * b + shallow * np.tile([1.0, 0.0, 0.0], 5) for b in starts)
            values = rng.normal(size=240)
            row = {
                "lp_ms": lambda: one.alpha(values, beta).value,  # noqa: B023
                "lp_warm_simplex_ms": lambda: by_simplex(simplex, one.problem, values, beta),  # noqa: B023
                "lp_3_budgets_ms": lambda: three.alpha(values, beta_3).value,  # noqa: B023
                "scipy_lp_ms": lambda: by_scipy(one.problem, values, beta),  # noqa: B023
            }
            for name, call in row.items():
                times[name].append(milliseconds(call))
    return {name: statistics.median(t) for name, t in times.items()}


def by_simplex(simplex: WarmSimplex, problem: Problem, values: np.ndarray, beta: np.ndarray) -> None:
    left = problem.limit - problem.base
    assert simplex.solve(values, problem.alpha_costs(beta) / left, np.ones(1)) is not None


def by_scipy(problem: Problem, values: np.ndarray, beta: np.ndarray) -> float:
    simplices = np.kron(np.eye(20), np.ones(12))
    room = problem.limit - problem.base
    return float(linprog(-values, A_ub=problem.alpha_costs(beta), b_ub=room, A_eq=simplices, b_eq=np.ones(20)).fun)


def time_programmes(seeds: int, solvers: dict[str, Solver]) -> dict[str, float]:
    """The general solvers see two of the seeds: they take their time. All must find the same optimum."""
    times: dict[str, list[float]] = {}
    for seed, share, budgets in itertools.product(range(seeds), SHARES, (1, 2, 3)):
        tail = "" if budgets == 1 else f"_{budgets}_budgets"
        problem, objective = make(budgets, seed, share)
        start = milliseconds(lambda: balanced_start(problem))  # noqa: B023
        times.setdefault(f"qp_start{tail}_ms", []).append(start)
        times.setdefault(f"integer_20_best{tail}_ms", []).append(ours(problem, objective, 20)[0] * 1e3)
        values = []
        for name, solver in solvers.items():
            if name == "integer" or seed < 2:
                seconds, choice = solver(problem, objective, 1)
                times.setdefault(f"{name}{tail}_ms", []).append(seconds * 1e3)
                values.append(problem.value(objective, choice))
        assert max(values) - min(values) < 1e-6, values
    medians = {name: statistics.median(t) for name, t in times.items()}
    worst = {name.replace("_ms", "_worst_ms"): max(t) for name, t in times.items() if "_best" not in name}
    return medians | worst


def time_uses(solvers: dict[str, Solver]) -> dict[str, float]:
    """What a search asks of the solver, in seconds: the five best for a further budget (median of three problems), the
    five best of each of twelve budgets, and thirty optima of an adaptive loop, whose effects differ from call to call."""
    times: dict[str, list[float]] = {}
    for seed, budgets in itertools.product(range(3), (1, 3)):
        tail = "" if budgets == 1 else f"_{budgets}_budgets"
        problem, objective = make(budgets, seed, 0.3)
        rng = np.random.default_rng(seed)
        draws = [drawn(objective, rng) for _ in range(30)]
        front = [make(budgets, seed, share)[0] for share in np.linspace(0.1, 0.6, 12)]
        for name, solver in solvers.items():
            times.setdefault(f"further_{name}{tail}_s", []).append(solver(problem, objective, 5)[0])
            if name == "integer" or seed == 0:  # minutes, for the general solvers
                loop = sum(solver(problem, draw, 1)[0] for draw in draws)
                times.setdefault(f"loop_30_{name}{tail}_s", []).append(loop)
                row = sum(solver(p, objective, 5)[0] for p in front) if name != "cp_sat" else math.nan
                times.setdefault(f"front_12_{name}{tail}_s", []).append(row)
    return {name: statistics.median(t) for name, t in times.items() if not math.isnan(t[0])}


def drawn(objective: Objective, rng: np.random.Generator) -> Objective:
    """Effects as a posterior draws them: the mean and a tenth of their spread as noise."""
    scale = 0.1 * float(np.std(np.concatenate(objective.options)))
    return Objective(
        tuple(v + rng.normal(0, scale, v.shape) for v in objective.options),
        tuple(v + rng.normal(0, scale, v.shape) for v in objective.depths),
    )


def ours(problem: Problem, objective: Objective, count: int) -> tuple[float, Choice]:
    began = time.process_time()
    choice = best_choices(problem, objective, count=count, time_limit=60).value
    return time.process_time() - began, choice


def highs(problem: Problem, objective: Objective, count: int) -> tuple[float, Choice]:
    began = time.process_time()
    choices = solve_milp(problem, objective, count=count, deadline=time.monotonic() + 120, gap=0.0).choices
    return time.process_time() - began, choices[0]


class CpSat:
    """OR-Tools in a process of its own (see cp_sat.py), given the joint model as plain numbers."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).parent / "cp_sat.py")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, problem: Problem, objective: Objective, count: int) -> tuple[float, Choice]:
        n, sizes = len(problem.option_slot), problem.slot_sizes
        columns = np.split(np.arange(n), problem.slot_starts[1:])
        scale = problem.limit_scale
        model = {
            "effects": problem.flat_objective(objective).tolist(),
            "simplices": [c.tolist() for c in np.split(np.arange(problem.runs.shape[1]) + n, problem.depth_starts[1:])],
            "slots": [[columns[s].tolist(), (np.flatnonzero(problem.runs[s]) + n).tolist()] for s in range(len(sizes))],
            "rows": (problem.theta[problem.limited] / scale[:, None]).tolist(),
            "rhs": ((problem.limit - problem.base[problem.limited]) / scale).tolist(),
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps({"model": model, "count": count}), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        x = np.zeros(n + problem.runs.shape[1])
        x[answer["ones"]] = 1.0
        return float(answer["seconds"]), read_choice(problem, x)


Solver = Callable[[Problem, Objective, int], tuple[float, Choice]]


def contestants() -> dict[str, Solver]:
    solvers: dict[str, Solver] = {"integer": ours, "milp": highs}
    if importlib.util.find_spec("ortools") is None:
        print("without OR-Tools (pip install --target DIR ortools==9.15.6755, then PYTHONPATH=DIR)", file=sys.stderr)
    else:
        solvers["cp_sat"] = CpSat()
    return solvers


def large() -> dict[str, float]:
    """100 slots x 30 options x 4 budgets: the worst gap of three problems after at most ten seconds each."""
    gaps, seconds = [], []
    for seed in range(3):
        problem, objective = make(4, seed, 0.45, slots=100, options=30, groups=25)
        got = best_choice(problem, objective, time_limit=10.0)
        assert problem.is_feasible(got.value)
        gaps.append(got.stats["gap"])
        seconds.append(got.stats["seconds"])
    problem, objective = make(4, 0, 0.45, slots=100, options=30, groups=25)
    quick = best_choice(problem, objective, time_limit=10.0, gap=0.01)
    assert problem.is_feasible(quick.value)
    return {
        "gap": max(gaps),
        "gap_seconds": max(seconds),
        "gap_below_1_percent_seconds": quick.stats["seconds"],
    }


def table_two(points: int) -> dict[str, Any]:
    """Relaxed points as a search leaves them: Frank-Wolfe towards random targets, inside each of six budgets."""
    broken = {"argmax": 0, "exact": 0, "alternating": 0}
    worst = dict.fromkeys(broken, -np.inf)
    rows = []
    for share in SHARES:
        problem, _ = make(1, 7, share)
        limit = problem.limits["r0"]
        start = balanced_start(problem).value
        rng = np.random.default_rng(round(share * 100))
        costs: dict[str, list[float]] = {name: [] for name in broken}
        for _ in range(points):
            relaxed = searched(problem, start, rng)
            chosen = {
                "argmax": argmax_baseline(problem, relaxed),
                "exact": project(problem, relaxed).value,
                "alternating": project_alternating(problem, relaxed).value,
            }
            for name, choice in chosen.items():
                over = problem.cost(choice)["r0"] / limit - 1
                broken[name] += not problem.is_feasible(choice)
                worst[name] = max(worst[name], over)
                costs[name].append(problem.cost(choice)["r0"])
        rows.append({"limit": round(limit, 2)} | {f"{n}_largest": round(max(c), 2) for n, c in costs.items()})
    total = points * len(SHARES)
    return {
        "argmax_breaks_percent": 100 * broken["argmax"] / total,
        "argmax_worst_percent": 100 * worst["argmax"],
        "ours_breaks_percent": 100 * (broken["exact"] + broken["alternating"]) / total,
        "table_two": rows,
    }


def searched(problem: Problem, start: Point, rng: np.random.Generator) -> Point:
    target = [rng.dirichlet(np.full(n, 0.3)) for n in (*problem.slot_sizes, *problem.depth_sizes)]
    slots = len(problem.slot_sizes)

    def gradient(point: Point, block: Block) -> tuple[float, list[np.ndarray]]:
        ours, theirs = (point.alpha, target[:slots]) if block == "alpha" else (point.beta, target[slots:])
        return 0.0, [2 * (a - b) for a, b in zip(ours, theirs)]

    *_, (state, _) = iterate(gradient, problem, FrankWolfeState(step=0, point=start), steps=40, rng=rng)
    return state.point


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    solvers = contestants()
    result: dict[str, Any] = {
        **time_linear(50),
        **time_programmes(5, solvers),
        **time_uses(solvers),
        **large(),
        **table_two(200),
    }
    result["paper_ms"] = PAPER_MS
    result["paper_over_lp"] = PAPER_MS / result["lp_ms"]
    result["scipy_over_lp"] = result["scipy_lp_ms"] / result["lp_ms"]
    result["warm_simplex_over_lp"] = result["lp_warm_simplex_ms"] / result["lp_ms"]
    result["milp_over_integer"] = result["milp_ms"] / result["integer_ms"]
    result["milp_over_integer_3_budgets"] = result["milp_3_budgets_ms"] / result["integer_3_budgets_ms"]
    result = {k: round(v, 5) if isinstance(v, float) else v for k, v in result.items()}
    if options.save:
        today = datetime.date.today().isoformat()
        note: dict[str, Any] = {
            "date": today,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "threads": 1,
        }
        note |= {"load_average": round(os.getloadavg()[0], 1), "processors": os.cpu_count()}
        write_json(Path(__file__).parent / "results" / f"solve-{today}.json", {**note, **result})
    print(json.dumps(result) if options.json else "\n".join(f"{k}: {v}" for k, v in result.items()))


if __name__ == "__main__":
    main()
