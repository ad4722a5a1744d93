"""TF-NAS by recipe: data to a certified network, killed on the way, and what it refuses."""

import json
import os
import shutil
import signal

import pytest

from snugnet.costs.analytic import params
from snugnet.deploy.card import read_certificate
from snugnet.deploy.network_file import read_network
from snugnet.errors import BadInput
from snugnet.fitting import find
from snugnet.fitting.places import training_costs
from snugnet.fitting.runs import open_run
from snugnet.nets import MixedSupernet

pytestmark = pytest.mark.usefixtures("one_thread")

RECIPE = """
name: tiny-tfnas
data: {name: digits, resolution: 8, subset: {classes: [1, 3, 5, 7, 8]}}
space: {name: tfnas-thin-lowres}
train:
  batch: 64
  eval_times: 1
  phases:
    - {method: tfnas, epochs: 3, weights_only_epochs: 1, held_out_batch: 32, lr: 0.1}
budget: {params: 40%, macs: 35%}
search: {method: tfnas, front: 2}
finetune:
  epochs: 1
  scratch: true
  batch: 64
  options: {lr: 0.05, warmup_epochs: 0, mixup: 0, auto_augment: null, dropout: 0.1, drop_connect: 0.1}
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    from snugnet.cli import execute

    folder = tmp_path_factory.mktemp("tfnas")
    (folder / "tiny.yaml").write_text(RECIPE)
    # Once it is killed in the middle of the search.
    child = os.fork()
    if child == 0:
        ended, calls = MixedSupernet.remember, iter(range(99))

        def fatal(self, *what):
            if next(calls) == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return ended(self, *what)

        MixedSupernet.remember = fatal
        try:
            execute(["run", str(folder / "tiny.yaml"), "--out", str(folder / "run"), "--threads", "1"])
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert execute(["run", str(folder / "tiny.yaml"), "--out", str(folder / "run"), "--threads", "1"]) == 0
    return folder / "run"


def test_a_certified_network_inside_every_budget(finished):
    certificate = read_certificate(finished / "certificate.json")
    found = json.loads((finished / "search.json").read_text())
    assert certificate["fits"] and set(certificate["budgets"]) == {"params", "macs"}
    details = found["details"]
    # What so short a training prefers depends on the processor: perhaps operations that cannot use the limit.
    assert found["method"] == "tfnas" and (details["usage"] > 0.97 or "at its upper bound" in details["message"])
    for name, line in certificate["budgets"].items():
        assert line["measured"] <= line["limit"]
        assert line["predicted"] == pytest.approx(found["predicted"][name])
    page = (finished / "report.html").read_text()
    assert '"movement":{"layers":[{' in page
    assert len(json.loads((finished / "front.json").read_text())["points"]) == 2


def test_the_search_had_five_classes_and_the_network_has_all_ten(finished):
    run = open_run(finished)
    assert isinstance(run.supernet, MixedSupernet) and run.supernet.classifier.out_features == 5
    assert run.data.about.class_names == ("1", "3", "5", "7", "8") and run.supernet.space.classes == 10
    network = read_network(finished)
    assert network.plan.head.classes == 10 and network.card.class_names == tuple("0123456789")
    found = json.loads((finished / "search.json").read_text())
    assert found["predicted"]["params"] == params(network.plan)  # counted for all ten, as it ships
    architecture = json.loads((finished / "architecture.json").read_text())
    assert architecture["head"] == 96
    log = next((finished / "finetune").glob("*/state/*.json"))
    assert json.loads(log.read_text())["recipe"]["data"]["train"] > run.data.size("train")


def test_another_budget_is_searched_in_the_same_run(finished, snug, tmp_path):
    out = tmp_path / "other.json"
    code, text, err = snug(
        "search", str(finished), "--budget", "params=30%", "--method", "tfnas", "--out", str(out), "--json"
    )
    assert code == 0, err
    assert json.loads(text)["predicted"]["params"] <= json.loads(text)["limits"]["params"]
    code, _, err = snug("search", str(finished), "--budget", "params=30%", "--out", str(out))
    assert code == 2 and "share weights" in err and "tfnas" in err


def test_another_budget_is_another_training(finished):
    changed = find(str(finished.parent / "tiny.yaml"), ["budget.params=60%"])
    assert changed.trained() != find(str(finished.parent / "tiny.yaml")).trained()
    assert changed.needs_budget and not find("digits").needs_budget


def test_training_by_verb_needs_a_table_first(tmp_path):
    recipe = find("tfnas-digits")
    space = recipe.build_space(recipe.load_data())
    with pytest.raises(BadInput, match="must have a table of latency first"):
        training_costs(recipe, tmp_path, space)
    assert training_costs(find("digits"), tmp_path, space) == {}


def test_the_wrong_search_is_refused_before_anything_is_done(tmp_path, snug):
    (tmp_path / "wrong.yaml").write_text(RECIPE.replace("method: tfnas, front: 2", "method: adaptive"))
    code, _, err = snug("run", str(tmp_path / "wrong.yaml"), "--out", str(tmp_path / "run"))
    assert code == 2 and "share weights" in err and not (tmp_path / "run" / "table.json").exists()


def test_a_part_of_the_classes_must_be_followed_by_training_on_all(finished, tmp_path, snug):
    """From scratch, or with inherited weights and a new last layer; never with the answers of the part alone."""
    text = RECIPE.replace("scratch: true", "scratch: false")
    (tmp_path / "taught.yaml").write_text(text)
    code, _, err = snug("run", str(tmp_path / "taught.yaml"), "--out", str(tmp_path / "run"))
    assert code == 2 and "must be trained on all of them" in err and "distill" in err
    run = tmp_path / "inherited"
    shutil.copytree(finished, run)
    (run / "recipe.yaml").write_text((run / "recipe.yaml").read_text().replace("scratch: true", "scratch: false"))
    code, out, err = snug("finetune", str(run), "--epochs", "0", "--threads", "1")
    assert code == 2 and "epochs: 0" in err
    options = ("--option", "distill=0", "--epochs", "1", "--threads", "1", "--json")
    code, out, err = snug("finetune", str(run), *options)
    assert code == 0, err
    assert read_network(run).plan.head.classes == 10 and "before" not in json.loads(out)


@pytest.mark.parametrize("name", ["tfnas-digits", "tfnas-cifar10", "tfnas-imagenet"])
def test_shipped_recipes_are_the_papers(name):
    recipe = find(name)
    (phase,) = recipe.train.methods()
    assert phase.name == recipe.search.method == "tfnas" and recipe.finetune.scratch
    assert phase.cost_weight == 0.1 and phase.sampling == "bi" and phase.architecture_every == 2 and phase.scaling
    if name == "tfnas-imagenet":
        assert (phase.epochs, phase.weights_only_epochs, phase.lr, phase.temperature) == (90, 10, 0.025, 5.0)
        assert recipe.data.subset.groups == 100 and recipe.finetune.epochs == 250
