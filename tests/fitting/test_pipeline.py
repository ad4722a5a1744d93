"""The whole way from data to a certified network, on the smallest of everything; killed, damaged and misused."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import onnxruntime
import pytest
import torch
from safetensors.torch import load_file

from house import one_clear_line
from snugnet.budgets import Budget
from snugnet.costs.table import load_table, save_table
from snugnet.deploy.card import read_certificate
from snugnet.deploy.network_file import read_network
from snugnet.fitting import find
from snugnet.fitting.finetuning import Finetuned
from tiny_recipe import RECIPE, recipe_in


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with exact budgets only, so that no timing is involved."""
    from snugnet.cli import execute

    folder = tmp_path_factory.mktemp("pipeline")
    recipe = recipe_in(folder)
    assert execute(["run", str(recipe), "--out", str(folder / "run"), "--threads", "1", "--json"]) == 0
    return folder


def test_everything_is_there_and_agrees(finished):
    run = finished / "run"
    certificate = read_certificate(run / "certificate.json")
    assert certificate["fits"]
    assert set(certificate["budgets"]) == {"params", "macs"}
    found = json.loads((run / "search.json").read_text())
    for name, line in certificate["budgets"].items():
        assert line["measured"] <= line["limit"]
        assert line["predicted"] == pytest.approx(found["predicted"][name])
    session = onnxruntime.InferenceSession(str(run / "network.onnx"))
    assert certificate["sha256"] in str(session.get_modelmeta().custom_metadata_map)
    assert "<html" in (run / "report.html").read_text()


def test_a_second_run_does_nothing(finished, snug):
    before = {p.name: p.stat().st_mtime_ns for p in (finished / "run").iterdir() if p.name != "recipe.yaml"}
    code, _, err = snug("run", str(finished / "tiny.yaml"), "--out", str(finished / "run"), "--threads", "1")
    assert code == 0
    assert err.count("done before") == 6
    assert {p.name: p.stat().st_mtime_ns for p in (finished / "run").iterdir() if p.name != "recipe.yaml"} == before


def test_a_damaged_file_is_noticed_and_made_again(finished, tmp_path, snug):
    run = tmp_path / "run"
    shutil.copytree(finished / "run", run)
    good = (run / "network.safetensors").read_bytes()
    (run / "network.safetensors").write_bytes(good[:-20])
    (run / "front.json").unlink()
    code, _, err = snug("run", str(finished / "tiny.yaml"), "--out", str(run), "--threads", "1")
    assert code == 0
    assert "network.safetensors was changed or damaged" in err
    assert "front.json is gone" in err
    assert (run / "network.safetensors").read_bytes() == good


def test_another_budget_needs_no_training(finished, tmp_path, snug):
    run = tmp_path / "run"
    shutil.copytree(finished / "run", run)
    words = ["run", str(finished / "tiny.yaml"), "--out", str(run), "--threads", "1", "--set", "budget.params=60%"]
    code, _, err = snug(*words)
    assert code == 0
    assert "train: done before" in err
    assert read_certificate(run / "certificate.json")["budgets"]["params"]["fits"]


