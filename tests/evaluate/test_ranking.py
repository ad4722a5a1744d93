"""Rankings: the correlations against their definitions, the spread beside them, and the verb."""

import itertools

import pytest
import torch

from snugnet.errors import BadInput
from snugnet.evaluate import ranking
from snugnet.store import Journal
from standin import SPACE


def test_tau_and_rho_by_their_definitions():
    ones, others = [0.1, 0.4, 0.2, 0.9, 0.7], [0.3, 0.2, 0.25, 0.8, 0.9]
    pairs = list(itertools.combinations(range(5), 2))
    signs = [(ones[i] - ones[j]) * (others[i] - others[j]) for i, j in pairs]
    found = ranking.agreement(ones, others)
    assert found.tau == pytest.approx(sum(1 if s > 0 else -1 for s in signs) / len(pairs))
    ranks = [[sorted(x).index(v) for v in x] for x in (ones, others)]
    assert found.rho == pytest.approx(1 - 6 * sum((a - b) ** 2 for a, b in zip(*ranks)) / (5 * 24))
    assert ranking.agreement(ones, ones).tau == pytest.approx(1)


def test_rankings_that_mean_nothing_are_refused():
    with pytest.raises(BadInput, match="same networks"):
        ranking.agreement([0.1], [0.2])
    with pytest.raises(BadInput, match="differ"):
        ranking.agreement([0.1, 0.1], [0.2, 0.3])


def test_spread_against_its_formula():
    generator = torch.Generator().manual_seed(0)
    right = torch.rand(12, 4000, generator=generator) < torch.linspace(0.5, 0.9, 12)[:, None]
    found = ranking.spread(right)
    accuracies = right.double().mean(1)
    assert (found.mean, found.lowest, found.highest) == pytest.approx(
        (accuracies.mean().item(), accuracies.min().item(), accuracies.max().item())
    )
    assert found.deviation == pytest.approx(accuracies.std().item())
    # independent answers: the error of a difference is the root of both variances
    variance = (accuracies * (1 - accuracies)).mean().item()
    assert found.error == pytest.approx((2 * variance / 4000) ** 0.5, rel=0.1)
    assert ranking.spread(right[:1]).deviation == 0


def test_random_architectures_differ_and_longer_lists_continue_shorter_ones():
    many = ranking.random_architectures(SPACE, 10, 0)
    assert len(set(many)) == 10 and ranking.random_architectures(SPACE, 4, 0) == many[:4]
    assert len(ranking.random_architectures(SPACE, SPACE.count, 0)) == SPACE.count
    with pytest.raises(BadInput, match="count"):
        ranking.random_architectures(SPACE, SPACE.count + 1, 0)


def test_stand_alone_trains_only_what_its_journal_does_not_know(tmp_path):
    chosen = ranking.random_architectures(SPACE, 3, 0)
    trained = []

    def journal():
        return Journal(tmp_path / "stand_alone.jsonl", "this work", ("architecture", "right"))

    def train_one(architecture):
        trained.append(architecture)
        return torch.tensor([True, True])

    journal().append({"architecture": str(chosen[1]), "right": [True, False]})
    right = ranking.stand_alone(chosen, train_one, journal())
    assert trained == [chosen[0], chosen[2]]
    assert right.tolist() == [[True, True], [True, False], [True, True]]
    assert ranking.stand_alone(chosen, train_one, journal()).tolist() == right.tolist() and len(trained) == 2
