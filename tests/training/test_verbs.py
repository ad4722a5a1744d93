"""`snugnet train` and `snugnet rank` on digits with a very small space."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file

from house import one_clear_line
from standin import same

SPACE = """
name: small
classes: 10
resolutions: [8]
stem: {widths: [8], stride: 1}
stages:
  - {width: 8, depth: [1, 2], kernels: [3, 5], expands: [1, 2], stride: 2}
head: {kind: conv-pool, widths: [16]}
"""
RECIPE = """
name: small
data: {name: digits}
space: {name: SPACE}
train:
  batch: 96
  checkpoint_seconds: 0
  eval_times: 1
  phases:
    - {method: largest, epochs: 1, mixup: 0, auto_augment: null}
    - {method: multipath, epochs: 2, mixup: 0, auto_augment: null, inherit_kernels: true, sort_channels: true}
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recipe")
    (folder / "space.yaml").write_text(SPACE)
    path = folder / "small.yaml"
    path.write_text(RECIPE.replace("SPACE", str(folder / "space.yaml")))
    return str(path)


def test_train_and_rank(snug, recipe, tmp_path):
    run, other = str(tmp_path / "one"), str(tmp_path / "other")
    code, out, err = snug("train", recipe, "--out", run, "--json")
    assert code == 0, err
    facts = json.loads(out)
    assert facts["steps"] == 36 and set(facts["accuracy"]) == {"largest", "smallest", "random"}
    code, out, _ = snug("train", recipe, "--out", run)
    assert code == 0 and "36 steps" in out
    code, out, err = snug("train", recipe, "--out", other, "--set", "seed=1", "--json")
    assert code == 0, err
    code, out, err = snug(
        "rank", run, "--count", "6", "--against", other, "--stand-alone", "1", "--split", "test", "--json"
    )
    assert code == 0, err
    facts = json.loads(out)
    assert len(facts["networks"]) == 6 and facts["images"] == 355
    for key in ("against", "stand_alone"):
        assert -1 <= facts[key]["tau"] <= 1 and facts[key]["networks"] == 6
        assert {"deviation", "error"} <= set(facts[key]["spread"])
    chosen = tmp_path / "chosen.txt"
    chosen.write_text("\n".join(row["architecture"] for row in facts["networks"][:2]))
    code, out, err = snug("rank", run, "--architectures", str(chosen), "--split", "test")
    assert code == 0 and "standard error" in out, err


def test_mistakes_are_one_line_and_exit_2(snug, recipe, tmp_path):
    run = str(tmp_path / "run")
    for words in (
        ["train", "digitz", "--out", run],
        ["train", recipe, "--out", run, "--set", "train.bach=2"],
        ["train", recipe, "--out", run, "--set", "train.batch=5000"],
        ["train", recipe, "--out", run, "--set", "data.name=folder:/nowhere"],
        ["rank", run],
        ["rank", run, "--split", "train"],
    ):
        code, _, err = snug(*words)
        assert code == 2 and one_clear_line(err.splitlines()[-1]), (words, err)


@pytest.mark.slow
def test_a_killed_train_command_goes_on_to_the_same_weights(snug, recipe, tmp_path):
    whole = tmp_path / "whole"
    assert snug("train", recipe, "--out", str(whole), "--threads", "1", "--json")[0] == 0
    for attempt in range(5):  # on a crowded machine the child may be done before this process wakes up
        cut = tmp_path / f"cut-{attempt}"
        command = [sys.executable, "-c", "from snugnet.cli import main; main()", "train", recipe, "--out", str(cut)]
        child = subprocess.Popen(
            [*command, "--threads", "1"], env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=-3, stdout=-3
        )
        while child.poll() is None and len(list((cut / "state").glob("*.json"))) < 2:
            time.sleep(0.005)
        child.send_signal(signal.SIGKILL)
        if child.wait() == -signal.SIGKILL:
            break
    assert child.returncode == -signal.SIGKILL
    code, out, err = snug("train", recipe, "--out", str(cut), "--threads", "1", "--json")
    assert code == 0, err
    assert 0 < json.loads(out)["resumed_at"] <= 36
    assert same(load_file(whole / "supernet.safetensors"), load_file(cut / "supernet.safetensors"))
