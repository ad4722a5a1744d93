"""Frank-Wolfe's variants with equal numbers of steps: which loss, which steps, which schedule?

    python benchmarks/frank_wolfe.py --json [--sets digits,fashion-mnist,cifar10] [--seeds 4,5] [--variants all]
                                            [--work FOLDER] [--out FILE]

The super-networks, images and limits are those of `benchmarks/search.py` (made in --work if they are not there). Every
variant takes 60 steps of 64 images at every other limit; those called `long` take 1,000 steps, as the authors' code does
unless told otherwise (its README: 10,000), at two of these limits. Every walk ends twice: at the nearest network alone (as
published), and at the best of eight candidates evaluated.
Reported: judged score minus that of the default (calibrated loss, a block at a time, schedule 4 / (t + 4)) of as many steps,
and of the long ones minus the same variant of 60, always at limits both have; errors clustered as in `search_summary`.
A part is a file in --work: a killed run goes on.
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

LONG_STEPS = 1000
LIMITS, LONG_LIMITS = slice(0, None, 2), slice(2, None, 4)  # of the ten: five; two of these five
CANDIDATES = (1, 8)
DEFAULT = Bcsfw(steps=FW_STEPS)
VARIANTS = {
    "default": DEFAULT,
    "plain loss": replace(DEFAULT, loss="plain"),
    "authors": replace(DEFAULT, schedule="authors"),
    "authors, plain loss": replace(DEFAULT, schedule="authors", loss="plain"),
    "joint": replace(DEFAULT, steps_in="joint"),
    "long": replace(DEFAULT, steps=LONG_STEPS),
    "long authors": replace(DEFAULT, schedule="authors", steps=LONG_STEPS),
    "long authors, plain loss": replace(DEFAULT, schedule="authors", loss="plain", steps=LONG_STEPS),
    "long joint": replace(DEFAULT, steps_in="joint", steps=LONG_STEPS),
}


def rows_of(bench: Bench, name: str) -> list[dict[str, Any]]:
    """The networks a variant comes to at its limits, and how good they are on images nobody chose by: the nearest network
    alone, and the best of eight candidates. Both end the same walk, in which candidates take no part; the nearest network is
    the first that is evaluated."""
    method, rows = replace(VARIANTS[name], candidates=max(CANDIDATES)), []
    with tempfile.TemporaryDirectory() as home:
        contest = Contest(bench.supernet, bench.data, bench.seen, method, method.candidates, Path(home))
        for number, budget in list(enumerate(bench.budgets))[LONG_LIMITS if is_long(name) else LIMITS]:
            chosen, counted = contest.run(budget, seed=bench.seed)
            for candidates, network in zip(CANDIDATES, (next(iter(counted.met)), chosen)):
                judged = bench.judge(network)
                row = {"budget": number, "network": str(network), "score": judged.score, "accuracy": judged.accuracy}
                rows.append({"method": name, "candidates": candidates, **row})
    return rows


def is_long(name: str) -> bool:
    return name.startswith("long")


def opponents(name: str) -> list[str]:
    """With which others a variant is compared: the default with as many steps; itself with few."""
    if is_long(name):
        return [other for other in ("long", name.removeprefix("long").strip() or "default") if other != name]
    return ["default"] if name != "default" else []


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Differences between variants at the limits both have, by data set and over all super-networks, which count alike."""
    told: dict[str, Any] = {}
    for place in (*dict.fromkeys(row["set"] for row in rows), "everything"):
        here = [row for row in rows if place in (row["set"], "everything")]
        by_case = {(row["method"], *case(row)): row for row in here}
        for candidates in CANDIDATES:
            for name, other in [(one, other) for one in VARIANTS for other in opponents(one)]:
                mine = [row for row in here if row["method"] == name and row["candidates"] == candidates]
                pairs = [(row, by_case[other, *case(row)]) for row in mine if (other, *case(row)) in by_case]
                if pairs:
                    differences = {field: clustered(pairs, field) for field in ("score", "accuracy")}
                    told.setdefault(place, {})[f"{name} minus {other}, {candidates}"] = differences
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
                part = f"frank-wolfe-{variant.replace(', ', '-').replace(' ', '-')}"
                found = bench.part(part, lambda b=bench, v=variant: rows_of(b, v))
                rows += [{"set": name, "seed": seed, **row} for row in found]
    about = {"date": datetime.now(UTC).date().isoformat(), "steps": FW_STEPS, "long_steps": LONG_STEPS}
    facts = {**about, "summary": summary(rows), "rows": rows}
    if chosen.out is not None:
        write_json(chosen.out, facts)
    if chosen.json:
        print(json.dumps(facts))
        return
    for place, kinds in facts["summary"].items():
        for kind, fields in kinds.items():
            cells = [f"{field} {100 * v['mean']:+.2f} +- {100 * (v['error'] or 0):.2f}" for field, v in fields.items()]
            print(f"{place}, {kind}: {', '.join(cells)}")


if __name__ == "__main__":
    main()
