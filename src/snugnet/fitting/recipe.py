"""Recipes: a whole run as data, from a shipped name or a YAML file, with `--set key=value`, to checked values.

One model per section, unknown keys refused, defaults filled in; every complaint names its place. The phases of `train`
are the methods' own dataclasses: their fields are the keys, their defaults the defaults, so a new method is in the recipes
the moment it is in `methods.PHASES`. A recipe only says what is wanted; `fitting.pipeline` does it.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator, model_validator

from snugnet.data.dataset import Data, load
from snugnet.errors import BadInput, SnugnetError, UnknownName
from snugnet.evaluate.class_subset import pick_classes, read_class_accuracies, with_classes
from snugnet.nets.elasticise import space_around
from snugnet.nets.trained import load_start
from snugnet.space.reading import find_space
from snugnet.space.space import SearchSpace
from snugnet.store import parse_yaml, read_text
from snugnet.training.method import Method
from snugnet.training.methods import PHASES, RENAMED
from snugnet.training.trackers import NAMES as TRACKERS


class Section(BaseModel):
    """Frozen, and strict about names; numbers may be written as YAML likes them (1e-4 is text to YAML)."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ClassSubset(Section):
    """Classes for the search: named, or one of each group of neighbours in the accuracies of a file (`snugnet classes`)."""

    classes: tuple[int, ...] = ()
    accuracies: str | None = None
    groups: int = 100
    seed: int = 0

    @model_validator(mode="after")
    def _one_way(self) -> ClassSubset:
        if bool(self.classes) == (self.accuracies is not None):
            raise ValueError("a subset has either `classes` or `accuracies`")
        return self

    def of(self, data: Data) -> Data:
        classes: Sequence[int] = self.classes
        if self.accuracies is not None:
            found = read_class_accuracies(self.accuracies, data)
            classes = pick_classes(found.accuracy, self.groups, self.seed)
        return with_classes(data, classes, self.seed)


class DataSection(Section):
    """Which images."""

    name: str
    resolution: int | None = None
    seed: int = 0  # of the 80/20 split
    root: str | None = None
    on_corrupt: Literal["refuse", "skip"] = "refuse"
    workers: int = 2
    subset: ClassSubset | None = None  # of the classes, for training and search; the found network is trained on all

    def load(self, *, whole: bool = False) -> Data:
        data = load(
            self.name,
            resolution=self.resolution,
            seed=self.seed,
            root=self.root,
            on_corrupt=self.on_corrupt,
            workers=self.workers,
        )
        return data if self.subset is None or whole else self.subset.of(data)


class SpaceSection(Section):
    """A preset's name or a YAML file of one's own; classes and resolution follow the data."""

    name: str
    width: float | None = None
    mid_divisor: int | None = Field(default=None, ge=1)  # middle widths, free ones too, in multiples of it

    def build(self, data: Data) -> SearchSpace:
        space = self._named(data)
        if self.mid_divisor is None:
            return space
        return dataclasses.replace(space, rules=dataclasses.replace(space.rules, mid_divisor=self.mid_divisor))

    def _named(self, data: Data) -> SearchSpace:
        if Path(self.name).suffix.lower() in (".yaml", ".yml"):
            return find_space(self.name)
        options: dict[str, Any] = {"classes": data.about.task_classes, "resolution": data.about.resolution}
        return find_space(self.name, **options, **({} if self.width is None else {"width": self.width}))


class StartSection(Section):
    """A trained network to start from, by name or file, and the space around it (`sn.elastic`)."""

    name: str
    resolutions: tuple[int, ...] = Field(min_length=1)  # the largest is where the starting network itself is measured
    expands: tuple[float, ...] = (0.35, 0.5, 0.67, 1.0)
    kernels: bool = True
    depth: bool = True

    @property
    def options(self) -> dict[str, Any]:
        """What `sn.elastic` and `space_around` are asked for."""
        return self.model_dump(include={"resolutions", "expands", "kernels", "depth", "name"})


def _phase_model(name: str, method: type[Method]) -> type[Section]:
    """The recipe's form of a method: `method: NAME` and the method's fields."""
    hints = typing.get_type_hints(method)
    fields: dict[str, Any] = {"method": (Literal[name], ...)}
    for field in dataclasses.fields(method):
        fields[field.name] = (hints[field.name], field.default)
    return create_model(f"{name.capitalize()}Phase", __base__=Section, **fields)


