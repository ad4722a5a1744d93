"""Adaptive search: a posterior of choice effects, and the exact solver to say what to evaluate next.

Every evaluation is evidence for a sum of effects, one per (slot, option) that runs and one per (group, depth).
A draw of those effects has an exact best choice within the limits (`integer`); that choice is evaluated next, and the
posterior is fitted again. So evaluations go where the limits are and where effects are still uncertain. The winner is the
evaluated choice of the highest posterior mean, not of the highest value. Nothing outside the limits is ever evaluated.

What is evaluated next is a function of the evidence and of one number drawn from `rng`: a caller that stores evidence and
passes it again goes on as if it had never stopped.

The posterior is in closed form, of numbers only, for any space:

    y_i = a + b p(x_i) + x_i' d + m_i + e_i,     d ~ N(0, s_d^2 / columns),   m_i ~ N(0, s_m^2),   e_i ~ N(0, error_i^2)

x is a row of indicators, p(x) = x' prior what is believed beforehand, m what no sum of effects explains, e the noise of the
evaluation. a and b are free, b >= 0: where the fit wants a negative b the prior is dropped and everything is fitted without
it. s_d and s_m come from restricted maximum likelihood. What was evaluated is judged by the mean of a + b p + x'd + m given
all evidence, never by y alone: of many noisy values the largest is mostly luck.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cho_factor, cho_solve

from snugnet.errors import BadInput, Infeasible
from snugnet.solve.infeasible import min_max_utilisation
from snugnet.solve.integer import best_choices
from snugnet.solve.problem import Choice, Floats, Objective, Outcome, Problem, Solution, Status

Evaluate = Callable[[Choice], tuple[float, float]]
"""choice -> (value, its standard error)"""
Propose = Callable[[Objective, int], Sequence[Choice]]
"""(effects, count) -> fitting choices that are good under these effects, best first."""

INITIAL: Final = 10  # fitting choices evaluated at random before effects are believed
INITIAL_WITH_PRIOR: Final = 4
_DRAWS: Final = 4
_CALM: Final = 3  # steps without a prospect of improvement after which an early stop ends
_EFFECT_GRID: Final = np.geomspace(0.1, 10.0, 7)  # s_d in deviations of y
_MISFIT_GRID: Final = np.geomspace(0.01, 1.5, 6)  # s_m in deviations of y
_FEW: Final = 4  # rows below which sizes are assumed rather than fitted


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


@dataclass(frozen=True, eq=False)
class EffectsPosterior:
    """The model fitted to rows x [n, C] with values y [n] and standard errors [n]; make it with `fit`."""

    x: Floats  # [n, C], centred
    centre: Floats  # [C]
    y: Floats
    noise: Floats  # [n] variances of the evaluations
    prior: Floats | None  # [C] effects believed beforehand; None if there are none, or they were dropped
    prior_dropped: bool
    offset: Floats  # [C] effects taken as given: the scaled prior while rows are too few to fit b, else zeros
    effect_size: float  # s_d
    misfit: float  # s_m
    _free: Floats  # [n, 1 or 2] columns of a and b
    _inverse: Floats  # V^-1
    _free_covariance: Floats

    @staticmethod
    def fit(x: ArrayLike, y: ArrayLike, errors: ArrayLike, prior: ArrayLike | None = None) -> EffectsPosterior:
        rows, values, deviations = (np.asarray(v, float) for v in (x, y, errors))
        if rows.ndim != 2 or not len(rows) or values.shape != deviations.shape or len(values) != len(rows):
            rule = "evidence must be rows [n, columns] with a value and a standard error each, n at least 1"
            shapes = rows.shape, values.shape, deviations.shape
            raise BadInput(rule, value=shapes, remedy="Evaluate something first.")
        if not (np.isfinite(values).all() and np.isfinite(deviations).all() and (deviations >= 0).all()):
            rule = "values must be finite, standard errors finite and not negative"
            bad = values[~np.isfinite(values)].tolist() or deviations.tolist()
            raise BadInput(rule, value=bad, remedy="Leave out what could not be evaluated.")
        believed = None if prior is None else np.asarray(prior, float)
        if believed is not None and len(rows) >= _FEW and np.ptp(rows @ believed) < 1e-12:
            believed = None  # says nothing about these rows
        fitted = _fitted(rows, values, deviations**2, believed, dropped=False)
        if believed is not None and len(fitted._levels()) > 1 and fitted._levels()[1] < 0:
            return _fitted(rows, values, deviations**2, None, dropped=True)
        return fitted

    def _levels(self, y: Floats | None = None) -> Floats:
        """a (at the centre), and b where it is free."""
        unexplained = (self.y if y is None else y) - self.x @ self.offset
        levels: Floats = self._free_covariance @ (self._free.T @ (self._inverse @ unexplained))
        return levels

    def _effects(self, y: Floats) -> tuple[float, Floats]:
        """The level at the centre and the effects [C] that belong to these values."""
        levels = self._levels(y)
        residual = y - self.x @ self.offset - self._free @ levels
        d = self.offset + self.effect_size**2 / self.x.shape[1] * (self.x.T @ (self._inverse @ residual))
        return float(levels[0]), d + levels[1] * self.prior if len(levels) > 1 and self.prior is not None else d

    @property
    def slope(self) -> float:
        """b: how far the prior is believed; 0 without one."""
        levels = self._levels()
        return float(levels[1]) if len(levels) > 1 else 0.0

    @property
    def mean(self) -> Floats:
        """[C] the posterior mean of the effects, b prior + d."""
        return self._effects(self.y)[1]

    @property
    def covariance(self) -> Floats:
        """[C, C] of the effects."""
        basis = np.eye(self.x.shape[1])
        size = self.effect_size**2 / len(basis)
        cross = self.x * size  # [n, C] covariance of rows and d
        slopes = np.zeros((self._free.shape[1], len(basis)))
        if self._free.shape[1] > 1 and self.prior is not None:
            slopes[1] = self.prior
        gap = slopes - self._free.T @ self._inverse @ cross
        covariance: Floats = size * basis - cross.T @ self._inverse @ cross + gap.T @ self._free_covariance @ gap
        return covariance

    def predict(self, x: ArrayLike) -> tuple[Floats, Floats]:
        """Mean and variance of a + b p(x) + x'd for rows [n, C]; a new network's own misfit comes on top."""
        rows = np.asarray(x, float) - self.centre
        level, effects = self._effects(self.y)
        size = self.effect_size**2 / self.x.shape[1]
        cross = size * self.x @ rows.T
        free = self._free_columns(rows)
        gap = free.T - self._free.T @ self._inverse @ cross
        variance = size * (rows**2).sum(axis=1) - np.einsum("in,ij,jn->n", cross, self._inverse, cross)
        variance += np.einsum("in,ij,jn->n", gap, self._free_covariance, gap)
        return level + rows @ effects, np.maximum(variance, 0.0)

    def evaluated(self) -> tuple[Floats, Floats]:
        """Mean and variance of the true values of the evidence's own rows: model, misfit and noise weighed together."""
        projector = self._projector()
        mean = self.y - self.noise * (projector @ (self.y - self.x @ self.offset))
        return mean, np.maximum(self.noise - self.noise**2 * np.diag(projector), 0.0)

    def left_out(self) -> Floats:
        """[n] what the others predict for each row; sizes of effects as fitted to all."""
        projector = self._projector()
        residual = projector @ (self.y - self.x @ self.offset)
        predicted: Floats = self.y - residual / np.maximum(np.diag(projector), 1e-300)
        return predicted

    def draw(self, rng: np.random.Generator) -> Floats:
        """[C] effects drawn from their posterior: a draw from the prior, corrected by what it gets wrong."""
        d = rng.normal(0.0, self.effect_size / math.sqrt(self.x.shape[1]), self.x.shape[1])
        noise = rng.normal(0.0, 1.0, len(self.y)) * np.sqrt(self.noise + self.misfit**2)
        return self._effects(self.y - self.x @ d - noise)[1] + d

    def _free_columns(self, rows: Floats) -> Floats:
        ones = np.ones((len(rows), 1))
        return ones if self._free.shape[1] == 1 or self.prior is None else np.column_stack([ones, rows @ self.prior])

    def _projector(self) -> Floats:
        weighted = self._inverse @ self._free
        projector: Floats = self._inverse - weighted @ self._free_covariance @ weighted.T
        return projector


