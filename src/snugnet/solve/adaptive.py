"""Adaptive search: a posterior of choice effects, and the exact solver to say what to evaluate next.

Every evaluation is evidence for a sum of effects, one per (slot, option) that runs and one per (group, depth) (`posterior`).
A draw of those effects has an exact best choice within the limits (`integer`); that choice is evaluated next, and the
posterior is fitted again. So evaluations go where the limits are and where effects are still uncertain. The winner is the
evaluated choice of the highest posterior mean, not of the highest value. Nothing outside the limits is ever evaluated.

What is evaluated next is a function of the evidence and of one number drawn from `rng`: a caller that stores evidence and
passes it again goes on as if it had never stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from snugnet.errors import BadInput, Infeasible
from snugnet.solve.infeasible import min_max_utilisation
from snugnet.solve.integer import best_choices
from snugnet.solve.posterior import EffectsPosterior
from snugnet.solve.problem import Choice, Floats, Objective, Outcome, Problem, Solution, Status

Evaluate = Callable[[Choice], tuple[float, float]]
"""choice -> (value, its standard error)"""
Propose = Callable[[Objective, int], Sequence[Choice]]
"""(effects, count) -> fitting choices that are good under these effects, best first."""

INITIAL: Final = 10  # fitting choices evaluated at random before effects are believed
INITIAL_WITH_PRIOR: Final = 4
_DRAWS: Final = 4
_CALM: Final = 3  # steps without a prospect of improvement after which an early stop ends


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A choice, the value it was evaluated at and that value's standard error."""

    choice: Choice
    value: float
    error: float


@dataclass(frozen=True, kw_only=True)
class AdaptiveStep:
    """After an evaluation: what it was, and the best choice so far with the mean and error of its true value."""

    evaluation: Evaluation
    best: Choice
    expected: float
    error: float
    improvement: float  # what the evaluated choice was expected to gain over the best before it; inf while at random


def adaptive_maximise(
    problem: Problem,
    evaluate: Evaluate,
    *,
    evaluations: int = 30,
    rng: np.random.Generator,
    prior: Objective | None = None,
    evidence: Sequence[Evaluation] = (),
    initial: int | None = None,
    explore: float = 1.0,
    stop_early: bool = False,
    propose: Propose | None = None,
) -> Solution[Choice]:
    """The choice within the limits whose expected value is highest after at most `evaluations` new evaluations.

    `prior` holds effects believed beforehand, in any unit; `evidence` what is known already, also outside these limits.
    `initial` counts the random choices at first, `explore` scales draws of effects around their mean (0: the mean itself).
    `stop_early` ends when three proposals in a row promise less than the error of the best. Stats: expected, error,
    evaluated (new ones), prior_slope (0 if there is none or it was dropped), left_out_correlation, seconds.
    """
    begun = time.monotonic()
    search = AdaptiveSearch(problem, rng=rng, prior=prior, initial=initial, explore=explore, propose=propose)
    steps = list(search.steps(evaluate, evaluations=evaluations, evidence=evidence, stop_early=stop_early))
    best, expected, error = search.best()
    stats = {"expected": expected, "error": error, "evaluated": float(len(steps)), "seconds": time.monotonic() - begun}
    stats |= search.diagnosis()
    message = f"the best by posterior mean after {len(steps)} evaluations; more may find a better one"
    return Solution(found=(best,), status=Status(Outcome.FEASIBLE, message), stats=stats)


