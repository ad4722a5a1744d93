"""What a run folder holds, file by file; what is missing or damaged is a sentence, not an error.

Half a run deserves a page too, so every file is optional here. What could not be read stands in `trouble` with the reason,
and the page shows that reason in the place of the picture. Every JSON file has a model of the fields the page uses: a field
that is not what it should be is named here, once, and nothing after this file has to doubt what it reads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, final

from pydantic import BaseModel, ConfigDict

from snugnet.costs.lazy import known_table
from snugnet.costs.table import CostTable, exact_table
from snugnet.deploy.card import Certificate, open_certificate
from snugnet.errors import BadInput, DamagedFile, SnugnetError
from snugnet.space.architecture import Architecture, read_json_form
from snugnet.space.reading import find_space, space_from_json
from snugnet.space.space import SearchSpace
from snugnet.store import as_model, parse_yaml, read_json, read_model, read_text

_READING_ERRORS: Final = (KeyError, TypeError, ValueError, IndexError, AttributeError)
_COUNTED: Final = ("macs", "params", "memory")


class _Fields(BaseModel):
    """The fields of a file that the page uses; a file may have more."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


@final
class SearchFile(_Fields):
    """search.json: `limits` is what was asked, `aims` what predictions were held to, `value` the score."""

    method: str
    seed: int
    space: str
    architecture: str
    layers: dict[str, Any]
    predicted: dict[str, float]
    limits: dict[str, float]
    aims: dict[str, float]
    accuracy: float
    loss: float
    value: float
    seconds: float
    images: int
    evaluated: int
    details: dict[str, Any] = {}


@final
class AccuracyFile(_Fields):
    """accuracy.json: of the fine-tuned network."""

    val: float | None = None
    test: float | None = None
    learnt: float | None = None
    architecture: str | None = None


@final
class CheckRow(_Fields):
    architecture: str
    predicted: float
    measured: float
    low: float
    high: float


@final
class CheckFile(_Fields):
    """check.json: networks the table had not seen."""

    r2: float
    ratio: float
    worst_error: float
    margin: float
    speed: float
    message: str
    rows: list[CheckRow]


@final
class FrontRow(_Fields):
    predicted: dict[str, float]
    accuracy: float
    architecture: str


@final
class FrontFile(_Fields):
    resource: str
    points: list[FrontRow]


@final
class SavedEffects(_Fields):
    """What every choice adds to the score of a network; None where an older version saved something else."""

    value: list[float] | None = None


@final
class EffectsFile(_Fields):
    worths: SavedEffects


@final
class Evaluation(_Fields):
    """A line of evaluations.jsonl: one network on so many images."""

    network: str
    accuracy: float
    loss: float
    value: float | None = None
    images: int = 0

    @property
    def score(self) -> float:
        """What the search ranks by."""
        return self.accuracy - self.loss if self.value is None else self.value


