"""What lasts: files that are never half-written and never believed blindly, and the lock of a run folder.

Writing goes to a temporary name in the same folder and is renamed, so a reader sees the old file or the new one. Reading
turns every way a file can be wrong into an error that names the file. No pickle, ever. On top of that: fingerprints
(of plain values, of weights), JSON with a seal, append-only journals that survive a kill, the list of a run's finished
steps, and a lock that keeps two runs out of one folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, final

from snugnet.errors import BadInput, DamagedFile, FileTrouble

if TYPE_CHECKING:
    from pydantic import BaseModel

    Model = TypeVar("Model", bound=BaseModel)

Say = Callable[[str], None]
_UMASK = threading.Lock()  # all threads of a process have the same one, and it is read by setting it


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
        with _UMASK:
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
    return parse_json(read_text(path), str(path))


def parse_json(text: str, origin: str) -> Any:
    """The JSON value in a text; `origin` is what a complaint starts with."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        rule = f"{origin} must be whole JSON ({error.msg} at line {error.lineno}, column {error.colno})"
        raise DamagedFile(rule, remedy="It was cut short or edited; restore or remake it.") from error


def parse_yaml(text: str, origin: str) -> Any:
    """The YAML value in a text; a mistake in it is named with line and column."""
    import yaml  # here: most of what imports this file reads none

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        place = f" at line {where.line + 1}, column {where.column + 1}" if where else ""
        remedy = "Mend the YAML there: brackets, quotes and indentation."
        raise DamagedFile(f"{origin} must be YAML{place}", remedy=remedy) from error


def read_model(path: str | Path, model: type[Model]) -> Model:
    """The JSON object in `path` as a pydantic model; what does not suit the model is named with its field."""
    return as_model(read_json(path), model, str(path))


def as_model(value: Any, model: type[Model], origin: str) -> Model:
    """`value` as a pydantic model; `origin` (a file's name) is what a complaint starts with."""
    from pydantic import ValidationError

    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]]
        place = "".join(steps).removeprefix(".") or "its content"
        message = first["msg"][:1].lower() + first["msg"][1:]
        raise DamagedFile(
            f"{origin}: {place}: {message}", value=first["input"], remedy="Restore the file, or make it again."
        ) from error


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def fingerprint(value: Any) -> str:
    """The identity of a plain value (what JSON can hold): equal values, equal fingerprints, whatever their order of keys."""
    return sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode())


