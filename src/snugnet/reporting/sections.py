"""From the files of a run to the numbers behind each picture of the page.

Every function gives one section as plain data. Sections do not know each other, and none of them is needed: where a file is
missing, `{"missing": reason}` stands in its place.
"""

from __future__ import annotations

from typing import Any, Final

from snugnet.costs.table import CostTable
from snugnet.errors import SnugnetError
from snugnet.reporting.evaluated import judged_explorer
from snugnet.reporting.networks import chosen_of, drawn, explorer, space_of, tables_of, why_no_solver
from snugnet.reporting.reading import RunFiles, predicted_of
from snugnet.space.architecture import parse
from snugnet.space.plan import plan
from snugnet.space.space import SearchSpace
from snugnet.units import resource

_MOST_POINTS: Final = 400  # of one curve: more than a screen has room for
_MOST_DOTS: Final = 2000


def page_data(files: RunFiles, space: SearchSpace | None) -> dict[str, Any]:
    """Everything the page's script draws."""
    tables: dict[str, CostTable] = {}
    unknown = ""
    try:
        space = space or space_of(files)
        tables = tables_of(files, space)
    except SnugnetError as error:
        space, unknown = None, str(error)
    known = space

    def explored() -> dict[str, Any]:
        if known is None:
            return {"missing": f"Not without knowing the space: {unknown}"}
        if reason := why_no_solver(files, known):
            return judged_explorer(files, known, tables, reason)
        return explorer(files, known, tables)

    source = "search" if "search" in files else "architecture"
    return {
        "network": files.attempt("network", lambda: drawn(chosen_of(files), known, tables), source),
        "check": files.attempt("check", lambda: _check(files), *([] if _has_networks(files) else ["check"])),
        "front": files.attempt("front", lambda: _front(files, known, tables), *([] if _has_dots(files) else ["front"])),
        "explorer": files.attempt("explorer", explored),
        "training": files.attempt("training", lambda: _curves(files["training"]), "training"),
        "finetuning": files.attempt("finetuning", lambda: _curves(files["finetuning"]), "finetuning"),
        "heat": files.attempt("heat", lambda: _heat(files, known), "search"),
    }


def _has_networks(files: RunFiles) -> bool:
    return "table" in files and bool(files["table"].origin.get("networks"))


def _has_dots(files: RunFiles) -> bool:
    return "evaluations" in files and "search" in files


def _check(files: RunFiles) -> dict[str, Any]:
    """Predicted against measured: networks the table was fitted to, networks it had not seen, and the chosen one."""
    found: dict[str, Any] = {"seen": [], "unseen": [], "figures": {}}
    if _has_networks(files):
        rows = files["table"].origin["networks"]
        names = ("predicted_ms", "measured_ms", "low_ms", "high_ms")
        found["seen"] = [[*(float(row[name]) for name in names), row["architecture"]] for row in rows]
    if "check" in files:
        check = files["check"]
        names = ("predicted", "measured", "low", "high")
        found["unseen"] = [[*(float(row[name]) for name in names), row["architecture"]] for row in check["rows"]]
        found["figures"] = {name: float(check[name]) for name in ("r2", "ratio", "worst_error", "margin", "speed")}
        found["message"] = str(check["message"])
    else:
        found["note"] = files.trouble["check"]
    line = files.found.get("certificate", {}).get("budgets", {}).get("latency")
    guess = predicted_of(files, "latency")
    if line and guess is not None:
        found["chosen"] = [guess, line["measured"], *line["interval"], "the chosen network"]
    return found


def _front(files: RunFiles, space: SearchSpace | None, tables: dict[str, CostTable]) -> dict[str, Any]:
    """Accuracy against one resource: the front, every network that was evaluated, the chosen one before and after tuning."""
    search = files.found.get("search", {})
    name = files["front"]["resource"] if "front" in files else next(iter(search["limits"]))
    found: dict[str, Any] = {"resource": name, "unit": resource(name).unit, "points": [], "evaluated": []}
    if "front" in files:
        found["points"] = [
            [float(point["predicted"][name]), float(point["accuracy"]), point["architecture"]]
            for point in files["front"]["points"]
        ]
    else:
        found["note"] = files.trouble["front"]
    if space is not None and name in tables:
        found["evaluated"] = _judged(files, space, tables[name])
    if name in search.get("predicted", {}):
        found["chosen"] = [float(search["predicted"][name]), float(search["accuracy"])]
    budget = files.found.get("certificate", {}).get("budgets", {}).get(name)
    if budget:
        found["limit"] = budget["limit"]
        if "val" in files.found.get("accuracy", {}):
            found["final"] = [float(budget["measured"]), float(files["accuracy"]["val"])]
    elif name in search.get("limits", {}):
        found["limit"] = float(search["limits"][name])
    return found


def _judged(files: RunFiles, space: SearchSpace, table: CostTable) -> list[list[Any]]:
    dots: list[list[Any]] = []
    for row in files.found.get("evaluations", [])[-_MOST_DOTS:]:
        if "network" in row:
            try:
                cost = table.of_network(plan(parse(row["network"], space), space))
            except SnugnetError:
                continue  # of another space: nothing to compare
            dots.append([cost, float(row["accuracy"]), row["network"]])
    return dots


def _curves(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Loss and accuracy over all steps, and where one phase ends and the next begins."""
    losses: dict[str, list[list[float]]] = {}
    accuracies: dict[str, list[list[float]]] = {}
    phases: list[dict[str, Any]] = []
    before = 0.0
    for row in rows:
        at = float(row["total"])
        if not phases or phases[-1]["number"] != row["phase"]:  # a phase begins where the one before it ended
            phases.append({"number": row["phase"], "name": str(row["method"]), "from": before})
        before = at
        for name, value in row.items():
            if name.endswith("loss"):
                losses.setdefault(name.replace("_", " "), []).append([at, float(value)])
        for name, value in row.get("accuracy", {}).items():
            accuracies.setdefault(str(name), []).append([at, float(value)])
    return {"loss": _series(losses), "accuracy": _series(accuracies), "phases": phases}


def _series(curves: dict[str, list[list[float]]]) -> list[dict[str, Any]]:
    thinned = []
    for name, points in curves.items():
        step = -(-len(points) // _MOST_POINTS)
        thinned.append({"name": name, "points": points[:: max(1, step)] + ([points[-1]] if step > 1 else [])})
    return thinned


def _heat(files: RunFiles, space: SearchSpace | None) -> dict[str, Any]:
    """Alpha and beta at the start and at the end, stage by stage."""
    details = files["search"]["details"]
    if "alpha" not in details:
        method = files["search"]["method"]
        return {
            "missing": f"Only the Frank-Wolfe search (bcsfw) moves through probabilities; this network is from {method}."
        }
    stages = []
    for index, (alpha, beta) in enumerate(zip(details["alpha"], details["beta"])):
        known = space.stages[index] if space is not None and index < len(space.stages) else None
        start = {"alpha": details["start_alpha"][index], "beta": details["start_beta"][index]}
        stages.append(
            {
                "name": f"Stage {index + 1}",
                "choices": [c.label for c in known.choices] if known else [str(c + 1) for c in range(len(alpha[0]))],
                "depths": list(known.depths) if known else [d + 1 for d in range(len(beta))],
                "start": start,
                "end": {"alpha": alpha, "beta": beta},
            }
        )
    return {"stages": stages}
