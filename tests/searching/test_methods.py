"""The suite every search method passes, and what is special to each."""

import copy
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_spaces import several_resolutions

from brute_force import enumerate_choices
from house import journal_rows
from snugnet.budgets import Budget, cheapest, dearest, feasible, limits_of
from snugnet.errors import BadInput, BadSpace, BudgetExceeded, DamagedFile, Infeasible, TableMismatch, UnknownName
from snugnet.evaluate.evaluator import RERANK_TOP_K, Evaluator
from snugnet.evaluate.scoring import ImageCache
from snugnet.nets import Supernet
from snugnet.nets.network import fixed_weights
from snugnet.searching import Adaptive, Bcsfw, Evolution, Instant, Random, SearchResult, load_result
from snugnet.searching.bcsfw import MeanGradient
from snugnet.searching.choice_effects import ChoiceEffects, corrected, from_paths
from snugnet.searching.context import FeasibleSampler, search_context
from snugnet.searching.front import front
from snugnet.searching.objective import RelaxedObjective, prepared
from snugnet.searching.search import search
from snugnet.solve import balanced_start
from snugnet.space import parse, preset
from snugnet.space.layout import Layout
from snugnet.space.sampling import sample_many

QUICK = {
    "adaptive": Adaptive(evaluations=12, passes=1, batch=32),
    "bcsfw": Bcsfw(steps=6, batch=32),
    "instant": Instant(paths=4, images=64, evidence=8, most_evidence=8, candidates=3),
    "evolution": Evolution(population=8, rounds=2, mutations=4, crossovers=4),
    "random": Random(networks=8),
}


@pytest.fixture(scope="module")
def evaluator(tiny_supernet, digits):
    return Evaluator(tiny_supernet, digits, limit=100)


def budgets_of(space, tables) -> list[dict[str, str]]:
    low, high = cheapest(space, tables).cost, dearest(space, tables).cost
    return [
        {"latency": f"{low + 0.01:.5f}ms"},
        {"latency": f"{(low + high) / 2:.5f}ms", "params": "60%"},
        {"latency": f"{(low + high) / 2:.5f}ms", "params": "70%", "memory": "95%"},
        {},
    ]


@pytest.mark.parametrize("name", QUICK)
def test_within_every_budget_and_deterministic(name, tiny_supernet, digits, tables, evaluator):

    def fresh():  # what an evaluator knows is evidence: adaptive search starts elsewhere when it knows more
        return Evaluator(tiny_supernet, digits, limit=100, cache=evaluator.cache)

    for budget in budgets_of(tiny_supernet.space, tables):
        first, second = (
            search(tiny_supernet, digits, tables, budget, QUICK[name], seed=3, evaluator=chosen_by)
            for chosen_by in ((fresh(), fresh()) if name == "adaptive" else (evaluator, evaluator))
        )
        assert first.fits
        assert first.architecture == second.architecture
        assert set(first.predicted) == set(budget)
        assert first.accuracy == evaluator.evaluate_full(first.architecture).accuracy
        back = SearchResult.from_json(json.loads(json.dumps(first.to_json())), tiny_supernet.space)
        assert back == first


@pytest.mark.parametrize("name", QUICK)
def test_infeasible_is_refused_before_any_work(name, tiny_supernet, digits, tables):
    class NoWork:
        images = evaluated = 0

        def known(self):
            return []

        def __call__(self, architecture):
            raise AssertionError("work was done")

    with pytest.raises(Infeasible, match="latency must be at least"):
        search(tiny_supernet, digits, tables, {"latency": "0.001ms"}, QUICK[name], evaluator=NoWork())


