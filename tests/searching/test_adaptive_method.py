"""The adaptive method: within limits, on one evidence for all budgets, on spaces of every kind."""

import numpy as np
import pytest
import torch
from tiny_spaces import several_resolutions, several_widths

from house import journal_rows
from snugnet.budgets import limits_of
from snugnet.errors import BadInput
from snugnet.evaluate.evaluator import Evaluator
from snugnet.nets import Supernet
from snugnet.searching import Adaptive, Random
from snugnet.searching.front import front
from snugnet.searching.search import search
from snugnet.space import parse

QUICK = Adaptive(evaluations=14, further=4, passes=1, batch=32)


def test_every_evaluation_is_within_the_limits_and_the_result_says_what_it_expects(
    tiny_supernet, digits, tables, tmp_path
):
    budget = {"latency": "60%", "params": "70%"}
    found = search(tiny_supernet, digits, tables, budget, QUICK, out=tmp_path, eval_images=60, final_images=240)
    limits = limits_of(tiny_supernet.space, tables, budget)
    networks = [parse(row["network"], tiny_supernet.space) for row in journal_rows(tmp_path / "evaluations.jsonl")]
    assert all(limits.fits(a) for a in networks)
    assert len(set(networks)) == len(found.trace) <= QUICK.evaluations
    assert 0 < found.expected <= 1 and 0 < found.error < 0.5
    told = found.to_json()
    assert {"fits", "evaluated", "expected", "error"} <= set(told)
    for name in ("prior", "posterior"):
        assert set(found.details[name]) == {"correlation", "error", "networks"}
    assert abs(found.details["prior"]["correlation"]) <= 1


def test_the_same_search_again_is_free_and_a_further_budget_is_cheap(tiny_supernet, digits, tables, tmp_path):
    options = {"out": tmp_path, "eval_images": 60, "final_images": 60}
    first = search(tiny_supernet, digits, tables, {"latency": "70%"}, QUICK, **options)
    again = search(tiny_supernet, digits, tables, {"latency": "70%"}, QUICK, **options)
    assert again.evaluated == 0 and again.images == 0
    assert again.architecture == first.architecture and again.expected == first.expected
    further = search(tiny_supernet, digits, tables, {"latency": "55%"}, QUICK, **options)
    assert 0 < further.evaluated <= QUICK.further
    assert further.details["known"] >= len(first.trace)


def test_a_larger_budget_is_never_worse_on_the_same_evidence(tiny_supernet, digits, tables, tmp_path):
    evaluator = Evaluator(tiny_supernet, digits, limit=60, closer=60)
    search(tiny_supernet, digits, tables, {}, Random(networks=50), evaluator=evaluator)
    shares = range(50, 101, 10)
    for share in shares:  # after this every budget has had its evaluations
        search(tiny_supernet, digits, tables, {"latency": f"{share}%"}, QUICK, out=tmp_path, evaluator=evaluator)
    before = -np.inf
    for share in shares:
        budget = {"latency": f"{share}%"}
        found = search(tiny_supernet, digits, tables, budget, QUICK, out=tmp_path, evaluator=evaluator)
        assert found.evaluated == 0
        value = found.details["expected_score"]
        assert value >= before
        before = value


def test_front_shares_its_evidence(tiny_supernet, digits, tables, tmp_path):
    evaluator = Evaluator(tiny_supernet, digits, limit=60, closer=60)
    points = front(tiny_supernet, digits, tables, "latency", 4, method=QUICK, out=tmp_path, evaluator=evaluator)
    assert evaluator.evaluated <= QUICK.evaluations + 3 * QUICK.further
    for point in points:
        assert point.result.predicted["latency"] <= point.limit * (1 + 1e-9)


def test_it_beats_most_of_what_fits(tiny_supernet, digits, tables):
    evaluator = Evaluator(tiny_supernet, digits, limit=None)
    budget = {"latency": "65%"}
    found = search(tiny_supernet, digits, tables, budget, Adaptive(evaluations=30), evaluator=evaluator)
    others = search(tiny_supernet, digits, tables, budget, Random(networks=60), seed=9, evaluator=evaluator)
    scores = sorted(row["value"] for row in others.trace)
    assert evaluator(found.architecture).score >= scores[len(scores) * 3 // 4]


@pytest.mark.parametrize("space", [several_resolutions(), several_widths()], ids=["resolutions", "widths"])
def test_spaces_whose_costs_do_not_add_up_at_once(space, digits):
    torch.manual_seed(0)
    supernet = Supernet(space).eval()
    found = search(supernet, digits, [], {"macs": "50%", "params": "80%"}, QUICK, eval_images=40, final_images=40)
    assert found.fits
    again = search(supernet, digits, [], {"macs": "50%", "params": "80%"}, QUICK, eval_images=40, final_images=40)
    assert again.architecture == found.architecture


def test_bad_options(tiny_supernet, digits, tables):
    with pytest.raises(BadInput, match="must be positive"):
        search(tiny_supernet, digits, tables, {}, Adaptive(passes=0))
