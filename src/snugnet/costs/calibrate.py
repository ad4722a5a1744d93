"""What isolation hides: the step from blocks timed by themselves to whole networks.

A block by itself finds its weights in the cache, pays for a call of its own, and converts layouts at its edges; inside a
network it does not. So a few whole networks are timed in the same passes, and three numbers are fitted to them:

    cost(part) = ratio * isolated_ms(part) + overhead + edge * (numbers that enter and leave the part)

Each stays additive, so tables stay tables. The fit is a ridge towards "nothing hidden" (ratio of the sums, no overhead, no
edge cost), weighted by relative error: sixteen networks cannot spoil it. What is left over is kept, network by network, from
fits that did not see it (leave-one-out); its upper 95 % bound is the table's margin.

The error is not the same everywhere: small networks may be predicted within 1 % where large ones, whose activations leave
the cache, are predicted within 4 %. So there is a margin per cost as well (`margin_curve`), from residuals whose mean is a
line and whose spread is a power of the cost:

    residual = m0 + m1 z + s exp(p z) t,    z = log(cost / mean cost)

p is averaged over, not chosen: sixteen networks do not tell it exactly, and a bound that pretends they do is too low.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from scipy.special import stdtr, stdtrit  # Student's t; scipy.stats takes half a second to import

from snugnet.errors import BadInput
from snugnet.space.layout import FloatArray
from snugnet.space.spec import HeadSpec, LayerSpec, NetworkSpec

MarginCurve = tuple[tuple[float, float], ...]
"""(predicted cost, relative margin there), by rising cost."""

_NOISE: Final = 0.01  # relative error expected of a timed network
_PRIOR: Final = np.array([0.3, 0.1, 0.1])  # how far each share of a network's time may reasonably move
_FLOOR: Final = 0.05  # no part costs less than this share of its isolated time
_CONFIDENCE: Final = 0.95  # one-sided, of margins
# Powers of the cost, for the spread of residuals; -1: the same milliseconds everywhere.
_POWERS: Final = np.linspace(-1.0, 1.0, 41)
_POWER_PRIOR: Final = 0.5  # its deviation from "the same share everywhere"
_KNOTS: Final = 13


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The fitted numbers, and how well networks that a fit had not seen were predicted."""

    ratio: float
    overhead_ms: float
    edge_ms: float  # per million numbers entering and leaving
    residuals: tuple[float, ...]  # measured / predicted - 1, each by a fit without that network
    margin: float  # over all costs
    margins: MarginCurve  # at each cost

    def cost(self, part: LayerSpec, isolated_ms: float, batch: int = 1) -> float:
        """Milliseconds of `part` inside a network."""
        fitted = self.ratio * isolated_ms + self.overhead_ms + self.edge_ms * edge_numbers(part) * batch / 1e6
        return max(fitted, _FLOOR * isolated_ms)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "residuals": list(self.residuals), "margins": [list(knot) for knot in self.margins]}


def edge_numbers(part: LayerSpec) -> int:
    """How many numbers enter and leave a part, for one image."""
    entering = part.in_channels * part.resolution**2
    if isinstance(part, HeadSpec):
        return entering + part.classes
    return entering + part.out_channels * part.out_resolution**2


def calibrate(
    isolated_ms: Callable[[LayerSpec], float],
    networks: Sequence[NetworkSpec],
    measured: Sequence[float],
    *,
    batch: int = 1,
) -> Calibration:
    """Fit the three numbers to whole networks measured in the same passes as the parts."""
    if len(networks) != len(measured) or len(networks) < 3:
        rule = "calibration needs at least 3 networks, each with its measured time"
        raise BadInput(rule, value=(len(networks), len(measured)), remedy="Measure 16 networks.")
    features = np.array([_features(network, isolated_ms, batch) for network in networks])
    times = np.array(measured, dtype=float)
    ratio, overhead, edge = (float(w) for w in _fit(features, times))
    residuals, costs = [], []
    for left_out in range(len(times)):
        kept = np.arange(len(times)) != left_out
        predicted = features[left_out] @ _fit(features[kept], times[kept])
        residuals.append(float(times[left_out] / predicted - 1))
        costs.append(float(predicted))
    return Calibration(
        ratio=ratio,
        overhead_ms=overhead,
        edge_ms=edge,
        residuals=tuple(residuals),
        margin=upper_bound(residuals),
        margins=margin_curve(costs, residuals),
    )


