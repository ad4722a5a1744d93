"""AttentiveNAS and AlphaNet from data to a certificate for two budgets at once, on the smallest of everything."""

import json
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from snugnet.cli import execute
from snugnet.cli.options import space_of_run
from snugnet.costs.lazy import known_table
from snugnet.costs.table import load_table
from snugnet.deploy.card import read_certificate
from snugnet.deploy.network_file import read_network
from snugnet.errors import BadInput
from snugnet.fitting import find
from snugnet.fitting.places import training_costs
from snugnet.space.layout import Layout

RECIPE = """
name: tiny
data: {name: digits, resolution: 8}
space: {name: attentive-thin-lowres, width: 0.25}
train:
  batch: 256
  eval_times: 1
  checkpoint_seconds: 0
  phases:
    - {PHASE, epochs: 1, warmup_epochs: 0, auto_augment: null}
budget: {params: 70%, macs: 60%}
search: {SEARCH}
finetune: {epochs: 0}
"""
RUNS = {
    "attentive": (
        "method: attentive, rows: 3000",
        "method: evolution, front: 2, options: {population: 6, rounds: 2, mutations: 2, crossovers: 2, bin_width: 5kMACs}",
    ),
    "alpha": ("method: alpha", "method: adaptive, front: 2, options: {evaluations: 4, further: 2, finalists: 2}"),
}


def command(folder, name):
    path = folder / "tiny.yaml"
    phase, search = RUNS[name]
    path.write_text(RECIPE.replace("PHASE", phase).replace("SEARCH", search))
    return ["run", str(path), "--out", str(folder / "run"), "--threads", "1", "--json"]


@pytest.fixture(scope="module", params=sorted(RUNS))
def finished(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    assert execute(command(folder, request.param)) == 0
    return request.param, folder / "run"


def test_both_budgets_are_certified(finished):
    name, run = finished
    certificate = read_certificate(run / "certificate.json")
    assert certificate["fits"] and set(certificate["budgets"]) == {"params", "macs"}
    assert all(line["measured"] <= line["limit"] for line in certificate["budgets"].values())
    found = json.loads((run / "search.json").read_text())
    assert found["method"] == ("evolution" if name == "attentive" else "adaptive")
    assert read_network(run).card.architecture == found["architecture"]
    assert len(json.loads((run / "front.json").read_text())["points"]) >= 1
    lines = [json.loads(line) for line in (run / "train.jsonl").read_text().splitlines()]
    assert {"loss", "sampled", "smallest"} <= set(lines[0])


def kill(words, run, step):
    """Start the run and kill it inside `step`: a search after its second evaluation, the others where they begin."""
    process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(step) and line.rstrip().endswith("..."):
            break
    memory = run / "search" / "evaluations.jsonl"
    while step == "search" and process.poll() is None and (not memory.exists() or memory.read_bytes().count(b"\n") < 3):
        time.sleep(0.005)
    process.kill()
    process.stderr.close()
    assert process.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_killed_in_every_step_it_comes_to_the_same_network(finished, tmp_path):
    name, run = finished
    program = "import sys; from snugnet.cli import main; main(sys.argv[1:])"
    words = [sys.executable, "-c", program, *command(tmp_path, name)]
    for step in ("train", "search", "export and certify"):
        kill(words, tmp_path / "run", step)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for file in ("architecture.json", "network.safetensors", "front.json"):
        assert (tmp_path / "run" / file).read_bytes() == (run / file).read_bytes(), file
    ours, theirs = (load_file(folder / "supernet.safetensors") for folder in (tmp_path / "run", run))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


LAZY = """
name: lazy
data: {name: digits, resolution: 8}
space: {name: attentive-thin-lowres}
train:
  batch: 1024
  eval_times: 0
  phases:
    - {method: attentive, epochs: 1, warmup_epochs: 0, auto_augment: null, rows: 2000}
"""
SEARCHES = {
    "random": ["networks=2"],
    "evolution": ["population=3", "rounds=1", "mutations=1", "crossovers=1"],
    "adaptive": ["evaluations=3"],
}


def test_blocks_are_measured_when_a_search_meets_them(tmp_path, snug):
    """By the verbs alone: a run, a table begun for its space, and searches within milliseconds and parameters."""
    recipe, run, table = tmp_path / "lazy.yaml", tmp_path / "run", tmp_path / "run" / "table.json"
    recipe.write_text(LAZY)
    code, _, err = snug("train", str(recipe), "--out", str(run), "--threads", "1")
    assert code == 0, err
    code, out, err = snug("measure", "--space", str(run), "--lazy", "--seconds", "1", "--out", str(table), "--json")
    assert code == 0, err
    blocks = len(Layout(space_of_run(run)).distinct_specs())
    assert json.loads(out)["blocks"] == len(known_table(table).costs) < 0.6 * blocks
    for method, options in SEARCHES.items():
        before, chosen = len(known_table(table).costs), [word for option in options for word in ("--option", option)]
        words = ["--budget", "latency=1s", "--budget", "params=15%", "--method", method, *chosen, "--threads", "1"]
        code, out, err = snug("search", str(run), *words, "--json")
        assert code == 0, err
        found = json.loads(out)
        assert found["method"] == method and found["predicted"]["latency"] <= found["limits"]["latency"]
        assert before <= len(known_table(table).costs) < blocks  # what the parameters rule out is never measured
    assert len(known_table(table).costs) > len(load_table(table).costs)


def test_bins_by_a_measured_cost_need_its_table_first(tmp_path):
    recipe = tmp_path / "lazy.yaml"
    recipe.write_text(LAZY.replace("rows: 2000", "rows: 2000, resource: latency"))
    found = find(str(recipe))
    with pytest.raises(BadInput, match="bins by latency, must have a table of latency first"):
        training_costs(found, tmp_path, found.build_space(found.load_data()))
