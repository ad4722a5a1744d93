"""What a run has done: `steps.json`.

A step is done if it was finished for the same inputs and its files are still what it wrote. Anything else is done anew:
a changed recipe, a file that was deleted, cut short or edited. The entry is written after the step's last file, so a
kill between the two costs a repetition, never a gap.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

from snugnet.errors import DamagedFile
from snugnet.store import read_bytes, read_json, sha256, write_json

Say = Callable[[str], None]


@final
class StepCache:
    """The steps of one run folder."""

    def __init__(self, folder: Path, say: Say) -> None:
        self.folder, self.path, self._say = folder, folder / "steps.json", say
        self._steps: dict[str, dict[str, Any]] = self._read()

    def step(self, name: str, inputs: Any, files: Sequence[str], work: Callable[[], str]) -> None:
        """Do `work` (it returns a line to print) unless it is done for these inputs; `files` are what it writes."""
        identity = sha256(json.dumps(inputs, sort_keys=True, default=str).encode())
        if self._done(name, identity, files):
            self._say(f"{name}: done before ({', '.join(files)})")
            return
        self._say(f"{name} ...")
        began = time.monotonic()
        line = work()
        seconds = round(time.monotonic() - began, 1)
        self._steps[name] = {"of": identity, "seconds": seconds, "files": {file: self._hash(file) for file in files}}
        write_json(self.path, self._steps)
        self._say(f"{name}: {line} ({seconds:g} s; wrote {', '.join(files)})")

    @property
    def seconds(self) -> dict[str, float]:
        """How long each finished step took."""
        return {name: float(entry["seconds"]) for name, entry in self._steps.items()}

    def hash_of(self, file: str) -> str:
        """The fingerprint of a file an earlier step wrote: the inputs of a later one."""
        return self._hash(file)

    def _done(self, name: str, identity: str, files: Sequence[str]) -> bool:
        entry = self._steps.get(name)
        if entry is None or entry.get("of") != identity:
            return False
        for file in files:
            if not (self.folder / file).exists():
                self._say(f"{name}: {file} is gone, so it is made again")
                return False
            if entry["files"].get(file) != self._hash(file):
                self._say(f"{name}: {file} was changed or damaged, so it is made again")
                return False
        return True

    def _hash(self, file: str) -> str:
        return sha256(read_bytes(self.folder / file))

    def _read(self) -> dict[str, dict[str, Any]]:
        if not self.path.exists():
            return {}
        value = read_json(self.path)
        if not isinstance(value, dict) or not all(isinstance(entry, dict) for entry in value.values()):
            raise DamagedFile(
                f"{self.path} must map steps to what they did", remedy="Delete it; finished steps are checked again."
            )
        return value
