"""What a recipe may say: one model per section, unknown keys refused, defaults filled in.

The phases of `train` are the methods' own dataclasses: their fields are the keys, their defaults the defaults, so a new
method is in the recipes the moment it is in `methods.PHASES`.
"""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from snugnet.data.dataset import Data, load
from snugnet.space.reading import find_space
from snugnet.space.space import SearchSpace
from snugnet.training.method import Method
from snugnet.training.methods import PHASES


class Section(BaseModel):
    """Frozen, and strict about names; numbers may be written as YAML likes them (1e-4 is text to YAML)."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataSection(Section):
    """Which images."""

    name: str
    resolution: int | None = None
    seed: int = 0  # of the 80/20 split
    root: str | None = None
    on_corrupt: Literal["refuse", "skip"] = "refuse"
    workers: int = 2

    def load(self) -> Data:
        return load(
            self.name,
            resolution=self.resolution,
            seed=self.seed,
            root=self.root,
            on_corrupt=self.on_corrupt,
            workers=self.workers,
        )


class SpaceSection(Section):
    """A preset's name or a YAML file of one's own; classes and resolution follow the data."""

    name: str
    width: float | None = None

    def build(self, data: Data) -> SearchSpace:
        if Path(self.name).suffix.lower() in (".yaml", ".yml"):
            return find_space(self.name)
        options: dict[str, Any] = {"classes": data.classes, "resolution": data.about.resolution}
        return find_space(self.name, **options, **({} if self.width is None else {"width": self.width}))


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

    batch: int = 128
    accumulate: int = 1
    channels_last: bool = False
    precision: str = "auto"
    eval_times: int = 10
    checkpoint_seconds: float = 20.0
    phases: list[Phase] = Field(min_length=1)  # type: ignore[valid-type]

    def methods(self) -> list[Method]:
        made = []
        phases: list[Section] = self.phases
        for phase in phases:
            fields = phase.model_dump()
            made.append(PHASES[fields.pop("method")](**fields))
        return made


class MeasureSection(Section):
    """Where the network will run, and how long to measure there."""

    device: str = "onnxruntime"
    threads: int = 1
    precision: str = "float32"
    batch: int = 1
    seconds: float = 240.0
    check: int = 12  # networks to check the table on; 0: none


class SearchSection(Section):
    """How the network is looked for; `rounds` of measuring and tightening until it fits as measured."""

    method: str = "instant"
    options: dict[str, Any] = Field(default_factory=dict)
    front: int = 12  # points of the front in the report; 0: none
    rounds: int = Field(default=5, ge=1)


class FinetuneSection(Section):
    """What the found network is trained with: inherited weights and the largest network as teacher, or from scratch."""

    epochs: int = Field(default=10, ge=0)  # 0: inherited weights as they are, with batch-norm statistics of its own
    scratch: bool = False
    batch: int = 128
    options: dict[str, Any] = Field(default_factory=dict)  # of the method: lr, distill, temperature, mixup, ...


class Recipe(Section):
    """A whole run."""

    name: str
    about: str = ""
    seed: int = 0
    data: DataSection
    space: SpaceSection
    train: TrainSection
    budget: dict[str, str | int | float] = Field(default_factory=dict)
    measure: MeasureSection = MeasureSection()
    search: SearchSection = SearchSection()
    finetune: FinetuneSection = FinetuneSection()

    def trained(self) -> dict[str, Any]:
        """What the super-network depends on: a run that differs in the rest need not be trained again."""
        return self.model_dump(mode="json", include={"seed", "data", "space", "train"})

    def resolved(self) -> dict[str, Any]:
        """With every default spelt out: what is kept in the run folder."""
        return self.model_dump(mode="json")
