"""A posterior of choice effects, of numbers only, in closed form; and what it says of candidates that were evaluated.

    y_i = a + b p(x_i) + x_i' d + m_i + x_i' g + e_i,     d ~ N(0, s_d^2 / columns),   m ~ N(0, s_m^2 L),
                                                          g ~ N(0, common_i^2),        e_i ~ N(0, error_i^2)

x is a row of indicators, p(x) = x' prior what is believed beforehand, m what no sum of effects explains. The latter, alike
candidates have in common: L_ij halves with every choice in which i and j differ (measured: docs/LOG.md), so that a network
better than its effects say speaks for those around it. The noise of an evaluation has two parts: g belongs to choices, as
the same images favour the same choices in every network, however many of them are evaluated; e is each evaluation's own.
a and b are free, b >= 0: where the fit wants a negative b the prior is dropped and everything is fitted without it. s_d and
s_m come from restricted maximum likelihood. What was evaluated is judged by the mean of a + b p + x'd + m given all
evidence, never by y alone: of many noisy values the largest is mostly luck.

`Beliefs` keeps the evidence about candidates of any kind (choices of a problem, networks of a space) and says which to
evaluate next: the best by a draw, of those an oracle proposes for the drawn effects and of those next to the best known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, final

import numpy as np
from numpy.typing import ArrayLike

from snugnet.errors import BadInput
from snugnet.solve.problem import Floats

T = TypeVar("T", bound=Hashable)
Rows = Callable[[Sequence[T]], Floats]
"""candidates -> their rows of indicators [n, columns]"""
Best = Callable[[Floats, int], Sequence[T]]
"""(effects per column, count) -> candidates within the limits that are good under these effects, best first"""
Near = Callable[[T], Sequence[T]]
"""a candidate -> those within the limits that differ from it in one choice"""

_DRAWS: Final = 4  # before the next best by the mean of effects is taken
_POOL: Final = 32  # candidates of a draw's effects that compete with those next to the best known
_INCUMBENTS: Final = 2  # best known ones whose neighbours compete
_WORTH_OF_DRAWS: Final = 32  # an expected improvement is believed as a mean over this many draws would be
_EFFECT_GRID: Final = np.geomspace(0.1, 10.0, 7)  # s_d in deviations of y
_MISFIT_GRID: Final = np.geomspace(0.01, 1.5, 6)  # s_m in deviations of y
_OWN: Final = 0.05  # of a misfit that nobody shares
_FEW: Final = 4  # rows below which sizes are assumed rather than fitted
_SIZING: Final = 128  # the latest rows, by which sizes are fitted: fifty likelihoods of a thousand rows take seconds


@final
class Beliefs(Generic[T]):
    """Evidence about candidates, and the posterior of effects that follows from it.

    `prior`: effects believed beforehand, in any unit. `initial`: how many candidates are proposed by the prior and random
    effects together before the posterior is believed. `order` decides between equals.
    """

    def __init__(self, rows: Rows[T], *, prior: Floats | None, initial: int, order: Callable[[T], Any]) -> None:
        self.rows, self.prior, self.initial, self._order = rows, prior, initial, order
        self.evidence: dict[T, tuple[float, float, float]] = {}  # value, its own error and that of effects
        self._posterior: EffectsPosterior | None = None

    def learn(self, candidate: T, value: float, error: float, common: float = 0.0) -> None:
        """Take an evaluation in; it replaces an earlier one of the same candidate. `common`: see the module."""
        self.evidence[candidate], self._posterior = (value, error, common), None

    @property
    def posterior(self) -> EffectsPosterior:
        if self._posterior is None:
            values, errors, common = zip(*self.evidence.values()) if self.evidence else ((), (), ())
            rows = self.rows(list(self.evidence))
            self._posterior = EffectsPosterior.fit(rows, values, errors, self.prior, common)
        return self._posterior

    def expected(self) -> dict[T, tuple[float, float]]:
        """Posterior mean and standard error of every evaluated candidate's true value."""
        mean, variance = self.posterior.evaluated()
        return dict(zip(self.evidence, zip(mean.tolist(), np.sqrt(variance).tolist())))

    def ranked(self, candidates: Iterable[T]) -> list[T]:
        """Evaluated ones by posterior mean, best first."""
        expected = self.expected()
        return sorted(candidates, key=lambda c: (-expected[c][0], self._order(c)))

    def propose(
        self, rng: np.random.Generator, explore: float, best: Best[T], near: Near[T], fitting: Sequence[T], columns: int
    ) -> T | None:
        """What to evaluate next: the best of a draw that is not known yet. `fitting`: the known ones within the limits.
        None only if every candidate is known (or the oracle met no other)."""
        for attempt in range(_DRAWS):
            if len(self.evidence) < max(self.initial, 1):
                pool = list(best(self._initial(rng, columns), 1 + 4 * attempt))
            else:
                draw = self.posterior.drawn(rng, explore)
                beside = [c for known in self.ranked(fitting)[:_INCUMBENTS] for c in near(known)]
                pool = list(dict.fromkeys([*best(draw.effects, _POOL), *beside]))
                values = draw(self.rows(pool)) if pool else np.zeros(0)
                pool = [pool[i] for i in np.argsort(-values, kind="stable")]
            if (found := self._unknown(pool)) is not None:
                return found
        mean = self.posterior.mean if self.evidence else np.zeros(columns)
        return self._unknown(best(mean, len(fitting) + 1))

    def _unknown(self, candidates: Sequence[T]) -> T | None:
        return next((c for c in candidates if c not in self.evidence), None)

    def _initial(self, rng: np.random.Generator, columns: int) -> Floats:
        """Effects while too little is known: the prior's, then those and random ones in equal parts.

        The best candidate of such effects fits any limits, and uses them as later ones will."""
        noise = rng.normal(size=columns)
        if self.prior is None:
            return noise
        scaled: Floats = self.prior / max(float(np.sqrt(np.mean(self.prior**2))), 1e-300)
        return scaled + noise if self.evidence else scaled

    def promises(self, candidate: T, incumbent: T | None) -> bool:
        """Is the improvement over the incumbent expected of `candidate` more than its own standard error?

        The error is that of a mean over draws, in closed form: what beats the best in hardly any draw promises nothing."""
        if incumbent is None or len(self.evidence) <= self.initial:
            return True
        mean, covariance = self.posterior.joint(self.rows([candidate, incumbent]))
        gain = float(mean[0] - mean[1])
        spread = math.sqrt(max(float(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]), 0.0))
        z = gain / max(spread, 1e-300)
        density, below = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi), 0.5 * math.erfc(-z / math.sqrt(2))
        improvement = spread * (density + z * below)
        square = (gain**2 + spread**2) * below + gain * spread * density
        return improvement >= math.sqrt(max(square - improvement**2, 0.0) / _WORTH_OF_DRAWS)


