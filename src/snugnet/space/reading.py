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
import json
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from snugnet.errors import BadSpace, DamagedFile
from snugnet.space.presets import names, preset
from snugnet.space.space import Activation, BlockChoice, BlockRules, Gate, Head, Padding, SearchSpace, Stage, Stem
from snugnet.store import read_text

_RENAMED = {"span": "expand_range", "middle_divisor": "mid_divisor"}  # keys of earlier versions


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _StemFile(_Strict):
    widths: list[int]
    stride: int = 2
    kernel: int = 3
    act: Activation = "relu"


class _StageFile(_Strict):
    width: int | list[int]
    depth: int | list[int]
    stride: int = 1
    kernels: list[int] = Field(default=[3])
    expands: list[int | float] = Field(default=[6])
    se: list[bool | int | float] = Field(default=[False])
    expand_range: list[list[int | float]] | None = None
    act: Activation = "relu"
    per: Literal["block", "stage"] = "block"


class _HeadFile(_Strict):
    kind: Literal["conv-pool", "pool-conv"] = "conv-pool"
    widths: list[int]
    hidden: int = 0
    hidden_expand: int | float = 0
    bias: bool = False
    act: Activation = "relu"
    dropout: int | float = 0


class _RulesFile(_Strict):
    se_of: Literal["middle", "input"] = "middle"
    se_divisor: int = 8
    se_act: Activation | Literal["block"] = "relu"
    se_gate: Gate = "hard-sigmoid"
    mid_divisor: int = 1
    shortcut: Literal["identity", "always"] = "identity"
    kernel_weights: Literal["own", "crop"] = "own"
    padding: Padding = "symmetric"
    norm_eps: float = 1e-5
    share: bool = True


class _SpaceFile(_Strict):
    name: str
    classes: int
    resolutions: list[int]
    stem: _StemFile
    stages: list[_StageFile]
    head: _HeadFile
    rules: _RulesFile = _RulesFile()
    in_channels: int = 3


def find_space(word: str, **options: Any) -> SearchSpace:
    """A preset by name, or a space from a YAML file."""
    if word.lower().endswith((".yaml", ".yml")):
        if options:
            raise BadSpace(
                "a space from a file takes no options", value=", ".join(options), remedy="Change the file instead."
            )
        return load_space(word)
    return preset(word, **options)


def load_space(path: str | Path) -> SearchSpace:
    """The space a YAML file describes."""
    try:
        value = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        place = f" at line {where.line + 1}, column {where.column + 1}" if where else ""
        raise DamagedFile(
            f"{path} must be YAML{place}", remedy="Mend the YAML there: brackets, quotes and indentation."
        ) from error
    return space_from_dict(value, str(path))


def space_from_dict(value: Any, origin: str = "space") -> SearchSpace:
    """The space a plain dictionary describes, as in the YAML form."""
    if not isinstance(value, dict):
        raise BadSpace(f"{origin} must hold a mapping with name, stages, ...", value=value, remedy="See the guide.")
    try:
        read = _SpaceFile.model_validate(value)
    except ValidationError as error:
        raise _complaint(error, origin) from error
    stages = []
    for number, stage in enumerate(read.stages):
        try:
            stages.append(_stage(stage))
        except BadSpace as error:
            raise BadSpace(
                f"{origin}: stages[{number}]: {error.rule}", value=error.value, remedy=error.remedy
            ) from error
    try:
        return SearchSpace(
            name=read.name,
            classes=read.classes,
            resolutions=tuple(read.resolutions),
            stem=Stem(**{**read.stem.model_dump(), "widths": tuple(read.stem.widths)}),
            stages=tuple(stages),
            head=Head(**{**read.head.model_dump(), "widths": tuple(read.head.widths)}),
            rules=BlockRules(**read.rules.model_dump()),
            in_channels=read.in_channels,
        )
    except BadSpace as error:
        raise BadSpace(f"{origin}: {error.rule}", value=error.value, remedy=error.remedy) from error


def space_to_dict(space: SearchSpace) -> dict[str, Any]:
    """The YAML form of any space whose stages are full products of kernels, expansions and SE; else an error."""
    return {
        "name": space.name,
        "classes": space.classes,
        "resolutions": list(space.resolutions),
        "stem": {**vars(space.stem), "widths": list(space.stem.widths)},
        "stages": [_stage_to_dict(stage, number) for number, stage in enumerate(space.stages)],
        "head": {**vars(space.head), "widths": list(space.head.widths)},
        "rules": dict(vars(space.rules)),
        "in_channels": space.in_channels,
    }


