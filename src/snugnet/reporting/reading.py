"""What a run folder holds, file by file; what is missing or damaged is a sentence, not an error.

A page about half a run is still worth having, so every file is optional here. What could not be read stands in `trouble`
with the reason, and the page shows that reason in the place of the picture.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

import yaml

from snugnet.costs.table_file import load_table
from snugnet.errors import BadInput, DamagedFile, SnugnetError
from snugnet.store import read_json, read_text, sha256

_READING_ERRORS = (KeyError, TypeError, ValueError, IndexError, AttributeError)


@final
@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """The contents by name (see `_FILES`), the paths they came from, and why others are not there."""

    folder: Path
    found: dict[str, Any] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)
    trouble: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    stale: dict[str, str] = field(default_factory=dict)  # of another network than the one found last

    def __contains__(self, name: str) -> bool:
        return name in self.found

    def __getitem__(self, name: str) -> Any:
        return self.found[name]

    def attempt(self, name: str, work: Callable[[], dict[str, Any]], *needed: str) -> dict[str, Any]:
        """What `work` makes of the files it needs, or `{"missing": reason}`; odd contents are a reason too."""
        lacking = [self.trouble[item] for item in needed if item not in self.found]
        if lacking:
            return {"missing": " ".join(lacking)}
        try:
            return work()
        except SnugnetError as error:
            return {"missing": str(error)}
        except _READING_ERRORS as error:
            files = ", ".join(_FILES[item][0] for item in needed if item in _FILES) or name
            reason = f"{files} cannot be shown: a field is not what it should be ({type(error).__name__}: {error})."
            self.damaged[name] = reason
            return {"missing": reason}


def read_run(folder: str | Path) -> RunFiles:
    """Everything the page can use of `folder`; a folder without any of it is refused."""
    home = Path(folder)
    if not home.is_dir():
        raise BadInput("RUN must be the folder of a run", value=str(folder), remedy="Give the folder of `snugnet run`.")
    files = RunFiles(folder=home)
    for name, (place, read, writer) in _FILES.items():
        path = _newest(home, place)
        if not path.is_file():
            files.trouble[name] = f"There is no {place.replace('**/', '')} in this run; {writer} writes it."
            continue
        try:
            files.found[name] = read(path)
            files.paths[name] = path
        except SnugnetError as error:
            files.trouble[name] = files.damaged[name] = str(error)
        except _READING_ERRORS as error:
            files.trouble[name] = files.damaged[name] = f"{place} is not what it should be ({error})."
    _leave_out_other_networks(files)
    if not files.found and not files.damaged:
        raise BadInput("RUN must hold a file of a run", value=str(folder), remedy="Give the folder of `snugnet run`.")
    return files


def _leave_out_other_networks(files: RunFiles) -> None:
    """After a new search, what was trained and certified before belongs to another network: it must not stand beside
    the new one as if it were its own."""
    chosen = files.found.get("search", {}).get("architecture")
    if chosen is None:
        return
    owners = {
        "accuracy": lambda: files["accuracy"].get("architecture"),
        "certificate": lambda: files["certificate"].get("network", {}).get("architecture"),
    }
    for name, owner in owners.items():
        if name in files.found and owner() != chosen:
            place, _, writer = _FILES[name]
            files.trouble[name] = (
                f"{place} belongs to another network than the one search.json found; {writer} makes it anew."
            )
            files.stale[name] = files.trouble[name]
            del files.found[name]
    if "accuracy" in files.stale:
        files.found.pop("finetuning", None)
        files.trouble["finetuning"] = (
            "The network that was found last has not been fine-tuned yet; `snugnet finetune` does."
        )


def predicted_of(files: RunFiles, name: str) -> float | None:
    """What the chosen network was predicted to cost: by the certificate, or by the search that found it."""
    line = files.found.get("certificate", {}).get("budgets", {}).get(name, {})
    guess = line.get("predicted")
    if guess is None:
        guess = files.found.get("search", {}).get("predicted", {}).get(name)
    return None if guess is None else float(guess)


def file_hashes(folder: Path) -> list[tuple[str, int, str]]:
    """Name, bytes and SHA-256 of what a run leaves behind, in the order it is made."""
    rows = []
    for name in (*(place for place, _, _ in _FILES.values() if "*" not in place), *_BINARIES):
        path = folder / name
        if path.is_file():
            with path.open("rb") as stream:
                rows.append((name, path.stat().st_size, hashlib.file_digest(stream, "sha256").hexdigest()))
    return rows


def _newest(home: Path, place: str) -> Path:
    """The file at `place`; where that is a pattern, the one written last."""
    if "*" not in place:
        return home / place
    return max(home.glob(place), key=lambda p: (p.stat().st_mtime_ns, str(p)), default=home / "none")


def _object(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise DamagedFile(f"{path} must hold an object", remedy="Restore or remake it.")
    return value


def _yaml(path: Path) -> dict[str, Any]:
    try:
        value = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        raise DamagedFile(f"{path} must be YAML", remedy="Restore it.") from error
    if not isinstance(value, dict):
        raise DamagedFile(f"{path} must hold a mapping", remedy="Restore it.")
    return value


def _evaluations(path: Path) -> list[dict[str, Any]]:
    """Every network once, as it was seen with the most images."""
    kept: dict[str, dict[str, Any]] = {}
    for row in _lines(path):
        if "network" in row and row.get("images", 0) >= kept.get(row["network"], {}).get("images", 0):
            kept[row["network"]] = row
    return list(kept.values())


def _lines(path: Path) -> list[dict[str, Any]]:
    """One object a line; a last line that was cut off belongs to a run that is still going on, and is left out."""
    lines = read_text(path).splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("not an object")
            rows.append(row)
        except ValueError as error:
            if number < len(lines):
                raise DamagedFile(
                    f"{path} must hold an object a line", value=f"line {number}", remedy="Restore it."
                ) from error
    return rows


def _certificate(path: Path) -> dict[str, Any]:
    """A certificate is shown only if its seal is whole (the same rule as `snugnet.deploy`, which this room cannot see)."""
    value = _object(path)
    body = {name: item for name, item in value.items() if name != "sha256"}
    if value.get("sha256") != sha256(json.dumps(body, sort_keys=True).encode()):
        raise DamagedFile(f"{path}: field sha256 must match what the certificate says", remedy="Certify again.")
    return value


_FILES: Final[dict[str, tuple[str, Callable[[Path], Any], str]]] = {
    "recipe": ("recipe.yaml", _yaml, "`snugnet run`"),
    "table": ("table.json", load_table, "`snugnet measure`"),
    "check": ("check.json", _object, "`snugnet check`"),
    "training": ("train.jsonl", _lines, "`snugnet train`"),
    "search": ("search.json", _object, "`snugnet search`"),
    "architecture": ("architecture.json", _object, "`snugnet search`"),
    "worths": ("search/worths.json", _object, "`snugnet front` (or `snugnet search --method instant`)"),
    "evaluations": ("search/evaluations.jsonl", _evaluations, "`snugnet search`"),
    "front": ("front.json", _object, "`snugnet front`"),
    "finetuning": ("finetune/**/train.jsonl", _lines, "`snugnet finetune`"),
    "accuracy": ("accuracy.json", _object, "`snugnet finetune`"),
    "certificate": ("certificate.json", _certificate, "`snugnet certify`"),
}
_BINARIES: Final = ("supernet.safetensors", "network.safetensors", "network.onnx", "network.pt2")
