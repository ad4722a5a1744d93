"""How long a further budget takes: `snugnet search RUN --budget latency=P% --method adaptive --json`, from start to end.

    python benchmarks/further_budget.py RUN [--json] [--budgets 10] [--evaluations 10] [--threads 1]

RUN is a finished run of digits; the searches work on a copy of it. One search comes first and is not counted: it makes what
a run makes once (the prior). Then every budget is a process of its own. Reported: medians of the seconds by the clock and
by the processor (other programs move the first, hardly the second), of the networks evaluated anew and of the seconds that
importing torch alone takes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

_SEARCH = "from snugnet.cli import main; main()"


def timed(*code: str, threads: int) -> tuple[float, float]:
    """Seconds of one Python process by the clock, and by the processor."""
    before, began = os.times(), time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled once, not in every process
    subprocess.run([sys.executable, "-c", *code], check=True, env=environment, capture_output=True)
    wall, after = time.perf_counter() - began, os.times()
    return wall, sum(after[2:4]) - sum(before[2:4])  # of children: user and system


def evaluated(run: Path) -> int:
    return len((run / "search" / "evaluations.jsonl").read_text().splitlines())


def measure(run: Path, budgets: int, evaluations: int, threads: int) -> dict[str, float]:
    rows = []
    for number, share in enumerate(np.linspace(50, 85, budgets + 1)):
        count = evaluated(run)
        limit = f"latency={share:.1f}%"
        options = ["--method", "adaptive", "--evaluations", str(evaluations), "--threads", str(threads), "--json"]
        wall, processor = timed(_SEARCH, "search", str(run), "--budget", limit, *options, threads=threads)
        if number:
            rows.append((wall, processor, evaluated(run) - count, *timed("import torch", threads=threads)))
    names = ("seconds", "cpu_seconds", "evaluated", "torch_seconds", "torch_cpu_seconds")
    medians = {name: round(statistics.median(column), 3) for name, column in zip(names, zip(*rows))}
    return {**medians, "slowest_seconds": round(max(row[0] for row in rows), 3), "budgets": len(rows)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--budgets", type=int, default=10)
    parser.add_argument("--evaluations", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        shutil.copytree(options.run, run)
        result = measure(run, options.budgets, options.evaluations, options.threads)
    print(json.dumps(result) if options.json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
