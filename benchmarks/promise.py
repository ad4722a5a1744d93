"""Is the promise kept, and the budget used? Latency budgets in the lower half of a range, measured by another process.

    python benchmarks/promise.py --json [--parts digits,hardcore] [--budgets 10] [--work FOLDER] [--out FILE.json]

Two spaces: the digits recipe's (`hardcore-lowres`, width 0.25, 16 px) and `hardcore` at 224 px. A table is measured, then
for every budget the measured loop looks for a network (search, measure the whole network, aim lower or higher, search
again); its ONNX file is certified as in a run, and `snugnet certify` measures the file once more in a process of its own.
`kept`: within the limit there; `use`: measured there / limit. What latency is about needs no trained weights: weights are
random, and in place of accuracy stands a sum of effects that grows with a block's MACs (their square root times a random
factor, others for every budget), so that more cost always buys more, and every budget leads to another network. The exact
programme finds the best of them within the limit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from snugnet.budgets import Budget, cheapest, dearest
from snugnet.costs.analytic import macs
from snugnet.costs.measure import measure
from snugnet.costs.table import CostTable, load_table
from snugnet.deploy.certificate import certify
from snugnet.deploy.export import export
from snugnet.devices import by_name
from snugnet.devices.timing import TimingSettings
from snugnet.errors import BudgetExceeded
from snugnet.fitting.measured import Factors, MeasuredLoop, lowered
from snugnet.fitting.places import measured_shares
from snugnet.nets import build
from snugnet.searching import SearchResult
from snugnet.searching.context import search_context
from snugnet.solve import best_choices
from snugnet.space import preset
from snugnet.space.layout import Layout
from snugnet.space.space import SearchSpace
from snugnet.store import read_json, write_json

PROGRAM = "import sys; from snugnet.cli import main; main(sys.argv[1:])"
SPACES = {
    "digits": lambda: preset("hardcore-lowres", classes=10, resolution=16, width=0.25),
    "hardcore": lambda: preset("hardcore"),
}
TABLE_SECONDS = {"digits": 60.0, "hardcore": 120.0}
ROUNDS = 5  # the recipes' default


@dataclass(frozen=True)
class Place:
    """A space with its table and effects, and a folder for files."""

    space: SearchSpace
    table: CostTable
    home: Path

    def effects(self, number: int) -> np.ndarray:
        """Per column: square roots of MACs times a random factor; depths have none of their own."""
        layout, rng = Layout(self.space), np.random.default_rng(number)
        parts = [
            np.sqrt([macs(spec) for spec in specs]) * rng.uniform(0.7, 1.3, len(specs)) for specs in layout.slot_specs
        ]
        rest = np.zeros(layout.columns - sum(map(len, parts)))
        values: np.ndarray = np.concatenate([*parts, rest])
        return values / values.max()

    def find(self, budget: Budget, number: int, factors: Factors) -> SearchResult:
        """The best network by these effects, in the form of a search's result."""
        began = time.monotonic()
        context = search_context(self.space, self.table, budget, dict(factors))
        layout, effects = Layout(self.space), self.effects(number)
        columns, inside = layout.split(effects), context.problem_set
        choice = best_choices(inside.problem, inside.objective(columns.options, columns.depths), count=1).found[0]
        network = inside.architecture(choice)
        limits = context.limits
        score = float((layout.features(layout.encode([network])) @ effects)[0])
        return SearchResult(
            method="exact", seed=number, space=self.space.name, budget=budget, architecture=network,
            predicted=limits.cost(network), limits=limits.asked, effective_limits=limits.effective, accuracy=0.0,
            loss=0.0, score=score, seconds=time.monotonic() - began, images=0, evaluated=0,
        )  # fmt: skip


