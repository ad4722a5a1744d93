"""AttentiveNAS's evolution: parents from bins of cost, gene by gene, inside hard limits; killed, it goes on for free."""

import json

import numpy as np
import pytest
import torch

from snugnet.costs.table import CostTable, exact_table
from snugnet.errors import BadInput, BadSpace
from snugnet.evaluate.evaluator import Evaluator
from snugnet.evaluate.scoring import Score
from snugnet.nets import Supernet
from snugnet.searching.evolution import Bins, Evolution
from snugnet.searching.search import search
from snugnet.space import Head, SearchSpace, Stage, Stem, plan, preset, sample, smallest
from snugnet.space.layout import Layout
from snugnet.space.space import BlockRules

SPACE = SearchSpace(
    name="wide",
    classes=10,
    resolutions=(8, 12),
    stem=Stem(widths=(8, 16), stride=1, act="swish"),
    stages=(
        Stage.of((8, 16), depth=(1, 3), kernels=(3, 5), expands=(1, 2), stride=2, per="stage"),
        Stage.of((16, 24), depth=(1, 3), kernels=(3, 5), expands=(2, 3), se=(True,), per="stage"),
    ),
    head=Head(kind="pool-conv", widths=(16, 24), hidden_expand=2),
    rules=BlockRules(mid_divisor=8, shortcut="always", kernel_weights="crop"),
)
MACS = exact_table(SPACE, "macs")


class Fake(Evaluator):
    """Scores without images: more MACs, more accuracy, and a bonus for small kernels; counts what it is asked."""

    asked = 0

    def _evaluate(self, architecture, images):
        self.asked += 1
        cost = MACS.of_network(plan(architecture, SPACE))
        kernels = sum(block.kernel for stage in architecture.stages for block in stage.blocks)
        accuracy = 0.5 + 0.1 * np.log(cost / 1e5) - 0.002 * kernels
        return Score(accuracy=float(accuracy), loss=1.0, calibrated_loss=1.0, images=images, error=0.01)


@pytest.fixture(scope="module")
def supernet():
    torch.manual_seed(0)
    return Supernet(SPACE).eval()


QUICK = {"population": 24, "rounds": 4, "mutations": 12, "crossovers": 12, "bin_width": "20kMACs"}
LATENCY = CostTable(resource="latency", costs={part: cost * 1e-5 for part, cost in MACS.costs.items()})


def run(supernet, digits, budget, tables=(), out=None, method="evolution", **options):
    memory = None if out is None else out / "evaluations.jsonl"
    evaluator = Fake(supernet, digits, limit=10, closer=10, memory=memory)
    chosen = {**QUICK, **options} if method == "evolution" else options
    return search(supernet, digits, list(tables), budget, method, 3, out=out, evaluator=evaluator, **chosen), evaluator


def test_the_best_of_every_bin_and_nothing_over_the_limits(supernet, digits, tmp_path):
    found, evaluator = run(supernet, digits, {"macs": "60%", "params": "70%"}, out=tmp_path)
    assert found.fits and found.method == "evolution"
    rows = json.loads((tmp_path / "pareto.json").read_text())
    bins = [round(row["predicted"]["macs"] / 20e3) for row in rows]
    assert len(rows) > 5 and bins == sorted(set(bins))
    for network, _ in evaluator.history():
        assert MACS.of_network(plan(network, SPACE)) <= found.limits["macs"] * (1 + 1e-9)
    assert evaluator.history()[0][0] == smallest(SPACE)
    best = {}
    for network, score in evaluator.history():
        number = int(np.floor(MACS.of_network(plan(network, SPACE)) / 20e3 + 0.5))
        best[number] = max(best.get(number, -9), score.score)
    assert [row["value"] for row in rows] == pytest.approx([best[number] for number in sorted(best)])


def test_it_finds_better_networks_than_as_many_random_ones(supernet, digits):
    budget = {"macs": "50%"}
    evolved, evaluator = run(supernet, digits, budget)
    drawn, _ = run(supernet, digits, budget, method="random", networks=evaluator.asked)
    assert evolved.score > drawn.score


def test_repeated_in_its_folder_nothing_is_evaluated_twice(supernet, digits, tmp_path):
    first, evaluator = run(supernet, digits, {"macs": "60%"}, out=tmp_path)
    assert evaluator.asked == len(evaluator.known())
    lines = (tmp_path / "evaluations.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "evaluations.jsonl").write_text("".join(lines[: len(lines) // 2]))  # as a kill leaves it
    again, later = run(supernet, digits, {"macs": "60%"}, out=tmp_path)
    assert again.architecture == first.architecture and later.asked < evaluator.asked
    assert (tmp_path / "evaluations.jsonl").read_text().splitlines(keepends=True)[-1] == lines[-1]


@pytest.mark.parametrize("method", ["evolution", "random", "adaptive"])
def test_every_method_keeps_latency_params_and_memory_at_once(supernet, digits, method):
    budget = {"latency": "60%", "params": "70%", "memory": "90%"}
    options = {"networks": 10} if method == "random" else {"evaluations": 10} if method == "adaptive" else {}
    found, _ = run(supernet, digits, budget, [LATENCY], method=method, **options)
    assert found.fits and set(found.predicted) == set(budget)
    for name, cost in found.predicted.items():
        assert cost <= found.limits[name] * (1 + 1e-9)


def test_bins_may_be_over_latency_where_it_is_limited(supernet, digits):
    found, _ = run(supernet, digits, {"latency": "70%"}, [LATENCY], bin_resource="latency", bin_width="0.5ms")
    assert found.fits
    with pytest.raises(BadInput, match="need a limit"):
        run(supernet, digits, {"macs": "70%"}, bin_resource="latency", bin_width="0.5ms")


def test_free_widths_are_refused():
    class Task:
        class context:
            space = preset("tfnas-lowres")

    with pytest.raises(BadSpace, match="free middle widths"):
        Bins(Task, "macs", "1MMACs")


def test_the_papers_search_is_a_choice_of_options():
    method = Evolution(population=512, rounds=20, mutations=128, crossovers=128, bin_width="10MMACs")
    assert method.population + method.rounds * (method.mutations + method.crossovers) == 5632


def test_effects_of_widths_have_columns():
    layout, rng = Layout(SPACE), np.random.default_rng(0)
    rows = layout.features(layout.encode([sample(SPACE, rng) for _ in range(40)]))
    assert rows.shape[1] == layout.columns
    widths = layout.split(rows[0]).widths
    assert len(widths) == 8 and widths.sum() == 4  # stem, two stages, head
    assert (rows[:, -2:].sum(1) == 1).all() and 0 < rows[:, -1].mean() < 1