def _stage(read: _StageFile) -> Stage:
    depth = read.depth
    if isinstance(depth, list):
        if len(depth) != 2 or depth[0] > depth[1]:
            raise BadSpace(
                "depth must be a number or [low, high] with low <= high", value=depth, remedy="Swap the two numbers."
            )
        expand_range: int | tuple[int, int] = (depth[0], depth[1])
    else:
        expand_range = depth
    made = Stage.of(
        tuple(read.width) if isinstance(read.width, list) else read.width,
        depth=expand_range,
        kernels=read.kernels,
        expands=read.expands,
        se=read.se,
        stride=read.stride,
        act=read.act,
        per=read.per,
    )
    if read.expand_range is None:
        return made
    return Stage(**{**vars(made), "choices": tuple(_with_expand_range(choice, read) for choice in made.choices)})


def _with_expand_range(choice: BlockChoice, read: _StageFile) -> BlockChoice:
    assert read.expand_range is not None
    if len(read.expand_range) != len(read.expands) or any(len(pair) != 2 for pair in read.expand_range):
        raise BadSpace(
            "expand_range must hold a [low, high] for each of expands",
            value=read.expand_range,
            remedy="Add or drop pairs.",
        )
    low, high = read.expand_range[read.expands.index(choice.expand)]
    return BlockChoice(kernel=choice.kernel, expand=choice.expand, se=choice.se, expand_range=(low, high))


def _stage_to_dict(stage: Stage, number: int) -> dict[str, Any]:
    kernels = sorted({c.kernel for c in stage.choices})
    expands = sorted({c.expand for c in stage.choices})
    ses = sorted({c.se for c in stage.choices})
    product = {(k, e, s) for k in kernels for e in expands for s in ses}
    contiguous = stage.depths == tuple(range(stage.depths[0], stage.depths[-1] + 1))
    if (
        product != {(c.kernel, c.expand, c.se) for c in stage.choices}
        or not contiguous
        or stage.has_expand_range
        or stage.per_position
        or stage.full_expand
    ):
        raise BadSpace(
            f"stages[{number}] must be a full product of kernels, expands and se, with a range of depths",
            value=", ".join(c.label for c in stage.choices),
            remedy="Keep such a space in Python.",
        )
    return {
        "width": list(stage.widths),
        "depth": [stage.depths[0], stage.depths[-1]],
        "stride": stage.stride,
        "kernels": kernels,
        "expands": expands,
        "se": ses,
        "act": stage.act,
        "per": stage.per,
    }


def _complaint(error: ValidationError, origin: str) -> BadSpace:
    first = error.errors()[0]
    # A union's branch ("int", "list[int]") is pydantic's own word, not a key of the file.
    keys = [
        str(p) if isinstance(p, int) else p for p in first["loc"] if not str(p).startswith(("list[", "int", "float"))
    ]
    place = ".".join(keys)
    if first["type"] == "extra_forbidden":
        if keys[-1] in _RENAMED:
            return BadSpace(
                f"{origin}: a key has another name now", value=place, remedy=f"Write {_RENAMED[keys[-1]]} instead."
            )
        known = _known_keys(keys[:-1])
        near = difflib.get_close_matches(keys[-1], known, n=1, cutoff=0.4)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        return BadSpace(f"{origin}: unknown key", value=place, remedy=f"{hint}Known there: {', '.join(known)}.")
    if first["type"] == "missing":
        return BadSpace(f"{origin}: a key is missing", value=place, remedy=f"Add {keys[-1]!r} there.")
    return BadSpace(
        f"{origin}: {place}: {first['msg']}", value=first["input"], remedy="Put a value of that kind there."
    )


def _known_keys(path: list[str]) -> list[str]:
    models: dict[str, type[_Strict]] = {
        "stem": _StemFile,
        "stages": _StageFile,
        "head": _HeadFile,
        "rules": _RulesFile,
    }
    return list(models.get(path[0] if path else "", _SpaceFile).model_fields)


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
        return _SPACE.validate_json(json.dumps(_renamed(value)), strict=True)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise DamagedFile(f"{where} must hold a whole space ({place})", remedy=remedy) from error
    except BadSpace as error:
        raise DamagedFile(f"{where} must hold a sound space ({error.rule})", remedy=remedy) from error


def _renamed(value: Any) -> Any:
    if isinstance(value, dict):
        return {_RENAMED.get(key, key): _renamed(item) for key, item in value.items()}
    return [_renamed(item) for item in value] if isinstance(value, list) else value


__all__ = ["find_space", "load_space", "names", "space_from_dict", "space_from_json", "space_to_dict", "space_to_json"]