def tensors_fingerprint(state: Mapping[str, Any]) -> str:
    """The identity of a state dict of torch tensors: names, shapes, types and every bit."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name}{tuple(values.shape)}{values.dtype}".encode())
        if values.dim():
            raw = values.reshape(-1).view(values.new_empty(0).byte().dtype)  # uint8; no import of torch needed for it
            digest.update(raw.numpy().data)
        else:
            digest.update(str(values.item()).encode())
    return digest.hexdigest()


def write_memo(path: Path | None, identity: Any, values: Mapping[str, Any]) -> None:
    """Keep what some work came to, with the identity of the work (a plain value); without a path nothing is kept."""
    if path is not None:
        write_json(path, {"of": identity, **values})


def read_memo(path: Path | None, identity: Any) -> dict[str, Any] | None:
    """What `write_memo` kept of this very work; None where there is nothing, or something of other work."""
    value = read_json(path) if path is not None and path.exists() else None
    return value if isinstance(value, dict) and value.get("of") == identity else None


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


def read_sealed(path: str | Path, what: str) -> dict[str, Any]:
    """The body of a sealed file (without its seal), if nobody changed it; `what` names it: "a certificate"."""
    return unsealed(read_json(path), str(path), what)


def sealed(body: Mapping[str, Any]) -> dict[str, Any]:
    """`body` with a checksum over all of it in the field `sha256`."""
    return {**body, "sha256": fingerprint(dict(body))}


def unsealed(value: Any, origin: str, what: str) -> dict[str, Any]:
    """What was sealed, without the seal."""
    if not isinstance(value, dict) or not isinstance(value.get("sha256"), str):
        raise DamagedFile(
            f"{origin} must be {what} with its seal (field sha256)", remedy="Give the file that snugnet wrote."
        )
    body = {name: item for name, item in value.items() if name != "sha256"}
    if fingerprint(body) != value["sha256"]:
        raise DamagedFile(
            f"{origin}: field sha256 must match what {what} says",
            remedy="It was edited or damaged; restore it, or make it again.",
        )
    return body


@final
class Journal:
    """Work that survives a kill: an append-only file of JSON objects, one per line, each with its own checksum.

    The first line carries the identity of the work. Opening takes over `rows` of the same work, starts the file anew for
    other work, and cuts off what a kill left behind the last whole line, so that appending goes on cleanly. A line damaged
    *before* a whole one was not torn by a kill: that is an error which names file and line. `fields` are the names that
    every row must have.
    """

    FORMAT: ClassVar = "snugnet-journal/1"

    def __init__(self, path: str | Path, identity: str, fields: Iterable[str] = ()) -> None:
        self.path, self.identity, self.fields = Path(path), identity, tuple(fields)
        header, self.rows, size = _read_lines(self.path, self.fields) if self.path.exists() else (None, [], 0)
        if header != identity:
            self.rows = []
            write_bytes(self.path, _line({"format": self.FORMAT, "identity": identity}))
        elif size < self.path.stat().st_size:
            os.truncate(self.path, size)

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row; it is on the disk when this returns."""
        missing = [name for name in self.fields if name not in row]
        if missing:
            raise ValueError(f"a row of {self.path} needs {', '.join(missing)}")
        try:
            with self.path.open("ab") as stream:
                stream.write(_line(row))
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise _trouble("written", self.path, error) from error
        self.rows.append(dict(row))


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps({**row, "crc": fingerprint(dict(row))[:12]}, allow_nan=False).encode() + b"\n"


def _read_lines(path: Path, fields: tuple[str, ...]) -> tuple[str | None, list[dict[str, Any]], int]:
    """The identity (None: not a journal), the rows, and the bytes up to the end of the last whole line."""
    rows: list[dict[str, Any] | None] = []
    whole, size, position = 0, 0, 0
    for raw in read_bytes(path).splitlines(keepends=True):
        position += len(raw)
        rows.append(_whole(raw, fields if rows else ("identity",)))
        if rows[-1] is not None:
            whole, size = len(rows), position
    if None in rows[:whole]:
        raise DamagedFile(
            f"{path} must hold whole lines",
            value=f"line {rows.index(None) + 1}",
            remedy="Restore the file, or delete it: what it remembers is then worked out anew.",
        )
    found = [row for row in rows[:whole] if row is not None]
    return (str(found[0]["identity"]), found[1:], size) if found else (None, [], 0)


def _whole(raw: bytes, fields: tuple[str, ...]) -> dict[str, Any] | None:
    """The row in a line, or None if the line is torn or damaged."""
    try:
        row = json.loads(raw) if raw.endswith(b"\n") else None
        if not isinstance(row, dict) or row.pop("crc", None) != fingerprint(row)[:12]:
            return None
    except ValueError:
        return None
    return row if all(name in row for name in fields) else None