@pytest.mark.parametrize("name", QUICK)
def test_a_killed_search_goes_on_to_the_same_network(name, tiny_supernet, digits, tables, tmp_path, monkeypatch):
    budget = budgets_of(tiny_supernet.space, tables)[1]
    whole = search(tiny_supernet, digits, tables, budget, QUICK[name], out=tmp_path / "whole", eval_images=100)
    calls = 0
    real, real_gradient = Evaluator._evaluate, RelaxedObjective.__call__

    def dies(function, after):
        def wrapper(self, *args):
            nonlocal calls
            calls += 1
            if calls > after:
                raise KeyboardInterrupt
            return function(self, *args)

        return wrapper

    monkeypatch.setattr(Evaluator, "_evaluate", dies(real, 3))
    monkeypatch.setattr(RelaxedObjective, "__call__", dies(real_gradient, 3))
    monkeypatch.setattr(sys.modules["snugnet.searching.bcsfw"], "SAVE_EVERY", 0.0)
    with pytest.raises(KeyboardInterrupt):
        search(tiny_supernet, digits, tables, budget, QUICK[name], out=tmp_path / "killed", eval_images=100)
    monkeypatch.setattr(Evaluator, "_evaluate", real)
    monkeypatch.setattr(RelaxedObjective, "__call__", real_gradient)
    again = search(tiny_supernet, digits, tables, budget, QUICK[name], out=tmp_path / "killed", eval_images=100)
    assert again.architecture == whole.architecture
    assert again.evaluated + again.images < whole.evaluated + whole.images
    assert [row.get("loss") for row in again.trace] == [row.get("loss") for row in whole.trace]


def test_a_result_over_budget_cannot_be_made(tiny_supernet, digits, tables, evaluator):
    result = search(tiny_supernet, digits, tables, {"latency": "90%"}, QUICK["random"], evaluator=evaluator)
    with pytest.raises(BudgetExceeded):
        replace(result, limits={"latency": result.predicted["latency"] * 0.9})


def test_results_are_read_back_or_refused(tiny_supernet, digits, tables, evaluator, tmp_path):
    result = search(tiny_supernet, digits, tables, {"latency": "90%"}, QUICK["random"], evaluator=evaluator)
    path = result.save(tmp_path / "search.json")
    assert load_result(path, tiny_supernet.space) == result
    value = json.loads(path.read_text())
    del value["limits"]
    path.write_text(json.dumps(value))
    with pytest.raises(DamagedFile, match="limits"):
        load_result(path, tiny_supernet.space)


def test_bad_input(tiny_supernet, digits, tables):
    with pytest.raises(UnknownName, match="Did you mean 'bcsfw'"):
        search(tiny_supernet, digits, tables, {}, "bcfw")
    with pytest.raises(UnknownName, match="Did you mean 'steps'"):
        search(tiny_supernet, digits, tables, {}, "bcsfw", step=3)
    with pytest.raises(TableMismatch):
        wrong = replace(tables, costs=dict(list(tables.costs.items())[:3]), origin={"space_id": "other", "space": "x"})
        search(tiny_supernet, digits, wrong, {"latency": "90%"}, "random")
    with pytest.raises(BadInput, match="cost table of latency"):
        search(tiny_supernet, digits, [], {"latency": "5ms"}, "random")
    empty = replace(digits, index={**digits.index, "val": torch.zeros(0, dtype=torch.int64)})
    with pytest.raises(BadInput, match="must hold images"):
        search(tiny_supernet, empty, tables, {}, "random")


def test_methods_that_need_sums_say_so_and_others_search_any_space(digits):
    torch.manual_seed(0)
    space = preset("attentive-lowres", classes=10, resolution=8, width=0.25)
    supernet = Supernet(space).eval()
    with pytest.raises(BadSpace, match="evolution"):
        search(supernet, digits, [], {"params": "60%"}, QUICK["bcsfw"])
    found = search(supernet, digits, [], {"params": "60%"}, Random(networks=2), eval_images=20)
    assert found.fits


