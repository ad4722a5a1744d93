"""Two processes of torchrun from data to a certificate: they train together, the first one does the rest."""

import json
import os
import subprocess
import sys

import pytest

from snugnet.deploy.card import read_certificate
from tiny_recipe import recipe_in

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "snugnet"]


def run(*words, timeout=300):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run([*TORCHRUN, *words], env=environment, capture_output=True, text=True, timeout=timeout)


@pytest.mark.slow
def test_from_train_to_certificate(tmp_path):
    recipe, out = recipe_in(tmp_path), tmp_path / "run"
    done = run("run", str(recipe), "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads(done.stdout)  # one process speaks
    assert facts["run"] == str(out) and read_certificate(out / "certificate.json")["fits"]
    assert done.stderr.count("finetune: held-out accuracy") == 1
    shards = [json.loads(path.read_text())["recipe"]["shards"] for path in out.glob("**/state/*.json")]
    assert shards and set(shards) == {2}  # the super-network and the found network were trained by both


@pytest.mark.slow
def test_nobody_hangs_when_nothing_fits(tmp_path):
    recipe = recipe_in(tmp_path)
    done = run("run", str(recipe), "--out", str(tmp_path / "run"), "--set", "budget.params=1%", timeout=120)
    assert done.returncode != 0 and "params must be at least" in done.stderr
