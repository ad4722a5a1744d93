"""Regret of random search, evolution, effects learnt once and adaptive search, on synthetic truths.

    python benchmarks/adaptive_synthetic.py [--json] [--save] [--truths 10]

Two groups of 2-4 slots with 3 options (13,689 choices, all known), one budget. A truth is additive effects that grow with
cost, pairwise interactions of neighbouring slots (half the deviation of the effects), scaled to a deviation of one over all
choices; noise of an evaluation 0 or 0.5. Regret: the best fitting choice's true value minus the chosen one's, mean over
truths, after 30, 60 and 120 evaluations. `adaptive_prior` knows effects that correlate with the true ones at about 0.6.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import statistics
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from snugnet.solve import Choice, Evaluation, Group, Objective, Problem, ResourceCosts, best_choices
from snugnet.solve.adaptive import AdaptiveSearch
from snugnet.store import write_json

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from brute_force import enumerate_choices

MARKS = (30, 60, 120)


class Truth:
    """A problem and a value for every choice; `evaluate` adds noise."""

    def __init__(self, seed: int, noise: float, interactions: float = 0.5) -> None:
        rng = np.random.default_rng(seed)
        self.noise, self.rng = noise, np.random.default_rng([seed, 1])
        groups = tuple(Group(name=f"g{g}", options=(3,) * 4, depths=(2, 3, 4)) for g in range(2))
        size = np.sort(rng.uniform(1, 3, (8, 3)), axis=1)
        resource = ResourceCosts(name="cost", unit="ms", base=1.0, costs=tuple(size))
        free = Problem(groups=groups, resources=(resource,))
        low, high = (free.cost(c)["cost"] for c in (free.cheapest("cost"), free.dearest("cost")))
        self.problem = free.with_limits({"cost": low + rng.uniform(0.3, 0.6) * (high - low)})
        options = np.log(size) + rng.normal(0, 0.3, (8, 3))
        self.effects = Objective(tuple(options), tuple(rng.normal(0, 0.3, 3) for _ in range(2)))
        self.pairs = rng.normal(0, interactions * float(options.std()), (7, 3, 3))
        values = {c: self._raw(c) for c in enumerate_choices(self.problem)}
        mean, scale = statistics.mean(values.values()), statistics.pstdev(values.values())
        self.values = {c: (v - mean) / scale for c, v in values.items() if self.problem.is_feasible(c)}

    def _raw(self, choice: Choice) -> float:
        running = self.problem.running(choice)
        beside = [(s, t) for s, t in itertools.pairwise(running) if t == s + 1]
        return self.problem.value(self.effects, choice) + sum(
            float(self.pairs[s, choice.options[s], choice.options[t]]) for s, t in beside
        )

    @cached_property
    def prior(self) -> Objective:
        """The true effects with noise of 1.3 times their own deviation."""
        rng = np.random.default_rng(9)
        scale = 1.3 * float(np.std(np.concatenate(self.effects.options)))
        noisy = [
            tuple(v + rng.normal(0, scale, v.shape) for v in part)
            for part in (self.effects.options, self.effects.depths)
        ]
        return Objective(noisy[0], noisy[1])

    def evaluate(self, choice: Choice) -> tuple[float, float]:
        return self.values[choice] + self.noise * float(self.rng.normal()), self.noise

    def regret(self, choice: Choice) -> float:
        return max(self.values.values()) - self.values[choice]


def by_random(truth: Truth, rng: np.random.Generator) -> Iterator[Choice]:
    choices = list(truth.values)
    measured = {}
    for i in rng.permutation(len(choices)):
        measured[choices[i]] = truth.evaluate(choices[i])[0]
        yield max(measured, key=measured.__getitem__)


def by_evolution(truth: Truth, rng: np.random.Generator) -> Iterator[Choice]:
    """Ten at random; then one or two genes of one of the five best, or a mixture of two of them, if it fits and is new."""
    problem, choices = truth.problem, list(truth.values)
    measured: dict[Choice, float] = {}
    while True:
        child = choices[int(rng.integers(len(choices)))]
        if len(measured) >= 10:
            parents = sorted(measured, key=measured.__getitem__)[-5:]
            a, b = (parents[int(rng.integers(len(parents)))] for _ in range(2))
            genes = np.where(rng.random(10) < 0.5, (*a.options, *a.depths), (*b.options, *b.depths))
            for place in rng.integers(0, 10, int(rng.integers(1, 3))):
                genes[place] = rng.integers(3) if place < 8 else rng.integers(2, 5)
            child = problem.choice(genes[:8].tolist(), genes[8:].tolist())
        if child in measured or child not in truth.values:
            continue
        measured[child] = truth.evaluate(child)[0]
        yield max(measured, key=measured.__getitem__)


def learnt_once(truth: Truth, rng: np.random.Generator, evaluations: int) -> Choice:
    """All but five evaluations at random, the effects fitted, the model's five best evaluated; winner by posterior mean."""
    search = AdaptiveSearch(truth.problem, rng=rng)
    choices = list(truth.values)
    for i in rng.permutation(len(choices))[: evaluations - 5]:
        value, error = truth.evaluate(choices[i])
        search.learn(Evaluation(choice=choices[i], value=value, error=error))
    effects = search.beliefs.posterior.mean
    n = len(truth.problem.option_slot)
    objective = Objective(truth.problem.split_alpha(effects[:n]), truth.problem.split_beta(effects[n:]))
    for choice in best_choices(truth.problem, objective, count=5).found:
        value, error = truth.evaluate(choice)
        search.learn(Evaluation(choice=choice, value=value, error=error))
    return search.best()[0]


def adaptively(truth: Truth, rng: np.random.Generator, **options: Any) -> Iterator[Choice]:
    search = AdaptiveSearch(truth.problem, rng=rng, **options)
    for step in search.steps(truth.evaluate, evaluations=MARKS[-1]):
        yield step.best


def regrets(seed: int, noise: float) -> dict[str, list[float]]:
    """Regret of every method at every mark, for one truth."""
    answer: dict[str, list[float]] = {}
    loops: dict[str, Any] = {
        "random": by_random,
        "evolution": by_evolution,
        "adaptive": adaptively,
        "adaptive_mean": lambda t, r: adaptively(t, r, explore=0.0),
        "adaptive_prior": lambda t, r: adaptively(t, r, prior=t.prior),
    }
    for name, loop in loops.items():
        truth = Truth(seed, noise)
        best = list(itertools.islice(loop(truth, np.random.default_rng(seed)), MARKS[-1]))
        answer[name] = [truth.regret(best[min(mark, len(best)) - 1]) for mark in MARKS]
    truth = Truth(seed, noise)
    answer["learnt_once"] = [truth.regret(learnt_once(truth, np.random.default_rng(seed), mark)) for mark in MARKS]
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--truths", type=int, default=10)
    options = parser.parse_args()
    result: dict[str, Any] = {"truths": options.truths}
    for noise in (0.0, 0.5):
        rows = [regrets(seed, noise) for seed in range(options.truths)]
        for name in rows[0]:
            for i, mark in enumerate(MARKS):
                result[f"{name}_{mark}_noise_{noise:g}"] = round(statistics.mean(row[name][i] for row in rows), 4)
    if options.save:
        today = datetime.date.today().isoformat()
        write_json(Path(__file__).parent / "results" / f"adaptive_synthetic-{today}.json", {"date": today, **result})
    print(json.dumps(result) if options.json else "\n".join(f"{k}: {v}" for k, v in result.items()))


if __name__ == "__main__":
    main()
