"""The verbs with a device behind a command: the agent's file, tables, checks, certificates, and a board that dies."""

import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agents import SOURCE, agent_command, with_pid
from house import one_clear_line
from snugnet.costs.table import load_table, save_table

TINY = """
name: tiny
classes: 4
resolutions: [16]
stem: {widths: [8], stride: 1}
stages:
  - {width: 8, depth: [1, 3], stride: 2, kernels: [3, 5], expands: [2, 3]}
head: {kind: conv-pool, widths: [16]}
"""
COMMAND = f"command:{agent_command()}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("boards")
    (made / "tiny.yaml").write_text(TINY)
    return made


@pytest.fixture(scope="module")
def table(folder):
    from snugnet.cli import execute

    path, space = folder / "table.json", str(folder / "tiny.yaml")
    assert execute(["measure", "--space", space, "--device", COMMAND, "--seconds", "1", "--out", str(path)]) == 0
    return path


def test_the_agent_is_handed_over(snug, tmp_path):
    file = tmp_path / "snugnet-agent"
    code, out, _ = snug("agent", "--write", str(file), "--json")
    assert (code, json.loads(out)["file"]) == (0, str(file))
    assert file.read_bytes() == SOURCE.read_bytes()
    assert os.access(file, os.X_OK)
    assert file.read_text().startswith("#!/usr/bin/env python3\n")
    assert snug("agent", "--write", "/proc/nowhere/agent")[0] == 2


def test_a_table_and_its_check(snug, table):
    assert load_table(table).origin["device"]["device"] == "command"
    assert sys.executable not in table.read_text()
    words = ["check", str(table), "--networks", "3", "--seconds", "0.5", "--json"]
    code, out, err = snug(*words, "--device", COMMAND)
    assert code == 0, err
    assert json.loads(out)["networks"] == 3
    code, _, err = snug(*words)
    assert (code, one_clear_line(err)) == (2, True)
    assert "must be checked with that command" in err
    code, _, err = snug(*words, "--device", "onnxruntime")
    assert "device command in the table, onnxruntime here" in err


def test_a_table_that_names_a_command_does_not_run_it(snug, table, tmp_path):
    """A table is data, and may come from anywhere."""
    real, touched = load_table(table), tmp_path / "touched"
    device = {**real.origin["device"], "device": f"command:touch {touched}"}
    forged = save_table(replace(real, origin={**real.origin, "device": device}), tmp_path / "forged.json")
    code, _, err = snug("check", str(forged), "--networks", "3", "--seconds", "0.5")
    assert (code, one_clear_line(err)) == (2, True)
    assert not touched.exists()


def test_a_fleet_is_certified_each_on_its_own(snug, tmp_path):
    out_file = tmp_path / "certificate.json"
    words = ["certify", "MobileNetV2-1.0", "--seconds", "0.5", "--out", str(out_file)]
    limits = ["--budget", "latency@pi4=100s", "--budget", "latency@here=100s", "--budget", "params=100M"]
    code, _, err = snug(*words, *limits, "--device", f"pi4={COMMAND}", "--device", "here=onnxruntime")
    assert code == 0, err
    lines = json.loads(out_file.read_text())["budgets"]
    assert [lines[name]["device"]["device"] for name in ("latency@pi4", "latency@here")] == ["command", "onnxruntime"]
    code, _, err = snug(*words, *limits, "--device", "pi4=onnxruntime")
    assert (code, one_clear_line(err)) == (2, True)
    assert "latency@here must have a device" in err
    code, _, err = snug(*words, *limits, "--device", "onnxruntime", "--device", "torch-cpu")
    assert "told apart by a name" in err


def test_an_agent_killed_in_the_middle_of_measure(snug, folder, tmp_path):
    """The command says so in one line; the same command again goes on from the passes that were finished."""
    pid, out = tmp_path / "pid", tmp_path / "table.json"
    journal = Path(f"{out}.partial")
    device = f"command:{with_pid(pid, agent_command())}"
    words = ["measure", "--space", str(folder / "tiny.yaml"), "--device", device, "--out", str(out), "--seconds"]

    def kill() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and (not journal.exists() or journal.read_bytes().count(b"\n") < 9):
            time.sleep(0.01)
        os.kill(int(pid.read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    code, printed, err = snug(*words, "4000")
    killer.join()
    assert (code, printed) == (2, "")
    assert "signal 9" in err and "Run the same command again" in err and "Traceback" not in err
    assert not out.exists()
    done = journal.read_bytes().count(b"\n") - 1
    assert done >= 8
    code, printed, err = snug(*words, "0.001", "--json")
    assert code == 0, err
    assert done <= json.loads(printed)["passes"] <= done + 1
    assert not journal.exists()


def test_measure_over_a_command_that_is_no_agent(snug, tmp_path):
    code, out, err = snug("measure", "--device", "command:echo hello", "--out", str(tmp_path / "t.json"))
    assert (code, out, one_clear_line(err)) == (2, "", True)
    assert "said 'hello'" in err
    assert not any(tmp_path.iterdir())
