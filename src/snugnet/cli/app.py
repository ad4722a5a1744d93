"""The command line: one verb, one call. Verbs are registered here."""

from __future__ import annotations

import importlib

import typer

app = typer.Typer(
    name="snugnet",
    help="You say what the network may cost; snugnet gives you the most accurate network that costs no more.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# verb -> module with a function of that name. Modules are imported on use of the command line only; importing the
# package does nothing.
VERBS = {
    "fit": "snugnet.cli.fit",
    "run": "snugnet.cli.run",
    "spaces": "snugnet.cli.show",
    "show": "snugnet.cli.show",
    "zoo": "snugnet.cli.show",
    "devices": "snugnet.cli.show",
    "measure": "snugnet.cli.measure",
    "check": "snugnet.cli.measure",
    "train": "snugnet.cli.train",
    "rank": "snugnet.cli.rank",
    "search": "snugnet.cli.search",
    "front": "snugnet.cli.search",
    "finetune": "snugnet.cli.finetune",
    "certify": "snugnet.cli.certify",
    "export": "snugnet.cli.export",
    "predict": "snugnet.cli.export",
    "report": "snugnet.cli.report",
}


def register() -> typer.Typer:
    """The app with all verbs."""
    if not app.registered_commands:
        for verb, module in VERBS.items():
            app.command(verb)(getattr(importlib.import_module(module), verb))
    return app