def test_frank_wolfe_walks_at_every_resolution_and_the_best_network_of_all_wins(digits, tmp_path):
    torch.manual_seed(0)
    supernet = Supernet(several_resolutions()).eval()
    budget, method = {"macs": "70%", "params": "80%"}, Bcsfw(steps=4, batch=16, candidates=4)
    found = search(supernet, digits, [], budget, method, out=tmp_path, eval_images=40, final_images=40, compete=False)
    assert found.fits and {path.name for path in tmp_path.glob("frank*")} == {
        "frank_wolfe-6.json",
        "frank_wolfe-8.json",
    }
    rows = found.details["candidates"]
    assert {row["network"].split()[0] for row in rows} == {"r6", "r8"}
    assert found.score == max(row["value"] for row in rows)
    again = search(supernet, digits, [], budget, method, out=tmp_path, eval_images=40, final_images=40, compete=False)
    assert again.architecture == found.architecture and again.evaluated == 0


def test_random_networks_within_limits_are_uniform(tiny_supernet, tables):
    space = tiny_supernet.space
    budget = Budget({"latency": "70%"})
    limits = search_context(space, tables, budget).limits
    inside = feasible(space, tables, budget)
    fitting = {inside.architecture(c) for c in enumerate_choices(inside.problem) if inside.problem.is_feasible(c)}
    within = FeasibleSampler(limits, search_context(space, tables, budget).start)
    rng = np.random.default_rng(0)
    sampled = within.sample(3000, rng)
    assert set(sampled) <= fitting
    walked = Layout(space).decode(within._walk(3000, rng))
    assert set(walked) <= fitting
    # The walk and rejection draw from one distribution: compare mean costs, whose spread is known.
    costs = [np.array([limits.cost(a)["latency"] for a in drawn]) for drawn in (sampled, walked)]
    error = np.sqrt(sum(c.var() / len(c) for c in costs))
    assert abs(costs[0].mean() - costs[1].mean()) < 5 * error


def test_children_stay_inside(tiny_supernet, tables):
    field = search_context(tiny_supernet.space, tables, Budget({"latency": "60%", "params": "60%"}))
    rng = np.random.default_rng(1)
    parents = field.sampler.sample(40, rng)
    for child in (*field.sampler.mutate(parents, rng), *field.sampler.cross(parents, parents[::-1], rng)):
        assert field.limits.fits(child)


def test_regression_recovers_planted_worths(tiny_supernet):
    """Losses that are exactly additive, with image difficulty on top, are predicted and searched exactly."""
    space, rng = tiny_supernet.space, np.random.default_rng(0)
    genes = sample_many(space, 60, rng)
    x = Layout(space).features(genes)
    true = rng.normal(size=x.shape[1])
    prior = from_paths_like(true + rng.normal(size=len(true)) * 0.5)
    fitted = corrected(prior, space, Layout(space).decode(genes), (x @ true + 3.0).tolist())
    fresh = Layout(space).features(sample_many(space, 200, rng))
    assert np.corrcoef(fresh @ fitted.value, fresh @ true)[0, 1] > 0.98
    assert fitted.left_out.correlation > fitted.prior.correlation


def from_paths_like(value):
    doubt = np.full(len(value), 0.1)
    both = {"loss": -value, "loss_error": doubt, "right": value, "right_error": doubt}
    return ChoiceEffects(value=value, error=doubt, **both, paths=1, images=1)


def test_worths_of_paths_see_what_a_broken_choice_costs(tiny_supernet, digits):
    """Ruin the 5x5 kernel of one block: its choices must come out as worse, by many standard errors."""
    supernet = copy.deepcopy(tiny_supernet)
    block = supernet.blocks()[0]
    with torch.no_grad():
        for operation in block.operations:
            operation.depthwise["5"].conv.weight.normal_(0, 3)
    effects = from_paths(supernet, ImageCache(digits), paths=8, limit=200, seed=0)
    row = effects.loss[: len(block.parts)]
    kernels = np.array([part.kernel for part in block.parts])
    errors = effects.loss_error[: len(block.parts)]
    assert row[kernels == 5].min() - row[kernels == 3].max() > 3 * errors.max()
    right, doubt = effects.right[: len(block.parts)], effects.right_error[: len(block.parts)]
    assert right[kernels == 3].min() - right[kernels == 5].max() > 3 * doubt.max()
    assert np.allclose(effects.value, effects.right - effects.loss)
    again = ChoiceEffects.from_json(json.loads(json.dumps(effects.to_json())))
    for name in ("value", "error", "loss", "loss_error", "right", "right_error"):
        assert np.array_equal(getattr(again, name), getattr(effects, name))


