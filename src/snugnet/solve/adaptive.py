"""Adaptive search: a posterior of choice effects, and the exact solver to say what to evaluate next.

Every evaluation is evidence for a sum of effects, one per (slot, option) that runs and one per (group, depth) (`effects`).
A draw of those effects has exact best choices within the limits (`integer`); of them and of those that differ from the best
known ones in a single choice, the best by the draw and by what is known of choices alike to them is evaluated next, and the
posterior is fitted again. So evaluations go where the limits are and where effects are still uncertain. The winner is the
evaluated choice of the highest posterior mean, not of the highest value. Nothing outside the limits is ever evaluated.

What is evaluated next is a function of the evidence and of one number drawn from `rng`: a caller that stores evidence and
passes it again goes on as if it had never stopped.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from snugnet.errors import BadInput, Infeasible
from snugnet.solve.effects import Beliefs
from snugnet.solve.infeasible import min_max_utilisation
from snugnet.solve.integer import best_choices
from snugnet.solve.problem import Choice, Floats, Objective, Outcome, Problem, Solution, Status

Evaluate = Callable[[Choice], tuple[float, float]]
"""choice -> (value, its standard error)"""
Propose = Callable[[Objective, int], Sequence[Choice]]
"""(effects, count) -> fitting choices that are good under these effects, best first."""

INITIAL: Final = 10  # choices evaluated before effects are believed
INITIAL_WITH_PRIOR: Final = 8
CALM: Final = 3  # proposals in a row without a prospect of improvement that end an early stop


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
    promising: bool  # was it expected to improve on the best before it?


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
    `initial` counts the choices by random effects at first, `explore` scales draws of effects around their mean (0: the
    mean itself). `stop_early` ends when three proposals in a row promise hardly anything. Stats: expected, error,
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


@final
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
        self.problem, self._explore, self._propose = problem, explore, propose or self._exact
        self._seed = int(rng.integers(2**62))
        self.beliefs: Beliefs[Choice] = Beliefs(
            lambda choices: np.array([problem.indicators(c) for c in choices]),
            prior=None if prior is None else problem.flat_objective(prior),
            initial=initial if initial is not None else INITIAL if prior is None else INITIAL_WITH_PRIOR,
            order=lambda choice: (choice.depths, choice.options),
        )

    def learn(self, evaluation: Evaluation) -> None:
        """Take an evaluation in; a second one of the same choice is averaged with the first."""
        choice = self.problem.choice(evaluation.choice.options, evaluation.choice.depths)
        known = self.beliefs.evidence.get(choice)
        value = evaluation.value, evaluation.error
        self.beliefs.learn(choice, *(value if known is None else _pooled(known[:2], value)))

    def propose(self) -> Choice | None:
        """What to evaluate next; None if every fitting choice is known."""
        rng = np.random.default_rng([self._seed, len(self.beliefs.evidence)])
        near = functools.partial(neighbours, self.problem)
        return self.beliefs.propose(rng, self._explore, self._best, near, self._fitting(), self.problem.columns)

    def best(self) -> tuple[Choice, float, float]:
        """The fitting evaluated choice of the highest posterior mean, that mean, and its standard error."""
        fitting = self._fitting()
        if not fitting:
            raise BadInput("a best choice must have been evaluated", value=0, remedy="Allow at least one evaluation.")
        top = self.beliefs.ranked(fitting)[0]
        return top, *self.beliefs.expected()[top]

    def diagnosis(self) -> dict[str, float]:
        """How far the prior was believed, and how well left-out evaluations are predicted."""
        posterior = self.beliefs.posterior
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
            promising = self.beliefs.promises(choice, self.best()[0] if self._fitting() else None)
            value, error = evaluate(choice)
            evaluation = Evaluation(choice=choice, value=float(value), error=float(error))
            self.learn(evaluation)
            best, mean, doubt = self.best()
            yield AdaptiveStep(evaluation=evaluation, best=best, expected=mean, error=doubt, promising=promising)
            calm = 0 if promising else calm + 1
            if stop_early and calm >= CALM:
                return

    def _fitting(self) -> list[Choice]:
        return [choice for choice in self.beliefs.evidence if self.problem.is_feasible(choice)]

    def _best(self, effects: Floats, count: int) -> Sequence[Choice]:
        return self._propose(self.problem.split_objective(effects), count)

    def _exact(self, objective: Objective, count: int) -> Sequence[Choice]:
        return best_choices(self.problem, objective, count=count).found


def neighbours(problem: Problem, choice: Choice) -> list[Choice]:
    """The choices within the limits that differ in one option that runs, or in one depth; slots that begin to run take every
    option in turn, several at once the same one."""
    options, depths = list(choice.options), list(choice.depths)
    costs, rows = problem.cost_vector(choice), problem.theta[problem.limited]
    spare = problem.limit - costs[problem.limited]
    found = []
    for slot in problem.running(choice):
        start, size = int(problem.slot_starts[slot]), problem.slot_sizes[slot]
        more = rows[:, start : start + size] - rows[:, [start + options[slot]]]
        for option in np.flatnonzero((more <= spare[:, None]).all(axis=0)).tolist():
            if option != options[slot]:
                found.append(problem.choice([*options[:slot], option, *options[slot + 1 :]], depths))
    for g, (slots, group) in enumerate(zip(problem.group_slots, problem.groups)):
        lower = [d for d in group.depths if d < depths[g]]
        higher = [d for d in group.depths if d > depths[g]]
        for depth in (*lower[-1:], *higher[:1]):
            fresh = slots[depths[g] : depth]
            for option in range(min((problem.slot_sizes[s] for s in fresh), default=1)):
                filled = [option if s in fresh else old for s, old in enumerate(options)]
                candidate = problem.choice(filled, [*depths[:g], depth, *depths[g + 1 :]])
                if problem.is_feasible(candidate, 0.0):
                    found.append(candidate)
    return found


def _pooled(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    """The mean of two evaluations of one choice, weighed by their precision; exact ones outweigh all others."""
    exact = [value for value, error in (first, second) if error == 0]
    if exact:
        return sum(exact) / len(exact), 0.0
    weights = first[1] ** -2, second[1] ** -2
    return (weights[0] * first[0] + weights[1] * second[0]) / sum(weights), sum(weights) ** -0.5