def _fitted(rows: Floats, y: Floats, noise: Floats, prior: Floats | None, *, dropped: bool) -> EffectsPosterior:
    centre = rows.mean(axis=0)
    x = rows - centre
    free = np.ones((len(y), 1)) if prior is None else np.column_stack([np.ones(len(y)), x @ prior])
    scale = max(float(y.std()), 1e-3 * math.sqrt(float(noise.mean())), 1e-9 * float(np.abs(y).max()), 1e-12)
    gram, offset = x @ x.T / x.shape[1], np.zeros(x.shape[1])
    if len(y) < _FEW:
        # Too few to fit sizes or a slope: the prior at the values' scale, effects as large as their spread.
        if prior is not None:
            spread = float((x @ prior).std())
            offset = prior * (float(y.std()) / spread if y.std() > 0 and spread > 0 else 1.0)
        sizes, free = (scale, scale / 2), free[:, :1]
    else:
        sizes = _fitted_sizes(gram, y, noise, free, scale)
    inverse = cho_solve(cho_factor(_variance(gram, noise, *sizes), lower=True), np.eye(len(y)))
    covariance = np.linalg.inv(free.T @ inverse @ free)
    return EffectsPosterior(x, centre, y, noise, prior, dropped, offset, *sizes, free, inverse, covariance)


def _fitted_sizes(gram: Floats, y: Floats, noise: Floats, free: Floats, scale: float) -> tuple[float, float]:
    """s_d and s_m: the likeliest of a grid, then of a finer one around it."""

    def likeliest(grid: list[tuple[float, float]]) -> tuple[float, float]:
        return max(grid, key=lambda sizes: _likelihood(gram, y, noise, free, *sizes))

    best = likeliest([(float(d) * scale, float(m) * scale) for d in _EFFECT_GRID for m in _MISFIT_GRID])
    ratio = (_EFFECT_GRID[1] / _EFFECT_GRID[0]) ** 0.5
    return likeliest([(best[0] * ratio**i, best[1] * ratio**j) for i in (-1, 0, 1) for j in (-1, 0, 1)])


def _variance(gram: Floats, noise: Floats, spread: float, misfit: float) -> Floats:
    variance: Floats = spread**2 * gram + np.diag(noise + misfit**2)
    return variance


def _likelihood(gram: Floats, y: Floats, noise: Floats, free: Floats, spread: float, misfit: float) -> float:
    """The restricted log likelihood of both sizes."""
    factor = cho_factor(_variance(gram, noise, spread, misfit), lower=True, check_finite=False)
    solved = cho_solve(factor, np.column_stack([free, y]), check_finite=False)
    weighted, residual = solved[:, :-1], solved[:, -1]
    inner = free.T @ weighted
    levels = np.linalg.solve(inner, weighted.T @ y)
    squares = float(y @ residual - (weighted.T @ y) @ levels)
    log_determinant = 2 * float(np.log(np.diag(factor[0])).sum())
    return -0.5 * (log_determinant + float(np.linalg.slogdet(inner)[1]) + squares)