@pytest.mark.slow
@pytest.mark.parametrize("after", ["train", "search", "finetune", "export"])
def test_killed_in_a_step_it_goes_on_to_the_same_network(finished, tmp_path, after):
    """SIGKILL as soon as the step has begun, then the same command: same architecture, same weights."""
    run = tmp_path / "run"
    program = "import sys; from snugnet.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", program, "run", str(finished / "tiny.yaml"), "--out", str(run), "--threads", "1"]
    killed = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert killed.stderr is not None
    for line in killed.stderr:
        if line.startswith(f"{after}") and line.rstrip().endswith("..."):
            killed.kill()
            break
    killed.wait()
    killed.stderr.close()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for file in ("architecture.json", "network.safetensors"):
        assert (run / file).read_bytes() == (finished / "run" / file).read_bytes(), file
    ours, theirs = (load_file(folder / "supernet.safetensors") for folder in (run, finished / "run"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("front: 3", "frnt: 3", "Did you mean 'front'"),
        ("params: 70%", "params: 10", "with a unit"),
        ("params: 70%", "params: 1%", "params must be at least"),
        ("params: 70%, macs: 80%", "", "must have a budget"),
        ("name: digits, resolution: 8", "name: digitz", "digits"),
        ("method: instant", "method: instnt", "instant"),
        ("paths: 4", "paths: abc", "option paths of instant"),
    ],
)
def test_bad_recipes_are_refused_before_any_work(tmp_path, snug, old, new, message):
    assert old in RECIPE
    recipe = recipe_in(tmp_path, RECIPE.replace(old, new))
    code, _, err = snug("run", str(recipe), "--out", str(tmp_path / "run"), "--threads", "1")
    assert code == 2
    assert one_clear_line(err), err
    assert message in err
    assert not (tmp_path / "run" / "supernet.safetensors").exists()


def test_a_full_disk_and_a_folder_that_is_a_file(finished, tmp_path, snug, monkeypatch):
    import os

    (tmp_path / "file").write_text("")
    code, _, err = snug("run", str(finished / "tiny.yaml"), "--out", str(tmp_path / "file" / "run"))
    assert code == 2
    assert one_clear_line(err), err

    run = tmp_path / "run"
    shutil.copytree(finished / "run", run)
    (run / "report.html").unlink()
    real = os.fsync

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    code, _, err = snug("run", str(finished / "tiny.yaml"), "--out", str(run), "--threads", "1")
    monkeypatch.setattr(os, "fsync", real)
    assert code == 2
    assert "No space left" in err
    assert not (run / "report.html").exists()
    assert snug("run", str(finished / "tiny.yaml"), "--out", str(run), "--threads", "1")[0] == 0


def test_interrupted_by_the_user(finished, tmp_path, snug, monkeypatch):
    from snugnet.fitting.pipeline import Pipeline

    def stop(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Pipeline, "run", stop)
    code, _, err = snug("run", str(finished / "tiny.yaml"), "--out", str(tmp_path / "run"))
    assert code == 130
    assert one_clear_line(err), err