@final
class TrainRow(_Fields):
    """A line of train.jsonl: losses (any field that ends in "loss") or accuracies after `total` steps."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    phase: int
    method: str
    total: float
    accuracy: dict[str, float] = {}

    @property
    def losses(self) -> dict[str, float]:
        return {name: float(value) for name, value in (self.model_extra or {}).items() if name.endswith("loss")}


@final
@dataclass(kw_only=True)
class RunFiles:
    """The files of a run, and for those that are not here the reason why."""

    folder: Path
    recipe: dict[str, Any] | None = None
    table: CostTable | None = None
    check: CheckFile | None = None
    training: list[TrainRow] | None = None
    search: SearchFile | None = None
    architecture: dict[str, Any] | None = None
    effects: EffectsFile | None = None
    evaluations: list[Evaluation] | None = None
    front: FrontFile | None = None
    finetuning: list[TrainRow] | None = None
    accuracy: AccuracyFile | None = None
    certificate: Certificate | None = None
    trouble: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    stale: dict[str, str] = field(default_factory=dict)  # of another network than the one found last

    @property
    def chosen(self) -> Architecture | None:
        """The network the run came to."""
        layers = self.search.layers if self.search is not None else self.architecture
        return None if layers is None else read_json_form(layers)

    def limit_of(self, name: str) -> float | None:
        """What was asked: by the certificate, or by the search."""
        if self.certificate is not None and name in self.certificate.budgets:
            return self.certificate.budgets[name].limit
        return None if self.search is None else self.search.limits.get(name)

    def predicted(self, name: str) -> float | None:
        """What the chosen network was predicted to cost: by the certificate, or by the search that found it."""
        line = None if self.certificate is None else self.certificate.budgets.get(name)
        if line is not None and line.predicted is not None:
            return line.predicted
        return None if self.search is None else self.search.predicted.get(name)

    def attempt(self, name: str, work: Callable[[], dict[str, Any]], *needed: str) -> dict[str, Any]:
        """What `work` makes of the files it needs, or `{"missing": reason}`; odd contents are a reason too."""
        lacking = [self.trouble[item] for item in needed if getattr(self, item) is None]
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
    here = False
    for name, (place, read, writer) in _FILES.items():
        path = _newest(home, place)
        if not path.is_file():
            files.trouble[name] = f"There is no {place.replace('**/', '')} in this run; {writer} writes it."
            continue
        here = True
        try:
            setattr(files, name, read(path))
        except SnugnetError as error:
            files.trouble[name] = files.damaged[name] = str(error)
        except _READING_ERRORS as error:
            files.trouble[name] = files.damaged[name] = f"{place} is not what it should be ({error})."
    if not here:
        raise BadInput("RUN must hold a file of a run", value=str(folder), remedy="Give the folder of `snugnet run`.")
    _leave_out_other_networks(files)
    return files


def _leave_out_other_networks(files: RunFiles) -> None:
    """After a new search, what was trained and certified before belongs to another network: it must not stand beside
    the new one as if it were its own."""
    if files.search is None:
        return
    owners = {
        "accuracy": files.accuracy and files.accuracy.architecture,
        "certificate": files.certificate and files.certificate.network.architecture,
    }
    for name, owner in owners.items():
        if getattr(files, name) is not None and owner != files.search.architecture:
            place, _, writer = _FILES[name]
            reason = f"{place} belongs to another network than the one search.json found; {writer} makes it anew."
            files.trouble[name] = files.stale[name] = reason
            setattr(files, name, None)
    if "accuracy" in files.stale:
        files.finetuning = None
        reason = "The network that was found last has not been fine-tuned yet; `snugnet finetune` does."
        files.trouble["finetuning"] = reason


def space_of(files: RunFiles) -> SearchSpace:
    """The space of a run by its table and recipe, believed only if the table holds its parts."""
    if files.table is None:
        raise BadInput("the run's space must be known from its table", remedy=files.trouble["table"])
    origin = files.table.origin
    if "definition" in origin:
        return space_from_json(origin["definition"], str(files.folder / "table.json"))
    asked = (files.recipe or {}).get("space") or {}
    word = asked.get("name") or origin.get("source") or origin["space"]
    if str(word).lower().endswith((".yaml", ".yml")):
        space = find_space(word)
        space = replace(space, classes=origin.get("classes", space.classes))
    else:
        sizes = origin.get("resolutions", [])
        options = {"classes": origin.get("classes"), "resolution": sizes[0] if len(sizes) == 1 else None}
        options["width"] = asked.get("width")
        space = find_space(word, **{name: value for name, value in options.items() if value is not None})
    if differences := files.table.differences(space=space):
        raise BadInput(
            "the recipe's space must be the table's",
            value=differences,
            remedy="Give the space in Python: build_report(RUN, space=...).",
        )
    return space


def tables_of(files: RunFiles, space: SearchSpace) -> dict[str, CostTable]:
    """The run's own table, and exact ones of what can be counted."""
    tables: dict[str, CostTable] = {}
    if files.table is not None:
        files.table.require(space=space)
        tables[files.table.resource] = files.table
    limited = {} if files.search is None else files.search.limits
    counted = (*_COUNTED, *(["model_size"] if "model_size" in limited else []))
    return tables | {name: exact_table(space, name) for name in counted if name not in tables}


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
    return _mapping(read_json(path), path)


def _yaml(path: Path) -> dict[str, Any]:
    return _mapping(parse_yaml(read_text(path), str(path)), path)


def _mapping(value: Any, path: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DamagedFile(f"{path} must hold an object", remedy="Restore it, or run the step that writes it again.")
    return value


Row = TypeVar("Row", bound=BaseModel)


def _lines(path: Path, model: type[Row], key: str) -> list[Row]:
    """The lines that have `key`, each an object; a torn last line belongs to a run that still goes on: it is left out."""
    lines = read_text(path).splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                break
            rule = f"{path} must hold an object per line"
            raise DamagedFile(rule, value=f"line {number}", remedy="Restore the file.") from error
        if not isinstance(value, dict) or key in value:
            rows.append(as_model(value, model, f"{path}, line {number}"))
    return rows


def _evaluations(path: Path) -> list[Evaluation]:
    """Every network once, as it was seen with the most images."""
    kept: dict[str, Evaluation] = {}
    for row in _lines(path, Evaluation, "network"):
        if row.network not in kept or row.images >= kept[row.network].images:
            kept[row.network] = row
    return list(kept.values())


def _training(path: Path) -> list[TrainRow]:
    return _lines(path, TrainRow, "total")


_FILES: Final[Mapping[str, tuple[str, Callable[[Path], Any], str]]] = {
    "recipe": ("recipe.yaml", _yaml, "`snugnet run`"),
    "table": ("table.json", known_table, "`snugnet measure`"),
    "check": ("check.json", partial(read_model, model=CheckFile), "`snugnet check`"),
    "training": ("train.jsonl", _training, "`snugnet train`"),
    "search": ("search.json", partial(read_model, model=SearchFile), "`snugnet search`"),
    "architecture": ("architecture.json", _object, "`snugnet search`"),
    "effects": (
        "search/worths.json",
        partial(read_model, model=EffectsFile),
        "`snugnet front` (or `snugnet search --method instant`)",
    ),
    "evaluations": ("search/evaluations.jsonl", _evaluations, "`snugnet search`"),
    "front": ("front.json", partial(read_model, model=FrontFile), "`snugnet front`"),
    "finetuning": ("finetune/**/train.jsonl", _training, "`snugnet finetune`"),
    "accuracy": ("accuracy.json", partial(read_model, model=AccuracyFile), "`snugnet finetune`"),
    "certificate": ("certificate.json", open_certificate, "`snugnet certify`"),
}
"""Where each file is, who reads it, who writes it."""
_BINARIES: Final = ("supernet.safetensors", "network.safetensors", "network.onnx", "network.pt2")
