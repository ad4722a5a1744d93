"""What the parts of benchmarks/search.py come to: advantages of `adaptive` with clustered errors, mean regrets.

Ten budgets of one super-network are not ten observations: neighbouring budgets often lead to the same network, and all share
one set of weights. So errors of means are taken twice, with every distinct pair of networks and with every super-network as
one independent piece, and the greater one is believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

OTHERS = ("random", "evolution", "instant", "bcsfw")
METHODS = (*OTHERS, "adaptive")
FIELDS = ("score", "accuracy", "test_accuracy")
EXTRA = "bcsfw-24"  # Frank-Wolfe with as many differentiated images as `adaptive` has at the most; where it was run


def summary(rows: list[dict[str, Any]], counts: Sequence[int]) -> dict[str, Any]:
    """Mean advantage of `adaptive` over every other method: per data set, and over all, where every set counts alike."""
    told: dict[str, Any] = {"everything": {}}
    for place in dict.fromkeys(row["set"] for row in rows):
        for count in counts:
            here = [row for row in rows if row["count"] == count and row["set"] == place]
            ours = {case(row): row for row in here if row["method"] == "adaptive"}
            for name in (*OTHERS, EXTRA):
                pairs = [(ours[case(row)], row) for row in here if row["method"] == name and case(row) in ours]
                if pairs:
                    told.setdefault(place, {}).setdefault(str(count), {})[name] = {
                        field: clustered(pairs, field) for field in FIELDS
                    }
    places = [place for place in told if place != "everything"]
    for count in map(str, counts):
        for name in (*OTHERS, EXTRA):
            parts = [told[place][count][name] for place in places if name in told[place].get(count, {})]
            if parts:
                together = {field: _together([part[field] for part in parts]) for field in FIELDS}
                told["everything"].setdefault(count, {})[name] = together
    return told


def _together(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean of several data sets' means: easy sets may have more super-networks than others."""
    mean, errors = float(np.mean([part["mean"] for part in parts])), [part["error"] for part in parts]
    error = None if None in errors else float(np.sqrt(np.sum(np.square(errors)))) / len(parts)
    sums = {name: sum(part[name] for part in parts) for name in ("pairs", "networks", "supernets")}
    return {"mean": mean, "error": error, "errors": None if error is None else mean / max(error, 1e-12), **sums}


def case(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["set"], row["seed"], row["count"], row["budget"]


def clustered(pairs: list[tuple[dict[str, Any], dict[str, Any]]], field: str) -> dict[str, Any]:
    """Mean difference; its error with the same pair of networks, and the same super-network, as one observation."""
    gains = np.array([ours[field] - theirs[field] for ours, theirs in pairs])
    networks = [(a["set"], a["seed"], *sorted((a["network"], b["network"]))) for a, b in pairs]
    supernets = [(a["set"], a["seed"]) for a, _ in pairs]
    by_network, by_supernet = (cluster_error(gains, labels) for labels in (networks, supernets))
    known = [error for error in (by_network, by_supernet) if error is not None]
    mean, error = float(gains.mean()), max(known, default=None)
    return {
        "mean": mean,
        "error": error,
        "error_by_network": by_network,
        "error_by_supernet": by_supernet,
        "errors": None if error is None else mean / max(error, 1e-12),
        "pairs": len(gains),
        "networks": len(set(networks)),
        "supernets": len(set(supernets)),
    }


def cluster_error(gains: np.ndarray, labels: Sequence[Any]) -> float | None:
    """Standard error of the mean with sums over clusters as the independent pieces; None where there is one."""
    away = gains - gains.mean()
    sums = [sum(a for a, label in zip(away, labels) if label == one) for one in dict.fromkeys(labels)]
    if len(sums) < 2:
        return None
    return float(np.sqrt(len(sums) / (len(sums) - 1) * np.sum(np.square(sums))) / len(gains))


def regret_summary(parts: dict[str, dict[str, Any]], counts: Sequence[int]) -> dict[str, Any]:
    """Mean regret per method over the enumerated parts."""
    return {
        str(count): {
            name: float(np.mean([part[f"{name} {count}"]["regret"] for part in parts.values()]))
            for name in (*METHODS, EXTRA)
        }
        for count in counts
        if all(f"adaptive {count}" in part for part in parts.values()) and parts
    }


def markdown(facts: dict[str, Any]) -> str:
    """The summary as tables: a row a place and number of networks, in hundredths of score and points of accuracy."""
    others = (*OTHERS, EXTRA)
    lines = [
        "| | networks | " + " | ".join(f"minus {name}" for name in others) + " |",
        "|---" * (len(others) + 2) + "|",
    ]
    for place, by_count in facts["summary"].items():
        for count, by_name in by_count.items():
            for field, label in zip(FIELDS, ("score", "accuracy", "test accuracy")):
                cells = [_cell(by_name[name][field]) if name in by_name else "-" for name in others]
                lines.append(f"| {place}, {label} x 100 | {count} | " + " | ".join(cells) + " |")
    for count, by_name in facts["regret"].items():
        cells = ", ".join(f"{name} {100 * regret:.3f}" for name, regret in by_name.items())
        lines += ["", f"Mean regret x 100 after {count}: {cells}."]
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    error = "?" if row["error"] is None else f"{100 * row['error']:.2f}"
    return f"{100 * row['mean']:+.2f} +- {error}"