def upper_bound(residuals: Sequence[float], confidence: float = _CONFIDENCE) -> float:
    """What the next residual stays below with `confidence` (one-sided prediction bound, normal errors); 0 at least."""
    errors = np.array(residuals, dtype=float)
    n = len(errors)
    quantile = float(stdtrit(n - 1, confidence))
    return max(0.0, float(errors.mean() + quantile * errors.std(ddof=1) * np.sqrt(1 + 1 / n)))


def margin_curve(costs: Sequence[float], residuals: Sequence[float]) -> MarginCurve:
    """What the next residual stays below with 95 % confidence, at knots over the range of `costs`; 0 at least.

    With too few networks for a line and a power (fewer than 6, or all of one cost) it is the same everywhere. Along the
    curve cost * (1 + margin) rises, so that every limit has one largest cost.
    """
    x, errors = np.log(np.array(costs, float)), np.array(residuals, float)
    if len(x) < 6 or np.ptp(x) < 0.05:
        everywhere = upper_bound(residuals)
        return tuple((float(cost), everywhere) for cost in sorted({min(costs), max(costs)}))
    knots = np.linspace(x.min(), x.max(), _KNOTS)
    bounds = _prediction_bounds(x - x.mean(), errors, knots - x.mean())
    sizes = np.exp(knots)
    highest = np.maximum.accumulate(sizes * (1 + np.maximum(bounds, 0.0)))
    return tuple((float(size), float(high / size - 1)) for size, high in zip(sizes, highest))


def _prediction_bounds(z: FloatArray, errors: FloatArray, at: FloatArray) -> FloatArray:
    """[len(at)] one-sided prediction bounds, averaged over the power of the spread by how well each explains the errors."""
    n = len(z)
    logs, means, scales = [], [], []
    for power in _POWERS:
        weight = np.exp(-power * z)
        design = np.stack([weight, weight * z], axis=1)
        inverse = np.linalg.inv(design.T @ design)
        line = inverse @ design.T @ (weight * errors)
        squares = max(float(((weight * errors - design @ line) ** 2).sum()), 1e-12 * n)
        rows = np.stack([np.ones_like(at), at], axis=1)
        leverage = np.einsum("ki,ij,kj->k", rows, inverse, rows)
        means.append(rows @ line)
        scales.append(np.sqrt(squares / (n - 2) * (np.exp(2 * power * at) + leverage)))
        # The likelihood with line and scale integrated out (flat, and 1 / scale), and the prior of the power.
        fit = -power * z.sum() + 0.5 * np.log(np.linalg.det(inverse)) - (n - 2) / 2 * np.log(squares)
        logs.append(fit - 0.5 * (power / _POWER_PRIOR) ** 2)
    share = np.exp(np.array(logs) - max(logs))
    share /= share.sum()
    mean, scale = np.array(means), np.array(scales)
    low, high = (mean - 60 * scale).min(axis=0), (mean + 60 * scale).max(axis=0)
    for _ in range(60):  # the mixture's quantile by bisection
        middle = (low + high) / 2
        below = share @ stdtr(n - 2, (middle - mean) / scale) < _CONFIDENCE
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    result: FloatArray = high
    return result


def _features(network: NetworkSpec, isolated_ms: Callable[[LayerSpec], float], batch: int) -> list[float]:
    parts = network.parts
    return [
        sum(isolated_ms(part) for part in parts),
        float(len(parts)),
        sum(edge_numbers(part) for part in parts) * batch / 1e6,
    ]


def _fit(features: FloatArray, times: FloatArray) -> FloatArray:
    """Coefficients of the features; the prior is on shares of the mean network's time, so units do not matter."""
    scale = times.mean() / features.mean(axis=0)
    shares = features * scale
    start = np.array([features[:, 0].mean() / times.mean() * np.median(times / features[:, 0]), 0.0, 0.0])
    rows = np.concatenate([shares / times[:, None] / _NOISE, np.diag(1 / _PRIOR)])
    targets = np.concatenate([np.full(len(times), 1 / _NOISE), start / _PRIOR])
    coefficients: FloatArray = np.linalg.lstsq(rows, targets, rcond=None)[0] * scale
    return coefficients
