"""What the demo's time goes to: `snugnet run digits`, step by step, of one source tree or of several taking turns.

    python benchmarks/demo.py [--json] [--trees .,../before] [--seeds 0,1] [--threads 1] [--recipe digits] [--set KEY=VALUE]

Every run is a process of its own in an empty folder, with the tree's `src` as its package. Reported per tree: seconds of
each step by the clock and by the processor (other programs move the first, hardly the second), their totals with the
start of the process, and what was found: the network's accuracy on held-out (validation) and test images, and the share of
the latency limit it uses. Totals are medians over the seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_CHILD = """
import json, sys, time
from pathlib import Path
from snugnet import fitting, store

steps, step = {}, store.StepCache.step
def timed(self, name, inputs, files, work):
    began = time.perf_counter(), time.process_time()
    step(self, name, inputs, files, work)
    steps.setdefault(name, []).append([time.perf_counter() - began[0], time.process_time() - began[1]])
store.StepCache.step = timed
recipe, out, threads, changes = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
fitting.fit(fitting.find(recipe, changes), out=out, threads=threads, say=lambda line: print(line, file=sys.stderr))
print(json.dumps({name: [sum(column) for column in zip(*turns)] for name, turns in steps.items()}))
"""


def run_once(tree: Path, recipe: str, changes: list[str], threads: int, out: Path) -> dict[str, Any]:
    """One whole run in a fresh process -> seconds of its steps, and what it found."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-c", _CHILD, recipe, str(out), str(threads), *changes]
    began = time.perf_counter(), os.times()
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    wall, after = time.perf_counter() - began[0], os.times()
    processor = after.children_user + after.children_system - began[1].children_user - began[1].children_system
    steps = json.loads(output.splitlines()[-1])
    accuracy = json.loads((out / "accuracy.json").read_text())
    latency = json.loads((out / "certificate.json").read_text())["budgets"]["latency"]
    return {
        "seconds": round(wall, 1),
        "cpu_seconds": round(processor, 1),
        "steps": {name: {"s": round(s, 1), "cpu_s": round(cpu, 1)} for name, (s, cpu) in steps.items()},
        "accuracy": accuracy,
        "use": round(latency["measured"] / latency["limit"], 3),
    }


def measure(
    trees: list[Path], seeds: list[int], recipe: str, changes: list[str], threads: int, folder: Path
) -> dict[str, Any]:
    runs: dict[str, list[dict[str, Any]]] = {str(tree): [] for tree in trees}
    for seed in seeds:
        for number, tree in enumerate(trees):
            out = folder / f"{recipe}-{number}-{seed}"
            runs[str(tree)].append({"seed": seed, **run_once(tree, recipe, [*changes, f"seed={seed}"], threads, out)})
    return {
        name: {
            "seconds": statistics.median(run["seconds"] for run in done),
            "cpu_seconds": statistics.median(run["cpu_seconds"] for run in done),
            "runs": done,
        }
        for name, done in runs.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--trees", default=str(Path(__file__).resolve().parents[1]))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--recipe", default="digits")
    parser.add_argument("--set", action="append", default=[], dest="changes")
    parser.add_argument("--out", type=Path, help="Where to keep the run folders (default: nowhere).")
    options = parser.parse_args()
    trees = [Path(tree).resolve() for tree in options.trees.split(",")]
    seeds = [int(seed) for seed in options.seeds.split(",")]
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.out or Path(scratch)
        result = measure(trees, seeds, options.recipe, options.changes, options.threads, folder)
    if options.json:
        print(json.dumps(result))
        return
    for name, tree in result.items():
        print(f"{name}: {tree['seconds']} s by the clock, {tree['cpu_seconds']} s of the processor")
        for run in tree["runs"]:
            print(f"  seed {run['seed']}: {run['accuracy']}, latency at {run['use']:.1%} of its limit")
            for step, seconds in run["steps"].items():
                print(f"    {step:20} {seconds['s']:8.1f} {seconds['cpu_s']:8.1f}")


if __name__ == "__main__":
    main()
