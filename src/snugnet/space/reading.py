"""Spaces in files: a user's own in YAML, any space exactly in JSON.

    name: mine
    classes: 10
    resolutions: [32]
    stem: {widths: [16], stride: 1}
    stages:
      - {width: 16, depth: 1, expands: [1]}
      - {width: 24, depth: [1, 3], stride: 2, kernels: [3, 5], expands: [3, 6], se: [off, on]}
    head: {kind: conv-pool, widths: [256]}

`depth: [1, 3]` is a range, `width` one number or several, `se` off, on (a quarter) or a share. Unknown keys are refused
with the nearest known one; every complaint names its place in the file.
"""

from __future__ import annotations

import difflib
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import to_json

from snugnet.errors import BadSpace, DamagedFile
from snugnet.space.presets import preset
from snugnet.space.space import Activation, BlockRules, Head, SearchSpace, Stage, Stem
from snugnet.store import parse_yaml, read_text

_RENAMED = {"span": "expand_range", "middle_divisor": "mid_divisor"}  # keys of earlier versions


class _StageFile(BaseModel):
    """A stage in a user's words; stem, head and rules are written as they are."""

    model_config = ConfigDict(extra="forbid")

    width: int | list[int]
    depth: int | list[int]
    stride: int = 1
    kernels: list[int] = [3]
    expands: list[int | float] = [6]
    se: list[bool | int | float] = [False]
    expand_range: list[list[int | float]] | None = None
    act: Activation = "relu"
    per: Literal["block", "stage"] = "block"


class _SpaceFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    classes: int
    resolutions: tuple[int, ...]
    stem: Stem
    stages: list[_StageFile]
    head: Head
    rules: BlockRules = BlockRules()
    in_channels: int = 3


def find_space(word: str, **options: Any) -> SearchSpace:
    """A preset by name, or a space from a YAML file."""
    if word.lower().endswith((".yaml", ".yml")):
        if options:
            given = ", ".join(options)
            raise BadSpace("a space from a file takes no options", value=given, remedy="Change the file instead.")
        return load_space(word)
    return preset(word, **options)


def load_space(path: str | Path) -> SearchSpace:
    """The space a YAML file describes."""
    return space_from_dict(parse_yaml(read_text(path), str(path)), str(path))


def space_from_dict(value: Any, origin: str = "space") -> SearchSpace:
    """The space a plain dictionary describes, as in the YAML form."""
    if not isinstance(value, dict):
        raise BadSpace(f"{origin} must hold a mapping with name, stages, ...", value=value, remedy="See the guide.")
    place = origin
    try:
        # By way of JSON, whose strict reading takes a list for a tuple and a mapping for a dataclass, and nothing else.
        file = _SpaceFile.model_validate_json(to_json(value, fallback=repr, inf_nan_mode="constants"), strict=True)
        stages = []
        for number, stage in enumerate(file.stages):
            place = f"{origin}: stages[{number}]"
            stages.append(_stage(stage))
        place = origin
        return SearchSpace(**{**vars(file), "stages": tuple(stages)})
    except ValidationError as error:
        raise _complaint(error, origin) from error
    except BadSpace as error:
        raise BadSpace(f"{place}: {error.rule}", value=error.value, remedy=error.remedy) from error
    except ValueError as error:  # a mapping that holds itself, as YAML can say it
        raise BadSpace(f"{origin} must hold plain values ({error})", remedy="Write out what is referred to.") from error


def _stage(file: _StageFile) -> Stage:
    depth = [file.depth] * 2 if isinstance(file.depth, int) else file.depth
    if len(depth) != 2 or depth[0] > depth[1]:
        rule = "depth must be a number or [low, high] with low <= high"
        raise BadSpace(rule, value=file.depth, remedy="Swap the two numbers.")
    stage = Stage.of(
        file.width,
        depth=(depth[0], depth[1]),
        kernels=file.kernels,
        expands=file.expands,
        se=file.se,
        stride=file.stride,
        act=file.act,
        per=file.per,
    )
    if file.expand_range is None:
        return stage
    if len(file.expand_range) != len(file.expands) or any(len(pair) != 2 for pair in file.expand_range):
        rule = "expand_range must hold a [low, high] for each of expands"
        raise BadSpace(rule, value=file.expand_range, remedy="Add or drop pairs.")
    ranges = {expand: (pair[0], pair[1]) for expand, pair in zip(file.expands, file.expand_range)}
    return replace(stage, choices=tuple(replace(c, expand_range=ranges[c.expand]) for c in stage.choices))


def _complaint(error: ValidationError, origin: str) -> BadSpace:
    first = error.errors()[0]
    # A union's branch ("int", "list[int]") is pydantic's own word, not a key of the file.
    keys = [str(part) for part in first["loc"] if not str(part).startswith(("list[", "int", "float"))]
    place = ".".join(keys)
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        if keys[-1] in _RENAMED:
            remedy = f"Write {_RENAMED[keys[-1]]} instead."
            return BadSpace(f"{origin}: a key has another name now", value=place, remedy=remedy)
        known = _known_keys(keys[:-1])
        near = difflib.get_close_matches(keys[-1], known, n=1, cutoff=0.4)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        return BadSpace(f"{origin}: unknown key", value=place, remedy=f"{hint}Known there: {', '.join(known)}.")
    if first["type"] == "missing":
        return BadSpace(f"{origin}: a key is missing", value=place, remedy=f"Add {keys[-1]!r} there.")
    rule = f"{origin}: {place}: {first['msg']}"
    return BadSpace(rule, value=first["input"], remedy="Put a value of that kind there.")


def _known_keys(path: list[str]) -> list[str]:
    kinds: dict[str, Any] = {"stem": Stem, "stages": _StageFile, "head": Head, "rules": BlockRules}
    kind = kinds.get(path[0] if path else "", _SpaceFile)
    return [f.name for f in fields(kind)] if is_dataclass(kind) else list(kind.model_fields)


# --- JSON, exact for every space: what files keep that must know their space later --------------------------------------

_SPACE: TypeAdapter[SearchSpace] = TypeAdapter(SearchSpace)


def space_to_json(space: SearchSpace) -> dict[str, Any]:
    """A space as plain JSON; the YAML form is for people and has no words for every space that presets can make.

    Equal spaces give the same JSON: a factor of 2 and one of 2.0 are the same factor.
    """
    plain = _SPACE.dump_python(space, mode="json")
    value: dict[str, Any] = _SPACE.dump_python(_SPACE.validate_python(plain), mode="json")
    # Said only where it is so: spaces that are older than these fields keep their fingerprints.
    newer = {"per_position": None, "full_expand": False, "padding": "symmetric", "norm_eps": 1e-5}
    for described in (value["rules"], *value["stages"]):
        for name, usual in newer.items():
            if name in described and described[name] == usual:
                del described[name]
    return value


def space_from_json(value: Any, where: str) -> SearchSpace:
    """The space that `space_to_json` wrote, also with an earlier version's names; `where` is named if it is not whole."""
    remedy = "Restore the file, or write it again."
    try:
        return _SPACE.validate_json(to_json(_renamed(value), inf_nan_mode="constants"), strict=True)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise DamagedFile(f"{where} must hold a whole space ({place})", remedy=remedy) from error
    except BadSpace as error:
        raise DamagedFile(f"{where} must hold a sound space ({error.rule})", remedy=remedy) from error


def _renamed(value: Any) -> Any:
    if isinstance(value, dict):
        return {_RENAMED.get(key, key): _renamed(item) for key, item in value.items()}
    return [_renamed(item) for item in value] if isinstance(value, list) else value
