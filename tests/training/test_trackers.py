"""Trackers beside train.jsonl: one's own, TensorBoard, and what Weights & Biases and MLflow would be told."""

import importlib
import importlib.metadata
import inspect
import json
import sys
from pathlib import Path

import pytest

from house import one_clear_line
from snugnet.errors import BadInput, TrainingDiverged, UnknownName
from snugnet.training import methods, train
from standin import Standin, toy_data
from tiny_recipe import recipe_in

FAKES = Path(__file__).parent / "fake_trackers"
PHASE = methods.multipath(epochs=3, auto_augment=None)


@pytest.fixture
def fakes(monkeypatch):
    """Stand-ins for both packages, fresh for each test."""
    for name in ("wandb", "mlflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(FAKES)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    yield importlib.import_module("wandb"), importlib.import_module("mlflow")
    for name in ("wandb", "mlflow"):
        sys.modules.pop(name, None)


@pytest.fixture
def neither(monkeypatch):
    """A machine where neither package is installed."""
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n in ("wandb", "mlflow") else real(n, *a))


class Mine:
    def __init__(self):
        self.rows = []

    def log(self, step, values):
        self.rows.append((step, values))


def run(trackers, out=None, evaluator=None, **options):
    options = {"batch": 32, "device": "cpu", "checkpoint_seconds": 0, "eval_times": 1, **options}
    return train(options.pop("net", None) or Standin(), toy_data(), PHASE, out=out, trackers=trackers,
                 evaluator=evaluator, **options)  # fmt: skip


def lines(folder):
    return [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]


def test_a_tracker_of_ones_own_hears_what_train_jsonl_does(tmp_path):
    mine = Mine()
    result = run([mine], tmp_path, evaluator=lambda _: {"largest": 0.25})
    told = [(step, values) for step, values in mine.rows if "loss" in values]
    written = [line for line in lines(tmp_path) if "loss" in line]
    assert [step for step, _ in told] == [line["total"] for line in written] and told[-1][0] == result.steps
    assert [values["loss"] for _, values in told] == pytest.approx([line["loss"] for line in written], abs=1e-6)
    assert (result.steps, {"accuracy/largest": 0.25}) in mine.rows
    assert not (tmp_path / "tensorboard").exists() and not (tmp_path / "trackers.json").exists()


def test_a_tracker_of_ones_own_needs_no_folder_and_may_stop_a_run():
    class Enough(Exception):
        pass

    class Stopping:
        def log(self, step, values):
            raise Enough

    with pytest.raises(Enough):
        run([Stopping()])


def test_both_are_told_everything_and_closed(tmp_path, fakes):
    wandb, mlflow = fakes
    mine = Mine()
    run(["wandb", "mlflow", mine], tmp_path, evaluator=lambda _: {"largest": 0.25})
    (board,), (flow,) = wandb.RUNS, mlflow.RUNS.values()
    assert board.rows == flow.rows == mine.rows
    assert (board.code, flow.status) == (0, "FINISHED")
    assert board.settings == {"project": "snugnet", "dir": str(tmp_path), "name": str(tmp_path), "resume": "allow"}
    assert flow.name == str(tmp_path) and flow.params["batch"] == "32"
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"wandb": board.id, "mlflow": flow.info.run_id}


def test_a_run_that_ends_badly_says_so_and_is_resumed_in_the_same_place(tmp_path, fakes):
    wandb, mlflow = fakes
    broken = Standin()
    forward, calls = Standin.forward, iter(range(10**6))

    def failing(images, path):
        return forward(broken, images, path) * (float("nan") if next(calls) > 10 else 1.0)

    broken.forward = failing
    with pytest.raises(TrainingDiverged):
        run(["wandb", "mlflow"], tmp_path, net=broken)
    assert wandb.RUNS[0].code == 1 and mlflow.RUNS["run0"].status == "FAILED"
    result = run(["wandb", "mlflow"], tmp_path)
    assert result.resumed_at and [board.id for board in wandb.RUNS] == ["made0", "made0"]
    assert list(mlflow.RUNS) == ["run0"] and mlflow.RUNS["run0"].status == "FINISHED"
    run(["wandb", "mlflow"], tmp_path)  # finished before: nothing to tell
    assert len(wandb.RUNS) == 2


def test_inside_a_run_of_the_callers_own(fakes):
    _, mlflow = fakes
    outer = mlflow.start_run(run_name="mine")
    run(["mlflow"])
    assert mlflow.active_run() is outer and not outer.rows and len(mlflow.RUNS["run1"].rows) > 0