class AdaptiveSearch:
    """Evidence about one problem, what to evaluate next (`propose`, then `learn`) and the best so far (`best`).

    `steps` does so an evaluation at a time: for callers that save between evaluations, report, or stop when they like.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        rng: np.random.Generator,
        prior: Objective | None = None,
        initial: int | None = None,
        explore: float = 1.0,
        propose: Propose | None = None,
    ) -> None:
        if (initial is not None and initial < 0) or not explore >= 0:
            rule, remedy = "initial and explore must not be negative", "Try initial=10, explore=1."
            raise BadInput(rule, value=(initial, explore), remedy=remedy)
        self.problem = problem
        self._prior = None if prior is None else problem.flat_objective(prior)
        self._initial = initial if initial is not None else INITIAL if prior is None else INITIAL_WITH_PRIOR
        self._explore = explore
        self._propose = propose or self._exact
        self._seed = int(rng.integers(2**62))
        self._evidence: dict[Choice, Evaluation] = {}
        self._posterior: EffectsPosterior | None = None

    def learn(self, evaluation: Evaluation) -> None:
        """Take an evaluation in; a second one of the same choice is averaged with the first."""
        choice = self.problem.choice(evaluation.choice.options, evaluation.choice.depths)
        known = self._evidence.get(choice)
        self._evidence[choice] = _pooled(known, evaluation) if known else replace(evaluation, choice=choice)
        self._posterior = None

    def propose(self) -> Choice | None:
        """What to evaluate next; None if every fitting choice is known."""
        rng = np.random.default_rng([self._seed, len(self._evidence)])
        for attempt in range(_DRAWS):
            if choice := self._first_unknown(self._draw(rng), 1 + 4 * attempt):
                return choice
        effects = self.posterior().mean if self._evidence else np.zeros(self.problem.columns)
        return self._first_unknown(effects, len(self._fitting()) + 1)

    def best(self) -> tuple[Choice, float, float]:
        """The fitting evaluated choice of the highest posterior mean, that mean, and its standard error."""
        fitting = set(self._fitting())
        if not fitting:
            raise BadInput("a best choice must have been evaluated", value=0, remedy="Allow at least one evaluation.")
        mean, variance = self.posterior().evaluated()
        rows = [i for i, choice in enumerate(self._evidence) if choice in fitting]
        choices = list(self._evidence)
        top = min(rows, key=lambda i: (-mean[i], choices[i].depths, choices[i].options))
        return choices[top], float(mean[top]), math.sqrt(float(variance[top]))

    def posterior(self) -> EffectsPosterior:
        if self._posterior is None:
            evidence = self._evidence.values()
            rows = np.array([self.problem.indicators(e.choice) for e in evidence])
            values, errors = [e.value for e in evidence], [e.error for e in evidence]
            self._posterior = EffectsPosterior.fit(rows, values, errors, self._prior)
        return self._posterior

    def diagnosis(self) -> dict[str, float]:
        """How far the prior was believed, and how well left-out evaluations are predicted."""
        posterior = self.posterior()
        predicted = posterior.left_out()
        varied = len(predicted) > 2 and np.ptp(predicted) > 0 and np.ptp(posterior.y) > 0
        correlation = float(np.corrcoef(predicted, posterior.y)[0, 1]) if varied else 0.0
        return {"prior_slope": posterior.slope, "left_out_correlation": correlation}

    def steps(
        self, evaluate: Evaluate, *, evaluations: int, evidence: Sequence[Evaluation] = (), stop_early: bool = False
    ) -> Iterator[AdaptiveStep]:
        """At most `evaluations` rounds of propose, evaluate, learn; raises `Infeasible` where nothing fits."""
        if evaluations < 1:
            raise BadInput("evaluations must be at least 1", value=evaluations, remedy="Try 30.")
        _ = min_max_utilisation(self.problem).value  # raises the reason where nothing fits
        for known in evidence:
            self.learn(known)
        calm = 0
        for _ in range(evaluations):
            choice = self.propose()
            if choice is None:
                return
            if not self.problem.is_feasible(choice):
                remedy = "Let propose return fitting ones only."
                raise Infeasible("a proposed choice must meet every limit", value=choice, remedy=remedy)
            improvement = self._improvement(choice)
            value, error = evaluate(choice)
            evaluation = Evaluation(choice=choice, value=float(value), error=float(error))
            self.learn(evaluation)
            best, mean, doubt = self.best()
            yield AdaptiveStep(evaluation=evaluation, best=best, expected=mean, error=doubt, improvement=improvement)
            calm = calm + 1 if improvement < max(doubt, 1e-3 * self.posterior().effect_size) else 0
            if stop_early and calm >= _CALM:
                return

    def _improvement(self, choice: Choice) -> float:
        """The expected improvement over the best so far, in closed form; infinite while choices are random."""
        if len(self._fitting()) < max(self._initial, 1):
            return math.inf
        posterior = self.posterior()
        mean, variance = posterior.predict(self.problem.indicators(choice)[None])
        spread = math.sqrt(float(variance[0]) + posterior.misfit**2)
        z = (float(mean[0]) - self.best()[1]) / max(spread, 1e-300)
        density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        return spread * (z * 0.5 * math.erfc(-z / math.sqrt(2)) + density)

    def _fitting(self) -> list[Choice]:
        return [choice for choice in self._evidence if self.problem.is_feasible(choice)]

    def _draw(self, rng: np.random.Generator) -> Floats:
        """[N + M] effects from the posterior; while few choices are known, random ones.

        The best choice under random effects fits any limits, and uses them as later choices will.
        """
        if not self._evidence and self._prior is not None:
            return self._prior
        if not self._evidence or len(self._fitting()) < self._initial:
            return rng.normal(size=self.problem.columns)
        posterior = self.posterior()
        mean = posterior.mean
        return mean + self._explore * (posterior.draw(rng) - mean)

    def _first_unknown(self, effects: Floats, count: int) -> Choice | None:
        choices = self._propose(self.problem.split_objective(effects), count)
        return next((choice for choice in choices if choice not in self._evidence), None)

    def _exact(self, objective: Objective, count: int) -> Sequence[Choice]:
        return best_choices(self.problem, objective, count=count).found


def _pooled(first: Evaluation, second: Evaluation) -> Evaluation:
    """The mean of two evaluations of one choice, weighed by their precision; exact ones outweigh all others."""
    if first.error == 0 or second.error == 0:
        exact = [e for e in (first, second) if e.error == 0]
        return replace(first, value=sum(e.value for e in exact) / len(exact), error=0.0)
    weights = first.error**-2, second.error**-2
    value = (weights[0] * first.value + weights[1] * second.value) / sum(weights)
    return replace(first, value=value, error=sum(weights) ** -0.5)
