"""`snugnet report`: a page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from snugnet.cli.printing import Json, print_json, say

Folder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, finished or not.")]
Out = Annotated[Path | None, typer.Option("--out", help="Where to write the page (default: RUN/report.html).")]


def report(run: Folder, out: Out = None, json: Json = False) -> None:
    """Show a run on one page: the answer, the network, the front, an explorer, where everything comes from."""
    from snugnet.files import check_writable, write_text
    from snugnet.report.page import make_report

    target = run / "report.html" if out is None else out
    made = make_report(run)
    check_writable(target)
    path = write_text(target, made.html)
    if json:
        print_json(
            {"report": str(path), "bytes": path.stat().st_size, "missing": made.missing, "damaged": made.damaged}
        )
        return
    for name, reason in {**made.missing, **made.damaged}.items():
        say(f"not shown: {name}. {reason}")
    print(path)
    say(f"read {run}, wrote {path}")
