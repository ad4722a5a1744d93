"""Adaptive search on synthetic truths whose optimum brute force knows, and the posterior it stands on."""

import itertools
from unittest.mock import patch

import numpy as np
import pytest
from random_problems import plain_problem

from brute_force import enumerate_choices
from snugnet.errors import BadInput, Infeasible
from snugnet.solve import (
    AdaptiveSearch,
    EffectsPosterior,
    Evaluation,
    Group,
    Objective,
    Problem,
    ResourceCosts,
    adaptive_maximise,
    best_choices,
    neighbours,
)
from snugnet.solve import effects as effects_module


class Truth:
    """Two groups of 1-3 slots with 3 options: 1,521 choices, every true value known, in deviations of all of them."""

    def __init__(self, seed, *, interactions=0.0, noise=0.0, share=0.45):
        rng = np.random.default_rng(seed)
        groups = tuple(Group(name=f"g{g}", options=(3, 3, 3), depths=(1, 2, 3)) for g in range(2))
        size = np.sort(rng.uniform(1, 3, (6, 3)), axis=1)
        free = Problem(groups=groups, resources=(ResourceCosts(name="cost", unit="ms", base=1.0, costs=tuple(size)),))
        low, high = (free.cost(c)["cost"] for c in (free.cheapest("cost"), free.dearest("cost")))
        self.problem = free.with_limits({"cost": low + share * (high - low)})
        self.effects = Objective(
            tuple(np.log(size) + rng.normal(0, 0.3, (6, 3))), tuple(rng.normal(0, 0.3, 3) for _ in range(2))
        )
        pairs = rng.normal(0, interactions, (6, 3, 3))
        values = {}
        for choice in enumerate_choices(self.problem):
            beside = [(s, t) for s, t in itertools.pairwise(self.problem.running(choice)) if t == s + 1]
            extra = sum(pairs[s, choice.options[s], choice.options[t]] for s, t in beside)
            values[choice] = self.problem.value(self.effects, choice) + extra
        mean, scale = np.mean(list(values.values())), np.std(list(values.values()))
        self.values = {c: (v - mean) / scale for c, v in values.items() if self.problem.is_feasible(c)}
        self.noise, self.rng, self.asked = noise, np.random.default_rng([seed, 1]), []

    def __call__(self, choice):
        self.asked.append(choice)
        return self.values[choice] + self.noise * self.rng.normal(), self.noise  # a KeyError if it does not fit

    def regret(self, choice):
        return max(self.values.values()) - self.values[choice]


def random_search(truth, evaluations, rng):
    choices = list(truth.values)
    picks = [choices[i] for i in rng.permutation(len(choices))[:evaluations]]
    return max(picks, key=lambda c: truth(c)[0])


def learnt_once(truth, evaluations, rng):
    choices = list(truth.values)
    known = []
    for i in rng.permutation(len(choices))[: evaluations - 1]:
        value, error = truth(choices[i])
        known.append(Evaluation(choice=choices[i], value=value, error=error))
    return adaptive_maximise(truth.problem, truth, evaluations=1, rng=rng, evidence=known, initial=0, explore=0.0).value


def test_an_additive_truth_is_solved():
    for seed in range(4):
        truth = Truth(seed)
        got = adaptive_maximise(truth.problem, truth, evaluations=30, rng=np.random.default_rng(seed))
        assert truth.regret(got.value) < 0.02
        assert got.stats["evaluated"] == len(truth.asked) == len(set(truth.asked)) == 30
        assert got.stats["expected"] == pytest.approx(truth.values[got.value], abs=1e-6)
        assert got.stats["error"] == pytest.approx(0, abs=1e-6)
        assert got.stats["left_out_correlation"] > 0.8


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_better_than_random_search_and_than_learning_once(noise):
    """Mean regret over twelve truths with interactions, 24 evaluations each."""
    ways = {
        "adaptive": lambda t, r: adaptive_maximise(t.problem, t, evaluations=24, rng=r).value,
        "random": lambda t, r: random_search(t, 24, r),
        "learnt once": lambda t, r: learnt_once(t, 24, r),
    }
    mean = {}
    for name, way in ways.items():
        truths = [Truth(seed, interactions=0.2, noise=noise) for seed in range(12)]
        mean[name] = np.mean([t.regret(way(t, np.random.default_rng(i))) for i, t in enumerate(truths)])
    assert mean["adaptive"] < 0.75 * mean["random"], mean
    assert mean["adaptive"] < mean["learnt once"], mean


