"""How the command line speaks: JSON for machines on standard output, tables and remarks for people, pictures in files."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from snugnet.errors import BadInput
from snugnet.store import check_writable, write_bytes
from snugnet.units import resource as known_resource

if TYPE_CHECKING:
    from snugnet.costs.check import Check

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value for machines instead of text.")]
_FORMATS: Final = (".svg", ".png", ".pdf")
_INK, _SOFT, _ACCENT = "#222222", "#9aa3ad", "#0b6e4f"


def print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=1, ensure_ascii=False, allow_nan=False)
    print()


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> None:
    """A table whose first `left` columns are text, the others numbers."""
    from rich.console import Console  # here: of no use to `--json`
    from rich.table import Table

    table = Table(header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right")
    for row in rows:
        table.add_row(*row)
    # Off a terminal nothing should wrap at 80 columns: logs and pipes have no width.
    console = Console() if sys.stdout.isatty() else Console(width=240)
    print(title, flush=True)  # not the table's own, which would break it at the table's width
    console.print(table)


def say(text: str) -> None:
    """A remark for a person; on standard error, so that piped output stays clean."""
    print(text, file=sys.stderr)


def check_picture(plot: Path | None) -> None:
    """Refuse a picture that could not be written, before any work."""
    if plot is not None:
        check_format(plot)
        check_writable(plot)


def check_format(path: str | Path) -> None:
    """Refuse a file name no picture can be written under, before any work is done."""
    if Path(path).suffix.lower() not in _FORMATS:
        raise BadInput(
            f"a picture's file must end in {', '.join(_FORMATS)}", value=str(path), remedy="Name it like check.svg."
        )


def picture_of_check(check: Check, path: str | Path, title: str = "Predicted and measured latency") -> Path:
    """Every checked network as a point with its interval; on the diagonal the table is right."""
    figure, axes = _canvas()
    predicted = [row.predicted for row in check.networks]
    measured = [row.measured for row in check.networks]
    below = [row.measured - row.low for row in check.networks]
    above = [row.high - row.measured for row in check.networks]
    low, high = min(predicted + measured) * 0.95, max(predicted + measured) * 1.05
    axes.plot([low, high], [low, high], color=_SOFT, linewidth=1, label="equal")
    bound = 1 + check.margin
    axes.plot(
        [low, high], [low * bound, high * bound], color=_SOFT, linewidth=1, linestyle=":", label="95 % below this"
    )
    axes.errorbar(predicted, measured, yerr=[below, above], fmt="o", markersize=4, color=_ACCENT, elinewidth=1)
    axes.set_xlabel("predicted by the table, ms")
    axes.set_ylabel("measured, ms")
    figures = f"R² {check.r2:.3f}, ratio {check.ratio:.3f}, worst error {check.worst_error:.1%}"
    axes.set_title(f"{title}\n{len(predicted)} networks the table had not seen: {figures}", fontsize=9, loc="left")
    axes.legend(frameon=False, fontsize=8)
    return _write(figure, path)


def picture_of_networks(rows: Sequence[dict[str, Any]], path: str | Path, title: str) -> Path:
    """Published accuracy against latency measured here; `rows` have name, latency_ms, top1."""
    figure, axes = _canvas()
    known = [row for row in rows if row.get("top1") is not None]
    best, front = float("-inf"), []
    for row in sorted(known, key=lambda row: row["latency_ms"]):
        if row["top1"] > best:
            best = row["top1"]
            front.append(row)
    axes.plot(
        [r["latency_ms"] for r in front], [r["top1"] for r in front], color=_SOFT, linewidth=1, drawstyle="steps-post"
    )
    names = {row["name"] for row in front}
    for row in known:
        chosen = row["name"] in names
        axes.plot(row["latency_ms"], row["top1"], "o", markersize=4, color=_ACCENT if chosen else _SOFT)
        place = (row["latency_ms"], row["top1"])
        axes.annotate(
            row["name"], place, xytext=(3, 3), textcoords="offset points", fontsize=5.5, color=_INK if chosen else _SOFT
        )
    axes.set_xlabel("latency measured here, ms")
    axes.set_ylabel("published top-1 accuracy on ImageNet, %")
    axes.set_title(title, fontsize=9, loc="left")
    return _write(figure, path)


def picture_of_front(rows: Sequence[dict[str, Any]], resource: str, path: str | Path) -> Path:
    """Accuracy against what the networks of a front cost; `rows` as in front.json."""
    figure, axes = _canvas()
    costs = [row["predicted"][resource] for row in rows]
    axes.plot(costs, [100 * row["accuracy"] for row in rows], marker="o", markersize=4, color=_ACCENT)
    axes.set_xlabel(f"{resource} ({known_resource(resource).unit})")
    axes.set_ylabel("held-out accuracy (%)")
    return _write(figure, path)


def _canvas() -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # no pyplot: nothing global, no display

    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#eeeeee", linewidth=0.6)
    return figure, axes


def _write(figure: Any, path: str | Path) -> Path:
    check_format(path)
    stream = io.BytesIO()
    figure.savefig(stream, format=Path(path).suffix[1:].lower(), dpi=160)
    return write_bytes(path, stream.getvalue())
