"""Work that survives a kill: an append-only file of checked lines.

The first line says what the work is; every further line is one finished step, written and synced before the next begins.
Each line carries its own checksum. A process killed in mid-line leaves a broken tail: reading stops there, the tail is cut,
and the work goes on from the last whole step. A journal of other work is put aside by starting anew.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, final

from snugnet.errors import FileTrouble
from snugnet.store import sha256


@final
class Journal:
    """`Journal(path, about)`: `steps` are those already done; `append` adds one."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path = path
        self.steps: list[Any] = []
        try:
            lines, whole = _read(path) if path.exists() else ([], 0)
            if lines and lines[0] == json.loads(json.dumps(about)):
                self.steps = lines[1:]
                os.truncate(path, whole)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(_line(about))
        except OSError as error:
            raise _trouble(path, error) from error

    def append(self, step: Any) -> None:
        try:
            with self.path.open("ab") as stream:
                stream.write(_line(step))
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise _trouble(self.path, error) from error
        self.steps.append(step)


def _line(value: Any) -> bytes:
    text = json.dumps(value, allow_nan=False).encode()
    return sha256(text)[:16].encode() + b" " + text + b"\n"


def _read(path: Path) -> tuple[list[Any], int]:
    """The whole lines from the start, and how many bytes they take."""
    values, size = [], 0
    for raw in path.read_bytes().splitlines(keepends=True):
        mark, _, text = raw.rstrip(b"\n").partition(b" ")
        if not raw.endswith(b"\n") or sha256(text)[:16].encode() != mark:
            break
        values.append(json.loads(text))
        size += len(raw)
    return values, size


def _trouble(path: Path, error: OSError) -> FileTrouble:
    return FileTrouble(
        f"{path} could not be written ({error.strerror or type(error).__name__})",
        remedy="It keeps what is done in case of a crash; check the folder, its permissions and the space.",
    )