def test_the_winner_is_expected_best_not_luckiest():
    """The stated expectation is near the truth where the largest measured value is far above it."""
    over_measured, over_expected = [], []
    for seed in range(8):
        truth = Truth(seed, noise=1.0)
        measured = {}

        def evaluate(choice, truth=truth, measured=measured):
            measured[choice] = truth(choice)
            return measured[choice]

        got = adaptive_maximise(truth.problem, evaluate, evaluations=24, rng=np.random.default_rng(seed))
        lucky = max(measured, key=lambda c: measured[c][0])
        over_measured.append(measured[lucky][0] - truth.values[lucky])
        over_expected.append(got.stats["expected"] - truth.values[got.value])
        assert 0 < got.stats["error"] < 1.0
    assert np.mean(over_measured) > 0.5
    assert abs(np.mean(over_expected)) < 0.5 * np.mean(over_measured)


def test_deterministic_and_resumes_by_replaying_evidence():
    def run(evaluations, evidence=()):
        truth = Truth(1, interactions=0.2)
        search = AdaptiveSearch(truth.problem, rng=np.random.default_rng(5))
        return [s.evaluation for s in search.steps(truth, evaluations=evaluations, evidence=evidence)]

    whole = run(16)
    assert run(16) == whole
    first = run(12)
    assert first == whole[:12]
    assert run(4, evidence=first) == whole[12:]


def test_a_good_prior_helps_and_one_of_the_wrong_sign_is_dropped():
    regrets = {"none": [], "good": []}
    for seed in range(8):
        for name in regrets:
            truth = Truth(seed, interactions=0.1)
            prior = truth.effects if name == "good" else None
            got = adaptive_maximise(truth.problem, truth, evaluations=6, rng=np.random.default_rng(seed), prior=prior)
            regrets[name].append(truth.regret(got.value))
    assert np.mean(regrets["good"]) < 0.5 * np.mean(regrets["none"])
    truth = Truth(0)
    wrong = Objective(tuple(-v for v in truth.effects.options), tuple(-v for v in truth.effects.depths))
    got = adaptive_maximise(truth.problem, truth, evaluations=24, rng=np.random.default_rng(0), prior=wrong)
    assert got.stats["prior_slope"] == 0
    assert truth.regret(got.value) < 0.1


def test_left_out_correlations_are_honest_under_a_prior_of_the_wrong_sign():
    """The truth has nothing to do with the columns: neither prior nor effects may claim to predict it."""
    claims = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        x = np.eye(4)[rng.integers(0, 4, (40, 6))].reshape(40, 24)
        prior = rng.normal(size=24)
        y = -0.02 * (x @ prior) + rng.normal(size=40)
        fitted = EffectsPosterior.fit(x, y, np.zeros(40), prior)
        claims.append(np.corrcoef(fitted.left_out(), y)[0, 1])
        if fitted.prior_dropped:
            assert fitted.slope == 0
    assert np.mean(claims) < 0.3


def test_posterior_draws_have_its_mean_and_covariance():
    rng = np.random.default_rng(0)
    x = np.eye(3)[rng.integers(0, 3, (12, 3))].reshape(12, 9)
    prior = rng.normal(size=9)
    y = x @ (2 * prior + 0.3 * rng.normal(size=9)) + 0.1 * rng.normal(size=12)
    fitted = EffectsPosterior.fit(x, y, np.full(12, 0.1), prior)
    assert fitted.slope > 0
    draws = np.array([fitted.drawn(rng).effects for _ in range(20000)])
    deviation = np.sqrt(np.diag(fitted.covariance))
    np.testing.assert_allclose(draws.mean(axis=0), fitted.mean, atol=0.05 * deviation.max())
    np.testing.assert_allclose(np.cov(draws.T), fitted.covariance, atol=0.06 * deviation.max() ** 2)
    np.testing.assert_allclose(fitted.drawn(rng, 0.0).effects, fitted.mean)