def test_a_server_that_stops_to_answer_does_not_stop_the_run(tmp_path, fakes, monkeypatch):
    monkeypatch.setattr(fakes[1], "BROKEN", True)
    with pytest.warns(UserWarning, match=r"MLflow is told no more .*127\.0\.0\.1"):
        assert run(["mlflow"], tmp_path).steps
    assert lines(tmp_path)


def test_one_that_cannot_start_is_refused_in_a_line(fakes, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "forbidden")
    with pytest.raises(BadInput, match=r"wandb must be able to start, got .*No API key.*WANDB_MODE=offline") as refusal:
        run(["wandb"])
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_named_before_anything_is_written(tmp_path, neither, name):
    with pytest.raises(BadInput, match=f"needs the package {name}, .*pip install {name}"):
        run([name], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_output_of_wandb_in_the_working_folder_is_not_the_package(tmp_path, monkeypatch):
    if "wandb" in sys.modules or any(d.name == "wandb" for d in importlib.metadata.distributions()):
        pytest.skip("wandb is installed")
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadInput, match="pip install wandb"):
        run(["wandb"])


def test_what_is_no_tracker():
    with pytest.raises(UnknownName, match="'tensorboard'"):
        run(["tensorbord"])
    with pytest.raises(BadInput, match=r"log\(step, values\), got int"):
        run([3])
    with pytest.raises(BadInput, match="Give the run a folder"):
        run(["tensorboard"])


def test_the_option_reaches_training_and_fine_tuning(tmp_path, fakes, snug):
    wandb, _ = fakes
    folder = tmp_path / "run"
    words = ("--set", "search.front=0", "--set", "train.phases[0].epochs=1", "--threads", "1", "--tracker", "wandb")
    code, _, err = snug("run", str(recipe_in(tmp_path)), "--out", str(folder), *words)
    assert code == 0, err
    first, second = wandb.RUNS
    assert first.settings["name"] == str(folder) and second.settings["name"].startswith(str(folder / "finetune"))
    assert "trackers:\n- wandb\n" in (folder / "recipe.yaml").read_text()
    assert not list(folder.rglob("tensorboard"))


def test_the_option_refuses_in_a_line(tmp_path, neither, snug):
    recipe = str(recipe_in(tmp_path))
    code, _, err = snug("run", recipe, "--out", str(tmp_path / "a"), "--tracker", "mlflow")
    assert code == 2 and one_clear_line(err) and "pip install mlflow" in err and not (tmp_path / "a").exists()
    code, _, err = snug("train", recipe, "--out", str(tmp_path / "b"), "--tracker", "neptune")
    assert code == 2 and one_clear_line(err) and "'wandb'" in err


@pytest.mark.parametrize("package, names", [
    ("wandb", ["init", "Run.log", "Run.finish"]),
    ("mlflow", ["start_run", "log_params", "log_metrics", "end_run", "active_run"]),
])  # fmt: skip
def test_the_stand_ins_have_the_signatures_of_the_real_packages(package, names):
    """Where the package is installed: what is called here by name must be there by that name."""
    real = pytest.importorskip(package)
    spec = importlib.util.spec_from_file_location(f"fake_{package}", FAKES / package / "__init__.py")
    fake = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fake)
    for name in names:
        both = []
        for owner in (real, fake):
            for part in name.split("."):
                owner = getattr(owner, part)
            both.append(list(inspect.signature(owner).parameters))
        assert both[0] == both[1], name
    assert package != "mlflow" or issubclass(real.exceptions.MlflowException, Exception)


def test_the_real_packages_take_what_they_are_told(tmp_path, monkeypatch):
    """W&B offline and MLflow in a file of the run, where they are installed."""
    pytest.importorskip("wandb")
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("WANDB_MODE", "offline")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    mine = Mine()
    run(["wandb", "mlflow", mine], tmp_path / "run", evaluator=lambda _: {"largest": 0.25})
    ids = json.loads((tmp_path / "run" / "trackers.json").read_text())
    assert list((tmp_path / "run" / "wandb").glob(f"offline-run-*-{ids['wandb']}/run-{ids['wandb']}.wandb"))
    history = mlflow.MlflowClient().get_metric_history(ids["mlflow"], "loss")
    assert [(m.step, m.value) for m in history] == [(step, v["loss"]) for step, v in mine.rows if "loss" in v]
    assert mlflow.get_run(ids["mlflow"]).info.status == "FINISHED"
