"""The verbs that measure, on a space so small that they take seconds; and everything a user can get wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from house import one_clear_line
from snugnet.costs.table import load_table
from snugnet.space import zoo

TINY = """
name: tiny
classes: 4
resolutions: [16]
stem: {widths: [8], stride: 1}
stages:
  - {width: 8, depth: [1, 3], stride: 2, kernels: [3, 5], expands: [2, 3]}
head: {kind: conv-pool, widths: [16]}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("measuring")
    (made / "tiny.yaml").write_text(TINY)
    return made


@pytest.fixture(scope="module")
def table(folder):
    from snugnet.cli import execute

    path = folder / "table.json"
    words = ["--space", str(folder / "tiny.yaml"), "--device", "torch-cpu", "--threads", "1", "--seconds", "2"]
    assert execute(["measure", *words, "--out", str(path), "--json"]) == 0
    return path


def test_devices(snug):
    rows = {row["name"]: row for row in json.loads(snug("devices", "--json")[1])}
    assert rows["torch-cpu"]["here"]
    assert set(rows) == {"torch-cpu", "torch-cuda", "onnxruntime", "openvino", "command:COMMAND"}
    assert "torch-cuda" in snug("devices")[1]


def test_measure_writes_a_table_and_leaves_nothing_else(table, folder):
    assert load_table(table).origin["device"]["device"] == "torch-cpu"
    assert sorted(p.name for p in folder.iterdir() if "check" not in p.name) == ["table.json", "tiny.yaml"]


def test_check(snug, table, folder):
    code, out, _ = snug(
        "check", str(table), "--networks", "4", "--seconds", "1", "--plot", str(folder / "c.svg"), "--json"
    )
    value = json.loads(out)
    assert code == 0
    assert value["networks"] == 4
    assert {"r2", "ratio", "worst_error", "margin", "speed"} <= set(value)
    assert json.loads((folder / "check.json").read_text()) == value
    assert (folder / "c.svg").read_bytes().startswith(b"<?xml")
    (folder / "c.svg").unlink()


def test_texts_for_people(snug, folder, table):
    space = str(folder / "tiny.yaml")
    other = str(folder / "check-2.json")
    code, out, err = snug("measure", "--space", space, "--device", "onnxruntime", "--seconds", "1", "--out", other)
    assert code == 0
    assert "smallest network" in out
    assert f"wrote {other}" in err
    code, out, _ = snug("check", str(table), "--networks", "3", "--seconds", "1")
    assert code == 0
    assert "worst error" in out


def test_certify(snug, tmp_path):
    out_file = str(tmp_path / "certificate.json")
    words = ["certify", "HardCoRe-A", "--seconds", "1", "--out", out_file]
    code, out, _ = snug(*words, "--budget", "latency=100s", "--budget", "params=6M", "--json")
    assert code == 0
    assert json.loads(out)["fits"]
    code, out, err = snug(*words, "--budget", "params=5M")
    assert code == 1
    assert "params must be at most 5M" in err
    assert not json.loads(Path(out_file).read_text())["fits"]