def test_regret_against_full_enumeration(tiny_supernet, digits, tables):
    """All networks of the space evaluated: how far is each method from the best under the budget?"""
    evaluator = Evaluator(tiny_supernet, digits, limit=100)
    budget = {"latency": "75%"}
    inside = feasible(tiny_supernet.space, tables, budget)
    every = {inside.architecture(c) for c in enumerate_choices(inside.problem) if inside.problem.is_feasible(c)}
    some = sorted(every, key=str)[:: max(1, len(every) // 120)]
    values = sorted(evaluator(a).score for a in some)
    for name in ("evolution", "instant"):
        found = search(tiny_supernet, digits, tables, budget, QUICK[name], evaluator=evaluator, compete=False)
        assert (
            evaluator(found.architecture).score >= values[len(values) // 2]
        )  # at least better than the median network


def test_front_is_monotone_and_within(tiny_supernet, digits, tables, evaluator):
    points = front(tiny_supernet, digits, tables, "latency", 4, method=QUICK["instant"], evaluator=evaluator)
    scores = [point.result.score for point in points]
    assert scores == sorted(scores)
    for point in points:
        assert point.result.predicted["latency"] <= point.limit * (1 + 1e-9)


def test_no_search_returns_a_network_that_another_of_the_run_beats(tiny_supernet, digits, tables, tmp_path):
    """Whatever method or budget a network was evaluated for, it competes wherever it fits."""
    out, space = tmp_path, tiny_supernet.space
    options = {"out": out, "eval_images": 60}
    rich = search(tiny_supernet, digits, tables, {"latency": "80%"}, Random(networks=60), seed=1, **options)
    poor = search(tiny_supernet, digits, tables, {"latency": "100%"}, Random(networks=1), seed=2, **options)
    assert poor.score >= rich.score
    alone = search(
        tiny_supernet, digits, tables, {"latency": "100%"}, Random(networks=1), seed=2, compete=False, **options
    )
    assert alone.score < rich.score  # else the test says nothing
    assert poor.details["method_found"] == str(alone.architecture)
    known = [parse(row["network"], space) for row in journal_rows(out / "evaluations.jsonl")]
    full = Evaluator(tiny_supernet, digits, limit=None)
    before = -np.inf
    for share in range(50, 101, 5):
        budget = {"latency": f"{share}%"}
        limits = limits_of(space, tables, budget)
        if not any(limits.fits(a) for a in known):
            continue
        found = search(tiny_supernet, digits, tables, budget, Random(networks=1), **options)
        again = search(tiny_supernet, digits, tables, budget, Random(networks=1), **options)
        assert found.architecture == again.architecture and again.evaluated == 0
        assert full(found.architecture).score >= before  # monotone in the budget
        before = full(found.architecture).score


def test_front_and_search_agree(tiny_supernet, digits, tables, tmp_path):
    options = {"out": tmp_path, "evaluator": Evaluator(tiny_supernet, digits, limit=60)}
    how = QUICK["instant"]
    points = front(tiny_supernet, digits, tables, "latency", 5, method=how, **options)
    for point in points:
        budget = {"latency": f"{point.limit:.12g}ms"}
        found = search(tiny_supernet, digits, tables, budget, how, **options)
        assert (found.architecture, found.score) == (point.result.architecture, point.result.score)
    search(tiny_supernet, digits, tables, {"latency": "70%"}, Random(networks=40), **options)
    for point in front(tiny_supernet, digits, tables, "latency", 5, method=how, explore=False, **options):
        found = search(tiny_supernet, digits, tables, {"latency": "70%"}, Random(networks=40), **options)
        if point.result.predicted["latency"] <= found.effective_limits["latency"]:
            assert point.result.score <= found.score
        if found.predicted["latency"] <= point.limit:
            assert point.result.score >= found.score


def test_a_front_of_nothing_evaluated_says_so(tiny_supernet, digits, tables):
    with pytest.raises(BadInput, match="Search first"):
        front(tiny_supernet, digits, tables, "latency", 3, explore=False)


@pytest.mark.parametrize("name", QUICK)
def test_the_callers_super_network_comes_back_as_it_was(name, tiny_supernet, digits, tables):
    supernet = copy.deepcopy(tiny_supernet)
    supernet.train()
    supernet.stem.eval()
    modes = [module.training for module in supernet.modules()]
    strides = [parameter.stride() for parameter in supernet.parameters()]
    search(supernet, digits, tables, {"latency": "80%"}, QUICK[name], eval_images=20)
    assert [module.training for module in supernet.modules()] == modes
    assert [parameter.stride() for parameter in supernet.parameters()] == strides
    assert all(p.requires_grad for p in supernet.parameters())


def test_instant_counts_the_images_it_ran(tiny_supernet, digits, tables, tmp_path):
    options = {"out": tmp_path, "eval_images": 20}
    first = search(tiny_supernet, digits, tables, {"latency": "80%"}, QUICK["instant"], **options)
    again = search(tiny_supernet, digits, tables, {"latency": "80%"}, QUICK["instant"], **options)
    assert first.images > 64 * QUICK["instant"].paths
    assert (again.images, again.evaluated) == (0, 0)


@pytest.mark.parametrize("seed", range(4))
def test_a_prior_of_the_wrong_sign_is_dropped(tiny_supernet, seed):
    """What is claimed of left-out networks must be what fresh networks show."""
    space, rng = tiny_supernet.space, np.random.default_rng(seed)
    genes = sample_many(space, 24, rng)
    x = Layout(space).features(genes)
    true = rng.normal(size=x.shape[1])
    noise = rng.normal(size=len(x)) * 0.2 * np.std(x @ true)
    fitted = corrected(from_paths_like(-true), space, Layout(space).decode(genes), (x @ true + noise).tolist())
    fresh = Layout(space).features(sample_many(space, 400, rng))
    truth = float(np.corrcoef(fresh @ fitted.value, fresh @ true)[0, 1])
    unaided = corrected(from_paths_like(0 * true), space, Layout(space).decode(genes), (x @ true + noise).tolist())
    assert np.allclose(fitted.value, unaided.value) and np.allclose(fitted.error, unaided.error, atol=1e-9, rtol=0.5)
    assert fitted.left_out.correlation <= truth + 0.15


def test_options_of_bcsfw(tiny_supernet, digits, tables, evaluator):
    for change in (
        {"start": "smallest"},
        {"gradient": "expected"},
        {"loss": "plain"},
        {"schedule": "authors"},
        {"steps_in": "joint"},
        {"schedule": "linear"},
        {"schedule": "fixed", "momentum": 0.9},
        {"projection": "alternating"},
        {"projection": "argmax"},
        {"candidates": 1},
        {"head_start": 30},
    ):
        method = replace(QUICK["bcsfw"], **change)
        assert search(tiny_supernet, digits, tables, {"latency": "60%"}, method, evaluator=evaluator).fits


def test_bcsfw_evaluates_its_candidates_and_returns_the_best(tiny_supernet, digits, tables, evaluator):
    alone = {"evaluator": evaluator, "compete": False}
    found = search(tiny_supernet, digits, tables, {"latency": "60%"}, QUICK["bcsfw"], **alone)
    rows = found.details["candidates"]
    assert 2 <= len(rows) <= QUICK["bcsfw"].candidates
    assert len({row["network"] for row in rows}) == len(rows)
    best = sorted(rows, key=lambda row: -row["value"])[:RERANK_TOP_K]
    assert str(found.architecture) in {row["network"] for row in best}
    method = replace(QUICK["bcsfw"], candidates=1)
    bare = search(tiny_supernet, digits, tables, {"latency": "60%"}, method, **alone)
    assert str(bare.architecture) == rows[0]["network"]  # the projection comes first, as published
    with pytest.raises(BadInput, match="candidates must be positive"):
        search(tiny_supernet, digits, tables, {}, replace(QUICK["bcsfw"], candidates=0), evaluator=evaluator)


def test_the_mean_gradient_weighs_options_where_they_run(tiny_supernet, tables):
    """Gradients that come from a known additive loss rank options as it does, whatever the point they were taken at."""
    space = tiny_supernet.space
    inside = search_context(space, tables, Budget({"latency": "70%"})).problem_set
    rng = np.random.default_rng(0)
    effect = [rng.normal(size=len(stage.choices)) for stage in space.stages for _ in range(stage.max_depth)]
    level = [rng.normal(size=len(stage.depths)) for stage in space.stages]
    mean = MeanGradient()
    for _ in range(4):
        alpha = [rng.dirichlet(np.ones(len(row))) for row in effect]
        beta = [rng.dirichlet(np.ones(len(row))) for row in level]
        running = [
            float(beta[s][np.array(stage.depths) > position].sum())
            for s, stage in enumerate(space.stages)
            for position in range(stage.max_depth)
        ]
        mean.add(Layout(space), alpha, beta, [w * share for w, share in zip(effect, running)], level)
    values = mean.values(inside)
    found = [np.array(row) for row in values.options]
    for told, row in zip(found, effect):
        if len(row) > 1:  # up to one constant in a slot and one factor in all
            assert list(np.argsort(-told)) == list(np.argsort(row))
    again = MeanGradient.from_json(json.loads(json.dumps(mean.to_json())))
    assert all(np.array_equal(a, b) for a, b in zip(again.values(inside).options, values.options))


def test_weights_are_fixed_only_while_the_relaxed_gradient_is_taken(tiny_supernet):
    with fixed_weights(tiny_supernet):
        assert not any(p.requires_grad for p in tiny_supernet.parameters())
    assert all(p.requires_grad for p in tiny_supernet.parameters())


def test_the_calibrated_loss_does_not_mind_how_sure_a_super_network_is(tiny_supernet, digits, tables):
    """Logits at a third of their size: the calibrated gradient stays what it was, the plain one turns."""
    unsure = copy.deepcopy(tiny_supernet)
    with torch.no_grad():
        unsure.head.classifier.weight /= 3
        unsure.head.classifier.bias /= 3
    inside = search_context(tiny_supernet.space, tables, Budget({"latency": "70%"})).problem_set
    alpha, beta = inside.spread(balanced_start(inside.problem).value)

    def gradient(supernet, calibrated):
        objective = RelaxedObjective(supernet, ImageCache(digits), batch=64)
        if calibrated:
            assert objective.calibrate(alpha, beta) > 0
        loss, by_block, by_stage = objective(alpha, beta, 0)
        return loss, np.concatenate([*by_block, *by_stage])

    with prepared(tiny_supernet), prepared(unsure):
        (loss, slope), (loss_unsure, slope_unsure) = gradient(tiny_supernet, True), gradient(unsure, True)
        plain, plain_unsure = gradient(tiny_supernet, False)[1], gradient(unsure, False)[1]
    assert loss == pytest.approx(loss_unsure, rel=1e-2)
    assert np.allclose(slope, slope_unsure, rtol=0.02, atol=0.02 * np.abs(slope).max())
    assert not np.allclose(plain, plain_unsure, rtol=0.1, atol=0.1 * np.abs(plain).max())
