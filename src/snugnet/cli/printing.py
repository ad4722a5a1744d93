"""How the command line speaks: JSON for machines on standard output, tables and remarks for people, pictures in files."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from snugnet.store import check_writable

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value for machines instead of text.")]


def print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=1, ensure_ascii=False, allow_nan=False)
    print()


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> None:
    """A table whose first `left` columns are text, the others numbers."""
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
    from snugnet.costs.picture import check_format

    if plot is not None:
        check_format(plot)
        check_writable(plot)
