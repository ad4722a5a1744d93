"""`snugnet agent`: the program that measures on a board, as a file to copy there, or at work right here."""

from __future__ import annotations

import os
import sys
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from snugnet.cli.printing import Json, print_json, say
from snugnet.store import read_bytes, sha256, write_bytes

AgentFile = Annotated[
    Path | None,
    typer.Option(
        "--write", metavar="FILE", help="Write the agent to a file; copy it to the board, which needs no more."
    ),
]


def agent(write: AgentFile = None, json: Json = False) -> None:
    """Hand over the agent (one file; needs Python, numpy and onnxruntime), or without --write be it, on standard input and
    output: what --device "command:..." talks to."""
    with resources.as_file(resources.files("snugnet").joinpath("devices/agent.py")) as source:
        if write is None:
            sys.stdout.flush()
            # The file by itself, as on a board: importing it from the package would bring torch in.
            os.execv(sys.executable, [sys.executable, "-P", str(source)])
        content = read_bytes(source)
    write_bytes(write, content)
    write.chmod(write.stat().st_mode | 0o111 & ~_umask())
    if json:
        print_json({"file": str(write), "bytes": len(content), "sha256": sha256(content)})
        return
    say(f"wrote {write}")
    print(f'copy it to the board, then: snugnet measure --device "command:ssh BOARD ./{write.name}"')


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