def test_what_known_candidates_say_of_those_alike_to_them():
    """`joint` at the evidence's own rows is what `evaluated` says, and everywhere the textbook's Gaussian conditioning."""
    rng = np.random.default_rng(0)
    x = np.eye(3)[rng.integers(0, 3, (15, 4))].reshape(15, 12)
    errors = rng.uniform(0.1, 0.3, 15)
    fitted = EffectsPosterior.fit(x, x @ rng.normal(size=12) + rng.normal(size=15), errors)
    assert fitted.misfit > 0
    mean, covariance = fitted.joint(x)
    own_mean, own_variance = fitted.evaluated()
    np.testing.assert_allclose(mean, own_mean, atol=1e-9)
    np.testing.assert_allclose(np.diag(covariance), own_variance, atol=1e-9)
    new = np.eye(3)[rng.integers(0, 3, (5, 4))].reshape(5, 12)
    mean, covariance = fitted.joint(new)
    everything = np.vstack([x, new]) - fitted.centre
    differ = (everything[:, None] != everything[None]).sum(-1) / 2  # choices: a pair of indicators each
    alike = np.where(differ == 0, 1.0, 0.95 * 0.5**differ)
    signal = fitted.effect_size**2 / 12 * everything @ everything.T + fitted.misfit**2 * alike
    signal += 1e4  # a free level, as good as
    known = np.linalg.inv(signal[:15, :15] + np.diag(errors**2))
    np.testing.assert_allclose(mean, signal[15:, :15] @ known @ fitted.y, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(
        covariance, signal[15:, 15:] - signal[15:, :15] @ known @ signal[:15, 15:], rtol=1e-2, atol=1e-3
    )
    drawn = fitted.drawn(rng, 0.0)
    np.testing.assert_allclose(drawn(new) - drawn(new)[0], mean - mean[0], atol=1e-9)


def test_noise_that_goes_with_choices_does_not_become_less_by_more_evaluations():
    """With noise of each evaluation's own, many evaluations find the truth; with as much noise of effects, they do not."""
    rng = np.random.default_rng(1)
    x = np.eye(3)[rng.integers(0, 3, (120, 4))].reshape(120, 12)
    y = x @ rng.normal(size=12)
    own = EffectsPosterior.fit(x, y, np.full(120, 1.0))
    common = EffectsPosterior.fit(x, y, np.full(120, 1e-3), common=np.full(120, 0.6))
    distance = x[0] - x[1]
    doubt = [float(np.sqrt(distance @ fitted.covariance @ distance)) for fitted in (own, common)]
    assert doubt[1] > 1.5 * doubt[0]
    assert np.ptp(x @ common.mean) < np.ptp(x @ own.mean)  # what the images may have favoured is believed less
    twice = EffectsPosterior.fit(x, y, np.full(120, 1e-3), common=np.where(np.arange(120) % 2, 0.3, 0.6))
    assert (np.linalg.eigvalsh(twice.noise) > 0).all()


def test_neighbours_are_all_that_fit_and_differ_in_one_choice():
    problem = Truth(0).problem
    everything = list(enumerate_choices(problem))
    for choice in [c for c in everything if problem.is_feasible(c)][:: len(everything) // 20]:
        found = neighbours(problem, choice)
        assert len(found) == len(set(found))
        assert choice not in found
        assert all(problem.is_feasible(c) for c in found)
        one_option = [
            c
            for c in everything
            if c.depths == choice.depths and sum(a != b for a, b in zip(c.options, choice.options)) == 1
        ]
        assert {c for c in found if c.depths == choice.depths} == {c for c in one_option if problem.is_feasible(c)}
        moved = [c for c in found if c.depths != choice.depths]
        assert all(sum(abs(a - b) for a, b in zip(c.depths, choice.depths)) == 1 for c in moved)


def test_the_posterior_mean_is_the_textbook_one():
    """Without a prior and with given sizes: generalised least squares for the level, then the best linear predictor."""
    rng = np.random.default_rng(3)
    x, y, errors = rng.normal(size=(9, 5)), rng.normal(size=9), rng.uniform(0.1, 0.5, 9)
    fitted = EffectsPosterior.fit(x, y, errors)
    squares = ((x[:, None] - x[None]) ** 2).sum(-1)
    variance = fitted.effect_size**2 / 5 * fitted.x @ fitted.x.T + fitted.misfit**2 * np.where(
        squares, 0.95 * 0.5 ** (squares / 2), 1
    )
    variance += np.diag(errors**2)
    inverse = np.linalg.inv(variance)
    level = inverse.sum(axis=0) @ y / inverse.sum()
    np.testing.assert_allclose(fitted.mean, fitted.effect_size**2 / 5 * fitted.x.T @ inverse @ (y - level))
    exact = EffectsPosterior.fit(x, y, np.zeros(9))
    np.testing.assert_allclose(exact.evaluated()[0], y)


def test_one_evaluation_and_a_single_fitting_choice():
    truth = Truth(0)
    got = adaptive_maximise(truth.problem, truth, evaluations=1, rng=np.random.default_rng(0))
    assert got.value == truth.asked[0]
    with_prior = adaptive_maximise(
        truth.problem, truth, evaluations=1, rng=np.random.default_rng(0), prior=truth.effects
    )
    assert truth.regret(with_prior.value) == pytest.approx(0)
    only = truth.problem.cheapest("cost")
    tight = truth.problem.with_limits({"cost": truth.problem.cost(only)["cost"]})
    single = adaptive_maximise(tight, lambda c: (1.0, 0.0), evaluations=30, rng=np.random.default_rng(0))
    assert single.value == only
    assert single.stats["evaluated"] == 1


def test_many_evaluations_have_their_sizes_from_the_latest():
    """As good as sizes from all of them, which take a likelihood of every row fifty times."""
    rng = np.random.default_rng(5)
    rows = (rng.random((400, 60)) < 0.2).astype(float)
    effects = rng.normal(size=60)
    truth = rows @ effects
    values = truth + 0.5 * rng.normal(size=400)
    late = EffectsPosterior.fit(rows, values, np.full(400, 0.5), effects + rng.normal(size=60))
    with patch.object(effects_module, "_SIZING", 400):
        every = EffectsPosterior.fit(rows, values, np.full(400, 0.5), late.prior)
    assert late.effect_size == pytest.approx(every.effect_size, rel=0.5)
    assert np.corrcoef(late.left_out(), every.left_out())[0, 1] > 0.99
    assert np.corrcoef(late.evaluated()[0], truth)[0, 1] > 0.98
    flat = np.where(np.arange(400)[:, None] < 300, rows, rows[-1])  # the latest all alike: no slope among them
    assert np.isfinite(EffectsPosterior.fit(flat, values, np.full(400, 0.5), effects).mean).all()


def test_few_choices_are_all_evaluated_once():
    problem = plain_problem({"cost": [[1, 2], [1, 2]]}, {"cost": 3.0})
    asked = []

    def evaluate(choice):
        asked.append(choice)
        return float(sum(choice.options)), 0.0

    got = adaptive_maximise(problem, evaluate, evaluations=30, rng=np.random.default_rng(0))
    assert len(asked) == len(set(asked)) == 3
    assert sum(got.value.options) == 1


def test_infeasible_limits_say_so_before_anything_is_evaluated():
    problem = plain_problem({"cost": [[1.0, 2.0]]}, {"cost": 0.5})
    with pytest.raises(Infeasible, match="cost"):
        adaptive_maximise(problem, lambda c: pytest.fail("evaluated"), rng=np.random.default_rng(0))
    truth = Truth(0)
    with pytest.raises(BadInput, match="evaluations"):
        adaptive_maximise(truth.problem, truth, evaluations=0, rng=np.random.default_rng(0))


def test_evidence_from_other_limits_counts_but_does_not_win():
    truth = Truth(2)
    wide = truth.problem.with_limits({})
    outside = [c for c in enumerate_choices(wide) if not truth.problem.is_feasible(c)][::40]
    known = [Evaluation(choice=c, value=wide.value(truth.effects, c), error=0.0) for c in outside]
    got = adaptive_maximise(
        truth.problem,
        lambda c: (truth.problem.value(truth.effects, c), 0.0),
        evaluations=4,
        rng=np.random.default_rng(0),
        evidence=known,
        initial=1,
    )
    assert truth.problem.is_feasible(got.value)
    assert truth.regret(got.value) < 0.1


def test_a_proposer_of_the_callers_own():
    truth = Truth(4)
    counts = []

    def propose(objective, count):
        counts.append(count)
        return best_choices(truth.problem, objective, count=count).found

    rng = np.random.default_rng(0)
    adaptive_maximise(truth.problem, truth, evaluations=12, rng=rng, propose=propose)
    assert len(counts) >= 12
    dear = truth.problem.dearest("cost")
    with pytest.raises(Infeasible, match="proposed"):
        adaptive_maximise(truth.problem, truth, evaluations=2, rng=rng, propose=lambda objective, count: [dear])


def test_stops_when_nothing_is_to_be_gained():
    truth = Truth(0)
    got = adaptive_maximise(truth.problem, truth, evaluations=200, rng=np.random.default_rng(0), stop_early=True)
    assert got.stats["evaluated"] < 100
    assert truth.regret(got.value) < 0.02
