"""OR-Tools' CP-SAT as a contestant of benchmarks/solve.py, in a process of its own: its HiGHS and highspy's cannot be loaded
together (one library name, two versions). Reads a model per line from stdin (JSON), answers with the columns that are one in
the best choice and the CPU seconds that building the model and solving it took; one worker, cuts for the next best.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from ortools.sat.python import cp_model

UNIT = (
    2.0**34
)  # costs in parts of their limit and effects in parts of the largest become whole numbers of this fineness


def solved(data: dict[str, Any], count: int) -> list[int]:
    """`simplices`: columns of which one is taken; `slots`: [columns, columns whose sum they have]; `rows` x <= `rhs`."""
    model = cp_model.CpModel()
    x = [model.new_bool_var("") for _ in data["effects"]]
    for columns in data["simplices"]:
        model.add_exactly_one(x[c] for c in columns)
    for options, depths in data["slots"]:
        model.add(sum(x[c] for c in options) == sum(x[c] for c in depths))
    for row, rhs in zip(data["rows"], data["rhs"]):
        model.add(cp_model.LinearExpr.weighted_sum(x[: len(row)], [round(v * UNIT) for v in row]) <= int(rhs * UNIT))
    largest = max(abs(v) for v in data["effects"])
    model.maximize(cp_model.LinearExpr.weighted_sum(x, [round(v / largest * UNIT) for v in data["effects"]]))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.max_time_in_seconds = 1, 120.0
    best: list[int] = []
    for _ in range(count):
        if solver.solve(model) != cp_model.OPTIMAL:
            raise RuntimeError(f"CP-SAT left a model as {solver.status_name()}")
        ones = [c for c, v in enumerate(x) if solver.value(v)]
        best = best or ones
        model.add(sum(x[c] for c in ones) <= len(ones) - 1)
    return best


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        began = time.process_time()
        ones = solved(asked["model"], asked["count"])
        print(json.dumps({"ones": ones, "seconds": time.process_time() - began}), flush=True)


if __name__ == "__main__":
    main()
