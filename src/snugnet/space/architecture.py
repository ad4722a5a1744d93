"""One network of a space: a frozen, hashable value that is passed, never set.

Text form, made for people and diffs:

    r224 c32 | c16 k3e1 | c24 k5e3 k5e3s | c40 2*k5e3 | f1280

input resolution and stem width; per stage its width and its blocks (kernel, expansion, `s` for SE, `:83` for a middle
width that is not the choice's own, `3*` for three alike); features before the classifier. The JSON form says the same in
words. Both are syntax here; whether the value belongs to a space is `check`'s word, and it names the place.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, NoReturn

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from pydantic_core import to_json

from snugnet.errors import BadArchitecture
from snugnet.space.space import BlockChoice, SearchSpace

_BLOCK = re.compile(r"(?:(\d+)\*)?k(\d+)e(\d+(?:\.\d+)?)(s?)(?::(\d+))?")
_REMEDY = "Write it like 'r224 c32 | c16 k3e1 | c24 k5e3 k5e3s | f1280'."
_MAX_BLOCKS = 1000  # of one stage: a bound on what a mistyped repeat can ask for


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True)
class Block:
    """What one block is: kernel, expansion, SE on or off, and its middle width where the space leaves that open."""

    kernel: int
    expand: float
    se: bool
    mid_channels: Annotated[int | None, Field(alias="middle")] = None  # the alias: its name in files

    @classmethod
    def of(cls, choice: BlockChoice, mid_channels: int | None = None) -> Block:
        """The block that takes `choice`, at a middle width where the choice leaves that open."""
        return cls(kernel=choice.kernel, expand=float(choice.expand), se=bool(choice.se), mid_channels=mid_channels)

    def __str__(self) -> str:
        text = f"k{self.kernel}e{self.expand:g}{'s' if self.se else ''}"
        return text if self.mid_channels is None else f"{text}:{self.mid_channels}"


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True)
class StageChoice:
    """Width and blocks of one stage; its depth is the number of blocks."""

    width: int
    blocks: tuple[Block, ...]


class PlacedBlock(NamedTuple):
    """A block and where it stands: stage and position count from 0."""

    stage: int
    position: int
    in_channels: int
    block: Block


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A whole network: input resolution, stem width, stages, head width."""

    resolution: int
    stem: int
    stages: tuple[StageChoice, ...]
    head: int

    def __str__(self) -> str:
        parts = [f"r{self.resolution} c{self.stem}"]
        for stage in self.stages:
            runs = [(len(list(run)), block) for block, run in itertools.groupby(stage.blocks)]
            words = [f"{n}*{block}" if n > 1 else str(block) for n, block in runs]
            parts.append(" ".join([f"c{stage.width}", *words]))
        return " | ".join([*parts, f"f{self.head}"])

    @property
    def depths(self) -> tuple[int, ...]:
        return tuple(len(stage.blocks) for stage in self.stages)

    def placed_blocks(self) -> Iterator[PlacedBlock]:
        """Every block, front to back, with the channels it receives."""
        before = self.stem
        for s, stage in enumerate(self.stages):
            for d, block in enumerate(stage.blocks):
                yield PlacedBlock(s, d, stage.width if d else before, block)
            before = stage.width

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = _JSON.dump_python(self, mode="json", by_alias=True, exclude_none=True)
        return value


_JSON = TypeAdapter(Architecture)


def parse(text: str, space: SearchSpace) -> Architecture:
    """The architecture that `text` describes, checked against `space`."""
    architecture = read_text_form(text)
    check(architecture, space)
    return architecture


def from_json(value: Any, space: SearchSpace) -> Architecture:
    """The architecture in a JSON object made by `Architecture.to_json`, checked against `space`."""
    architecture = read_json_form(value)
    check(architecture, space)
    return architecture


def read_text_form(text: str) -> Architecture:
    """Syntax only: the value `text` describes, in whatever space."""
    parts = [part.split() for part in text.strip().split("|")]
    if len(parts) < 3:
        _malformed("an architecture needs stem, stages and head, separated by '|'", text)
    first, last = parts[0], parts[-1]
    if len(first) != 2 or len(last) != 1:
        _malformed("an architecture starts with 'r<resolution> c<width> |' and ends with '| f<features>'", text)
    stages = []
    for number, words in enumerate(parts[1:-1], 1):
        if len(words) < 2:
            _malformed(f"stage {number} needs a width and at least one block", " ".join(words))
        blocks: list[Block] = []
        for word in words[1:]:
            blocks += _block(word, number)
        if len(blocks) > _MAX_BLOCKS:
            _malformed(f"stage {number} may have at most {_MAX_BLOCKS} blocks", len(blocks))
        stages.append(StageChoice(width=_number(words[0], "c", f"width of stage {number}"), blocks=tuple(blocks)))
    return Architecture(
        resolution=_number(first[0], "r", "resolution"),
        stem=_number(first[1], "c", "stem width"),
        stages=tuple(stages),
        head=_number(last[0], "f", "head width"),
    )


