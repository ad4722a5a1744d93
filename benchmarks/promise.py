"""Is the promise kept? Budgets across the range, each through the whole pipeline, re-measured by another process.

    python benchmarks/promise.py RUN [--budgets 10] [--out FILE.json]

RUN is a finished run folder. For every latency budget the run's own steps are taken (search with the promise loop,
extraction with inherited weights, export, certificate) in a copy of the folder; then `snugnet certify` measures the
exported file once more in a process of its own. Reported: how many of the files are within budget, both times.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from snugnet.budgets import cheapest, dearest
from snugnet.costs.table import load_table
from snugnet.fitting.runs import open_run

PROGRAM = "import sys; from snugnet.cli import main; main(sys.argv[1:])"


def one(folder: Path, budget: str, threads: int) -> dict[str, object]:
    """The pipeline at one budget in a copy of the run, then a certificate by another process."""
    recipe = folder / "recipe.yaml"
    words = ["run", str(recipe), "--out", str(folder), "--threads", str(threads), "--json"]
    words += ["--set", f"budget.latency={budget}", "--set", "finetune.epochs=0", "--set", "search.front=0"]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        return {"budget": budget, "fits": False, "again": False, "said": done.stderr.strip().splitlines()[-1]}
    facts = json.loads(done.stdout)
    line = facts["budgets"]["latency"]
    certify = ["certify", str(folder / "network.onnx"), "--budget", f"latency={budget}", "--device", "onnxruntime"]
    certify += ["--threads", "1", "--out", str(folder / "again.json"), "--json"]
    second = subprocess.run([sys.executable, "-c", PROGRAM, *certify], capture_output=True, text=True, check=False)
    again = json.loads((folder / "again.json").read_text())["budgets"]["latency"]
    return {
        "budget": budget,
        "limit": line["limit"],
        "predicted": line["predicted"],
        "measured": line["measured"],
        "interval": line["interval"],
        "fits": line["fits"],
        "again": second.returncode == 0,
        "again_measured": again["measured"],
        "again_interval": again["interval"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--budgets", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    table, space = load_table(options.run / "table.json"), open_run(options.run).supernet.space
    low, high = table.upper(cheapest(space, table).cost), table.upper(dearest(space, table).cost)
    rows = []
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "run"
        shutil.copytree(options.run, folder)
        for amount in np.linspace(low * 1.03, high, options.budgets):
            rows.append(one(folder, f"{amount:.4g}ms", options.threads))
            print(json.dumps(rows[-1]), flush=True)
    result = {
        "budgets": len(rows),
        "within": sum(bool(row["fits"]) for row in rows),
        "within_again": sum(bool(row["again"]) for row in rows),
        "rows": rows,
    }
    print(json.dumps({k: v for k, v in result.items() if k != "rows"}))
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
