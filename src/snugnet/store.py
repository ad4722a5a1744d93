"""Files that are never half-written and never believed blindly.

Writing goes to a temporary name in the same folder and is renamed, so a reader sees the old file or the new one. Reading
turns every way a file can be wrong into an error that names the file. No pickle, ever.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from snugnet.errors import DamagedFile, FileTrouble


def write_bytes(path: str | Path, data: bytes) -> Path:
    """Write `data` to `path` atomically (temporary file, fsync, rename)."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    except OSError as error:
        raise _trouble("written", target, error) from error
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)  # mkstemp's files are private; ours follow the user's umask
        Path(name).replace(target)
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        raise _trouble("written", target, error) from error
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return target


def write_text(path: str | Path, text: str) -> Path:
    return write_bytes(path, text.encode())


def write_json(path: str | Path, value: Any) -> Path:
    return write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_bytes(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise _trouble("read", Path(path), error) from error


def read_text(path: str | Path) -> str:
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise DamagedFile(
            f"{path} must be text in UTF-8", value=f"byte {error.start}", remedy="Restore or remake the file."
        ) from error


def read_json(path: str | Path) -> Any:
    """The JSON value in `path`; truncated or malformed files are named with line and column."""
    text = read_text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DamagedFile(
            f"{path} must be whole JSON ({error.msg} at line {error.lineno}, column {error.colno})",
            remedy="It was cut short or edited; restore or remake it.",
        ) from error


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def check_writable(path: str | Path) -> None:
    """Fail now rather than after the work: can a file be made where `path` will stand?"""
    target = Path(path)
    try:
        if target.is_dir():
            raise IsADirectoryError(21, "is a folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise _trouble("written", target, error) from error


def _trouble(verb: str, path: Path, error: OSError) -> FileTrouble:
    reason = error.strerror or type(error).__name__
    more = ", its permissions and the space on the disk" if verb == "written" else " and its permissions"
    return FileTrouble(f"{path} could not be {verb} ({reason})", remedy=f"Check the path{more}.")
