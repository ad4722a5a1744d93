"""Scores, where the images are kept, and what an evaluator remembers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot

from snugnet.data.dataset import InMemory, load
from snugnet.errors import BadInput, DamagedFile
from snugnet.evaluate.evaluator import RERANK_TOP_K, Evaluator, training_curves
from snugnet.evaluate.scoring import Answers, ImageCache, accuracy, answers, resized, subnetwork_answers
from snugnet.nets import Supernet, extract, recalibrate
from snugnet.space.sampling import largest, sample
from standin import SPACE, Plain, same, toy_data, weights

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def supernet():
    torch.manual_seed(0)
    return Supernet(SPACE).eval()


@pytest.fixture(scope="module")
def data():
    return toy_data()


def networks(count):
    return [sample(SPACE, np.random.default_rng(seed)) for seed in range(count)]


class Counted(InMemory):
    """Counts the images that are read."""

    read = 0

    def fetch(self, batches, seed=None):
        for images, labels in super().fetch(batches, seed):
            Counted.read += len(labels)
            yield images, labels


def counted(data):
    Counted.read = 0
    return Counted(about=data.about, index=data.index, images=data.images, labels=data.labels)


def test_the_score_asks_what_a_network_knows_and_not_how_sure_it_is():
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(5, (400,), generator=rng)
    logits = torch.randn(400, 5, generator=rng) + 1.5 * one_hot(labels, 5)
    plain = Answers(logits, labels).score()
    finest = min(float(cross_entropy(logits * t, labels)) for t in torch.linspace(0.1, 4, 2000))
    assert plain.calibrated_loss == pytest.approx(finest, abs=1e-5)
    for scale in (0.3, 4.0):
        other = Answers(logits * scale, labels).score()
        assert other.score == pytest.approx(plain.score, abs=1e-4)
        assert other.error == pytest.approx(plain.error, rel=1e-2)
        assert other.loss > plain.loss
    assert Answers(logits[:, [1, 0, 2, 3, 4]], labels).score().score < plain.score
    assert Answers(100.0 * one_hot(labels, 5), labels).score().score == pytest.approx(1.0)


def test_the_standard_error_is_what_other_images_would_show():
    """Scores of many samples of images scatter by the error that each of them states."""
    rng = torch.Generator().manual_seed(1)
    labels = torch.randint(5, (200, 300), generator=rng)
    logits = torch.randn(200, 300, 5, generator=rng) + 1.5 * one_hot(labels, 5)
    scores = [Answers(x, y).score() for x, y in zip(logits, labels)]
    scatter = float(np.std([s.score for s in scores], ddof=1))
    stated = float(np.mean([s.error for s in scores]))
    assert stated == pytest.approx(scatter, rel=0.15)  # 200 samples know a deviation to 5 %


def test_scores_are_those_of_a_network_that_is_extracted_recalibrated_and_fed_by_hand(supernet, data):
    architecture = networks(1)[0]
    images = ImageCache(data)
    network = recalibrate(extract(supernet, architecture), images.calibration(CPU)).eval()
    right, count = 0, 0
    with torch.no_grad():
        for batch, labels in data.batches("val", 64):
            right, count = right + int((network(batch).argmax(1) == labels).sum()), count + len(labels)
    assert subnetwork_answers(supernet, architecture, images).accuracy == pytest.approx(right / count)
    assert accuracy(network, data) == pytest.approx(right / count)


def test_images_are_read_once_while_they_fit_and_scores_do_not_depend_on_it(supernet, data):
    set_, size = counted(data), data.size("val")
    kept, streamed = ImageCache(set_), ImageCache(set_, keep_bytes=0)
    first = [subnetwork_answers(supernet, a, kept).score() for a in networks(4)]
    assert Counted.read == size + sum(map(len, kept.calibration(CPU)))
    Counted.read = 0
    second = [subnetwork_answers(supernet, a, streamed).score() for a in networks(4)]
    assert Counted.read == 4 * size + sum(map(len, streamed.calibration(CPU)))
    assert first == second


def test_a_cache_gives_the_split_in_order_whatever_was_asked_before():
    data = load("digits", resolution=8)
    whole = torch.cat([labels for _, labels in data.batches("train", 1000)])
    assert len(whole) > 300
    exact = torch.cat([images for images, _ in data.batches("train", 1000)])[[5, 290, 5]]
    set_ = counted(data)
    side = data.about.resolution
    for room in (0, 256 * 3 * side * side * 4, 1 << 30):
        cache = ImageCache(set_, keep_bytes=room)
        for limit in (10, 300, None, 256, 7):
            parts = list(cache.batches("train", CPU, limit, 128))
            assert torch.equal(torch.cat([labels for _, labels in parts]), whole[:limit])
            assert all(len(images) <= 128 for images, _ in parts)
        rows = torch.tensor([5, 290, 5])
        images, labels = cache.take("train", rows, CPU)
        assert torch.equal(labels, whole[rows]) and images.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(images, exact) and torch.equal(cache.take("train", rows, CPU)[0], exact)


def test_an_evaluation_costs_once_and_a_torn_journal_goes_on_at_every_restart(supernet, data, tmp_path):
    memory = tmp_path / "evaluations.jsonl"
    architecture, another, third = networks(3)
    evaluator = Evaluator(supernet, data, limit=20, memory=memory)
    score, closer = evaluator(architecture), evaluator.evaluate_full(architecture)
    evaluator(architecture)
    assert evaluator.evaluated == 2 and evaluator.images == 20 + data.size("val")
    with memory.open("a") as stream:
        stream.write('{"network": "r8 c')
    for restart, fresh in enumerate((another, third)):  # what is appended after a torn line must be read again
        again = Evaluator(supernet, data, limit=20, memory=memory)
        assert (again(architecture), again.evaluate_full(architecture)) == (score, closer)
        assert again.evaluated == 0 and len(again.known()) == 1 + restart
        again(fresh)
    lines = memory.read_text().splitlines()
    memory.write_text("\n".join([lines[0], "garbage", *lines[1:]]) + "\n")
    with pytest.raises(DamagedFile, match="line 2"):
        Evaluator(supernet, data, limit=20, memory=memory)


def test_a_journal_of_other_weights_or_images_is_not_believed(supernet, data, tmp_path):
    memory, architecture = tmp_path / "evaluations.jsonl", networks(1)[0]
    Evaluator(supernet, data, limit=20, memory=memory)(architecture)
    kept = memory.read_bytes()
    torch.manual_seed(1)
    for change in ({"seed": 1}, {"split": "test"}, {"supernet": Supernet(SPACE)}):
        memory.write_bytes(kept)
        options = {"supernet": supernet, "data": data, "limit": 20, "memory": memory, **change}
        assert Evaluator(**options).known() == []
    memory.write_bytes(kept)
    assert Evaluator(supernet, data, limit=20, memory=memory).known() == [architecture]
    assert Evaluator(supernet, data, limit=25, memory=memory).known() == []  # seen on other images


def test_the_best_few_are_evaluated_again_on_all_images(supernet, data):
    many = networks(12)
    evaluator = Evaluator(supernet, data, limit=15)
    best = evaluator.best(many)
    few = sorted(dict.fromkeys(many), key=lambda a: -evaluator(a).score)[:RERANK_TOP_K]
    every = Evaluator(supernet, data, limit=None)
    assert best == max(few, key=lambda a: every(a).score)
    assert evaluator.evaluated == len(set(many)) + min(RERANK_TOP_K, len(set(many)))
    bounded = Evaluator(supernet, data, limit=15, closer=30)
    bounded.best(many[:1])
    assert bounded.images == 15 + 30


def test_more_networks_to_choose_from_never_give_a_lower_score(supernet, data):
    """Few images mislead: a network that won among few must not be lost among many that only look better."""
    evaluator = Evaluator(supernet, data, limit=4)
    many = list(dict.fromkeys(networks(60)))
    assert len(many) > 2 * RERANK_TOP_K
    before = -np.inf
    for count in range(1, len(many) + 1):
        score = evaluator.evaluate_full(evaluator.best_known(many[:count])).score
        assert score >= before
        before = score


def test_curves_of_a_supernet_leave_it_alone(data):
    torch.manual_seed(0)
    net = Supernet(SPACE)
    before, curves = weights(net), training_curves(net, data, randoms=2)
    values = curves(net)
    assert set(values) == {"largest", "smallest", "random"} and same(before, weights(net)) and net.training
    assert values["largest"] == pytest.approx(subnetwork_answers(net, largest(SPACE), ImageCache(data)).accuracy)
    assert curves(net) == values
    assert set(training_curves(Plain(), data)(Plain())) == {"accuracy"}


def test_networks_are_fed_at_their_own_resolution_in_evaluation_mode(data):
    sides, modes = [], []

    class Sees(torch.nn.Module):
        def forward(self, images):
            sides.append(images.shape[-1])
            modes.append(self.training)
            return torch.zeros(len(images), 4)

    net = Sees()
    found = answers(net, ImageCache(data), resolution=6)
    assert set(sides) == {6} and set(modes) == {False} and net.training
    assert len(found.right) == data.size("val")
    assert resized(torch.zeros(1, 3, 8, 8), None).shape[-1] == 8


def test_an_empty_split_is_refused(supernet, data):
    empty = replace(data, index={**data.index, "val": torch.zeros(0, dtype=torch.int64)})
    with pytest.raises(BadInput, match="must hold images"):
        Evaluator(supernet, empty)
    with pytest.raises(BadInput, match="must hold images"):
        accuracy(Plain(), empty)
