"""Tables from blocks timed one after the other against tables from shuffled passes: how well each predicts networks.

    python benchmarks/tables.py [--devices torch-cpu,onnxruntime] [--runs 3] [--out benchmarks/results/tables-DATE.json]

A run is `snugnet measure` and `snugnet check --networks 24` with their defaults, as a user types them, and a naive table
of the same blocks made between the two: block after block, the mean of 20 calls by the wall clock, no calibration, as is
usual. Both tables predict the same 24 networks, which neither has seen and which the check measured. Reported: R2, ratio
(median of predicted / measured), worst relative error; for the naive one also R2 after the best possible factor. The
machine's load is written down, since it is what the two differ in coping with.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from snugnet.costs.table import CostTable
from snugnet.devices import Device, OnnxRuntime, TorchCpu
from snugnet.devices.agent import wall_clock
from snugnet.nets.network import build_part
from snugnet.space import parse, plan, preset
from snugnet.space.layout import Layout
from snugnet.store import write_json

NAIVE: dict[str, Device] = {"torch-cpu": TorchCpu(threads=1, keep_memory=False), "onnxruntime": OnnxRuntime(threads=1)}
COMMAND = [sys.executable, "-c", "import sys; from snugnet.cli import main; main(sys.argv[1:])"]


def snugnet(*words: str) -> dict[str, Any]:
    done = subprocess.run([*COMMAND, *words, "--json"], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return dict(json.loads(done.stdout))


def naive_table(device: Device) -> CostTable:
    """Block after block, mean of 20."""
    costs = {}
    with torch.inference_mode():
        for part in Layout(preset("hardcore")).distinct_specs():
            example = torch.randn(1, part.in_channels, part.resolution, part.resolution)
            runnable = device.prepare(build_part(part), example)
            runnable.run()
            costs[part] = wall_clock(runnable.run, 20)
    return CostTable(resource="latency", costs=costs, origin={"kind": "naive"})


def figures(predicted: np.ndarray, measured: np.ndarray) -> dict[str, float]:
    def r2(guess: np.ndarray) -> float:
        return 1 - float(((guess - measured) ** 2).sum() / ((measured - measured.mean()) ** 2).sum())

    factor = float((predicted @ measured) / (predicted @ predicted))
    return {
        "r2": round(r2(predicted), 4),
        "r2_after_best_factor": round(r2(factor * predicted), 4),
        "ratio": round(float(np.median(predicted / measured)), 4),
        "worst_error": round(float(np.abs(predicted / measured - 1).max()), 4),
    }


def one_run(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """Both ways on one device, and what they say of the same networks."""
    load, began = os.getloadavg(), time.perf_counter()
    words = ["--space", "hardcore", "--device", name, "--threads", "1", "--batch", "1", "--resolution", "224"]
    table = snugnet("measure", *words, "--out", str(folder / "table.json"))
    seconds = time.perf_counter() - began
    torch.set_num_threads(1)
    naive = naive_table(NAIVE[name])
    check = snugnet("check", str(folder / "table.json"), "--networks", "24", "--seed", str(seed))
    space = preset("hardcore")
    guess = np.array([naive.of_network(plan(parse(row["architecture"], space), space)) for row in check["rows"]])
    truth = np.array([row["measured"] for row in check["rows"]])
    ours = {key: round(check[key], 4) for key in ("r2", "ratio", "worst_error", "margin", "speed")}
    return {
        "device": name,
        "seconds_to_measure": round(seconds, 1),
        "load": [round(load[0], 2), round(os.getloadavg()[0], 2)],
        "passes": [table["passes"], check["passes"]],
        "networks": check["networks"],
        "ours": ours,
        "naive": figures(guess, truth),
        "meets_the_goal": bool(
            seconds <= 240 and ours["r2"] >= 0.98 and 0.98 <= ours["ratio"] <= 1.02 and ours["worst_error"] <= 0.06
        ),
        "fingerprint": table["device"],
    }


def main() -> None:
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--devices", default="torch-cpu,onnxruntime")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / f"tables-{date}.json")
    chosen = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for run in range(chosen.runs):
            for name in chosen.devices.split(","):
                rows.append(one_run(name, run + 1, Path(folder)))
                short = {key: rows[-1][key] for key in rows[-1] if key != "fingerprint"}
                print(json.dumps(short), flush=True)
                write_json(chosen.out, {"date": date, "runs": rows})


if __name__ == "__main__":
    main()
