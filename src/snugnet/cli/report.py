"""`snugnet report`: a page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from snugnet.cli.printing import Json, print_json, say
from snugnet.errors import SnugnetError
from snugnet.space.space import SearchSpace
from snugnet.store import check_writable, read_text, write_text

Folder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, finished or not.")]
Out = Annotated[Path | None, typer.Option("--out", help="Where to write the page (default: RUN/report.html).")]


def _space(run: Path) -> SearchSpace | None:
    """The space by the recipe and its images, for runs whose budget needs no table; else the page finds it itself."""
    recipe = run / "recipe.yaml"
    if (run / "table.json").exists() or not recipe.exists():
        return None
    from snugnet.fitting.recipe import read

    try:
        plan = read(read_text(recipe), origin=str(recipe))
        return plan.build_space(plan.load_data())
    except SnugnetError as error:
        say(f"the space is not known: {error}")
        return None


def report(run: Folder, out: Out = None, json: Json = False) -> None:
    """Show a run on one page: the answer, the network, the front, an explorer, where everything comes from."""
    from snugnet.reporting.page import make_report

    target = run / "report.html" if out is None else out
    page = make_report(run, space=_space(run))
    check_writable(target)
    path = write_text(target, page.html)
    if json:
        print_json(
            {
                "report": str(path),
                "bytes": path.stat().st_size,
                "missing": page.missing,
                "damaged": page.damaged,
                "stale": page.stale,
            }
        )
        return
    for name, reason in {**page.missing, **page.damaged, **page.stale}.items():
        say(f"not shown: {name}. {reason}")
    print(path)
    say(f"read {run}, wrote {path}")
