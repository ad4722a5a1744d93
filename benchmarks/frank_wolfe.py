"""Frank-Wolfe's variants with equal numbers of steps: which loss, which steps, which schedule?

    python benchmarks/frank_wolfe.py --json [--sets digits,fashion-mnist,cifar10] [--seeds 4,5] [--work FOLDER] [--out FILE]

The super-networks, images and limits are those of `benchmarks/search.py` (made in --work if they are not there). Every
variant takes 60 steps of 64 images at every other limit, once with the nearest network alone (as published), once with eight
candidates evaluated. `authors-long` has ten times the steps, as the authors' code is meant to be run, at one limit in ten.
Reported: judged score minus that of the default (calibrated loss, a block at a time, schedule 4 / (t + 4)), errors clustered
as in `search_summary`. A part is a file in --work: a killed run goes on.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from search import FW_STEPS, SETTINGS, Bench, Contest
from search_summary import clustered
from snugnet.searching import Bcsfw
from snugnet.store import write_json

DEFAULT = Bcsfw(steps=FW_STEPS)
VARIANTS = {
    "default": DEFAULT,
    "plain loss": replace(DEFAULT, loss="plain"),
    "authors": replace(DEFAULT, schedule="authors"),
    "authors, plain loss": replace(DEFAULT, schedule="authors", loss="plain"),
    "joint": replace(DEFAULT, steps_in="joint"),
    "authors-long": replace(DEFAULT, schedule="authors", steps=10 * FW_STEPS),
}


def rows_of(bench: Bench, name: str, candidates: int) -> list[dict[str, Any]]:
    """The network a variant comes to at every other limit, and how good it is on images nobody chose by."""
    method, rows = replace(VARIANTS[name], candidates=candidates), []
    every = 10 if name == "authors-long" else 2
    with tempfile.TemporaryDirectory() as home:
        contest = Contest(bench.supernet, bench.data, bench.seen, method, candidates, Path(home))
        for number, budget in list(enumerate(bench.budgets))[4 % every :: every]:
            chosen, _ = contest.run(budget, seed=bench.seed)
            judged = bench.judge(chosen)
            row = {"budget": number, "network": str(chosen), "score": judged.score, "accuracy": judged.accuracy}
            rows.append({"method": name, "candidates": candidates, **row})
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Advantage over the default, by number of candidates and variant."""
    told: dict[str, Any] = {}
    by_case = {(row["method"], *case(row)): row for row in rows}
    for candidates in (1, 8):
        for name in list(VARIANTS)[1:]:
            mine = [row for row in rows if row["method"] == name and row["candidates"] == candidates]
            pairs = [(row, by_case["default", *case(row)]) for row in mine]
            if pairs:
                told[f"{name}, {candidates}"] = {field: clustered(pairs, field) for field in ("score", "accuracy")}
    return told


def case(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["set"], row["seed"], row["candidates"], row["budget"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=",".join(SETTINGS))
    parser.add_argument("--seeds", default="4,5")
    parser.add_argument("--variants", default="default,plain loss,authors,joint", help="Separated by commas; or `all`.")
    parser.add_argument("--work", type=Path, default=Path("search-work"))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    names = list(VARIANTS) if chosen.variants == "all" else chosen.variants.split(",")
    rows: list[dict[str, Any]] = []
    for name in chosen.sets.split(","):
        for seed in map(int, chosen.seeds.split(",")):
            bench = Bench(name, seed, SETTINGS[name], chosen.work / f"{name}-{seed}")
            for variant in names:
                for candidates in (1, 8):
                    part = f"frank-wolfe-{variant.replace(', ', '-').replace(' ', '-')}-{candidates}"
                    found = bench.part(part, lambda b=bench, v=variant, c=candidates: rows_of(b, v, c))
                    rows += [{"set": name, "seed": seed, **row} for row in found]
    facts = {"date": datetime.now(UTC).date().isoformat(), "steps": FW_STEPS, "summary": summary(rows), "rows": rows}
    if chosen.out is not None:
        write_json(chosen.out, facts)
    for kind, fields in {} if chosen.json else facts["summary"].items():
        cells = [f"{field} {100 * v['mean']:+.2f} +- {100 * (v['error'] or 0):.2f}" for field, v in fields.items()]
        print(f"{kind}: {', '.join(cells)}")
    if chosen.json:
        print(json.dumps(facts))


if __name__ == "__main__":
    main()
