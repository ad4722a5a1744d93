"""Calibration on made-up devices whose hidden costs are known."""

import numpy as np
import pytest

from snugnet.costs import analytic
from snugnet.costs.calibrate import calibrate, edge_numbers, margin_curve, upper_bound
from snugnet.costs.measure import spread_networks
from snugnet.errors import BadInput
from snugnet.space import plan, preset
from snugnet.space.layout import Layout

SPACE = preset("hardcore")


def alone(part):
    """A device on which time is a matter of MACs and of numbers moved."""
    return 0.02 + analytic.macs(part) / 2e7 + edge_numbers(part) / 2e6


def networks(count, seed):
    return [plan(a, SPACE) for a in spread_networks(SPACE, count, np.random.default_rng(seed))]


@pytest.mark.parametrize(
    ("ratio", "overhead", "edge", "worst"),
    [(1.0, 0.0, 0.0, 0.001), (1.1, 0.0, 0.0, 0.001), (0.9, 0.02, 0.0, 0.02), (1.05, 0.02, -0.3, 0.02)],
)
def test_hidden_costs_are_found(ratio, overhead, edge, worst):
    def hidden(network):
        return sum(ratio * alone(p) + overhead + edge * edge_numbers(p) / 1e6 for p in network.parts)

    seen, unseen = networks(16, 0), networks(24, 1)
    fit = calibrate(alone, seen, [hidden(n) for n in seen])
    for network in unseen:
        predicted = sum(fit.cost(part, alone(part)) for part in network.parts)
        assert abs(predicted / hidden(network) - 1) < worst
    assert fit.margin < 0.02


def test_noise_does_not_spoil_it_and_the_margin_covers_it():
    rng = np.random.default_rng(5)
    seen, unseen = networks(16, 0), networks(60, 1)
    noisy = [sum(map(alone, n.parts)) * 1.08 * rng.normal(1, 0.015) for n in seen]
    fit = calibrate(alone, seen, noisy)
    truth = np.array([sum(map(alone, n.parts)) * 1.08 * rng.normal(1, 0.015) for n in unseen])
    guess = np.array([sum(fit.cost(p, alone(p)) for p in n.parts) for n in unseen])
    assert abs(np.median(guess / truth) - 1) < 0.01
    assert np.mean(truth <= guess * (1 + fit.margin)) >= 0.9
    assert len(fit.residuals) == 16


def test_no_part_becomes_free_or_negative():
    seen = networks(16, 0)
    fit = calibrate(alone, seen, [0.2 * sum(map(alone, n.parts)) - 0.02 * len(n.parts) for n in seen])
    assert all(fit.cost(part, alone(part)) > 0 for part in Layout(SPACE).distinct_specs())


def test_the_bound_is_the_textbook_one():
    # mean 0.02, standard deviation 0.01, n = 3, t(0.95, 2) = 2.91999
    assert upper_bound([0.01, 0.02, 0.03]) == pytest.approx(0.02 + 2.919986 * 0.01 * (4 / 3) ** 0.5, rel=1e-5)
    assert upper_bound([-0.5, -0.5, -0.5]) == 0.0


SPREADS = {
    "the same everywhere": lambda cost: 0.02 + 0 * cost,
    "large networks are unsure": lambda cost: 0.01 * (cost / 5) ** 0.8,
    "small networks are unsure": lambda cost: 0.01 * (cost / 5) ** -0.8,
}


@pytest.mark.parametrize("kind", SPREADS)
def test_margins_cover_what_they_say_in_every_range_of_cost(kind):
    """Two hundred made-up devices with known errors: 95 % of further networks lie below the bound, nine of ten in every
    range, where one margin for all covers too much at one end and too little at the other."""
    spread, rng = SPREADS[kind], np.random.default_rng(3)
    costs, places = np.linspace(2, 20, 16), np.array([2.2, 6.0, 19.0])
    covered, margins, overall = [], [], []
    for _ in range(200):
        residuals = rng.normal(0, spread(costs))
        curve = np.array(margin_curve(costs, residuals))
        margins.append(np.interp(places, *curve.T))
        overall.append(upper_bound(residuals))
        covered.append((rng.normal(0, 1, (50, 3)) * spread(places) <= margins[-1]).mean(axis=0))
    assert np.mean(covered) >= 0.935
    assert np.mean(covered, axis=0).min() >= 0.88
    small, _, large = np.median(margins, axis=0) / np.median(overall)
    if kind == "large networks are unsure":
        assert small < 0.65 < 1 < large
    if kind == "small networks are unsure":
        assert large < 0.75 < 1 < small


def test_along_the_curve_the_bound_rises():
    rng = np.random.default_rng(4)
    for _ in range(50):
        costs = rng.uniform(1, 30, 16)
        curve = margin_curve(costs, rng.normal(0, 0.3 / costs))
        bounds = [cost * (1 + margin) for cost, margin in curve]
        assert bounds == sorted(bounds)
        assert all(margin >= 0 for _, margin in curve)
    assert margin_curve([1.0, 2.0, 3.0], [0.01, 0.02, 0.03]) == (
        (1.0, upper_bound([0.01, 0.02, 0.03])),
        (3.0, upper_bound([0.01, 0.02, 0.03])),
    )


def test_too_few_networks_are_refused():
    with pytest.raises(BadInput, match="at least 3"):
        calibrate(alone, networks(2, 0), [1.0, 2.0])


def test_networks_are_different_spread_and_reproducible():
    chosen = spread_networks(SPACE, 24, np.random.default_rng(3))
    assert len(set(chosen)) == 24
    assert chosen == spread_networks(SPACE, 24, np.random.default_rng(3))
    others = spread_networks(SPACE, 24, np.random.default_rng(3), without=frozenset(chosen))
    assert not set(chosen) & set(others)
    sizes = sorted(analytic.macs(plan(a, SPACE)) for a in chosen)
    gaps = np.diff(sizes) / (sizes[-1] - sizes[0])
    assert gaps.max() < 0.12, "evenly spread: no gap much wider than 1/23"


@pytest.mark.parametrize("name", ["tfnas-lowres", "attentive-lowres"])
def test_other_spaces_give_networks_too(name):
    assert len(spread_networks(preset(name), 8, np.random.default_rng(0))) == 8


def test_a_space_with_too_few_networks_says_so():
    from snugnet.space.reading import space_from_dict

    tiny = space_from_dict(
        {
            "name": "tiny",
            "classes": 2,
            "resolutions": [8],
            "stem": {"widths": [8], "stride": 1},
            "stages": [{"width": 8, "depth": [1, 2]}],
            "head": {"widths": [16]},
        }
    )
    with pytest.raises(BadInput, match="enough different networks"):
        spread_networks(tiny, 3, np.random.default_rng(0))
