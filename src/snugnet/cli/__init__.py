"""The `snugnet` command: one verb, one call. Errors a user can meet become one line on standard error and an exit code."""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugnet.cli import process

if TYPE_CHECKING:
    import typer

_INTERRUPTED = 130

# verb -> module of this package with a function of that name, imported on use of the command line only: importing the
# package does nothing.
VERBS = {
    "fit": "run",
    "run": "run",
    "spaces": "show",
    "show": "show",
    "zoo": "show",
    "devices": "show",
    "agent": "agent",
    "measure": "measure",
    "check": "measure",
    "bins": "measure",
    "train": "train",
    "rank": "rank",
    "classes": "rank",
    "search": "search",
    "front": "search",
    "many": "many",
    "finetune": "train",
    "certify": "deploy",
    "export": "export",
    "predict": "deploy",
    "report": "run",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    verb = given[0] if given else None
    process.prepare(verb)
    process.leave(verb, execute(given))


@functools.cache
def register(only: str | None = None) -> typer.Typer:
    """The command line with all verbs, or with the one that was asked for: the others' modules need not be imported."""
    import typer

    app = typer.Typer(
        name="snugnet",
        help="You say what the network may cost; snugnet gives you the most accurate network that costs no more.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    if only is not None:
        app.callback()(lambda: None)  # else typer makes a single verb the whole command
    for verb, module in VERBS.items() if only is None else [(only, VERBS[only])]:
        app.command(verb)(getattr(importlib.import_module(f"snugnet.cli.{module}"), verb))
    return app


def execute(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code: 0, 1 (does not fit), 2 (bad input), 130 (interrupted)."""
    import typer

    from snugnet.errors import SnugnetError

    # The base of all complaints about the command line itself; typer keeps it to itself.
    usage_error: type[Exception] = typer.BadParameter.__mro__[1]
    argv = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    command = typer.main.get_command(register(argv[0] if argv[0] in VERBS else None))
    try:
        with _warnings_as_lines():
            result = command.main(args=argv, standalone_mode=False)
        if result == _INTERRUPTED:  # typer's own answer to Ctrl-C, without a word
            raise KeyboardInterrupt
        return result if isinstance(result, int) else 0
    except SnugnetError as error:
        print(f"snugnet: {error}", file=sys.stderr)
        return error.exit_code
    except usage_error as error:
        print(f"snugnet: {_usage(error)}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, typer.Abort):
        print("snugnet: interrupted; what was written is whole, run the same command to go on", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:  # `snugnet zoo | head` is no reason for a traceback
        sys.stderr.close()
        return 0


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Inside, a warning of ours is one line, said once; those of others look as they always do."""
    home, said = Path(__file__).parents[1], set()
    with warnings.catch_warnings():
        usual: Any = warnings.showwarning

        def show(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
            if home not in Path(filename).parents:
                usual(message, category, filename, lineno, file, line)
            elif str(message) not in said:
                said.add(str(message))
                print(f"snugnet: {message}", file=sys.stderr)

        warnings.showwarning = show
        yield


def _usage(error: BaseException) -> str:
    """One line: what is wrong, the nearest option or command, where the help is."""
    import difflib

    message = " ".join(error.format_message().split())  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    wrong = getattr(error, "option_name", None)
    if context is not None and "Did you mean" not in message and "Possible options" not in message:
        known = [option for parameter in context.command.params for option in parameter.opts if option.startswith("-")]
        if wrong is None and message.startswith("No such command"):
            wrong, known = message.split("'")[1], list(getattr(context.command, "commands", {}))
        near = difflib.get_close_matches(wrong or "", known, n=1, cutoff=0.4)
        message += f"{'' if message.endswith('.') else '.'} Did you mean {near[0]}?" if near else ""
    message += "" if message.endswith((".", "?", ")")) else "."
    path = context.command_path if context is not None else "snugnet"
    return f"{message} See `{path} --help`."