def test_searching_and_finetuning_the_finished_run(finished, tmp_path, snug):
    run = tmp_path / "run"
    shutil.copytree(finished / "run", run)
    words = [
        "search",
        str(run),
        "--budget",
        "params=60%",
        "--method",
        "random",
        "--option",
        "networks=3",
        "--threads",
        "1",
    ]
    code, out, _ = snug(*words, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["fits"]
    assert {"architecture", "predicted", "limits", "aims", "fits", "accuracy", "value", "seconds"} <= set(found)
    few = ["paths=4", "images=64", "evidence=8", "most_evidence=8", "candidates=2"]
    options = [word for option in few for word in ("--option", option)]
    code, out, err = snug(
        *words[:5], "instant", *options, "--threads", "1", "--worths", "--out", str(tmp_path / "s.json")
    )
    assert code == 0, err
    places = re.findall(r"stage \d, (?:block \d|depth)", out)
    assert places, out
    assert out.count(" +- ") >= 2 * len(places)  # every choice with its standard error
    assert "correlation" in err
    code, out, err = snug(
        *words[:5], "instant", *options, "--threads", "1", "--worths", "--out", str(tmp_path / "s.json"), "--json"
    )
    rows = json.loads(out)["worths"]
    assert {row["place"] for row in rows} == set(places)
    assert all({"value", "error", "loss", "loss_error", "right", "right_error"} <= set(row) for row in rows)
    code, out, _ = snug("front", str(run), "--resource", "params", "--points", "2", "--csv", str(tmp_path / "f.csv"),
                        "--plot", str(tmp_path / "f.svg"), "--threads", "1", "--json")  # fmt: skip
    assert code == 0
    assert len(json.loads(out)["points"]) == 2
    assert (tmp_path / "f.csv").read_text().startswith("limit_params")
    code, out, _ = snug("finetune", str(run), "--epochs", "0", "--threads", "1", "--json")
    assert code == 0
    assert json.loads(out)["architecture"] == found["architecture"]
    card = read_network(run).card
    assert card.budget == found["budget"] != Budget(find(str(run / "recipe.yaml")).budget).to_json()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search", "nowhere", "--budget", "params=1M"], "folder of a trained run"),
        (["search", "RUN"], "--budget"),
        (["search", "RUN", "--budget", "params"], "NAME=LIMIT"),
        (["search", "RUN", "--budget", "params=10params"], "cheapest network"),
        (["search", "RUN", "--budget", "latency=5ms"], "snugnet measure"),
        (["search", "RUN", "--budget", "params=60%", "--method", "bcfw"], "Did you mean 'bcsfw'"),
        (
            ["search", "RUN", "--budget", "params=60%", "--method", "bcsfw", "--option", "step=1"],
            "Did you mean 'steps'",
        ),
        (
            ["search", "RUN", "--budget", "params=60%", "--method", "bcsfw", "--option", "steps=abc"],
            "option steps of bcsfw",
        ),
        (["search", "RUN", "--budget", "params=60%", "--table", "missing.json"], "missing.json"),
        (["search", "RUN", "--budget", "params=60%", "--worths"], "only the instant method learns what choices add"),
        (["search", "RUN", "--budget", "params=60%", "--seed", "-1"], "greater than or equal to 0"),
        (["search", "RUN", "--budget", "params=60%", "--out", "/proc/x.json"], "could not be written"),
        (["front", "RUN", "--resource", "latncy"], "Did you mean 'latency'"),
        (["front", "RUN", "--resource", "params", "--csv", "/proc/x.csv"], "could not be written"),
        (["finetune", "RUN", "--epochs", "0", "--option", "lrr=1"], "Did you mean 'lr'"),
        (["finetune", "nowhere"], "folder of a trained run"),
    ],
)
def test_bad_words_to_the_verbs(finished, snug, words, message):
    code, _, err = snug(*[str(finished / "run") if word == "RUN" else word for word in words])
    assert code == 2
    assert one_clear_line(err), err
    assert message in err


def test_a_table_of_another_device_is_taken_only_by_name(finished, tmp_path, snug):
    """Measured here, it serves; with another processor in its origin it does not, unless its device is named."""
    here, phone, board = (str(tmp_path / f"{name}.json") for name in ("here", "phone", "board"))
    space = str(finished / "space.yaml")
    assert snug("measure", "--space", space, "--out", here, "--seconds", "0.01")[0] == 0
    table = load_table(here)
    origin = table.origin
    save_table(replace(table, origin={**origin, "device": {**origin["device"], "processor": "a telephone"}}), phone)
    save_table(replace(table, origin={**origin, "device": {**origin["device"], "device": "a-board"}}), board)
    words = ["search", str(finished / "run"), "--method", "random", "--option", "networks=2", "--threads", "1"]
    words += ["--out", str(tmp_path / "found.json")]
    code, _, err = snug(*words, "--table", here, "--budget", "latency=1s")
    assert code == 0, err
    named = snug("measure", "--space", str(finished / "run"), "--out", str(tmp_path / "n.json"), "--seconds", "0.01")
    assert named[0] == 0 and load_table(tmp_path / "n.json").origin["space_id"] == origin["space_id"]
    for name in ("latency@", "phone"):
        code, _, err = snug(*words, "--table", f"{name}={here}", "--budget", "latency=1s")
        assert (code, one_clear_line(err)) == (2, True), err
        assert "must be latency or latency@DEVICE" in err
    for path, message in ((phone, "processor a telephone in the table"), (board, "a-board, which is not on this")):
        code, _, err = snug(*words, "--table", path, "--budget", "latency=1s")
        assert (code, one_clear_line(err)) == (2, True), err
        assert message in err and f"--table latency@there={path}" in err
    code, _, err = snug(*words, "--table", f"latency@phone={phone}", "--budget", "latency@phone=1s")
    assert code == 0 and "a telephone" in err
    code, _, err = snug("front", str(finished / "run"), "--table", phone)
    assert (code, one_clear_line(err)) == (2, True), err


