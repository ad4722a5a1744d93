"""How a search that happens in training moved: probabilities, widths and costs, epoch by epoch, from the run's log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from snugnet.reporting.reading import TrainRow
from snugnet.space.layout import Layout
from snugnet.space.space import SearchSpace
from snugnet.units import resource

Section = dict[str, Any]


def movement(rows: Sequence[TrainRow], space: SearchSpace | None) -> Section:
    """Curves over epochs: operations per layer, depths per stage, the width of each layer's strongest operation, costs.

    Empty where the method of training (any but tfnas) does not search."""
    reports = [(row.model_extra or {}).get("epoch_report") for row in rows]
    epochs: list[Mapping[str, Any]] = [report for report in reports if isinstance(report, dict) and "alpha" in report]
    if not epochs:
        return {"layers": [], "depths": [], "widths": [], "costs": []}  # no search in training: nothing is drawn
    names, labels, depths = _names(epochs[0], space)
    last = epochs[-1]
    choosing = [slot for slot, row in enumerate(last["alpha"]) if len(row) > 1]
    return {
        "layers": [
            {"name": names[s], "series": _series(epochs, labels[s], lambda e, c, s=s: e["alpha"][s][c])}
            for s in choosing
        ],
        "depths": [
            {"name": f"Stage {g + 1}", "series": _series(epochs, depths[g], lambda e, d, g=g: e["beta"][g][d])}
            for g, row in enumerate(last["beta"])
            if len(row) > 1
        ],
        "widths": [
            {"name": names[s], "points": [[n + 1, _strongest_width(e, s)] for n, e in enumerate(epochs)]}
            for s in choosing
        ],
        "costs": [
            {
                "name": name,
                "unit": resource(name).unit,
                "series": [{"name": name, "points": [[n + 1, e["costs"][name]] for n, e in enumerate(epochs)]}],
            }
            for name in last["costs"]
        ],
    }


def _series(epochs: Sequence[Mapping[str, Any]], names: Sequence[str], value: Any) -> list[Section]:
    return [
        {"name": name, "points": [[n + 1, value(epoch, index)] for n, epoch in enumerate(epochs)]}
        for index, name in enumerate(names)
    ]


def _strongest_width(epoch: Mapping[str, Any], slot: int) -> int:
    row = epoch["alpha"][slot]
    return int(epoch["widths"][slot][row.index(max(row))])


def _names(epoch: Mapping[str, Any], space: SearchSpace | None) -> tuple[list[str], list[list[str]], list[list[str]]]:
    """Of layers, of the operations of each, of the depths of each stage."""
    if space is None:
        layers = [f"Layer {n + 1}" for n in range(len(epoch["alpha"]))]
        plain = [[str(c + 1) for c in range(len(row))] for row in epoch["alpha"]]
        return layers, plain, [[str(d + 1) for d in range(len(row))] for row in epoch["beta"]]
    slots = Layout(space).slots
    return (
        [f"Stage {slot.stage + 1}, block {slot.position + 1}" for slot in slots],
        [[choice.label for choice in space.stages[slot.stage].choices_at(slot.position)] for slot in slots],
        [[str(depth) for depth in stage.depths] for stage in space.stages],
    )
