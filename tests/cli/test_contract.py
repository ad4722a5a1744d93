"""Verbs and their options are a contract with scripts outside: `contract.json` lists them, and only grows on purpose.

A new verb or option is added to the file by hand in the change that brings it; nothing leaves the file.
"""

import json
from pathlib import Path
from typing import Any

import typer

from snugnet.cli import register

RECORDED = Path(__file__).with_name("contract.json")


def contract() -> dict[str, list[str]]:
    """verb -> its arguments and options: the words that set it, whether it must be given, whether it may be repeated."""
    commands = typer.main.get_command(register()).commands  # type: ignore[attr-defined]
    return {verb: [_line(parameter) for parameter in command.params] for verb, command in commands.items()}


def _line(parameter: Any) -> str:
    words = [*parameter.opts, *parameter.secondary_opts]
    name = " ".join(words) if words[0].startswith("-") else parameter.metavar or parameter.name.upper()
    kinds = {
        "required": parameter.required,
        "repeatable": getattr(parameter, "multiple", False) or parameter.nargs != 1,
    }
    return " ".join([name, *(f"({kind})" for kind, holds in kinds.items() if holds)])


def test_verbs_and_options_are_the_recorded_ones():
    recorded = json.loads(RECORDED.read_text())
    now = contract()
    assert list(now) == list(recorded)
    for verb, lines in recorded.items():
        assert now[verb] == lines, verb