def test_fine_tuning_tells_where_it_came_from_and_when_the_teacher_was_no_help(finished, tmp_path, snug):
    run = tmp_path / "run"
    shutil.copytree(finished / "run", run)
    code, out, _ = snug("finetune", str(run), "--epochs", "1", "--threads", "1", "--json")
    told = json.loads(out)
    assert code == 0 and {"before", "teacher", "accuracy", "test_accuracy"} <= set(told)
    kept = json.loads((run / "accuracy.json").read_text())
    assert kept["architecture"] == told["architecture"] and kept["val"] == told["accuracy"]
    code, out, _ = snug("finetune", str(run), "--epochs", "1", "--option", "distill=0", "--threads", "1", "--json")
    assert code == 0 and "teacher" not in json.loads(out)
    numbers = {"val": 0.861, "test": 0.85, "before": 0.86, "teacher": 0.867}
    text = str(Finetuned(**numbers))
    assert text.startswith("held-out accuracy 86.1% (before: 86.0%, its teacher: 86.7%), test 85.0%; a teacher hardly")
    for better in ({"val": 0.9}, {"teacher": 0.9}, {"before": 0.98, "val": 0.98, "teacher": 0.99}):
        assert "hardly" not in str(Finetuned(**{**numbers, **better}))
    text = str(Finetuned(val=None, test=0.85, before=0.8, learnt=0.99))
    assert (
        text == "test accuracy 85.0%; trained on the held-out images too, of which it now knows 99.0% (before: 80.0%)"
    )


def test_images_that_the_network_learns_from_are_not_called_held_out(finished, tmp_path, snug):
    run = tmp_path / "run"
    shutil.copytree(finished / "run", run)
    options = [word for text in ("split=train+val", "distill=0", "lr=0.1", "ema=null") for word in ("--option", text)]
    code, out, _ = snug("finetune", str(run), "--epochs", "8", *options, "--threads", "1", "--json")
    told = json.loads(out)
    assert code == 0 and told["accuracy"] is None and 0 <= told["test_accuracy"] <= 1
    kept = json.loads((run / "accuracy.json").read_text())
    assert "val" not in kept and kept["learnt"] >= kept["before"]
    code, out, _ = snug("report", str(run))
    assert code == 0 and "of held-out images that it learnt from at the end" in (run / "report.html").read_text()


def test_a_shipped_file_over_budget_sends_the_search_back(finished, tmp_path, snug, monkeypatch):
    """The first certificate of the exported file says 5 % over: the next search must aim that much lower."""
    from snugnet.errors import BudgetExceeded
    from snugnet.fitting import pipeline, run_costs

    run = tmp_path / "run"
    shutil.copytree(finished / "run", run)
    (run / "certificate.json").unlink()
    real, calls = run_costs.certify, []

    def certify(network, *words, **more):
        if isinstance(network, Path):
            calls.append(network)
            if len(calls) == 1:
                raise BudgetExceeded("params must fit", value="5 % over", remedy="none")
        return real(network, *words, **more)

    monkeypatch.setattr(run_costs, "certify", certify)
    monkeypatch.setattr(pipeline, "measured_shares", lambda path: {"params": 1.05 if path.parent == run else 0.9})
    code, _, err = snug("run", str(finished / "tiny.yaml"), "--out", str(run), "--threads", "1")
    assert code == 0, err
    assert "the next search aims at 94.8%" in err
    line = read_certificate(run / "certificate.json")["budgets"]["params"]
    assert line["measured"] <= line["limit"] * 0.995 / 1.05
