"""What every choice is worth, as `snugnet search --worths` tells it: to people in tables, to machines by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from snugnet.cli.printing import print_table
from snugnet.space.space import SearchSpace

_TITLES = {
    "value": ("error", "Value (accuracy minus loss) added by each choice, in thousandths (more is better)"),
    "right": ("right_error", "Right answers added by each choice on mixed paths, in thousandths (more is better)"),
    "loss": ("loss_error", "Loss added by each choice on mixed paths, in thousandths (less is better)"),
}


def print_worths(saved: dict[str, Any], space: SearchSpace) -> None:
    """Against the mean of each place, in thousandths, with standard errors; places without a choice are left out."""
    for kind, (_, title) in _TITLES.items():
        rows = []
        for place, choices in _places(saved, space, kind):
            mean = sum(effect for _, effect, _ in choices) / len(choices)
            cells = "  ".join(f"{n} {1e3 * (w - mean):+.1f} +- {1e3 * e:.1f}" for n, w, e in choices)
            rows.append([place, cells])
        print_table(title, ["place", "choices"], rows, left=2)


def named_worths(saved: dict[str, Any], space: SearchSpace) -> list[dict[str, Any]]:
    """A row for every choice of every place: what it adds, and how exactly that is known."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for kind, (doubt, _) in _TITLES.items():
        for place, choices in _places(saved, space, kind):
            for name, effect, error in choices:
                row = rows.setdefault((place, name), {"place": place, "choice": name})
                row |= {kind: effect, doubt: error}
    return list(rows.values())


def _places(
    saved: dict[str, Any], space: SearchSpace, kind: str
) -> Iterator[tuple[str, list[tuple[str, float, float]]]]:
    """Every place with something to choose: its choices as (name, worth, standard error)."""
    import numpy as np

    from snugnet.space.layout import Layout

    layout = Layout(space)
    effects, errors = layout.split(np.array(saved[kind])), layout.split(np.array(saved[_TITLES[kind][0]]))
    options, doubts = layout.by_stage(effects.options), layout.by_stage(errors.options)
    for s, stage in enumerate(space.stages):
        for d, (row, doubt) in enumerate(zip(options[s], doubts[s])):
            names = [choice.label for choice in layout.choices(s, d)]
            if len(names) > 1:
                yield f"stage {s + 1}, block {d + 1}", list(zip(names, row.tolist(), doubt.tolist()))
        if len(stage.depths) > 1:
            numbers = [str(depth) for depth in stage.depths]
            yield f"stage {s + 1}, depth", list(zip(numbers, effects.depths[s].tolist(), errors.depths[s].tolist()))