@dataclass(frozen=True, eq=False)
class ValueModel:
    """Candidates' rows -> values, up to a constant: a sum of effects, and what the known ones alike to them add."""

    effects: Floats  # [C]
    known: Floats  # [n, C] rows
    local: Floats  # [n] what each adds to those alike to it

    def __call__(self, rows: Floats) -> Floats:
        values: Floats = rows @ self.effects + likeness(rows, self.known) @ self.local
        return values


def likeness(a: Floats, b: Floats) -> Floats:
    """[n, k] how much of what no sum of effects explains two candidates have in common: half as much per choice that
    differs; all of it for the same row, and a little less for almost the same, so that nobody is certain of others."""
    squares = np.maximum((a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T, 0.0)
    common: Floats = np.where(squares < 1e-9, 1.0, (1 - _OWN) * 0.5 ** (squares / 2))
    return common


def _among(rows: Floats) -> Floats:
    """The same of evidence with itself; different candidates may have one row (free widths), and still differ a little."""
    common = likeness(rows, rows)
    np.fill_diagonal(common, 0.0)
    among: Floats = np.minimum(common, 1 - _OWN) + np.eye(len(rows))
    return among


@dataclass(frozen=True, eq=False)
class EffectsPosterior:
    """The model fitted to rows x [n, C] with values y [n] and standard errors [n]; make it with `fit`."""

    x: Floats  # [n, C], centred
    centre: Floats  # [C]
    y: Floats
    noise: Floats  # [n, n] covariance of the evaluations' noise
    prior: Floats | None  # [C] effects believed beforehand; None if there are none, or they were dropped
    prior_dropped: bool
    offset: Floats  # [C] effects taken as given: the scaled prior while rows are too few to fit b, else zeros
    effect_size: float  # s_d
    misfit: float  # s_m
    _free: Floats  # [n, 1 or 2] columns of a and b
    _inverse: Floats  # V^-1
    _free_covariance: Floats

    @staticmethod
    def fit(
        x: ArrayLike, y: ArrayLike, errors: ArrayLike, prior: ArrayLike | None = None, common: ArrayLike = ()
    ) -> EffectsPosterior:
        """`errors` [n] of each evaluation; `common` [n] of every effect, the same images' in all evaluations (default 0)."""
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
        noise = _noise(rows, deviations, np.asarray(common, float))
        fitted = _fitted(rows, values, noise, believed, dropped=False)
        if believed is not None and len(fitted._levels()) > 1 and fitted._levels()[1] < 0:
            return _fitted(rows, values, noise, None, dropped=True)
        return fitted

    def _levels(self, y: Floats | None = None) -> Floats:
        """a (at the centre), and b where it is free."""
        unexplained = (self.y if y is None else y) - self.x @ self.offset
        levels: Floats = self._free_covariance @ (self._free.T @ (self._inverse @ unexplained))
        return levels

    def _effects(self, y: Floats) -> tuple[float, Floats, Floats]:
        """The level at the centre, the effects [C] and the local parts [n] that belong to these values."""
        levels = self._levels(y)
        pull: Floats = self._inverse @ (y - self.x @ self.offset - self._free @ levels)
        d = self.offset + self.effect_size**2 / self.x.shape[1] * (self.x.T @ pull)
        d = d + levels[1] * self.prior if len(levels) > 1 and self.prior is not None else d
        return float(levels[0]), d, self.misfit**2 * pull

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

    def joint(self, x: ArrayLike) -> tuple[Floats, Floats]:
        """Mean [k] and covariance [k, k] of the true values a + b p(x) + x'd + m of rows [k, C]."""
        rows = np.asarray(x, float) - self.centre
        level, effects, local = self._effects(self.y)
        size, shared = self.effect_size**2 / self.x.shape[1], likeness(self.x, rows)
        cross = size * self.x @ rows.T + self.misfit**2 * shared
        gap = self._free_columns(rows).T - self._free.T @ self._inverse @ cross
        covariance = size * rows @ rows.T + self.misfit**2 * likeness(rows, rows)
        covariance = covariance - cross.T @ self._inverse @ cross + gap.T @ self._free_covariance @ gap
        return level + rows @ effects + shared.T @ local, covariance

    def evaluated(self) -> tuple[Floats, Floats]:
        """Mean and variance of the true values of the evidence's own rows: model, misfit and noise weighed together."""
        projector = self._projector()
        mean = self.y - self.noise @ (projector @ (self.y - self.x @ self.offset))
        return mean, np.maximum(np.diag(self.noise - self.noise @ projector @ self.noise), 0.0)

    def left_out(self) -> Floats:
        """[n] what the others predict for each row; sizes of effects as fitted to all."""
        projector = self._projector()
        residual = projector @ (self.y - self.x @ self.offset)
        predicted: Floats = self.y - residual / np.maximum(np.diag(projector), 1e-300)
        return predicted

    def drawn(self, rng: np.random.Generator, explore: float = 1.0) -> ValueModel:
        """The posterior mean and `explore` times what a draw of effects and misfits is away from it.

        A draw is one from the prior, corrected by what it gets wrong; of misfits elsewhere the expected part is taken."""
        _, effects, local = self._effects(self.y)
        if explore > 0:
            d = rng.normal(0.0, self.effect_size / math.sqrt(self.x.shape[1]), self.x.shape[1])
            misfits = self.misfit * (np.linalg.cholesky(_among(self.x)) @ rng.normal(size=len(self.y)))
            noise = _root(self.noise) @ rng.normal(size=len(self.y))
            _, other, away = self._effects(self.y - self.x @ d - misfits - noise)
            effects, local = effects + explore * (other + d - effects), local + explore * (away - local)
        return ValueModel(effects=effects, known=self.x + self.centre, local=local)

    def _free_columns(self, rows: Floats) -> Floats:
        ones = np.ones((len(rows), 1))
        return ones if self._free.shape[1] == 1 or self.prior is None else np.column_stack([ones, rows @ self.prior])

    def _projector(self) -> Floats:
        weighted = self._inverse @ self._free
        projector: Floats = self._inverse - weighted @ self._free_covariance @ weighted.T
        return projector


def _noise(rows: Floats, errors: Floats, common: Floats) -> Floats:
    """[n, n]: of evaluations on nested images, what they have in common is what the larger one still has of it."""
    own = np.diag(errors**2)
    if not common.any():
        return own
    x = rows - rows.mean(axis=0)
    covariance: Floats = own + np.minimum.outer(common**2, common**2) * (x @ x.T)
    return covariance


def _root(covariance: Floats) -> Floats:
    """[n, n] whose square is the covariance, also where that is singular."""
    values, vectors = np.linalg.eigh(covariance)
    root: Floats = vectors * np.sqrt(np.maximum(values, 0.0))
    return root


def _fitted(rows: Floats, y: Floats, noise: Floats, prior: Floats | None, *, dropped: bool) -> EffectsPosterior:
    centre = rows.mean(axis=0)
    x = rows - centre
    free = np.ones((len(y), 1)) if prior is None else np.column_stack([np.ones(len(y)), x @ prior])
    scale = max(float(y.std()), 1e-3 * math.sqrt(float(np.diag(noise).mean())), 1e-9 * float(np.abs(y).max()), 1e-12)
    gram, alike, offset = x @ x.T / x.shape[1], _among(x), np.zeros(x.shape[1])
    if len(y) < _FEW:
        # Too few to fit sizes or a slope: the prior at the values' scale, effects as large as their spread.
        if prior is not None:
            spread = float((x @ prior).std())
            offset = prior * (float(y.std()) / spread if y.std() > 0 and spread > 0 else 1.0)
        sizes, free = (scale, scale / 2), free[:, :1]
    else:
        late = slice(-_SIZING, None)
        levels = free[late] if np.ptp(free[late], axis=0)[1:].all() else free[late, :1]  # slopes need rows that differ
        sizes = _fitted_sizes(gram[late, late], alike[late, late], y[late], noise[late, late], levels, scale)
    inverse = np.asarray(np.linalg.inv(_variance(gram, alike, noise, *sizes)), np.float64)
    covariance = np.asarray(np.linalg.inv(free.T @ inverse @ free), np.float64)
    return EffectsPosterior(x, centre, y, noise, prior, dropped, offset, *sizes, free, inverse, covariance)


def _fitted_sizes(
    gram: Floats, alike: Floats, y: Floats, noise: Floats, free: Floats, scale: float
) -> tuple[float, float]:
    """s_d and s_m: the likeliest of a grid, then of a finer one around it."""

    def likeliest(grid: list[tuple[float, float]]) -> tuple[float, float]:
        return max(grid, key=lambda sizes: _likelihood(gram, alike, y, noise, free, *sizes))

    best = likeliest([(float(d) * scale, float(m) * scale) for d in _EFFECT_GRID for m in _MISFIT_GRID])
    ratio = (_EFFECT_GRID[1] / _EFFECT_GRID[0]) ** 0.5
    return likeliest([(best[0] * ratio**i, best[1] * ratio**j) for i in (-1, 0, 1) for j in (-1, 0, 1)])


def _variance(gram: Floats, alike: Floats, noise: Floats, spread: float, misfit: float) -> Floats:
    variance: Floats = spread**2 * gram + misfit**2 * alike + noise
    return variance


def _likelihood(
    gram: Floats, alike: Floats, y: Floats, noise: Floats, free: Floats, spread: float, misfit: float
) -> float:
    """The restricted log likelihood of both sizes."""
    variance = _variance(gram, alike, noise, spread, misfit)
    solved = np.linalg.solve(variance, np.column_stack([free, y]))
    weighted, residual = solved[:, :-1], solved[:, -1]
    inner = free.T @ weighted
    levels = np.linalg.solve(inner, weighted.T @ y)
    squares = float(y @ residual - (weighted.T @ y) @ levels)
    return -0.5 * (float(np.linalg.slogdet(variance)[1]) + float(np.linalg.slogdet(inner)[1]) + squares)
