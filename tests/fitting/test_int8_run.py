"""A budget met in eight bits: table, search, the shipped file and its certificate, all in int8."""

from pathlib import Path

from snugnet.cli import execute
from snugnet.costs.table import load_table
from snugnet.deploy.card import open_certificate
from snugnet.deploy.prediction import open_onnx
from tiny_recipe import RECIPE, recipe_in


def test_a_run_in_int8_ships_and_certifies_int8(tmp_path: Path, capsys):
    text = RECIPE.replace("budget: {params: 70%, macs: 80%}", "budget: {latency: 90%}")
    text += "measure: {device: onnxruntime, precision: int8, seconds: 5, check: 0}\n"
    assert execute(["run", str(recipe_in(tmp_path, text)), "--out", str(tmp_path / "run"), "--threads", "1"]) == 0
    run = tmp_path / "run"
    assert load_table(run / "table.json").origin["device"]["precision"] == "int8"
    certificate, file = open_certificate(run / "certificate.json"), open_onnx(run / "network.int8.onnx")
    assert certificate.network.name.endswith("network.int8.onnx")
    assert certificate.budgets["latency"].device["precision"] == "int8"
    assert certificate.fits
    assert certificate.accuracy is not None
    assert file.metadata["certificate_sha256"]
    assert "accuracy" in capsys.readouterr().err