def test_the_zoo_on_ones_own_device(snug, tmp_path, monkeypatch):
    few = {name: zoo.find(name) for name in ("HardCoRe-A", "MobileNetV2-1.0")}
    monkeypatch.setattr(zoo, "networks", lambda: few)
    picture = tmp_path / "zoo.svg"
    words = ["zoo", "--device", "torch-cpu", "--threads", "1", "--seconds", "1"]
    code, out, _ = snug(*words, "--plot", str(picture), "--json")
    rows = json.loads(out)
    assert code == 0
    assert [row["name"] for row in rows] == list(few)
    assert all(0 < row["measured"]["low_ms"] <= row["measured"]["latency_ms"] for row in rows)
    assert picture.read_bytes().startswith(b"<?xml")
    code, out, err = snug(*words)
    assert code == 0
    assert "no faster one is more accurate" in out
    assert "passes" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["measure", "--device", "torch-cpuu"], "Did you mean 'torch-cpu'"),
        (["measure", "--device", "tensorrt"], "Known: torch-cpu"),
        (["measure", "--threads", "0"], "threads must be a whole number of at least 1"),
        (["measure", "--threads", "99999"], "threads must not exceed"),
        (["measure", "--batch", "0"], "batch must be"),
        (["measure", "--seconds", "0"], "seconds must be a positive number"),
        (["measure", "--precision", "int3"], "precision on torch-cpu"),
        (["measure", "--space", "hardcor"], "Did you mean 'hardcore'"),
        (["measure", "--resolution", "7"], "resolution"),
        (["measure", "--out", "/proc/nowhere/table.json"], "could not be written"),
        (["check", "no-such-table.json"], "could not be read"),
        (["certify", "HardCoRe-A", "--budget", "latency=40"], "unit"),
        (["certify", "HardCoRe-A", "--budget", "latency"], "NAME=LIMIT"),
        (["certify", "HardCoRe-A", "--budget", "params=6M", "--budget", "params=7M"], "once"),
        (["certify", "HardCoRe-A"], "budget"),
        (["certify", "HardCoRe-AA", "--budget", "params=6M"], "Did you mean"),
        (["certify", "none.onnx", "--budget", "params=6M"], "could not be read"),
        (["zoo", "--device", "nowhere"], "a device must be a known name"),
        (["zoo", "--plot", "a.svg"], "needs measured networks"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_code_two(snug, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = snug(*words)
    assert code == 2
    assert out == ""
    assert one_clear_line(err)
    assert message in err
    assert not any(tmp_path.iterdir())


def test_a_device_that_is_not_here(snug, tmp_path):
    from snugnet.devices import TorchCuda

    if TorchCuda.missing():
        code, _, err = snug("measure", "--device", "torch-cuda", "--out", str(tmp_path / "t.json"))
        assert code == 2
        assert one_clear_line(err)
        assert "torch-cuda must be on this machine" in err


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "must be whole JSON"),
        (lambda text: text.replace('"batch": 1', '"batch": 2'), "origin.batch: must be as it was written"),
        (lambda text: text.replace('"combine": "sum"', '"combine": "median"'), "combine: input should be"),
        (lambda text: "[]", "must be a cost table"),
    ],
)
def test_a_damaged_table(snug, table, tmp_path, damage, message):
    bad = tmp_path / "table.json"
    bad.write_text(damage(table.read_text()))
    code, _, err = snug("check", str(bad))
    assert (code, one_clear_line(err)) == (2, True)
    assert message in err


def test_a_table_of_another_space_or_plot_of_another_kind(snug, table, tmp_path):
    code, _, err = snug("check", str(table), "--space", "hardcore-lowres")
    assert (code, one_clear_line(err)) == (2, True)
    assert "parts of 'hardcore-lowres' are missing" in err
    code, _, err = snug("check", str(table), "--plot", str(tmp_path / "picture.doc"))
    assert (code, one_clear_line(err)) == (2, True)
    before = table.read_bytes()
    assert snug("measure", "--space", "nowhere", "--out", str(table))[0] == 2
    assert table.read_bytes() == before


def test_a_table_knows_its_space(snug, table, folder, tmp_path):
    """Moved away from its YAML file it can still be checked, and serves as the space of the next table."""
    moved = tmp_path / "moved.json"
    moved.write_bytes(table.read_bytes())
    (folder / "tiny.yaml").rename(folder / "hidden")
    try:
        assert snug("check", str(moved), "--networks", "3", "--seconds", "0.5", "--json")[0] == 0
        code, _, err = snug("measure", "--space", str(moved), "--out", str(tmp_path / "next.json"), "--seconds", "0.5")
        assert code == 0, err
    finally:
        (folder / "hidden").rename(folder / "tiny.yaml")
    assert load_table(tmp_path / "next.json").origin["space_id"] == load_table(table).origin["space_id"]


def test_a_table_does_not_take_the_place_of_another_kind_of_file(snug, folder, tmp_path):
    other = tmp_path / "search.json"
    other.write_text('{"format": "snugnet-search/1", "accuracy": 0.9}')
    code, _, err = snug("measure", "--space", str(folder / "tiny.yaml"), "--out", str(other), "--seconds", "1")
    assert (code, one_clear_line(err)) == (2, True)
    assert "something else than a table" in err
    assert "snugnet-search/1" in other.read_text()


def test_killed_in_the_middle_the_next_run_goes_on(folder, tmp_path, snug):
    """SIGKILL while measuring over an old table: the old one stays whole, and the passes done are not done again."""
    out = tmp_path / "table.json"
    out.write_text("the old table")
    words = ["measure", "--space", str(folder / "tiny.yaml"), "--out", str(out), "--seconds"]
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; from snugnet.cli import main; main(sys.argv[1:])", *words, "4000"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    journal = Path(f"{out}.partial")
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (not journal.exists() or journal.read_bytes().count(b"\n") < 9):
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = journal.read_bytes().count(b"\n") - 1
    assert done >= 8
    assert out.read_text() == "the old table"
    code, printed, _ = snug(*words, "0.001", "--json")
    assert code == 0
    value = json.loads(printed)
    assert done <= value["passes"] <= done + 1
    assert load_table(out).origin["passes"] == value["passes"]
    assert not journal.exists()