def one(place: Place, number: int, text: str) -> dict[str, Any]:
    """The measured loop at one budget, the shipped file's certificate, and another process's."""
    device, budget = by_name("onnxruntime", threads=1), Budget({"latency": text})
    proof, file, again = (place.home / name for name in ("certificate.json", "network.onnx", "again.json"))
    tables, began = {"latency": place.table}, time.monotonic()

    def measured(result: SearchResult) -> dict[str, float]:
        with contextlib.suppress(BudgetExceeded):
            certify(build(result.architecture, place.space).eval(), budget, device, tables=tables, out=proof)
        return measured_shares(proof)

    factors: Factors = {}
    row: dict[str, Any] = {"budget": text, "rounds": 0, "shipped": 0}
    for _ in range(ROUNDS):
        loop = MeasuredLoop(lambda f: place.find(budget, number, f), measured, measured=["latency"], factors=factors)
        best = loop.run(ROUNDS)
        row["rounds"] += len(loop.rounds)
        if best is None:
            return {**row, "kept": False, "use": max(loop.nearest.shares.values()), "message": "nothing fits"}
        network = build(best.result.architecture, place.space).eval()
        export(network, file)
        row["shipped"] += 1
        try:
            certify(file, budget, device, tables=tables, plan=network.plan, out=proof)
            break
        except BudgetExceeded:
            factors = lowered(best.factors, measured_shares(proof))
    words = ["certify", str(file), "--budget", f"latency={text}", "--device", "onnxruntime", "--threads", "1"]
    words += ["--out", str(again), "--json"]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False)
    line, first = (read_json(path)["budgets"]["latency"] for path in (again, proof))
    return {
        **row,
        "network": str(best.result.architecture),
        "limit": line["limit"],
        "predicted": best.result.predicted["latency"],
        "shares": [round_.shares["latency"] for round_ in loop.rounds],
        "measured": first["measured"],
        "interval": first["interval"],
        "again_measured": line["measured"],
        "again_interval": line["interval"],
        "kept": done.returncode == 0,
        "use": line["measured"] / line["limit"],
        "seconds": round(time.monotonic() - began, 1),
    }


def part(name: str, budgets: int, work: Path) -> list[dict[str, Any]]:
    """All budgets of one space; what is done is not done again."""
    home, space = work / name, SPACES[name]()
    home.mkdir(parents=True, exist_ok=True)
    path = home / "table.json"
    if not path.exists():
        measure(
            space, by_name("onnxruntime", threads=1), settings=TimingSettings(seconds=TABLE_SECONDS[name]), out=path
        )
    table = load_table(path)
    low, high = table.upper(cheapest(space, table).cost), table.upper(dearest(space, table).cost)
    place = Place(space, table, home)
    rows: list[dict[str, Any]] = []
    for number, share in enumerate(np.linspace(0.05, 0.5, budgets)):
        saved = home / f"row-{number}-of-{budgets}.json"
        if not saved.exists():
            write_json(saved, {"part": name, **one(place, number, f"{low + share * (high - low):.4g}ms")})
        rows.append(read_json(saved))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    uses = [row["use"] for row in rows]
    kept = sum(bool(row["kept"]) for row in rows)
    return {"budgets": len(rows), "kept": kept, "use_mean": float(np.mean(uses)), "use_min": min(uses)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(SPACES))
    parser.add_argument("--budgets", type=int, default=10, help="In each part.")
    parser.add_argument("--work", type=Path, default=Path("promise-work"), help="Where tables and finished rows lie.")
    parser.add_argument("--json", action="store_true", help="Print everything as JSON; else the summary.")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    rows = [row for name in chosen.parts.split(",") for row in part(name, chosen.budgets, chosen.work)]
    facts: dict[str, Any] = {"date": datetime.now(UTC).date().isoformat(), **summed(rows)}
    for name in chosen.parts.split(","):
        facts[name] = summed([row for row in rows if row["part"] == name])
    told = {**facts, "rows": rows}
    if chosen.out is not None:
        write_json(chosen.out, told)
    print(json.dumps(told if chosen.json else facts))


if __name__ == "__main__":
    main()