@final
class StepCache:
    """What a run has done: `steps.json`.

    A step is done if it was finished for the same inputs and its files are still what it wrote. Anything else is done
    anew: a changed recipe, a file that was deleted, cut short or edited. The entry is written after the step's last file,
    so a kill between the two costs a repetition, never a gap. Threads may do different steps of a run at the same time.
    """

    _recording: ClassVar = threading.Lock()

    def __init__(self, folder: Path, say: Say) -> None:
        self.folder, self.path, self._say = folder, folder / "steps.json", say

    @cached_property
    def _steps(self) -> dict[str, dict[str, Any]]:
        """Read when first asked for: not by who only looks into a folder, and under the lock of who works in it."""
        return self._read()

    def step(self, name: str, inputs: Any, files: Sequence[str], work: Callable[[], str]) -> None:
        """Do `work` (it returns a line to print) unless it is done for these inputs; `files` are what it writes."""
        identity = fingerprint(inputs)
        if self._done(name, identity, files):
            self._say(f"{name}: done before ({', '.join(files)})")
            return
        self._say(f"{name} ...")
        began = time.monotonic()
        line = work()
        seconds = round(time.monotonic() - began, 1)
        entry = {"of": identity, "seconds": seconds, "files": {file: self.hash_of(file) for file in files}}
        with self._recording:
            self._steps = {**self._read(), name: entry}  # others may have ended meanwhile
            write_json(self.path, self._steps)
        self._say(f"{name}: {line} ({seconds:g} s; wrote {', '.join(files)})")

    @property
    def seconds(self) -> dict[str, float]:
        """How long each finished step took."""
        return {name: float(entry["seconds"]) for name, entry in self._steps.items()}

    def hash_of(self, file: str) -> str:
        """The fingerprint of a file an earlier step wrote: the inputs of a later one."""
        return sha256(read_bytes(self.folder / file))

    def _done(self, name: str, identity: str, files: Sequence[str]) -> bool:
        entry = self._steps.get(name)
        if entry is None or entry["of"] != identity:
            return False
        for file in files:
            if not (self.folder / file).exists():
                self._say(f"{name}: {file} is gone, so it is made again")
                return False
            if entry["files"].get(file) != self.hash_of(file):
                self._say(f"{name}: {file} was changed or damaged, so it is made again")
                return False
        return True

    def _read(self) -> dict[str, dict[str, Any]]:
        from pydantic import BaseModel, RootModel

        class Step(BaseModel):
            of: str
            seconds: float
            files: dict[str, str]

        if not self.path.exists():
            return {}
        return {
            name: step.model_dump() for name, step in read_model(self.path, RootModel[dict[str, Step]]).root.items()
        }


@final
class RunLock:
    """`with RunLock(folder):` one process works in a run folder at a time; a second one is told who is there.

    The lock is the operating system's, on `.lock` in the folder, and belongs to this process alone (not to loader workers
    it forks): it is gone when the process is, however that ends.
    """

    _held: ClassVar[set[Path]] = set()  # a process never blocks itself by such a lock, so its own folders are kept here

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / ".lock"
        self._file: int | None = None

    def __enter__(self) -> Self:
        key = self.path.absolute()
        if key in self._held:
            raise self._taken(os.getpid())
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise _trouble("written", self.path, error) from error
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._file, 32, 0).decode(errors="replace").strip()
            os.close(self._file)
            raise self._taken(holder) from None
        if not self._in_place():  # its holder has just ended and taken it away: there is another file by now, or none
            os.close(self._file)
            return self.__enter__()
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
        self._held.add(key)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._held.discard(self.path.absolute())
            self.path.unlink(missing_ok=True)
            os.close(self._file)  # which unlocks

    def _in_place(self) -> bool:
        """Is the file that was locked still the one in the folder?"""
        assert self._file is not None
        return self.path.exists() and os.path.samestat(os.fstat(self._file), self.path.stat())

    def _taken(self, holder: object) -> BadInput:
        return BadInput(
            f"one run at a time can work in {self.folder}",
            value=f"process {holder or 'unknown'} working there",
            remedy="Wait until it ends, stop it, or take another folder.",
        )


def _trouble(verb: str, path: Path, error: OSError) -> FileTrouble:
    reason = error.strerror or type(error).__name__
    more = ", its permissions and the space on the disk" if verb == "written" else " and its permissions"
    return FileTrouble(f"{path} could not be {verb} ({reason})", remedy=f"Check the path{more}.")
