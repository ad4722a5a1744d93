"""From a name or a YAML file, and `--set key=value`, to a checked recipe; every complaint names its place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

import yaml
from pydantic import ValidationError

from snugnet.errors import BadInput, DamagedFile, UnknownName
from snugnet.fitting.recipe import (
    PHASE_MODELS,
    DataSection,
    FinetuneSection,
    MeasureSection,
    Recipe,
    SearchSection,
    SpaceSection,
    TrainSection,
)
from snugnet.store import read_text
from snugnet.training.methods import RENAMED

_KNOWN: dict[tuple[str, ...], list[str]] = {
    (): list(Recipe.model_fields),
    ("data",): list(DataSection.model_fields),
    ("space",): list(SpaceSection.model_fields),
    ("train",): list(TrainSection.model_fields),
    ("measure",): list(MeasureSection.model_fields),
    ("search",): list(SearchSection.model_fields),
    ("finetune",): list(FinetuneSection.model_fields),
    **{("train", "phases", name): list(model.model_fields) for name, model in PHASE_MODELS.items()},
}


def names() -> list[str]:
    """The recipes that come with the package."""
    folder = resources.files("snugnet.fitting") / "recipes"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def find(word: str, changes: Sequence[str] = ()) -> Recipe:
    """A shipped recipe by name, or a file; `changes` are "key=value" with keys like train.phases[0].epochs."""
    if word.lower().endswith((".yaml", ".yml")):
        return read(read_text(word), changes, origin=word)
    if word not in names():
        raise UnknownName("recipe", word, [*names(), "FILE.yaml"])
    return read((resources.files("snugnet.fitting") / "recipes" / f"{word}.yaml").read_text(), changes, origin=word)


def read(text: str, changes: Sequence[str] = (), *, origin: str = "recipe") -> Recipe:
    """The recipe in a YAML text."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        place = f" at line {where.line + 1}, column {where.column + 1}" if where else ""
        raise DamagedFile(f"{origin} must be YAML{place}", remedy="Correct the syntax there.") from error
    if not isinstance(value, dict):
        raise BadInput(
            f"{origin} must be a mapping with {', '.join(_KNOWN[()])}", value=value, remedy="See a shipped one."
        )
    for change in changes:
        change_value(value, change)
    try:
        recipe = Recipe.model_validate(value)
    except ValidationError as error:
        raise _complaint(error, origin) from error
    for method in recipe.train.methods():
        method.check()
    return recipe


def change_value(recipe: dict[str, Any], change: str) -> None:
    """Apply one "key=value" to the plain dictionary; what the key means is checked with the recipe."""
    key, equals, text = change.partition("=")
    steps = re.findall(r"[^.\[\]]+", key)
    if not equals or not steps:
        raise BadInput("--set takes key=value", value=change, remedy="For example --set train.batch=64.")
    place: Any = recipe
    for number, step in enumerate(steps):
        last = number == len(steps) - 1
        if isinstance(place, list):
            if not step.isdigit() or int(step) >= len(place):
                raise BadInput(
                    f"{key}: there are {len(place)} entries, counted from 0", value=step, remedy="Take one of them."
                )
            index: Any = int(step)
        elif isinstance(place, dict):
            index = step
            if not last:
                place.setdefault(step, {})
        else:
            raise BadInput(f"{key} must name a value inside a section", value=change, remedy="See the recipe's keys.")
        if last:
            place[index] = _value(text, change)
        else:
            place = place[index]


def _value(text: str, change: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadInput("--set takes key=value with a YAML value", value=change, remedy="Quote the value.") from error


def _renamed(place: str, old: str) -> BadInput:
    return BadInput(f"{place} has a new name", value=old, remedy=f"Write {RENAMED[old]}.")


def _complaint(error: ValidationError, origin: str) -> BadInput | UnknownName:
    first = error.errors(include_url=False)[0]
    steps = first["loc"]
    place = ".".join(str(step) for step in steps if step not in PHASE_MODELS) or "recipe"
    if first["type"] == "extra_forbidden":
        if steps[-1] in RENAMED:
            return _renamed(f"{origin}: key {place}", str(steps[-1]))
        parent = tuple(step for step in steps[:-1] if isinstance(step, str))
        return UnknownName(f"{origin}: key {place}", str(steps[-1]), _KNOWN.get(parent, []))
    if first["type"] in ("union_tag_invalid", "union_tag_not_found"):
        given = first["input"].get("method") if isinstance(first["input"], dict) else first["input"]
        if given in RENAMED:
            return _renamed(f"{origin}: {place}.method", str(given))
        return UnknownName(f"{origin}: {place}.method", str(given), list(PHASE_MODELS))
    if first["type"] == "missing":
        return BadInput(f"{origin}: {place} is required", remedy="Add it to the recipe.")
    message = first["msg"][0].lower() + first["msg"][1:]
    return BadInput(f"{origin}: {place}: {message}", value=first["input"], remedy="Correct the recipe or the --set.")