PHASE_MODELS = {name: _phase_model(name, method) for name, method in PHASES.items()}
Phase = Annotated[typing.Union[tuple(PHASE_MODELS.values())], Field(discriminator="method")]  # type: ignore[valid-type]  # noqa: UP007


class TrainSection(Section):
    """How the super-network is trained: phases, one after the other."""

    batch: int = Field(default=128, ge=1)
    accumulate: int = 1
    channels_last: bool = False
    precision: str = "auto"
    device: Literal["auto", "cpu", "cuda"] = (
        "auto"  # of training, search and fine-tuning; auto: cuda where there is one
    )
    eval_times: int = 10
    checkpoint_seconds: float = 20.0
    phases: list[Phase] = Field(min_length=1)  # type: ignore[valid-type]

    def methods(self) -> list[Method]:
        methods = []
        phases: list[Section] = self.phases
        for phase in phases:
            fields = phase.model_dump()
            methods.append(PHASES[fields.pop("method")](**fields))
        return methods


class MeasureSection(Section):
    """Where the network will run, and how long to measure there. `devices` gives one to every label of the budget."""

    device: str = "onnxruntime"
    threads: int = 1
    precision: str = "float32"
    batch: int = 1
    seconds: float = 240.0
    check: int = 12  # networks to check the table on; 0: none
    lazy: bool = False  # sixteen networks and their parts at first, any other part when a network has it

    @field_validator("check")
    @classmethod
    def _enough(cls, networks: int) -> int:
        if networks and networks < 3:
            raise ValueError("a check must have at least 3 networks, or none (0)")
        return networks


class SearchSection(Section):
    """How the network is looked for; `rounds` of measuring and tightening until it fits as measured."""

    method: str = "adaptive"
    options: dict[str, Any] = Field(default_factory=dict)
    front: int = 12  # points of the front in the report; 0: none
    rounds: int = Field(default=5, ge=1)


class FinetuneSection(Section):
    """What the found network is trained with: inherited weights and the largest network as teacher, or from scratch."""

    epochs: int | float = Field(
        default=10, ge=0
    )  # 0: inherited weights as they are, with batch-norm statistics of its own
    scratch: bool = False
    from_start: bool = False  # with a `start`: from its own weights, not from what phases of training made of them
    batch: int = Field(default=128, ge=1)
    # Of all steps together: epochs become fewer or more, between half and twice, for the run to come out there.
    run_seconds: float | None = Field(default=None, gt=0)
    options: dict[str, Any] = Field(default_factory=dict)  # of the method: lr, distill, temperature, mixup, ...

    @model_validator(mode="before")
    @classmethod
    def _split_is_an_option(cls, section: Any) -> Any:
        """`split: train+val` may stand in the section itself, where people look for it."""
        if not isinstance(section, dict) or "split" not in section:
            return section
        rest = {key: value for key, value in section.items() if key != "split"}
        options = {"split": section["split"], **(rest.get("options") or {})}
        if options["split"] != section["split"]:
            raise ValueError(f"`split` is {section['split']!r} and, in `options`, {options['split']!r}: leave one out")
        return {**rest, "options": options}