def read_json_form(value: Any) -> Architecture:
    """Syntax only: the value a JSON object describes, in whatever space."""
    try:
        return _JSON.validate_json(to_json(value, fallback=repr, inf_nan_mode="constants"), strict=True)
    except ValidationError as error:
        raise _complaint(error) from error


def _complaint(error: ValidationError) -> BadArchitecture:
    """The first mistake, with its place in the words of the text form: stages and blocks count from 1."""
    first, words = error.errors()[0], ["architecture"]
    for part in first["loc"]:
        if isinstance(part, int):
            words[-1] = f"{words[-1].removesuffix('s')} {part + 1}"
        else:
            words.append(part)
    what = ", ".join(words)
    if first["type"] == "missing":
        return BadArchitecture(f"{what} is missing", remedy=_REMEDY)
    if first["type"] == "unexpected_keyword_argument":
        return BadArchitecture(f"{what} is not a field that is known there", remedy=_REMEDY)
    return BadArchitecture(f"{what}: {first['msg']}", value=first["input"], remedy=_REMEDY)


def check(architecture: Architecture, space: SearchSpace) -> None:
    """Raise `BadArchitecture`, naming the place, unless `architecture` belongs to `space`."""
    _member("resolution", architecture.resolution, space.resolutions, space)
    _member("stem width", architecture.stem, space.stem.widths, space)
    _member("number of stages", len(architecture.stages), (len(space.stages),), space)
    for number, (chosen, stage) in enumerate(zip(architecture.stages, space.stages), 1):
        _member(f"width of stage {number}", chosen.width, stage.widths, space)
        _member(f"depth of stage {number}", len(chosen.blocks), stage.depths, space)
    for placed in architecture.placed_blocks():
        _check_block(placed, space)
    for number, (chosen, stage) in enumerate(zip(architecture.stages, space.stages), 1):
        if stage.per == "stage" and len(set(chosen.blocks)) > 1:
            _outside(f"stage {number}: all blocks must be alike", " ".join(map(str, chosen.blocks)), space)
    _member("head width", architecture.head, space.head.widths, space)


def find_choice(placed: PlacedBlock, space: SearchSpace) -> int:
    """The number of the choice, of those at its place, that a block is."""
    block, choices = placed.block, space.stages[placed.stage].choices_at(placed.position)
    for number, choice in enumerate(choices):
        if (choice.kernel, choice.expand, bool(choice.se)) == (block.kernel, block.expand, block.se):
            return number
    raise BadArchitecture(
        f"stage {placed.stage + 1}, block {placed.position + 1} must be one of the choices of space {space.name!r}",
        value=str(block),
        remedy=f"Offered there: {', '.join(c.label for c in choices)}.",
    )


def _check_block(placed: PlacedBlock, space: SearchSpace) -> None:
    choice = space.stages[placed.stage].choices_at(placed.position)[find_choice(placed, space)]
    place, width = f"stage {placed.stage + 1}, block {placed.position + 1}", placed.block.mid_channels
    if (width is None) != (choice.expand_range is None):
        rule = "needs a middle width (':83')" if choice.expand_range else "has no free middle width"
        _outside(f"{place} {rule}", str(placed.block), space)
    if width is not None and width not in (mid_range := space.mid_range(choice, placed.in_channels)):
        steps = "" if mid_range.step == 1 else f" in steps of {mid_range.step}"
        _outside(f"{place}: middle width must be {mid_range[0]} to {mid_range[-1]}{steps}", width, space)


def _block(word: str, stage: int) -> list[Block]:
    match = _BLOCK.fullmatch(word)
    if match is None:
        _malformed(f"stage {stage}: a block is written like k5e6s, k3e3s:83 or 3*k3e4", word)
    repeat = int(match[1]) if match[1] else 1
    if not 1 <= repeat <= _MAX_BLOCKS:
        _malformed(f"stage {stage}: a repeat must be 1 to {_MAX_BLOCKS}", word)
    expand = float(match[3])
    mid_channels = int(match[5]) if match[5] else None
    return [Block(kernel=int(match[2]), expand=expand, se=bool(match[4]), mid_channels=mid_channels)] * repeat


def _number(word: str, letter: str, what: str) -> int:
    if not re.fullmatch(letter + r"\d{1,9}", word):
        _malformed(f"{what} is written {letter}<number>", word)
    return int(word[1:])


def _member(what: str, value: int, known: tuple[int, ...], space: SearchSpace) -> None:
    if value not in known:
        _outside(f"{what} must be {' or '.join(map(str, known))}", value, space)


def _outside(rule: str, value: object, space: SearchSpace) -> NoReturn:
    raise BadArchitecture(
        f"{rule} in space {space.name!r}", value=value, remedy=f"See `snugnet show {space.name}` for what it offers."
    )


def _malformed(rule: str, value: object) -> NoReturn:
    raise BadArchitecture(rule, value=value, remedy=_REMEDY)