class Recipe(Section):
    """A whole run."""

    name: str
    about: str = ""
    seed: int = 0
    data: DataSection
    space: SpaceSection | None = None
    start: StartSection | None = None  # instead of `space`: the space around a trained network
    train: TrainSection
    budget: dict[str, str | int | float | dict[str, str]] = Field(default_factory=dict)
    measure: MeasureSection = MeasureSection()
    devices: dict[str, MeasureSection] = Field(default_factory=dict)  # label -> where `latency@label` is measured
    search: SearchSection = SearchSection()
    finetune: FinetuneSection = FinetuneSection()
    trackers: tuple[Literal[TRACKERS], ...] | None = None  # type: ignore[valid-type]  # None: TensorBoard where it is installed

    @model_validator(mode="after")
    def _one_space(self) -> Recipe:
        if (self.space is None) == (self.start is None):
            raise ValueError("a recipe has either `space` or `start`")
        if self.finetune.from_start and self.start is None:
            raise ValueError("`finetune: {from_start: true}` needs a `start`")
        if self.data.subset is not None and self.start is not None:
            raise ValueError("a `subset` of the classes is for a search from nothing, not from a `start`")
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process as data: the models of phases are made when this file is read, and have no name there."""
        return Recipe.model_validate, (self.resolved(),)

    def load_data(self, resolution: int | None = None, *, whole: bool = False) -> Data:
        """The images, normalised as a starting network is used to; at another `resolution` than the recipe's if given.
        `whole`: of all classes, also where the search has a subset."""
        section = self.data if resolution is None else self.data.model_copy(update={"resolution": resolution})
        data = section.load(whole=whole)
        if self.start is None:
            return data
        start = load_start(self.start.name)
        return data.normalised_by(start.mean, start.std)

    def build_space(self, data: Data) -> SearchSpace:
        """The space that is searched."""
        if self.start is not None:
            return space_around(load_start(self.start.name).plan, classes=data.classes, **self.start.options)
        assert self.space is not None
        return self.space.build(data)

    @property
    def source(self) -> str:
        """How the space is called."""
        section = self.start or self.space
        assert section is not None
        return section.name

    @property
    def needs_budget(self) -> bool:
        """Whether training itself depends on the budget: a method that searches while it trains."""
        return any(method.needs_budget for method in self.train.methods())

    def trained(self) -> dict[str, Any]:
        """What the super-network depends on: a run that differs in the rest need not be trained again."""
        costs = {"budget", "measure", "devices"} if self.needs_budget else set()
        parts = self.model_dump(mode="json", include={"seed", "data", "space", "start", "train", *costs})
        del parts["train"]["device"]  # another device goes on with the same run
        return parts

    def place(self, resource: str) -> MeasureSection:
        """Where a limit on latency is measured: "latency" on `measure`, "latency@phone" on `devices.phone`."""
        label = resource.partition("@")[2]
        if not label:
            return self.measure
        if label not in self.devices:
            raise BadInput(
                f"the label of {resource} must have a device in the recipe",
                value=", ".join(self.devices) or "no devices",
                remedy=f"Add `devices: {{{label}: {{device: onnxruntime, threads: 2}}}}`, or drop the label.",
            )
        return self.devices[label]

    def resolved(self) -> dict[str, Any]:
        """With every default spelt out: what is kept in the run folder."""
        return self.model_dump(mode="json")


_KNOWN: dict[tuple[str, ...], list[str]] = {
    (): list(Recipe.model_fields),
    ("data",): list(DataSection.model_fields),
    ("space",): list(SpaceSection.model_fields),
    ("start",): list(StartSection.model_fields),
    ("train",): list(TrainSection.model_fields),
    ("measure",): list(MeasureSection.model_fields),
    ("devices",): list(MeasureSection.model_fields),
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
    value = parse_yaml(text, origin)
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
            place[index] = parse_yaml(text, f"--set {change}")
        else:
            place = place[index]


def unknown_key(kind: str, key: str, known: Sequence[str]) -> SnugnetError:
    """The refusal of a key or name: with its new name if it had another one, else with the nearest known."""
    if RENAMED.get(key) in known:
        return BadInput(f"{kind} has a new name", value=key, remedy=f"Write {RENAMED[key]}.")
    return UnknownName(kind, key, known)


def _complaint(error: ValidationError, origin: str) -> SnugnetError:
    first = error.errors(include_url=False)[0]
    steps = first["loc"]
    place = ".".join(str(step) for step in steps if step not in PHASE_MODELS) or "recipe"
    if first["type"] == "extra_forbidden":
        parent = tuple(step for step in steps[:-1] if isinstance(step, str))
        known = _KNOWN.get(parent) or _KNOWN.get(parent[:1]) or []
        return unknown_key(f"{origin}: key {place}", str(steps[-1]), known)
    if first["type"] in ("union_tag_invalid", "union_tag_not_found"):
        given = first["input"].get("method") if isinstance(first["input"], dict) else first["input"]
        return unknown_key(f"{origin}: {place}.method", str(given), list(PHASE_MODELS))
    if first["type"] == "missing":
        return BadInput(f"{origin}: {place} is required", remedy="Add it to the recipe.")
    message = first["msg"][0].lower() + first["msg"][1:]
    remedy = f"Give {place} such a value, in the recipe or with --set {place}=VALUE."
    return BadInput(f"{origin}: {place}: {message}", value=first["input"], remedy=remedy)
